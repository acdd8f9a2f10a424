"""A shape policy in YAML: what is written reads back equal, and every mistake has its one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from nanoserve.buckets import DecodeBuckets, StaircaseBuckets
from nanoserve_cli.app import app
from nanoserve_cli.policy_file import KEYS, PolicyFileError, chosen_policy, load_policy, policy_document

GOOD = "schema_version: 1\nmax_batch_size: 4\nmax_model_len: 64\n"
PRODUCT = GOOD + "rows: [1, 4]\nwidths: [32, 64]\n"


def policy_of(folder: Path, text: str) -> DecodeBuckets | StaircaseBuckets:
    path = folder / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    return load_policy(path)


def refusal(folder: Path, text: str) -> str:
    """What is said of a file after its name."""
    with pytest.raises(PolicyFileError) as refused:
        policy_of(folder, text)
    message = str(refused.value)
    start = f"{folder / 'policy.yaml'}: "
    assert message.startswith(start)
    return message.removeprefix(start)


@st.composite
def ladders(draw: st.DrawFn, top: int) -> list[int]:
    below = draw(st.sets(st.integers(1, top - 1), max_size=5)) if top > 1 else set()
    return [*sorted(below), top]


@st.composite
def policies(draw: st.DrawFn) -> DecodeBuckets | StaircaseBuckets:
    batch, length = draw(st.integers(1, 40)), draw(st.integers(1, 3000))
    rows = draw(ladders(batch))
    if draw(st.booleans()):
        return DecodeBuckets(batch, length, rows=rows, widths=draw(ladders(length)))
    return StaircaseBuckets(batch, length, {row: draw(ladders(length)) for row in rows})


class TestRoundTrip:
    @given(policy=policies())
    def test_what_is_written_reads_back_equal(self, policy: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
        path = tmp_path_factory.getbasetemp() / "roundtrip.yaml"
        path.write_text(yaml.safe_dump(policy_document(policy)), encoding="utf-8")
        back = load_policy(path)
        assert back == policy
        assert type(back) is type(policy)
        assert back.shapes == policy.shapes

    def test_a_product(self, tmp_path: Path) -> None:
        assert policy_of(tmp_path, PRODUCT) == DecodeBuckets(4, 64, rows=[1, 4], widths=[32, 64])

    def test_a_staircase(self, tmp_path: Path) -> None:
        text = GOOD + "ladders:\n  1: [64]\n  4: [32, 64]\n"
        assert policy_of(tmp_path, text) == StaircaseBuckets(4, 64, {1: [64], 4: [32, 64]})

    def test_comments_and_another_order_of_keys_mean_nothing(self, tmp_path: Path) -> None:
        text = (
            "# mine\nwidths: [32, 64]\nrows: [1, 4]\nmax_model_len: 64 # tokens\nmax_batch_size: 4\nschema_version: 1\n"
        )
        assert policy_of(tmp_path, text) == policy_of(tmp_path, PRODUCT)

    def test_a_written_document_says_its_keys_in_their_order(self) -> None:
        product = policy_document(DecodeBuckets(4, 64))
        assert list(product) == ["schema_version", "max_batch_size", "max_model_len", "rows", "widths"]
        assert set(policy_document(StaircaseBuckets(1, 2, {1: [2]}))) == set(KEYS) - {"rows", "widths", "captures"}


class TestMistakes:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (PRODUCT + "width: [3]\n", "unknown key 'width': did you mean widths?"),
            (PRODUCT + "max_batch: 4\n", "unknown key 'max_batch': did you mean max_batch_size?"),
            (PRODUCT + "zzz: 4\n", f"unknown key 'zzz': known: {', '.join(KEYS)}"),
            (PRODUCT + "1: 4\n", f"unknown key 1: known: {', '.join(KEYS)}"),
            ("max_batch_size: 4\n", "schema_version must be 1, got None"),
            ("schema_version: 2\n", "schema_version must be 1, got 2"),
            ("schema_version: '1'\n", "schema_version must be 1, got '1'"),
            ("schema_version: 1\nmax_model_len: 64\nrows: [1]\nwidths: [64]\n", "the key 'max_batch_size' is missing"),
            ("schema_version: 1\nmax_batch_size: 64\nrows: [1]\nwidths: [64]\n", "the key 'max_model_len' is missing"),
            (GOOD + "widths: [64]\n", "the key 'rows' is missing"),
            (GOOD + "rows: [4]\n", "the key 'widths' is missing"),
            (GOOD, "the key 'rows' is missing"),
            (
                PRODUCT + "ladders: {4: [64]}\n",
                "rows and widths and ladders say the same thing twice: give rows and widths, ladders, or captures",
            ),
            (GOOD + "rows: [1, 3]\nwidths: [64]\n", "rows must end at its maximum 4; it ends at 3"),
            (GOOD + "rows: [4]\nwidths: [32]\n", "widths must end at its maximum 64; it ends at 32"),
            (GOOD + "rows: []\nwidths: [64]\n", "rows is empty: a ladder needs at least one bucket, its maximum 4"),
            (GOOD + "ladders: {}\n", "rows is empty: a ladder needs at least one bucket, its maximum 4"),
            (GOOD + "rows: [1.5, 4]\nwidths: [64]\n", "a bucket of rows must be an integer of at least 1, got 1.5"),
            (GOOD + "rows: ['4']\nwidths: [64]\n", "a bucket of rows must be an integer of at least 1, got '4'"),
            (GOOD + "rows: [true, 4]\nwidths: [64]\n", "a bucket of rows must be an integer of at least 1, got True"),
            (GOOD + "rows: [0, 4]\nwidths: [64]\n", "a bucket of rows must be an integer of at least 1, got 0"),
            ("- 1\n", f"is no mapping; a policy has the keys {', '.join(KEYS)}"),
            ("", f"is no mapping; a policy has the keys {', '.join(KEYS)}"),
            ("# only a comment\n", f"is no mapping; a policy has the keys {', '.join(KEYS)}"),
        ],
    )
    def test_each_has_its_message(self, text: str, message: str, tmp_path: Path) -> None:
        assert refusal(tmp_path, text) == message

    @pytest.mark.parametrize("value", ["'4'", "4.0", "0", "-1", "true", "null", "[4]"])
    @pytest.mark.parametrize("key", ["max_batch_size", "max_model_len"])
    def test_limits_are_positive_integers(self, key: str, value: str, tmp_path: Path) -> None:
        text = re.sub(rf"{key}: \d+", f"{key}: {value}", PRODUCT)
        assert refusal(tmp_path, text).startswith(f"{key} must be an integer of at least 1, got ")

    @pytest.mark.parametrize("rows", ["[4, 1]", "[1, 1, 4]", "[2, 1, 4]"])
    def test_a_ladder_is_strictly_ascending(self, rows: str, tmp_path: Path) -> None:
        assert "rows" in refusal(tmp_path, GOOD + f"rows: {rows}\nwidths: [64]\n")

    def test_the_ladder_of_a_row_bucket_is_named(self, tmp_path: Path) -> None:
        message = refusal(tmp_path, GOOD + "ladders: {1: [64], 4: [32]}\n")
        assert message == "widths of 4 rows must end at its maximum 64; it ends at 32"

    @pytest.mark.parametrize(
        ("text", "key"),
        [
            ("rows: 4\nwidths: [64]\n", "rows"),
            ("rows: [4]\nwidths: 64\n", "widths"),
            ("rows: '4'\nwidths: [64]\n", "rows must be a list"),
            ("rows: {4: 1}\nwidths: [64]\n", "rows"),
            ("ladders: {4: 64}\n", "4 rows"),
            ("ladders: 5\n", "ladders"),
            ("ladders: [4]\n", "ladders"),
            ("ladders: null\n", "ladders"),
        ],
    )
    def test_what_is_no_list_is_named_with_its_key(self, text: str, key: str, tmp_path: Path) -> None:
        assert key in refusal(tmp_path, GOOD + text)

    @pytest.mark.parametrize("text", ["rows:\nwidths: [64]\n", "rows: [4]\nwidths:\n"])
    def test_an_empty_value_is_never_filled_from_a_default(self, text: str, tmp_path: Path) -> None:
        assert refusal(tmp_path, GOOD + text)

    @pytest.mark.parametrize("value", ["true", "1.0"])
    def test_the_schema_version_is_the_integer(self, value: str, tmp_path: Path) -> None:
        assert refusal(tmp_path, PRODUCT.replace("schema_version: 1", f"schema_version: {value}"))

    def test_a_key_twice_is_refused(self, tmp_path: Path) -> None:
        assert "max_batch_size" in refusal(tmp_path, "max_batch_size: 8\n" + PRODUCT)

    @pytest.mark.parametrize("text", ["a: [1\nb: 2", "a: b: c", "\tx: 1", "{", "!!python/object:os.system {}"])
    def test_no_yaml_says_where(self, text: str, tmp_path: Path) -> None:
        message = refusal(tmp_path, text)
        assert message.startswith("is no YAML: ")
        assert "line 1" in message

    def test_no_yaml_is_one_line(self, tmp_path: Path) -> None:
        message = refusal(tmp_path, "a: [1\nb: 2")
        assert "\n" not in message
        assert "<unicode string>" not in message

    def test_a_file_that_is_not_there_a_folder_and_no_text(self, tmp_path: Path) -> None:
        with pytest.raises(PolicyFileError, match=r"nope\.yaml: cannot be read: .*No such file"):
            load_policy(tmp_path / "nope.yaml")
        with pytest.raises(PolicyFileError, match=r"cannot be read: .*[Dd]irectory"):
            load_policy(tmp_path)
        (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(PolicyFileError, match="cannot be read: "):
            load_policy(tmp_path / "binary.yaml")


class TestBesideFlags:
    def choose(self, path: Path | None, **flags: Any) -> DecodeBuckets | StaircaseBuckets:
        silent = {"max_batch_size": None, "max_model_len": None, "width_multiple": None, "default_max_model_len": 24}
        return chosen_policy(path, **(silent | flags))

    def test_where_all_is_silent_it_is_eight_rows_and_multiples_of_128(self) -> None:
        assert self.choose(None) == DecodeBuckets(8, 24, width_multiple=128)
        assert self.choose(None, max_model_len=300) == DecodeBuckets(8, 300, widths=[128, 256, 300])

    def test_a_flag_wins_over_a_default(self) -> None:
        asked = self.choose(None, max_batch_size=3, max_model_len=48, width_multiple=16)
        assert asked == DecodeBuckets(3, 48, rows=[1, 2, 3], widths=[16, 32, 48])

    @pytest.fixture
    def product(self, tmp_path: Path) -> Path:
        path = tmp_path / "policy.yaml"
        path.write_text(PRODUCT)
        return path

    def test_the_file_has_the_limits_whatever_the_run_needs(self, product: Path) -> None:
        assert self.choose(product) == DecodeBuckets(4, 64, rows=[1, 4], widths=[32, 64])
        assert self.choose(product, max_batch_size=4, max_model_len=64).max_model_len == 64

    @pytest.mark.parametrize(
        ("flag", "name", "asked", "given"),
        [("--max-batch", "max_batch_size", 8, 4), ("--max-model-len", "max_model_len", 128, 64)],
    )
    def test_a_flag_that_contradicts_it(self, flag: str, name: str, asked: int, given: int, product: Path) -> None:
        with pytest.raises(ValueError, match=f"{flag} {asked} beside .*policy.yaml, which is for {given}"):
            self.choose(product, **{name: asked})

    def test_a_width_multiple_beside_it(self, product: Path) -> None:
        with pytest.raises(ValueError, match="--width-multiple beside --policy"):
            self.choose(product, width_multiple=128)

    def test_the_command_says_it_in_one_line(self, product: Path) -> None:
        result = CliRunner().invoke(app, ["bench", "--host-only", "--policy", str(product), "--max-batch", "8"])
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == (
            f"error: --max-batch 8 beside {product}, which is for 4: drop the flag or change the file\n"
        )
