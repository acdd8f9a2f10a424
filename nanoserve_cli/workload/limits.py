"""Which requests a maximum model length admits, and what is done with the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nanoserve.workload import Workload

MaxLenRule = Literal["reject", "clip"]


@dataclass(frozen=True, eq=False)
class Fitted:
    """What `fit_to` did.

    `source_index` (int64, one entry a kept request) is the place of each in the workload it came from, so
    that every request is accounted for. `rejected` were dropped; of the kept ones `prompts_cut` and
    `outputs_cut` were made shorter, some both. `delay_ns` is the arrival of the first kept request in the
    workload it came from: arrivals are counted from it.
    """

    rule: MaxLenRule
    max_model_len: int
    source_index: NDArray[np.int64]
    rejected: int
    prompts_cut: int
    outputs_cut: int
    delay_ns: int


def fit_to(workload: Workload, max_model_len: int, how: MaxLenRule) -> tuple[Workload, Fitted]:
    """The requests of `workload` that a cache of `max_model_len` tokens a request can hold.

    A request is admissible if and only if `prompt + outputs - 1 <= max_model_len`: the last token made needs
    no slot. `reject` drops the others. `clip` cuts a prompt to `max_model_len` first and then the outputs
    to what is left, at least one. Raises ValueError where nothing is left, for a limit below 1, and for
    another `how`.
    """
    if max_model_len < 1:
        raise ValueError(f"max_model_len must be at least 1, got {max_model_len}")
    if how == "reject":
        return _rejected(workload, max_model_len)
    if how == "clip":
        return _clipped(workload, max_model_len)
    raise ValueError(f"max-len must be reject or clip, got {how!r}")


def _rejected(workload: Workload, max_model_len: int) -> tuple[Workload, Fitted]:
    needed = workload.prompt_len + workload.output_len - 1
    kept = np.flatnonzero(needed <= max_model_len)
    if kept.size == 0:
        shortest = f"the shortest needs {int(needed.min()):,}" if needed.size else "there was none"
        raise ValueError(f"no request fits max_model_len {max_model_len:,}: {shortest}")
    arrival = workload.arrival_ns[kept]
    fitted = Fitted(
        rule="reject",
        max_model_len=max_model_len,
        source_index=kept,
        rejected=len(workload) - int(kept.size),
        prompts_cut=0,
        outputs_cut=0,
        delay_ns=int(arrival[0]),
    )
    return Workload(arrival - arrival[0], workload.prompt_len[kept], workload.output_len[kept]), fitted


def _clipped(workload: Workload, max_model_len: int) -> tuple[Workload, Fitted]:
    if len(workload) == 0:
        raise ValueError("there is no request to fit")
    prompt = np.minimum(workload.prompt_len, max_model_len)
    output = np.minimum(workload.output_len, max_model_len - prompt + 1)
    fitted = Fitted(
        rule="clip",
        max_model_len=max_model_len,
        source_index=np.arange(len(workload), dtype=np.int64),
        rejected=0,
        prompts_cut=int((prompt < workload.prompt_len).sum()),
        outputs_cut=int((output < workload.output_len).sum()),
        delay_ns=0,
    )
    return Workload(workload.arrival_ns, prompt, output), fitted
