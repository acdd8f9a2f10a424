"""The tool without torch, as in a CI job that only plans: what works, and the one line of what does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "safetensors", "gguf", "tokenizers", "jinja2", "transformers"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from nanoserve_cli.app import main
sys.argv[0] = "nanoserve"
main()
"""


def without_torch(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command in an interpreter that has the base install only."""
    environment = {key: value for key, value in os.environ.items() if key != "NANOSERVE_DEBUG"}
    return subprocess.run(
        [sys.executable, "-c", HIDE, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=60,
    )


def test_a_lockstep_run_is_planned() -> None:
    done = without_torch("bench", "--host-only", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert [run["padded_cells"] for run in found["runs"]] == [768, 20_480, 66_560, 680_960]
    assert (found["torch_version"], found["device"]) == (None, None)


def test_traffic_is_planned_with_a_policy_and_written(tmp_path: Path) -> None:
    trace, policy = tmp_path / "t.csv", tmp_path / "p.yaml"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,3\n0.1,9,4\n")
    policy.write_text("schema_version: 1\nmax_batch_size: 2\nmax_model_len: 32\nrows: [2]\nwidths: [32]\n")
    done = without_torch("bench", "--from", trace, "--policy", policy, "--host-only", "--out", tmp_path / "o")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "o" / "runs.csv").is_file()
    assert json.loads((tmp_path / "o" / "run.json").read_text())["runs"][0]["steps_per_shape"] == {"2x32": 5}


@pytest.mark.parametrize("traffic", [(), ("--num-requests", 2, "--max-model-len", 512)])
def test_a_run_says_what_to_install(traffic: tuple[object, ...]) -> None:
    done = without_torch("bench", *traffic)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: running a model needs torch: pip install 'nanoserve[engine]'")
    assert done.stderr.count("\n") == 1


def test_generate_says_it_too_and_nothing_that_it_cannot_do() -> None:
    done = without_torch("generate", "hi", "--model", "tiny")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "pip install 'nanoserve[engine]'" in done.stderr
    assert "--host-only" not in done.stderr


@pytest.mark.parametrize("arguments", [("fetch",), ("--help",), ("bench", "--help"), ("generate", "--help")])
def test_listing_and_help_need_nothing(arguments: tuple[str, ...]) -> None:
    done = without_torch(*arguments)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_torch_that_is_there_and_broken_is_not_called_missing(tmp_path: Path) -> None:
    """A torch whose own import fails is another problem than none, and its own words say which."""
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    code = "import sys; sys.argv = ['nanoserve', 'bench', '--steps', '8']; from nanoserve_cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "libcudart.so.13" in done.stderr
