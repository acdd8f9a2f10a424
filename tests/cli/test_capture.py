"""`nanoserve capture`: the arithmetic to the byte, what decides the set, what is not captured and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from nanoserve.buckets import BucketsUnsound, CaptureList, DecodeBuckets, Shape
from nanoserve.capture_bill import ShapePrice
from nanoserve.engine import Engine
from nanoserve.gates import check_capture_budget
from nanoserve.model.presets import preset_decoder
from nanoserve.workload import Workload
from nanoserve_cli import capture as module
from nanoserve_cli.app import app
from nanoserve_cli.capture import bill_for, price_lazily, widest_set
from nanoserve_cli.replay import replay_virtual

SMALL = ("--max-batch", "8", "--max-model-len", "256", "--width-multiple", "128")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["capture", *map(str, arguments)])


def document(*arguments: object) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def bill(**changes: Any) -> module.Bill:
    options = {
        "block_size": 16,
        "num_blocks": None,
        "graph_backend": "recorded",
        "graph_limit": None,
        "pool_limit": None,
        "byte_limit": None,
        "second_limit": None,
    }
    decoder = preset_decoder("tiny", device="cpu", dtype=torch.float32, seed=0)
    return bill_for(decoder, DecodeBuckets(8, 256), **(options | changes))


class TestTheArithmetic:
    def test_one_set_of_inputs_serves_every_graph(self) -> None:
        """256 rows, 8192 tokens, 36 shapes: 8,192 bytes for one set, 65,408 for a set a shape, 16 MiB for the table."""
        (found,) = document("--max-seconds", 0)
        assert found["shapes"] == 36
        assert found["persistent_bytes"]["inputs"] == 8_192
        assert found["persistent_bytes"]["inputs_if_one_set_per_shape"] == 65_408
        assert found["persistent_bytes"]["slot_table"] == 16_777_216

    def test_every_shape_is_priced_and_captured_at_that_price(self) -> None:
        (found,) = document(*SMALL)
        assert len(found["graphs"]) == 8
        assert all(graph["capture_ms"] > 0 for graph in found["graphs"])
        assert found["held_bytes"] == found["predicted_bytes"] == max(g["predicted_bytes"] for g in found["graphs"])

    def test_a_wider_or_higher_shape_never_costs_less(self) -> None:
        (found,) = document(*SMALL)
        price = {(graph["rows"], graph["width"]): graph["predicted_bytes"] for graph in found["graphs"]}
        for (rows, width), nbytes in price.items():
            assert all(more >= nbytes for (r, w), more in price.items() if r >= rows and w >= width)

    def test_what_a_kernel_allocates_by_itself_is_named_and_not_priced(self) -> None:
        result = run(*SMALL)
        assert "unpriced: the workspace inside _scaled_dot_product" in result.stderr

    def test_a_list_of_multiples_is_a_bill_each(self) -> None:
        found = document(
            "--max-batch", 8, "--max-model-len", 512, "--width-multiple", "128,256,512", "--max-seconds", 0
        )
        assert [entry["shapes"] for entry in found] == [16, 8, 4]


class TestTheBudget:
    def test_nothing_is_captured_over_a_limit_and_yes_captures(self) -> None:
        for flag in ("--max-mib", "--max-seconds"):
            (found,) = document(*SMALL, flag, 0)
            assert found["held_bytes"] is None
            assert all(graph["capture_ms"] is None for graph in found["graphs"])
            assert flag in found["not_captured"]
            assert "--yes" in found["not_captured"]
        (found,) = document(*SMALL, "--max-mib", 0, "--max-seconds", 0, "--yes")
        assert found["held_bytes"] > 0

    def test_the_graph_limit_keeps_the_widest_set_that_fits(self) -> None:
        (found,) = document(*SMALL, "--graph-limit", 7)
        assert {graph["width"] for graph in found["graphs"]} == {128}
        assert found["bound"] == "width 128: --graph-limit 7 decided"
        (found,) = document(*SMALL, "--graph-limit", 8)
        assert found["bound"] == "width 256: the model length decided"

    def test_a_limit_below_one_width_is_one_line(self) -> None:
        result = run(*SMALL, "--graph-limit", 3)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == "error: --graph-limit 3 is too little for the 4 shapes of the narrowest width, 128\n"

    def test_the_mib_limit_is_of_the_pool(self) -> None:
        (whole,) = document(*SMALL)
        (found,) = document(*SMALL, "--mib-limit", whole["predicted_bytes"] / 2**20)
        assert found["bound"] == "width 256: the model length decided"
        (found,) = document(*SMALL, "--mib-limit", whole["predicted_bytes"] / 2**20 - 0.1)
        assert {graph["width"] for graph in found["graphs"]} == {128}
        assert "--mib-limit" in found["bound"]

    def test_widths_are_kept_whole(self) -> None:
        policy = DecodeBuckets(4, 512)
        prices = [ShapePrice(shape, 1, ()) for shape in policy.shapes]
        kept, _ = widest_set(policy, prices, graph_limit=8)
        assert isinstance(kept, CaptureList)
        assert kept.shapes == tuple(Shape(r, w) for r in (1, 2, 4) for w in (128, 256))
        assert (kept.max_batch_size, kept.max_model_len) == (4, 512)

    def test_the_gate_takes_graphs_mib_or_seconds(self) -> None:
        policy = DecodeBuckets(4, 512)
        assert check_capture_budget(policy, mib=3.0, mib_limit=3.0, seconds=1.0, seconds_limit=2.0) == 12
        with pytest.raises(BucketsUnsound, match=r"3\.1 MiB, the budget is 3\.0") as over:
            check_capture_budget(policy, mib=3.1, mib_limit=3.0)
        assert (over.value.figure, over.value.limit) == (3.1, 3.0)
        with pytest.raises(BucketsUnsound, match="seconds"):
            check_capture_budget(policy, seconds=float("nan"), seconds_limit=2.0)
        with pytest.raises(ValueError, match="needs the figure"):
            check_capture_budget(policy, seconds_limit=2.0)


class TestMemory:
    def test_shapes_that_do_not_fit_are_named_and_not_captured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = bill()
        one_row = (
            (16 * 16 + 1) * 2 * 2 * 2 * 16 * 4
        )  # 16 blocks of 16 tokens and the sink; 2 layers, K and V, 2 x 16 floats
        # A recorded replay holds each value twice: a byte less than the largest graph's two copies.
        room = one_row + whole.persistent.slot_table + whole.persistent.logits + 2 * whole.predicted_bytes - 1
        monkeypatch.setattr(module, "_available", lambda decoder: room)
        found = bill()
        assert found.too_large == (Shape(8, 256),)
        assert set(found.measured) == {price.shape for price in found.prices} - {Shape(8, 256)}
        assert found.pool_cut is not None
        assert "captured beside 16" in found.pool_cut

    def test_where_nothing_fits_nothing_is_captured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_available", lambda decoder: 0)
        found = bill()
        assert len(found.too_large) == 8
        assert (found.measured, found.held_bytes) == ({}, None)


class TestLazily:
    def test_a_request_waits_for_every_capture_of_a_step_it_decodes_in(self) -> None:
        """Two rows decode from width 4 on, one finishes, the other goes on alone over width 8."""
        load = Workload(np.zeros(2, np.int64), np.full(2, 3, np.int64), np.array([3, 8], np.int64))
        policy = DecodeBuckets(2, 16, widths=(8, 16))
        replay = replay_virtual(Engine.build(None, 2, 16, policy=policy), load, step_ns=1)
        lazy = price_lazily(replay, policy)
        # 2x8 (both wait), then 1x8 and 1x16 (the longer alone).
        assert lazy.captures == 3
        assert (lazy.requests, lazy.waiting_requests, lazy.most_waits) == (2, 2, 3)

    def test_it_is_priced_beside_traffic_only(self) -> None:
        assert document(*SMALL)[0]["lazy"] is None
        (found,) = document(*SMALL, "--num-requests", 5, "--prompt-len", 9, "--output-len", 9)
        assert found["lazy"]["requests"] == 5
        assert found["lazy"]["captures"] >= 1


def test_a_policy_file_is_priced_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("schema_version: 1\nmax_batch_size: 4\nmax_model_len: 256\ncaptures: {2: [128], 4: [64, 128]}\n")
    (found,) = document("--policy", path)
    assert [(graph["rows"], graph["width"]) for graph in found["graphs"]] == [(2, 128), (4, 64), (4, 128)]
    assert found["held_bytes"] > 0
