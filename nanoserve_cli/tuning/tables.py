"""A tune report as tables and lines of 80 columns: the held-out figure first, the fitted one beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING

from nanoserve.fitting import StepTimeFit
from nanoserve_cli.tables import simple_table
from nanoserve_cli.tuning.candidates import SERVER, Candidate
from nanoserve_cli.tuning.evidence import Evidence
from nanoserve_cli.tuning.feedback import Settled
from nanoserve_cli.tuning.report import CURVE_LIMIT, Entry, LoadReport, Shared, TuneReport

if TYPE_CHECKING:
    from rich.table import Table

    from nanoserve_cli.tuning.verify import Proof

COLUMNS = (
    "\nlist",
    "\ngraphs",
    "\nused",
    "\nwaste",
    "total\nwaste",
    "fit\nwaste",
    "fitted:\npoints",
    "\nratio",
    "\nmatch",
    "off\nlist",
)


def eager_line(evidence: Evidence) -> str | None:
    """What the server ran eager, off its own list: the first thing that a report says."""
    observed = evidence.observed
    if observed is None or observed.eager is None or not observed.eager.weight:
        return None
    eager, unit = observed.eager, observed.weight_unit or "steps"
    counted = observed.total_weight + sum(some.weight for some in observed.mixed)
    most = sorted(eager.rows, key=lambda one: -one[1])[:6]
    sizes = ", ".join(f"{rows} ({weight:,.0f})" for rows, weight in most) + " and more" * (len(eager.rows) > len(most))
    share = f"{eager.weight:,.0f} {unit}, {eager.weight / counted:.1%} of all"
    return f"served eager: {share}, by size: {sizes}; {eager.basis}"


def load_table(one: LoadReport, report: TuneReport) -> Table:
    """Every list on one load, the fitted ones last, under the rule of their widths."""
    rows: list[tuple[str, ...]] = []
    for group, entries in groupby((*one.others, *one.proposals), key=lambda entry: entry.candidate.group):
        rows.append((group, *[""] * (len(COLUMNS) - 1)))
        rows += [_cells(entry, has_fit=one.load.held is not None) for entry in entries]
    kept = [i for i in range(len(COLUMNS)) if any(row[i] not in ("", "-") for row in rows)]
    table = simple_table(
        f"{report.evidence.label}, load {one.load.factor:g}: {report.objective.name} {report.evidence.where}",
        [COLUMNS[i] for i in kept],
        [[row[i] for i in kept] for row in rows],
        caption=_caption(one),
    )
    table.padding = (0, 0)
    return table


def _caption(one: LoadReport) -> str | None:
    told = []
    if one.fit.prior:
        told.append(f"fitted with an even prior of {one.fit.prior:.2g} on all sizes")
    if one.fit.gap is not None:
        told.append(f"on the fit part the product costs {max(one.fit.gap, 0):.1%} more than the staircase")
    return "; ".join(told) or None


def legend(report: TuneReport) -> Iterator[str]:
    """What the columns are, once for all loads."""
    name = report.objective.name
    entries = [entry for one in report.loads for entry in one.others]
    held = any(one.load.held is not None for one in report.loads)
    fit = "; fit: the same on what is fitted" if held else ""
    yield f"waste: share of the {name} that is padding, {report.evidence.where}{fit}"
    if any(entry.judged.total_waste is not None for entry in entries):
        yield "total waste: of the cells, rows shorter than the longest counted too"
    yield f"points, ratio: waste and {name} of the fitted list of as many graphs, at most {CURVE_LIMIT}, against it"
    yield "match: graphs with which a fitted list costs no more"
    if any(entry.judged.off_list for entry in entries):
        yield "off list: steps that run eager, unpadded; * is completed with its maximum"


def _cells(entry: Entry, *, has_fit: bool) -> tuple[str, ...]:
    judged = entry.judged
    figures = (
        f"{judged.available:,}",
        f"{judged.used:,}",
        f"{judged.waste:.1%}",
        "-" if judged.total_waste is None else f"{judged.total_waste:.1%}",
        f"{entry.fit.waste:.1%}" if has_fit else "-",
    )
    fitted = (
        f"{(entry.rival.waste - judged.waste) * 100:+.1f}",
        f"{entry.rival.cost / judged.cost:.2f}",
        "-" if entry.matched is None else str(entry.matched),
    )
    off = f"{judged.off_list:.1%}" if judged.off_list else "-"
    name = "\n".join(
        wrap(entry.candidate.name, 20, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    )
    return (name, *figures, *(("", "", "") if entry.candidate.is_fitted else fitted), off)


def shared_table(report: TuneReport) -> Table:
    """The lists for all loads, the baseline, and each load's own, on every load."""
    lines = [*_across(report.shared), *_across(report.across[:1])]
    for one, shared in zip(report.loads, report.across[1:], strict=True):
        lines += _across([shared], f"own of load {one.load.factor:g}")
    search = report.search
    caption = None
    if search is not None:
        caption = (
            f"worst regret {search.worst - 1:.1%} on what was fitted; no staircase has less than {search.bound - 1:.1%}"
        )
    factors = [f"load\n{one.load.factor:g}" for one in report.loads]
    table = simple_table(
        f"One list for all loads: waste of {report.objective.name} {report.evidence.where}",
        ("\nlist", "\ngraphs", *factors),
        lines,
        caption=caption,
    )
    table.padding = (0, 0)
    return table


def _across(lists: Sequence[Shared], name: str | None = None) -> Iterator[tuple[str, ...]]:
    for one in lists:
        wastes = (f"{score.waste:.1%}" for score in one.scores)
        yield (name or one.candidate.name, f"{one.candidate.policy.count:,}", *wastes)


def settled_table(settled: Sequence[Settled], report: TuneReport) -> Table:
    """Lists under their own cost."""
    return simple_table(
        f"Simulated under their own step time, {report.evidence.where}",
        ("\nlist", "\nload", "decode\nsteps", "ms a\ntoken", "rows,\nmean", "longest wait,\nsteps"),
        [
            (
                one.candidate.name,
                f"{one.factor:g}",
                f"{one.steps:,}",
                f"{one.ms_per_token:,.3f}",
                f"{one.mean_rows:.1f}",
                f"{one.longest_wait:,}",
            )
            for one in settled
        ],
        caption="padding lengthens steps, longer steps gather rows, and more rows change what the padding costs",
    )


def proof_table(proof: Proof) -> Table:
    """Two lists, run step by step on the engine."""
    names = (proof.candidate.name, proof.baseline.name)
    low, high = proof.ratio.low, proof.ratio.high
    rows = [
        ("graphs", *(f"{one.policy.count:,}" for one in (proof.candidate, proof.baseline)), ""),
        ("cells, as priced", *(f"{cells:,}" for cells in proof.cells), f"{proof.cells[0] / proof.cells[1]:.3f}"),
        ("tokens/s", *(f"{one:,.0f}" for one in proof.tokens_per_s), ""),
        ("step time", "", "", f"{proof.ratio.median:.3f}"),
        ("  quartiles", "", "", f"{low:.3f}..{high:.3f}"),
    ]
    tokens = f"part at a tie in {proof.partings.requests} requests" if proof.partings.requests else "equal"
    return simple_table(
        f"On this engine, eager, load {proof.factor:g}: {proof.steps:,} steps in {proof.stretches} stretches, of "
        f"{proof.requests:,} requests",
        ("", *names, "ratio"),
        rows,
        caption=f"tokens {tokens}; median and quartiles are of the ratio of each step's time",
    )


def step_time_lines(found: StepTimeFit) -> Iterator[str]:
    """The model of step times, and how far it was off on shapes it had not seen."""
    errors = ", ".join(f"{name} {error:.1%}" for name, error in found.errors.items())
    yield f"step time, by shapes left out of the fit: off by {errors} (root mean square)"
    yield f"  {found.model.render()}"


def recommendation(report: TuneReport) -> Iterator[str]:
    """The list, why, what it covers, and what it is."""
    chosen = report.decision.recommended
    yield f"recommended: {chosen.described}: {report.decision.reason}"
    if chosen is not report.decision.baseline:
        yield from _coverage(report)
        yield from _runner_up(report)
    yield from (f"  {line}" for line in ladder_lines(chosen))


def _coverage(report: TuneReport) -> Iterator[str]:
    """What the server's own list, as it has it, would have sent to eager."""
    for entry in report.loads[0].others:
        if entry.candidate.group == SERVER and entry.judged.off_list:
            share = f"{entry.judged.off_list:.1%}"
            yield f"coverage: the {entry.candidate.name} sends {share} of the steps to eager, this one none"


def _runner_up(report: TuneReport) -> Iterator[str]:
    """How near the best of the others comes, where that is another than what is replaced."""
    if report.runner_up is not None:
        other, ratio = report.runner_up
        if other.policy.shapes != report.decision.baseline.policy.shapes:
            yield (
                f"the best other list of at most {report.rules.budget} graphs is {other.name} with "
                f"{other.policy.count}: {abs(ratio - 1):.1%} {'more' if ratio >= 1 else 'less'} {report.objective.name}"
            )


def ladder_lines(candidate: Candidate) -> Iterator[str]:
    """A list written out, a line a row bucket where its widths differ; one width is the largest and goes unsaid."""
    by_rows: dict[int, list[int]] = {}
    for shape in candidate.policy.shapes:
        by_rows.setdefault(shape.rows, []).append(shape.width)
    ladders = list(by_rows.values())
    if all(ladder == ladders[0] for ladder in ladders):
        yield f"rows {_listed(by_rows)}"
        if len(ladders[0]) > 1:
            yield f"widths {_listed(ladders[0])}"
        return
    for rows, widths in by_rows.items():
        yield f"{rows} rows: widths {_listed(widths)}"


def _listed(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))
