"""A sweep as YAML and as flags: every key round trip, flags over the file, and one line for whatever is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from sweeping import invoke, refused, vidur

from nanoserve_cli.grid import Lockstep, Measurement, SweepSpec
from nanoserve_cli.sweep_flags import with_flags
from nanoserve_cli.sweep_spec import KEYS, SpecError, load_document, spec_of
from nanoserve_cli.traffic import TrafficOptions


def read(text: str, tmp_path: Path) -> SweepSpec:
    path = tmp_path / "spec.yaml"
    path.write_text(f"schema_version: 1\n{text}", encoding="utf-8")
    return spec_of(load_document(path), None, str(path))


def wrong(text: str, tmp_path: Path) -> str:
    """The one line of a spec that is bad, without the file's name."""
    with pytest.raises(SpecError) as caught:
        read(text, tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'spec.yaml'}: ")
    assert "\n" not in message
    return message.removeprefix(f"{tmp_path / 'spec.yaml'}: ")


DRAWN = {
    "num_requests": 9,
    "prompt_len": "uniform:4,20",
    "output_len": 7,
    "limit": 5,
    "max_len": "clip",
    "request_rate": 2,
    "burstiness": 0.5,
}
RECORDED = {
    "from": "a.csv",
    "format": "vidur",
    "strict": True,
    "limit": 5,
    "max_len": "clip",
    "request_rate": 2.5,
    "burstiness": 2,
}
FULL: dict[str, Any] = {
    "schema_version": 1,
    "traffic": [DRAWN, RECORDED, {"rows": 2, "prompt": 5, "steps": 9}],
    "width_multiple": [128, 512],
    "width_ladder": ["pow2:16", "list:5,9"],
    "max_batch": [8, 64],
    "max_model_len": [1024, 2048],
    "rows_ladder": ["vllm", "list:1,2"],
    "link": False,
    "step_time": 5,
    "seed": 3,
    "repeats": 2,
    "budget_graphs": 36,
    "budget_mib": 0.5,
    "host_only": False,
    "measure": True,
    "measure_compiles": False,
    "model": "small",
    "runner": "compiled",
    "compile_backend": "inductor",
    "device": "cpu",
    "dtype": "bfloat16",
}


class TestKeys:
    def test_every_key_of_a_spec_arrives(self, tmp_path: Path) -> None:
        assert tuple(sorted(FULL)) == tuple(sorted(KEYS))
        path = tmp_path / "full.yaml"
        path.write_text(yaml.safe_dump(FULL), encoding="utf-8")
        drawn = TrafficOptions(
            num_requests=9,
            prompt_len="uniform:4,20",
            output_len="7",
            limit=5,
            max_len="clip",
            request_rate=2.0,
            burstiness=0.5,
            seed=3,
        )
        recorded = TrafficOptions("a.csv", "vidur", True, "/t", 5, "clip", None, 2.5, 2.0, seed=3)
        assert spec_of(load_document(path), Path("/t"), "") == SweepSpec(
            traffic=(drawn, recorded, Lockstep(2, 5, 9)),
            max_model_len=(1024, 2048),
            max_batch=(8, 64),
            rows_ladder=("vllm", "list:1,2"),
            width_ladder=("multiple:128", "multiple:512", "pow2:16", "list:5,9"),
            link=False,
            step_time="5",
            seed=3,
            repeats=2,
            budget_graphs=36,
            budget_mib=0.5,
            host_only=False,
            measure=True,
            measure_compiles=False,
            measurement=Measurement("small", "compiled", "inductor", "cpu", "bfloat16"),
        )

    def test_each_setting_moves_the_sweep(self) -> None:
        """No key is read and forgotten: each changes the sweep that the others make."""
        base = {
            "traffic": DRAWN,
            "measure": True,
            "runner": "compiled",
            "max_batch": [8, 64],
            "max_model_len": [64, 128],
        }
        others = FULL | {"link": True, "budget_mib": 1, "rows_ladder": "vllm", "width_ladder": "pow2:16"}
        moved = {
            key
            for key in others
            if key not in base and spec_of(base | {key: others[key]}, None, "") != spec_of(base, None, "")
        }
        assert moved == set(KEYS) - {"schema_version", "host_only", *base}
        assert spec_of({"host_only": True}, None, "").host_only

    def test_an_empty_mapping_is_the_bare_sweep(self) -> None:
        assert spec_of({}, None, "") == SweepSpec()

    def test_a_list_may_be_one_value(self, tmp_path: Path) -> None:
        one = "max_batch: 4\nmax_model_len: 64\nrows_ladder: vllm\nwidth_multiple: 8\ntraffic: {steps: 9}\n"
        many = "max_batch: [4]\nmax_model_len: [64]\nrows_ladder: [vllm]\nwidth_multiple: [8]\ntraffic: [{steps: 9}]\n"
        assert read(one, tmp_path) == read(many, tmp_path)

    def test_the_seed_of_the_sweep_is_that_of_its_traffic(self) -> None:
        (traffic,) = spec_of({"seed": 7, "traffic": DRAWN}, None, "").traffic
        assert isinstance(traffic, TrafficOptions)
        assert traffic.seed == 7

    def test_a_step_time_is_kept_as_it_would_be_written(self) -> None:
        assert spec_of({"step_time": 2.50}, None, "").step_time == "2.5"
        assert spec_of({"step_time": "linear:1.0,0.10,0"}, None, "").step_time == "linear:1,0.1,0"

    def test_the_specs_of_the_repository_are_sweeps(self) -> None:
        found = (Path(__file__).resolve().parents[2] / "sweeps").glob("*.yaml")
        sweeps = [path for path in found if path.name != "budget.yaml"]
        assert sweeps
        for path in sweeps:
            assert spec_of(load_document(path), None, str(path)).points


class TestWrong:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("max_bacth: 8\n", "unknown key 'max_bacth': did you mean max_batch?"),
            ("width_multiples: 8\n", "unknown key 'width_multiples': did you mean width_multiple?"),
            ("rows_laddr: vllm\n", "unknown key 'rows_laddr': did you mean rows_ladder?"),
            ("qqq: 1\n", f"unknown key 'qqq': known: {', '.join(KEYS)}"),
            ("max_batch: eight\n", "max_batch takes integers of at least 1, got 'eight'"),
            ("max_batch: [8, 0]\n", "max_batch takes integers of at least 1, got 0"),
            ("max_batch: true\n", "max_batch takes integers of at least 1, got True"),
            ("max_model_len: 8.0\n", "max_model_len takes integers of at least 1, got 8.0"),
            ("max_batch: []\n", "max_batch lists nothing: the grid has no point"),
            ("rows_ladder: []\n", "rows_ladder lists nothing: the grid has no point"),
            ("traffic: []\n", "traffic lists nothing: the grid has no point"),
            ("rows_ladder: 8\n", "rows_ladder takes text, got 8"),
            ("rows_ladder: [vlmm]\n", "unknown row rule 'vlmm': did you mean vllm?"),
            ("rows_ladder: 'list:2,1'\n", "row rule 'list:2,1': the list must be strictly ascending: 1 comes after 2"),
            ("width_ladder: wide\n", "unknown width rule 'wide': give multiple:N, pow2:MIN or list:A,B,C"),
            ("width_multiple: 'a'\n", "width_multiple takes integers of at least 1, got 'a'"),
            ("link: 1\n", "link takes true or false, got 1"),
            ("seed: 1.5\n", "seed takes an integer, got 1.5"),
            ("seed: -1\n", "seed must be at least 0, got -1"),
            ("measure: true\nrepeats: 0\n", "repeats must be at least 1, got 0"),
            ("budget_graphs: 0\n", "budget_graphs must be at least 1, got 0"),
            ("budget_mib: -1\n", "budget_mib must be at least 0, got -1"),
            ("budget_mib: .nan\n", "budget_mib must be at least 0, got nan"),
            ("budget_mib: much\n", "budget_mib takes a number, got 'much'"),
            ("step_time: true\n", "step_time takes text or a number, got True"),
            ("model: 5\n", "model takes text, got 5"),
            (
                "measure: true\nrunner: fast\n",
                "runner 'fast' is unknown; choose one of eager, compiled, graphs",
            ),
            (
                "measure: true\nstep_time: 'linear:1,1,1'\n",
                "measure runs on a grid: step_time must be a number of ms, got linear:1,1,1",
            ),
            ("max_batch: [4, 4]\n", "the grid has a point twice: lockstep-512 4x8192 pow2 multiple:128"),
            (
                "width_multiple: 64\nwidth_ladder: 'multiple:64'\n",
                "the grid has a point twice: lockstep-512 8x8192 pow2 multiple:64",
            ),
            ("traffic: azure2023-conv\n", "traffic takes mappings, got 'azure2023-conv'"),
            ("traffic: {frm: a.csv}\n", "traffic: unknown key 'frm': did you mean from?"),
            ("traffic: {from: a.csv, rows: 3}\n", "traffic: unknown key 'rows': "),
            ("traffic: {from: a.csv, promptlen: 3}\n", "traffic: unknown key 'promptlen': "),
            ("traffic: {num_requests: 3, prompt_length: 3}\n", "unknown key 'prompt_length': did you mean prompt_len?"),
            ("traffic: {num_requests: 3, strict: true}\n", "traffic: unknown key 'strict': "),
            ("traffic: {limit: 3}\n", "traffic {'limit': 3} says neither from nor num_requests"),
            ("traffic: {num_requests: 0}\n", "num_requests takes integers of at least 1, got 0"),
            ("traffic: {num_requests: 3, limit: x}\n", "limit takes integers of at least 1, got 'x'"),
            ("traffic: {num_requests: 3, prompt_len: lots}\n", "bad length 'lots': "),
            ("traffic: {num_requests: 3, max_len: cut}\n", "max_len must be reject or clip, got 'cut'"),
            ("traffic: {num_requests: 3, request_rate: fast}\n", "request_rate takes a number, got 'fast'"),
            ("traffic: {num_requests: 3, burstiness: 2}\n", "burstiness shapes drawn arrivals: add request_rate"),
            ("traffic: {from: 5}\n", "from takes text, got 5"),
            ("traffic: {from: a.csv, strict: 1}\n", "strict takes true or false, got 1"),
            ("traffic: {rows: 0}\n", "rows takes integers of at least 1, got 0"),
            ("traffic: {steps: 9000}\n", "a prompt of 16 and 9000 steps need 9016 slots, max_model_len is 8192"),
            ("max_batch: 2\n", "a lockstep run of 3 rows does not fit max_batch 2"),
        ],
        ids=lambda value: value.strip().replace("\n", "; ")[:40] if ":" in value else "",
    )
    def test_is_one_line_that_names_the_key_and_the_value(self, text: str, message: str, tmp_path: Path) -> None:
        assert message in wrong(text, tmp_path)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("schema_version: 2\n", "schema_version must be 1, got 2"),
            ("max_batch: 8\n", "schema_version must be 1, got None"),
            ("[1, 2]\n", "is no mapping; a sweep has the keys schema_version, traffic, "),
            ("", "is no mapping; a sweep has the keys"),
            ("max_batch: [8\n", "is no YAML: "),
            ("\tmax_batch: 8\n", "is no YAML: "),
        ],
    )
    def test_a_file_that_is_no_spec(self, text: str, message: str, tmp_path: Path) -> None:
        path = tmp_path / "s.yaml"
        path.write_text(text, encoding="utf-8")
        assert refused("--spec", path, "--dry-run").startswith(f"{path}: {message}")

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        assert (
            refused("--spec", tmp_path / "no.yaml")
            == f"{tmp_path / 'no.yaml'}: cannot be read: No such file or directory"
        )

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("host_only: true\nmeasure: true\n", "measure needs torch: drop host_only"),
            ("host_only: true\nmeasure_compiles: true\n", "measure_compiles needs torch: drop host_only"),
            ("host_only: true\nmodel: small\n", "model needs torch: drop host_only"),
            ("repeats: 3\n", "repeats is of points that run: add measure"),
            ("runner: graphs\n", "runner is of points that run: add measure"),
            ("measure: false\ncompile_backend: count\n", "compile_backend is of points that run: add measure"),
            ("measure: true\ncompile_backend: count\n", "compile_backend is of runner compiled"),
        ],
    )
    def test_what_would_do_nothing_beside_the_rest_is_refused(self, text: str, message: str, tmp_path: Path) -> None:
        assert wrong(text, tmp_path) == message

    def test_what_is_switched_off_is_no_contradiction(self, tmp_path: Path) -> None:
        found = read("host_only: true\nmeasure: false\nmeasure_compiles: false\n", tmp_path)
        assert found == SweepSpec(host_only=True, measure_compiles=False)


class TestFlags:
    """What `--dry-run` prints of a spec with flags over it."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "s.yaml"
        text = "max_batch: [4, 8]\nmax_model_len: 256\nrows_ladder: [pow2, vllm]\nwidth_ladder: pow2:16\n"
        path.write_text(f"schema_version: 1\ntraffic: {{num_requests: 9}}\n{text}", encoding="utf-8")
        return path

    def points(self, *arguments: object) -> list[str]:
        result = invoke(*arguments, "--dry-run")
        assert (result.exit_code, result.stderr) == (0, "")
        *points, last = result.stdout.splitlines()
        assert last == f"{len(points)} points, nothing run"
        assert [line.split()[0] for line in points] == [str(n) for n in range(1, len(points) + 1)]
        return [line[5:] for line in points]

    def test_the_file_alone(self, path: Path) -> None:
        assert self.points("--spec", path) == [
            f"synthetic num_requests=9 {batch}x256 {rows} pow2:16" for batch in (4, 8) for rows in ("pow2", "vllm")
        ]

    def test_a_flag_replaces_the_files_list(self, path: Path) -> None:
        found = self.points("--spec", path, "--max-batch", "16", "--rows-ladder", "sglang", "--max-model-len", 64)
        assert found == ["synthetic num_requests=9 16x64 sglang pow2:16"]

    @pytest.mark.parametrize("flags", [("--width-multiple", "32"), ("--width-ladder", "multiple:32")])
    def test_a_width_flag_replaces_both_kinds_of_the_files_widths(self, flags: tuple[str, str], path: Path) -> None:
        found = self.points("--spec", path, "--max-batch", 4, "--rows-ladder", "pow2", *flags)
        assert found == ["synthetic num_requests=9 4x256 pow2 multiple:32"]

    def test_both_width_flags_add_up(self) -> None:
        found = self.points("--width-multiple", "128", "--width-ladder", "pow2:64,list:64,8192")
        assert [label.split()[-1] for label in found] == ["multiple:128", "pow2:64", "list:64,8192"]

    def test_traffic_that_a_flag_asks_for_replaces_the_files(self, path: Path) -> None:
        rest = ("--spec", path, "--max-batch", 4, "--rows-ladder", "pow2")
        assert self.points(*rest, "--steps", 9) == ["lockstep-9 4x256 pow2 pow2:16"]
        assert self.points(*rest, "--from", "a.csv", "--from", "b.csv", "--limit", 3) == [
            "a.csv limit=3 4x256 pow2 pow2:16",
            "b.csv limit=3 4x256 pow2 pow2:16",
        ]
        assert self.points(*rest, "--num-requests", 2, "--output-len", 5) == [
            "synthetic num_requests=2 output_len=5 4x256 pow2 pow2:16"
        ]

    def test_what_a_flag_says_more_of_traffic_goes_over_every_entry_of_the_file(self, path: Path) -> None:
        found = self.points("--spec", path, "--max-batch", 4, "--rows-ladder", "pow2", "--limit", 3)
        assert found == ["synthetic num_requests=9 limit=3 4x256 pow2 pow2:16"]

    def test_every_setting_that_is_one_value_can_be_a_flag(self) -> None:
        """A spec's keys but its lists and traffic, given as flags: the same document."""
        given = {key: FULL[key] for key in FULL if key not in ("schema_version", "traffic", "link", "host_only")}
        given |= {"width_ladder": "pow2:16,list:5,9", "rows_ladder": "vllm,list:1,2", "width_multiple": "128,512"}
        given |= {"max_batch": "8,64", "max_model_len": "1024,2048"}
        document = with_flags({}, given, {f"--{key.replace('_', '-')}" for key in given})
        flags = spec_of(document | {"traffic": FULL["traffic"]}, Path("/t"), "")
        assert flags == spec_of(FULL, Path("/t"), "")

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (("--from", "a.csv", "--prompt-len", 5), "--prompt-len is no flag of a recorded trace"),
            (("--from", "a.csv", "--steps", 5), "--steps is no flag of a recorded trace"),
            (("--num-requests", 2, "--strict"), "--strict is no flag of drawn requests"),
            (("--num-requests", 2, "--trace-format", "vidur"), "--trace-format is no flag of drawn requests"),
            (("--num-requests", 2, "--rows", 5), "--rows is no flag of drawn requests"),
            (("--steps", 2, "--limit", 5), "--limit is no flag of a lockstep run"),
            (("--num-requests", 2, "--burstiness", 2), "burstiness shapes drawn arrivals: add request_rate"),
            (("--limit", 5), "--limit is a flag of traffic: add --from FILE or --num-requests N"),
            (("--strict",), "--strict is a flag of traffic: add --from FILE or --num-requests N"),
            (("--trace-dir", "/t"), "--trace-dir is of recorded traces: add --from KEY"),
            (
                ("--num-requests", 2, "--from", "a.csv"),
                "--from replays what was recorded, --num-requests draws: give one of them",
            ),
        ],
    )
    def test_flags_of_different_traffic_are_refused_and_never_ignored(
        self, flags: tuple[object, ...], message: str
    ) -> None:
        assert refused(*flags) == message

    def test_keys_are_looked_up_in_the_folder_that_a_flag_or_the_environment_names(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        named = with_flags({}, {"source": ["k"], "trace_dir": tmp_path}, {"--from", "--trace-dir"})
        (traffic,) = spec_of(named, tmp_path, "").traffic
        assert traffic == replace(TrafficOptions("k"), trace_dir=str(tmp_path))
        vidur(tmp_path / "t.csv", [(0, 5, 3)])
        monkeypatch.setenv("NANOSERVE_TRACES", str(tmp_path))
        assert invoke("--steps", 8, "--host-only", "-q").exit_code == 0, (
            "an environment is no flag that asks for traffic"
        )

    def test_json_of_a_spec_is_yaml(self, tmp_path: Path) -> None:
        """YAML holds JSON: a program may write a spec."""
        path = tmp_path / "s.json"
        path.write_text(json.dumps(FULL), encoding="utf-8")
        assert spec_of(load_document(path), None, "") == spec_of(FULL, None, "")
