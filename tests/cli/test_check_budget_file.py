"""The budget file: everything in it is checked, and every fault is one line with the file and the line."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from budgets import GRID, LOCKSTEP, budget, refused, run

from nanoserve_cli.check.budget_file import load_budgets
from nanoserve_cli.check.kinds import KINDS
from nanoserve_cli.check.located import read_located
from nanoserve_cli.columns import COLUMNS

LIMITS = "{padded_cells: {at_most: 20480}}"


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


class TestReading:
    def test_limits_with_their_values_margins_and_lines(self, tmp_path: Path) -> None:
        file = load_budgets(
            written(
                tmp_path / "b.yaml",
                f"""schema_version: 1
defaults: {{soft: 2%}}
budgets:
  - name: one
    workload: {{{LOCKSTEP}}}
    limits:
      padded_cells: {{at_most: 20_480, soft: 0.5%}}
      waste:
        at_least: 0.1   # a comment
        at_most: 0.6
      shapes_used: {{exactly: 1}}
      plan_us_bucketed: {{reported: true}}
    baseline: before.csv
    regress: {{total_waste: +1%, finished: 1%}}
""",
            )
        )
        (one,) = file.budgets
        assert [
            (limit.column.name, limit.kind, limit.value, limit.margin, limit.place.line) for limit in one.limits
        ] == [
            ("padded_cells", "at_most", 20480, Fraction(1, 200), 7),
            ("waste", "at_most", 0.6, Fraction(1, 50), 10),
            ("waste", "at_least", 0.1, Fraction(1, 50), 9),
            ("shapes_used", "exactly", 1, Fraction(1, 50), 11),
            ("plan_us_bucketed", "reported", None, Fraction(0), 12),
            ("total_waste", "regress", None, Fraction(1, 100), 14),
            ("finished", "regress", None, Fraction(1, 100), 14),
        ]
        assert (one.name, one.baseline) == ("one", Path("before.csv"))
        assert [file.text[limit.place.start : limit.place.end] for limit in one.limits[:3]] == ["20_480", "0.6", "0.1"]

    def test_default_options_of_the_same_kind_lie_under_a_budgets_own(self, tmp_path: Path) -> None:
        text = f"""schema_version: 1
defaults:
  workload: {{sweep: {{max_batch: 4, max_model_len: 64, traffic: {{steps: 8}}, host_only: true}}}}
budgets:
  - {{name: default, limits: {LIMITS}}}
  - {{name: own, workload: {{sweep: {{max_batch: 8}}}}, limits: {LIMITS}}}
  - {{name: other, workload: {{{LOCKSTEP}}}, limits: {LIMITS}}}
"""
        budgets = load_budgets(written(tmp_path / "b.yaml", text)).budgets
        points = [point.columns for one in budgets for point in one.workload.points()]
        assert [(columns["max_batch_size"], columns["max_model_len"]) for columns in points] == [
            (4, 64),
            (8, 64),
            (8, 80),
        ]

    def test_budgets_with_the_same_workload_share_one_run(self, tmp_path: Path) -> None:
        text = f"""schema_version: 1
budgets:
  - {{name: a, workload: &grid {{{GRID}}}, where: {{width_ladder: "multiple:16"}}, limits: {LIMITS}}}
  - {{name: b, workload: *grid, where: {{width_ladder: "multiple:32"}}, limits: {LIMITS}}}
"""
        found = run("check", written(tmp_path / "b.yaml", text))
        assert (found.exit_code, found.stderr) == (0, "running a\n")

    def test_an_anchor_and_a_merge_are_read_where_they_are_written(self, tmp_path: Path) -> None:
        text = f"""schema_version: 1
budgets:
  - name: a
    workload: {{{LOCKSTEP}}}
    limits: &tight
      padded_cells: {{at_most: 20480}}
      waste: {{at_most: 0.6}}
  - name: b
    workload: {{{LOCKSTEP}}}
    limits:
      <<: *tight
      waste: {{at_most: 0.9}}
"""
        path = written(tmp_path / "b.yaml", text)
        assert [
            (one.name, limit.column.name, limit.value, limit.place.line)
            for one in load_budgets(path).budgets
            for limit in one.limits
        ] == [
            ("a", "padded_cells", 20480, 6),
            ("a", "waste", 0.6, 7),
            ("b", "padded_cells", 20480, 6),
            ("b", "waste", 0.9, 12),
        ]
        located = read_located(path, "a budget file", ("schema_version", "budgets"), ValueError)
        assert located.places["budgets", 1, "limits"].line == 10

    def test_windows_lines_and_letters_of_any_script_shift_nothing(self, tmp_path: Path) -> None:
        path = budget(tmp_path / "b.yaml", LIMITS, name="größe-🙂")
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
        file = load_budgets(path)
        place = file.budgets[0].limits[0].place
        assert (file.text[place.start : place.end], place.line) == ("20480", 5)

    def test_metrics_are_every_count_and_time_that_is_a_number(self) -> None:
        figures = {
            column.name for column in COLUMNS if column.kind in {"count", "time"} and not column.name.startswith("fall")
        }
        assert set(KINDS["sweep"].metrics) == figures
        assert set(KINDS["bench"].metrics) == figures | {"new_storage"}


class TestFaults:
    @pytest.mark.parametrize(
        ("limits", "message"),
        [
            ("{paded_cells: {at_most: 1}}", "there is no metric 'paded_cells': did you mean padded_cells?"),
            ("{policy: {at_most: 1}}", "there is no metric 'policy': "),
            ("{falls_back_open: {at_most: 1}}", "there is no metric 'falls_back_open': "),
            ("{padded_cells: {at_mots: 1}}", "unknown key 'at_mots': did you mean at_most?"),
            ("{padded_cells: 20480}", "padded_cells must say how it holds, {at_most: 20480} or the like, got 20480"),
            ("{padded_cells: {at_most: '20480'}}", "padded_cells: at_most takes a number of at least 0, got '20480'"),
            ("{waste: {at_most: 38.5%}}", "waste: at_most takes a number of at least 0, got '38.5%'"),
            ("{waste: {at_most: .nan}}", "waste: at_most takes a number of at least 0, got nan"),
            ("{waste: {at_most: .inf}}", "waste: at_most takes a number of at least 0, got inf"),
            ("{waste: {at_most: -1}}", "waste: at_most takes a number of at least 0, got -1"),
            ("{waste: {at_most: true}}", "waste: at_most takes a number of at least 0, got True"),
            ("{waste: {at_most: }}", "waste: at_most takes a number of at least 0, got None"),
            ("{waste: {soft: 2%}}", "waste takes at_most, at_least or both, or exactly, or reported; got ['soft']"),
            ("{waste: {exactly: 1, at_most: 1}}", "waste takes at_most, at_least or both, or exactly, or reported"),
            ("{waste: {at_most: 1, reported: true}}", "waste takes at_most, at_least or both, or exactly, or reported"),
            ("{waste: {reported: false}}", "waste: reported takes true and nothing beside it"),
            ("{waste: {reported: true, soft: 2%}}", "waste: reported takes true and nothing beside it"),
            ("{waste: {at_most: 1, soft: 2}}", "soft takes a percentage like 2%, got 2"),
            ("{waste: {at_most: 1, soft: -2%}}", "soft is how far beyond its limit a figure may be"),
            ("{}", "limits must be a mapping, got {}"),
            ("[padded_cells]", "limits must be a mapping, got ['padded_cells']"),
            ("{5: {at_most: 1}}", "there is no metric '5': "),
        ],
    )
    def test_a_limit(self, limits: str, message: str, tmp_path: Path) -> None:
        path = budget(tmp_path / "b.yaml", limits)
        assert refused(path).startswith(f"{path}:5: {message}")

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ("regres: {waste: 1%}", "unknown key 'regres': did you mean regress?"),
            ("regress: {waste: +1%}", "regress compares with a baseline: add baseline: FILE.csv"),
            ("baseline: a.csv", "baseline is what regress compares with: add regress, {metric: +1%}"),
            ("where: {width_lader: a}", "unknown key 'width_lader': did you mean width_ladder?"),
            ("where: {padded_cells: 1}", "unknown key 'padded_cells': "),
            ("where: {width_ladder: [a, b]}", "where: width_ladder takes one value, got ['a', 'b']"),
            ("trace_sha256: abc", "trace_sha256 takes the 64 digits that sha256sum prints, got 'abc'"),
            ("trace_sha256: 12", "trace_sha256 takes text, got 12"),
        ],
    )
    def test_another_key_of_a_budget(self, more: str, message: str, tmp_path: Path) -> None:
        path = budget(tmp_path / "b.yaml", LIMITS, more=more)
        assert refused(path).startswith(f"{path}:6: {message}")

    @pytest.mark.parametrize(
        ("regress", "message"),
        [
            ("{steps: +1%}", "steps says which run it was: no change of it is good or bad; use limits"),
            ("{padded_cells: -1%}", "padded_cells is better lower: say how far it may rise, +1%"),
            ("{finished: +1%}", "finished is better higher: say how far it may fall, -1%"),
            ("{padded_cells: 1}", "padded_cells takes a percentage like 2%, got 1"),
            ("{paded_cells: 1%}", "there is no metric 'paded_cells': did you mean padded_cells?"),
        ],
    )
    def test_a_regression(self, regress: str, message: str, tmp_path: Path) -> None:
        path = budget(tmp_path / "b.yaml", LIMITS, more=f"baseline: a.csv\nregress: {regress}")
        assert refused(path) == f"{path}:7: {message}"

    @pytest.mark.parametrize(
        ("workload", "message"),
        [
            ("bnech: {steps: 8}", "unknown key 'bnech': did you mean bench?"),
            ("bench: {}, sweep: {}", "a workload is one of bench, sweep, tune, got 2 of them"),
            ("bench: {stpes: 8}", "bench: unknown key 'stpes': did you mean steps?"),
            ("bench: {json: true}", "bench: unknown key 'json': "),
            ("bench: {rows: 0}", "bench: Invalid value for '--rows': "),
            ("bench: {runner: fast}", "bench: Invalid value for '--runner': "),
            ("bench: {host_only: 1}", "bench: host_only takes true or false, got 1"),
            ("bench: {steps: true}", "bench: steps takes a value or a list of them, got True"),
            ("bench: {steps: }", "bench: steps takes a value or a list of them, got None"),
            ("bench: {steps: []}", "bench: steps takes a value or a list of them, got []"),
            ("bench: {steps: [8, 8]}", "bench: --steps names a value twice: '8,8'"),
            ("bench: {host_only: true, audit: true}", "bench: --audit needs a model that runs: drop --host-only"),
            ("bench: {limit: 3}", "bench: --limit is a flag of traffic: add --from FILE or --num-requests N"),
            ("sweep: {max_bacth: 8}", "sweep: unknown key 'max_bacth': did you mean max_batch?"),
            ("sweep: {budget_graphs: 8}", "sweep: unknown key 'budget_graphs': "),
            ("sweep: {max_batch: 0}", "sweep: max_batch takes integers of at least 1, got 0"),
            ("sweep: {rows_ladder: vlm}", "sweep: "),
            ("sweep: {traffic: {stpes: 8}}", "traffic: unknown key 'stpes': did you mean steps?"),
        ],
    )
    def test_a_workload(self, workload: str, message: str, tmp_path: Path) -> None:
        path = budget(tmp_path / "b.yaml", LIMITS, workload=workload)
        said = refused(path)
        assert said.startswith(f"{path}:4: ")
        assert message in said

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", ": is no mapping; a budget file has the keys schema_version, defaults, budgets"),
            ("schema_version: 2\nbudgets: []\n", ": schema_version must be 1, got 2"),
            ("schema_version: 1\n", ":1: budgets must list at least one budget"),
            ("schema_version: 1\nbudgets: []\n", ":2: budgets must list at least one budget"),
            ("schema_version: 1\nbudgets: {a: 1}\n", ":2: budgets must list at least one budget"),
            ("schema_version: 1\nbudget: []\n", ": unknown key 'budget': did you mean budgets?"),
            ("schema_version: 1\nbudgets: [5]\n", ":2: a budget must be a mapping, got 5"),
            ("schema_version: 1\ndefaults:\nbudgets: [{}]\n", ":2: defaults must be a mapping, got None"),
            ("schema_version: 1\ndefaults: {sotf: 1%}\nbudgets: [{}]\n", ":2: unknown key 'sotf': did you mean soft?"),
            ("schema_version: 1\nbudgets:\n  - {workload: {bench: }}\n", ":3: a budget has a name"),
            ("schema_version: 1\nbudgets:\n  - {name: a}\n", ":3: a budget has a workload, one of bench, sweep"),
            ("schema_version: 1\nbudgets:\n  - {name: 5}\n", ":3: name takes text, got 5"),
            ('schema_version: 1\nbudgets:\n  - {name: "a\\nb"}\n', ":3: name takes text, got 'a\\nb'"),
            ("schema_version: 1\nbudgets:\n  - {name: a, workload: {bench: }}\n", ":3: a has no limits: it would pass"),
            ("schema_version: 1\nschema_version: 1\n", ': is no YAML: found duplicate key "schema_version"'),
            ("a: [\n", ": is no YAML: "),
        ],
    )
    def test_a_file(self, text: str, message: str, tmp_path: Path) -> None:
        path = written(tmp_path / "b.yaml", text)
        assert refused(path).startswith(f"{path}{message}")

    def test_two_budgets_of_one_name(self, tmp_path: Path) -> None:
        path = budget(tmp_path / "b.yaml", LIMITS)
        with path.open("a") as file:
            file.write(f"  - name: one\n    workload: {{{LOCKSTEP}}}\n    limits: {LIMITS}\n")
        assert refused(path) == f"{path}:6: there are two budgets of the name 'one'"

    def test_a_file_that_is_not_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert refused() == "nanoserve.budget.yaml: no such file: `nanoserve init` writes a first one"
        assert refused("other.yaml") == "other.yaml: no such file: `nanoserve init` writes a first one"

    def test_a_folder(self, tmp_path: Path) -> None:
        assert refused(tmp_path) == f"{tmp_path}: cannot be read: Is a directory"
