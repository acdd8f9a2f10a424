"""The proof on the engine: the fitted list against the baseline, step by step, on steps that were held out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from nanoserve.buckets import DecodeBuckets, round_up
from nanoserve.model.decoder import Decoder
from nanoserve.pricing import price_run
from nanoserve.simulate import simulate
from nanoserve.step_time import FixedStep
from nanoserve_cli.compare import ClockSettings, EngineSettings, RunUnsound
from nanoserve_cli.partings import Partings, find_partings
from nanoserve_cli.replay import Replay
from nanoserve_cli.stats import Spread
from nanoserve_cli.tuning.candidates import Candidate
from nanoserve_cli.tuning.evidence import Load
from nanoserve_cli.tuning.stretches import Stretch, stretches

ROUNDS = 3
STRETCHES = 4
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Proof:
    """Both lists on the same stretches of the held-out part of one load, run in turn, `ROUNDS` times each.

    `ratio` is the candidate's step time over the baseline's, step by step, each the median of its rounds; the two
    `tokens_per_s` are of decoding. Cells were equal to what they were priced at, or there would be no proof.
    """

    candidate: Candidate
    baseline: Candidate
    factor: float
    stretches: int
    requests: int
    steps: int
    cells: tuple[int, int]
    ratio: Spread
    tokens_per_s: tuple[float, float]
    partings: Partings


def verify(
    candidate: Candidate,
    baseline: Candidate,
    load: Load,
    decoder: Decoder,
    clock: ClockSettings,
    *,
    steps: int,
    by_rows: bool = False,
) -> Proof:
    """Runs about `steps` decode steps of the held-out part under both lists, interleaved in this process.

    Lists that are looked at `by_rows` alone run at the least width that a stretch needs: see `for_engine`.

    Raises RunUnsound where the engine takes other steps than were simulated or other cells than were priced, TokensPart
    where the tokens part and the logits are no tie, ValueError where no request decodes there. `load` is simulated.
    """
    assert load.workload is not None
    run = simulate(load.workload, candidate.policy.max_batch_size, step_time=FixedStep(clock.step_ns))
    parts = stretches(
        load.workload,
        run,
        step_ns=clock.step_ns,
        first_step=run.cut_at(load.cut_ns),
        steps=steps,
        count=STRETCHES,
    )
    if not parts:
        raise ValueError("--verify: no request decodes in the part that was held out")
    both = []
    for part in parts:
        lists = [for_engine(one, part) if by_rows else one for one in (candidate, baseline)]
        both.append(_verified(lists, part, decoder, clock))
    ours, theirs = (np.concatenate([one.seconds[which] for one in both]) for which in (0, 1))
    ratio = Spread.of(ours / theirs)
    assert ratio is not None
    tokens = sum(int((part.steps.rows * part.steps.steps).sum()) for part in parts)
    return Proof(
        candidate,
        baseline,
        load.factor,
        len(parts),
        sum(len(part.workload) for part in parts),
        sum(part.steps.total_steps for part in parts),
        (sum(one.cells[0] for one in both), sum(one.cells[1] for one in both)),
        ratio,
        (tokens / float(ours.sum()), tokens / float(theirs.sum())),
        Partings(sum(one.partings.requests for one in both), max(one.partings.widest_gap for one in both)),
    )


@dataclass(frozen=True, eq=False)
class _Verified:
    """One stretch under both lists: seconds of each step, medians of the rounds, and cells."""

    seconds: tuple[np.ndarray, np.ndarray]
    cells: tuple[int, int]
    partings: Partings


def _verified(lists: list[Candidate], part: Stretch, decoder: Decoder, clock: ClockSettings) -> _Verified:
    runs: list[list[Replay]] = [[], []]
    for _ in range(ROUNDS):
        for which, one in enumerate(lists):
            runs[which].append(_run(one, part, decoder, clock))
    ours, theirs = (np.median([run.decode_seconds for run in each], axis=0) for each in runs)
    first, second = runs[0][0], runs[1][0]
    return _Verified(
        (ours, theirs),
        (first.graph_cells, second.graph_cells),
        find_partings(part.workload, decoder, clock.seed, first.tokens, second.tokens),
    )


def for_engine(one: Candidate, part: Stretch) -> Candidate:
    """A list of rows with the least width that these steps need: this engine's read has one, a paged read none."""
    policy = one.policy
    widest = int((part.steps.width + part.steps.steps - 1).max())
    width = min(round_up(widest, BLOCK_SIZE), policy.max_model_len)
    rows = sorted({shape.rows for shape in policy.shapes})
    return replace(one, policy=DecodeBuckets(policy.max_batch_size, width, rows=rows, widths=(width,)))


def _run(one: Candidate, part: Stretch, decoder: Decoder, clock: ClockSettings) -> Replay:
    blocks = -(-(part.workload.prompt_len + part.workload.output_len) // BLOCK_SIZE)
    # Blocks for these requests and no more: the whole pool of a large cache may not fit here, and none is preempted.
    least = -(-one.policy.max_model_len // BLOCK_SIZE)
    settings = EngineSettings(one.policy, decoder, block_size=BLOCK_SIZE, num_blocks=max(least, int(blocks.sum())))
    replay = clock.replay(settings.build(bucketed=True), part.workload, None, None)
    if replay.steps != part.steps:
        raise RunUnsound(f"{one.name}: the engine took other steps than the simulation of the same requests")
    priced = price_run(replay.steps, one.policy)
    if replay.graph_cells != priced.padded_cells:
        raise RunUnsound(f"{one.name} ran {replay.graph_cells} cells, the arithmetic says {priced.padded_cells}")
    return replay
