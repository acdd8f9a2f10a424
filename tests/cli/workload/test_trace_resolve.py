"""A trace by key or path."""

from pathlib import Path

import pytest

from nanoserve_cli.workload.errors import TraceError
from nanoserve_cli.workload.resolve import resolve_trace

NAME = "AzureLLMInferenceTrace_conv.csv"


@pytest.fixture(autouse=True)
def empty_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NANOSERVE_TRACES", raising=False)
    monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path / "cache"))


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    return path


@pytest.mark.parametrize("place", [NAME, f"azure2023/{NAME}", f"elsewhere/{NAME}"])
def test_a_key_is_found_in_the_folder_and_one_level_down(tmp_path: Path, place: str) -> None:
    path = put(tmp_path / place)
    assert resolve_trace("azure2023-conv", tmp_path) == path


def test_the_option_goes_before_the_environment_before_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = put(tmp_path / "cache/traces/azure2023" / NAME)
    assert resolve_trace("azure2023-conv") == cached
    monkeypatch.setenv("NANOSERVE_TRACES", str(tmp_path / "env"))
    assert resolve_trace("azure2023-conv") == cached, "a folder without the file is passed over"
    from_environment = put(tmp_path / "env" / NAME)
    assert resolve_trace("azure2023-conv") == from_environment
    from_option = put(tmp_path / "option" / NAME)
    assert resolve_trace("azure2023-conv", tmp_path / "option") == from_option


def test_anything_else_is_a_path(tmp_path: Path) -> None:
    path = put(tmp_path / "my.csv")
    assert resolve_trace(str(path)) == path


def test_a_key_that_is_nowhere_names_the_folders_and_the_command(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="run `nanoserve fetch azure2023-conv`") as caught:
        resolve_trace("azure2023-conv", tmp_path / "mine")
    assert str(tmp_path / "mine") in str(caught.value)
    assert str(tmp_path / "cache") in str(caught.value)


def test_a_misspelt_key_suggests_the_right_one() -> None:
    with pytest.raises(TraceError, match="azure2023-con: no such file, and no trace key: did you mean azure2023-conv"):
        resolve_trace("azure2023-con")
    with pytest.raises(TraceError, match="known: azure2023-conv, mooncake-conversation"):
        resolve_trace("zzz")
