"""What compaction is for: `RowsWithoutCompaction` against rows that are simply written down."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nanoserve.engine import Engine
from nanoserve.workload import Workload
from nanoserve_cli.prefix import RowsWithoutCompaction
from nanoserve_cli.replay import replay_virtual


def step(*, plan: bool = True, admitted: str = "", preempted: str = "", outputs: str = "") -> Any:
    ended = tuple(SimpleNamespace(request_id=name) for name in outputs)
    return SimpleNamespace(plan=plan or None, admitted=tuple(admitted), preempted=tuple(preempted), outputs=ended)


def counts(rows: int, *steps: Any) -> list[int]:
    """`prefix_steps` after each step."""
    follower = RowsWithoutCompaction(rows)
    found = []
    for one in steps:
        follower.step(one)
        found.append(follower.prefix_steps)
    return found


class NaiveRows:
    """A list of rows, searched from the front each time."""

    def __init__(self, rows: int) -> None:
        self.rows: list[str | None] = [None] * rows
        self.prefix_steps = 0

    def step(self, result: Any) -> None:
        for name in result.preempted:
            self.rows[self.rows.index(name)] = None
        taken = [row for row, name in enumerate(self.rows) if name is not None]
        if result.plan is not None and taken == list(range(len(taken))):
            self.prefix_steps += 1
        for name in result.admitted:
            self.rows[self.rows.index(None)] = name
        for output in result.outputs:
            if output.request_id in self.rows:
                self.rows[self.rows.index(output.request_id)] = None


class TestByHand:
    def test_nobody_leaves_so_every_step_is_on_the_prefix(self) -> None:
        assert counts(3, step(plan=False, admitted="abc"), step(), step()) == [0, 1, 2]

    def test_the_last_row_leaving_keeps_the_prefix(self) -> None:
        assert counts(3, step(plan=False, admitted="abc"), step(outputs="c"), step(), step()) == [0, 1, 2, 3]

    def test_a_hole_in_front_breaks_it_until_it_is_filled(self) -> None:
        """`a` leaves row 0; `d` takes it in the third step and decodes from the fourth."""
        steps = (step(plan=False, admitted="abc"), step(outputs="a"), step(admitted="d"), step(), step())
        assert counts(3, *steps) == [0, 1, 1, 2, 3]

    def test_the_lowest_free_row_is_taken_and_not_the_last_freed(self) -> None:
        """Rows 0 and 2 free: the next request must take 0, and the rows are 0, 1, 3."""
        steps = (step(plan=False, admitted="abcd"), step(outputs="ac"), step(admitted="e"), step(outputs="d"), step())
        assert counts(4, *steps) == [0, 1, 1, 1, 2]

    def test_a_preempted_row_is_gone_before_its_step_decodes(self) -> None:
        steps = (step(plan=False, admitted="abc"), step(preempted="b"), step(), step(admitted="b"), step())
        assert counts(3, *steps) == [0, 0, 0, 0, 1]

    def test_preempted_and_admitted_again_in_one_step(self) -> None:
        assert counts(2, step(plan=False, admitted="ab"), step(preempted="a", admitted="a"), step()) == [0, 0, 1]

    def test_a_request_of_one_token_leaves_in_the_step_that_admits_it(self) -> None:
        assert counts(2, step(plan=False, admitted="ab", outputs="a"), step(), step(admitted="c"), step()) == [
            0,
            0,
            0,
            1,
        ]

    def test_a_step_without_rows_counts_nothing(self) -> None:
        assert counts(2, step(plan=False), step(plan=False, admitted="a"), step(plan=False)) == [0, 0, 0]


@pytest.mark.parametrize("seed", range(60))
def test_a_random_run_counts_what_the_naive_model_counts(seed: int) -> None:
    draw = random.Random(seed)
    rows = draw.randint(1, 6)
    ours, naive = RowsWithoutCompaction(rows), NaiveRows(rows)
    running: list[str] = []
    for number in range(80):
        preempted = [name for name in running if draw.random() < 0.05]
        staying = [name for name in running if name not in preempted]
        room = rows - len(staying)
        again = preempted[: draw.randint(0, min(room, len(preempted)))]
        admitted = again + [f"{number}.{i}" for i in range(draw.randint(0, room - len(again)))]
        ended = [name for name in (*staying, *admitted) if draw.random() < 0.2]
        outputs = tuple(SimpleNamespace(request_id=name) for name in ended)
        result: Any = SimpleNamespace(
            plan=True if staying else None, admitted=tuple(admitted), preempted=tuple(preempted), outputs=outputs
        )
        running = [name for name in (*staying, *admitted) if name not in ended]
        ours.step(result)
        naive.step(result)
        assert ours.prefix_steps == naive.prefix_steps


def test_a_crowd_of_unequal_lengths_leaves_the_prefix_at_once() -> None:
    """4, 8, 16 and 32 tokens over 8 rows, the shortest in front: 31 decode steps, 3 on the prefix without it."""
    outputs = np.array([4, 4, 8, 8, 16, 16, 32, 32], np.int64)
    crowd = Workload(np.zeros(8, np.int64), np.full(8, 16, np.int64), outputs)
    replay = replay_virtual(Engine.build(None, 8, 64), crowd, step_ns=1)
    assert (replay.steps.total_steps, replay.prefix_steps_without_compaction) == (31, 3)
    assert 0 < replay.moves <= 8


def test_the_longest_in_front_would_not_need_compaction() -> None:
    outputs = np.array([32, 32, 16, 16, 8, 8, 4, 4], np.int64)
    crowd = Workload(np.zeros(8, np.int64), np.full(8, 16, np.int64), outputs)
    replay = replay_virtual(Engine.build(None, 8, 64), crowd, step_ns=1)
    assert (replay.prefix_steps_without_compaction, replay.moves) == (31, 0)
