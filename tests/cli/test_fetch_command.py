"""`nanoserve fetch`: what there is, where it is, and what is said of a key that is none."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nanoserve_cli import assets, fetch
from nanoserve_cli.app import app
from nanoserve_cli.assets import ASSETS, Download

BODY = b"a model\n"


def run(*arguments: object, columns: int = 80) -> Any:
    return CliRunner().invoke(app, ["fetch", *map(str, arguments)], env={"COLUMNS": str(columns)})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a network that nobody may use, and sums that fit `BODY`."""
    monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path / "cache"))
    known = [replace(asset, sha256=hashlib.sha256(BODY).hexdigest()) for asset in ASSETS]
    monkeypatch.setattr(fetch, "ASSETS", tuple(known))
    monkeypatch.setattr(fetch, "_bring", lambda asset, *_: pytest.fail(f"{asset.key} was fetched"))
    return tmp_path / "cache"


@pytest.fixture
def kept(cache: Path) -> Callable[[str], Path]:
    def keep(key: str) -> Path:
        path = cache / next(asset.path for asset in ASSETS if asset.key == key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(BODY)
        return path

    return keep


class TestListing:
    def test_every_key_with_its_licence(self, cache: Path) -> None:
        shown = run(columns=200).stdout
        for asset in ASSETS:
            (line,) = (line for line in shown.splitlines() if line.strip().startswith(asset.key))
            assert asset.licence in line
            assert "not here" in line

    def test_no_key_is_lost_at_80_columns(self, cache: Path) -> None:
        shown = run().stdout
        assert [asset.key for asset in ASSETS if asset.key not in shown] == []
        assert [asset.licence for asset in ASSETS if asset.licence not in shown] == []
        assert "…" not in shown

    def test_what_is_here_has_its_path(self, kept: Callable[[str], Path]) -> None:
        path = kept("smollm2")
        shown = run(columns=400).stdout
        assert str(path) in shown
        assert shown.count("not here") == len(ASSETS) - 1

    def test_brackets_in_a_path_are_shown(
        self, cache: Path, kept: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept("smollm2")
        cache.rename(cache.with_name("c[x]"))
        monkeypatch.setenv("NANOSERVE_CACHE", str(cache.with_name("c[x]")))
        assert "c[x]/models" in run(columns=400).stdout

    def test_the_help_knows_every_key(self) -> None:
        shown = run("--help", columns=200).stdout
        assert all(asset.key in shown for asset in ASSETS)


class TestFetching:
    def test_what_is_there_already_is_not_fetched_and_its_path_is_all_of_stdout(
        self, kept: Callable[[str], Path]
    ) -> None:
        path = kept("smollm2")
        result = run("smollm2")
        assert (result.exit_code, result.stdout, result.stderr) == (0, f"{path}\n", "")

    def test_several_keys_are_a_path_each_in_their_order(self, kept: Callable[[str], Path]) -> None:
        paths = [kept(key) for key in ("azure2023-conv", "smollm2")]
        assert run("azure2023-conv", "smollm2").stdout.splitlines() == [str(path) for path in paths]

    def test_an_unknown_key_with_the_nearest(self, cache: Path) -> None:
        result = run("smolm2")
        expected = "error: nothing to fetch under 'smolm2': did you mean smollm2?\n"
        assert (result.exit_code, result.stdout, result.stderr) == (2, "", expected)

    def test_an_unknown_key_with_all_where_none_is_near(self, cache: Path) -> None:
        result = run("zzz")
        known = ", ".join(asset.key for asset in ASSETS)
        assert (result.exit_code, result.stderr) == (2, f"error: nothing to fetch under 'zzz': known: {known}\n")

    def test_an_unknown_key_among_others_stops_before_anything_is_fetched(self, cache: Path) -> None:
        result = run("smollm2", "zzz")
        assert (result.exit_code, result.stdout) == (2, "")
        assert not cache.exists()

    def test_no_network_is_one_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path))
        monkeypatch.setenv("no_proxy", "*")
        gone = replace(ASSETS[-1], source=Download("http://127.0.0.1:9/trace.jsonl"))
        monkeypatch.setattr(fetch, "ASSETS", (gone,))
        result = run(gone.key)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert result.stderr.startswith(f"error: {gone.key}: cannot reach http://127.0.0.1:9/trace.jsonl: ")
        assert not list(tmp_path.rglob("*.jsonl"))

    def test_a_cache_that_cannot_be_made(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path / "file"))
        result = run("azure2023-conv")
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert "cannot keep" in result.stderr


def test_keys_are_unique_and_paths_too() -> None:
    assert len({asset.key for asset in assets.ASSETS}) == len({asset.path for asset in assets.ASSETS}) == len(ASSETS)
