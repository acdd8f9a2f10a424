"""Fitting a workload to a maximum length: the boundary, both rules, every request accounted for."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nanoserve.workload import Workload
from nanoserve_cli.workload.limits import MaxLenRule, fit_to


def make(*requests: tuple[int, int, int]) -> Workload:
    columns = (np.array(column, np.int64) for column in zip(*requests, strict=True))
    return Workload(*columns)


def columns(workload: Workload) -> list[tuple[int, int, int]]:
    names = (workload.arrival_ns, workload.prompt_len, workload.output_len)
    return list(zip(*(name.tolist() for name in names), strict=True))


@pytest.mark.parametrize("how", ["reject", "clip"])
def test_the_last_token_made_needs_no_slot(how: MaxLenRule) -> None:
    fits = make((0, 90, 11))
    fitted, account = fit_to(fits, 100, how)
    assert columns(fitted) == columns(fits)
    assert (account.rejected, account.prompts_cut, account.outputs_cut) == (0, 0, 0)


def test_one_token_over_is_rejected_or_loses_that_token() -> None:
    over = make((0, 90, 12))
    with pytest.raises(ValueError, match="no request fits max_model_len 100: the shortest needs 101"):
        fit_to(over, 100, "reject")
    fitted, account = fit_to(over, 100, "clip")
    assert columns(fitted) == [(0, 90, 11)]
    assert (account.prompts_cut, account.outputs_cut) == (0, 1)


def test_rejected_requests_leave_arrivals_relative_to_the_first_kept() -> None:
    fitted, account = fit_to(make((0, 500, 1), (40, 10, 5), (70, 10, 500), (90, 20, 5)), 100, "reject")
    assert columns(fitted) == [(0, 10, 5), (50, 20, 5)]
    assert account.source_index.tolist() == [1, 3]
    assert (account.rejected, account.delay_ns) == (2, 40)


def test_clip_cuts_the_prompt_first_and_keeps_at_least_one_output() -> None:
    fitted, account = fit_to(make((0, 500, 9), (5, 100, 1), (6, 40, 99)), 100, "clip")
    assert columns(fitted) == [(0, 100, 1), (5, 100, 1), (6, 40, 61)]
    assert (account.rejected, account.prompts_cut, account.outputs_cut) == (0, 1, 2)
    assert account.source_index.tolist() == [0, 1, 2]


@pytest.mark.parametrize("how", ["reject", "clip"])
@given(data=st.data(), max_model_len=st.integers(1, 60))
def test_every_kept_request_is_admissible_and_every_other_is_counted(
    how: MaxLenRule, data: st.DataObject, max_model_len: int
) -> None:
    lengths = st.integers(1, 80)
    rows = data.draw(st.lists(st.tuples(st.integers(0, 99), lengths, lengths), min_size=1, max_size=20))
    rows.sort(key=lambda row: row[0])
    workload = make(*((row[0] - rows[0][0], *row[1:]) for row in rows))
    needed = workload.prompt_len + workload.output_len - 1
    assume(how == "clip" or (needed <= max_model_len).any())

    fitted, account = fit_to(workload, max_model_len, how)

    assert (fitted.prompt_len + fitted.output_len - 1 <= max_model_len).all()
    assert len(fitted) + account.rejected == len(workload)
    kept = account.source_index
    assert kept.dtype == np.int64
    assert (np.diff(kept) > 0).all()
    np.testing.assert_array_equal(fitted.arrival_ns + account.delay_ns, workload.arrival_ns[kept])
    untouched = needed[kept] <= max_model_len
    for name in ("prompt_len", "output_len"):
        np.testing.assert_array_equal(getattr(fitted, name)[untouched], getattr(workload, name)[kept][untouched])
    assert account.rejected == (0 if how == "clip" else int((needed > max_model_len).sum()))


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="max_model_len must be at least 1, got 0"):
        fit_to(make((0, 1, 1)), 0, "clip")
    with pytest.raises(ValueError, match="must be reject or clip, got 'drop'"):
        fit_to(make((0, 1, 1)), 5, "drop")  # type: ignore[arg-type]
    nothing = np.zeros(0, np.int64)
    with pytest.raises(ValueError, match="no request fits max_model_len 5: there was none"):
        fit_to(Workload(nothing, nothing, nothing), 5, "reject")
    with pytest.raises(ValueError, match="there is no request to fit"):
        fit_to(Workload(nothing, nothing, nothing), 5, "clip")
