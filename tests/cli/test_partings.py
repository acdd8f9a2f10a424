"""Where the tokens of two runs part: a tie is counted, anything more is a fault of the padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from nanoserve.workload import Workload
from nanoserve_cli import partings
from nanoserve_cli.partings import PARTING_GAP, Partings, TokensPart, find_partings, top_two_gap
from nanoserve_cli.replay import prompt_of

LOAD = Workload(np.zeros(3, np.int64), np.array([4, 5, 6], np.int64), np.full(3, 3, np.int64))
SAME = ((1, 2, 3), (4, 5, 6), (7, 8, 9))


@pytest.fixture
def gaps(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands for the model: gives out one gap after the other and keeps what it was asked."""

    class Gaps:
        values: list[float]
        asked: list[tuple[int, ...]]

        def __call__(self, _: Any, tokens: tuple[int, ...]) -> float:
            self.asked.append(tokens)
            return self.values.pop(0)

    made = Gaps()
    made.values, made.asked = [], []
    monkeypatch.setattr(partings, "top_two_gap", made)
    return made


def test_equal_tokens_do_not_part_and_no_model_is_asked(gaps: Any, decoder: Any) -> None:
    assert find_partings(LOAD, decoder, 0, SAME, SAME) == Partings(requests=0, widest_gap=0.0)
    assert gaps.asked == []


def test_the_gap_is_taken_after_the_prompt_and_the_common_history(gaps: Any, decoder: Any) -> None:
    """Request 1 parts at its third token: its prompt of 5 and two tokens are the history."""
    gaps.values = [1e-6]
    theirs = (SAME[0], (4, 5, 60), SAME[2])
    assert find_partings(LOAD, decoder, 7, SAME, theirs) == Partings(requests=1, widest_gap=1e-6)
    assert gaps.asked == [(*prompt_of(1, 5, decoder.config.vocab_size, 7), 4, 5)]


def test_parting_at_the_first_token_has_the_prompt_for_its_history(gaps: Any, decoder: Any) -> None:
    gaps.values = [0.0]
    find_partings(LOAD, decoder, 0, SAME, ((0, 2, 3), *SAME[1:]))
    assert gaps.asked == [prompt_of(0, 4, decoder.config.vocab_size, 0)]


def test_a_run_that_makes_fewer_tokens_parts_where_it_ends(gaps: Any, decoder: Any) -> None:
    gaps.values = [0.0]
    find_partings(LOAD, decoder, 0, SAME, (SAME[0], SAME[1], (7, 8)))
    assert gaps.asked == [(*prompt_of(2, 6, decoder.config.vocab_size, 0), 7, 8)]


@pytest.mark.parametrize("gap", [PARTING_GAP, 0.5])
def test_no_tie_is_a_fault_with_its_figure_and_limit(gap: float, gaps: Any, decoder: Any) -> None:
    """The widest counts, wherever it stands."""
    gaps.values = [1e-7, gap, 1e-6]
    with pytest.raises(TokensPart, match=r"tokens part in 3 requests .*the padding is not inert") as parted:
        find_partings(LOAD, decoder, 0, SAME, ((0,), (0,), (0,)))
    assert (parted.value.figure, parted.value.limit) == (gap, 1e-4)


def test_just_below_it_is_a_tie_and_is_shown(gaps: Any, decoder: Any) -> None:
    gaps.values = [9.9e-5]
    assert find_partings(LOAD, decoder, 0, SAME, ((0,), *SAME[1:])).widest_gap == 9.9e-5


def test_a_lower_dtype_counts_and_does_not_judge(gaps: Any, decoder: Any) -> None:
    gaps.values = [0.5]
    found = find_partings(LOAD, decoder.to(torch.bfloat16), 0, SAME, ((0,), *SAME[1:]))
    assert found == Partings(requests=1, widest_gap=0.5)


def test_a_request_that_only_one_run_made_is_no_silent_difference(gaps: Any, decoder: Any) -> None:
    with pytest.raises(ValueError, match="zip"):
        find_partings(LOAD, decoder, 0, SAME, SAME[:2])


def test_the_gap_of_a_model_is_between_its_two_best_logits(build: Any, shared_decoder: Any) -> None:
    """Against the engine: the token it draws after a prompt leads by this much, recomputed in one prefill."""
    import copy

    model = copy.deepcopy(shared_decoder)
    engine = build(1, 32, model=model)
    prompt = [3, 14, 15, 92, 6]
    (output,) = engine.generate([prompt], max_tokens=4, ignore_eos=True)
    gap = top_two_gap(model, prompt)
    assert gap >= 0
    assert gap == pytest.approx(top_two_gap(model, tuple(prompt)))
    assert top_two_gap(model, (*prompt, *output.tokens[:3])) > PARTING_GAP
