"""The lists that others have: every named ladder, as its system has it and completed, and our own defaults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from nanoserve.buckets import CaptureList, DecodeBuckets, Shape
from nanoserve.fitting import pruned
from nanoserve.ladders import ROW_LADDERS, capture_list, completed
from nanoserve_cli.policy_file import Policy
from nanoserve_cli.tuning.evidence import Part

DEFAULT_MULTIPLE = 128
COARSE_MULTIPLE = 2048
"""The second width rule that named ladders are shown with: as fine as a budget of some dozens of graphs allows."""

DEFAULTS, SERVER, FITTED = "defaults", "this server", "fitted"


@dataclass(frozen=True)
class Candidate:
    """A list with its name, the group that a table shows it in, and the rules it was made by.

    `completed` is false for a list that lacks its maxima, as its system has it: steps off it run eager.
    """

    name: str
    group: str
    policy: Policy
    rows_ladder: str
    width_ladder: str
    completed: bool = True

    @property
    def is_fitted(self) -> bool:
        """Whether it was made from this traffic."""
        return self.group == FITTED

    @property
    def described(self) -> str:
        """For a sentence: `the default of 36 (pow2 x multiple:2048, 36 graphs)`."""
        count = f"{self.policy.count:,} graph{'s' if self.policy.count > 1 else ''}"
        widths = "" if self.width_ladder == f"multiple:{self.policy.max_model_len}" else f" x {self.width_ladder}"
        made = "" if self.group in (FITTED, SERVER) else f"{self.rows_ladder}{widths}, "
        return f"the {self.name} ({made}{count})"


def default(objective: str, max_batch_size: int, max_model_len: int) -> Candidate:
    """This project's default list: powers of two by multiples of 128, or by one width where only rows are looked at."""
    multiple = max_model_len if objective == "rows" else DEFAULT_MULTIPLE
    return _pow2("default", max_batch_size, max_model_len, multiple)


def default_within(objective: str, max_batch_size: int, max_model_len: int, budget: int) -> Candidate:
    """The finest default list of at most `budget` shapes, by doubling the multiple; the coarsest if none is that small.

    Where only rows are looked at there is but one.
    """
    multiple = max_model_len if objective == "rows" else DEFAULT_MULTIPLE
    while True:
        rule = min(multiple, max_model_len)
        found = _pow2("", max_batch_size, max_model_len, rule)
        if found.policy.count <= budget or rule == max_model_len:
            whole = found.policy.count == default(objective, max_batch_size, max_model_len).policy.count
            return replace(found, name="default" if whole else f"default of {found.policy.count}")
        multiple *= 2


def pruned_default(objective: str, max_batch_size: int, max_model_len: int, fit: Part) -> Candidate:
    """The hardest baseline: the default list without the shapes that the fit part never used, and with its maxima."""
    whole = default(objective, max_batch_size, max_model_len)
    assert isinstance(whole.policy, DecodeBuckets)
    kept = pruned(whole.policy, fit.histogram)
    return Candidate("default pruned", DEFAULTS, kept, "pow2 pruned", whole.width_ladder)


def named(max_batch_size: int, max_model_len: int, multiple: int) -> Iterator[Candidate]:
    """Every named row ladder by multiples of one width; one that lacks its maximum also completed, starred.

    Ladders that are the same list here are one candidate with the names of all.
    """
    widths = f"multiple:{multiple}"
    group = f"multiples of {multiple}" if multiple < max_model_len else f"one width, {max_model_len}"

    def each() -> Iterator[Candidate]:
        for name in ROW_LADDERS:
            own = capture_list(name, widths, max_batch_size, max_model_len)
            whole = completed(name, widths, max_batch_size, max_model_len)
            if own.shapes == whole.shapes:
                yield Candidate(name, group, whole, name, widths)
            else:
                yield Candidate(name, group, own, name, widths, completed=False)
                yield Candidate(f"{name}*", group, whole, name, widths)

    return iter(_distinct(each()))


def server_list(sizes: tuple[int, ...], max_batch_size: int, max_model_len: int) -> list[Candidate]:
    """A server's own capture list, as its log has it, and completed where it lacks its largest batch.

    A size above that batch serves it: it counts as of that batch.
    """
    rows = sorted({min(size, max_batch_size) for size in sizes})
    own = CaptureList(
        [Shape(one, max_model_len) for one in rows], max_batch_size=max_batch_size, max_model_len=max_model_len
    )
    widths = f"multiple:{max_model_len}"
    whole = own.complete(max_batch_size, max_model_len)
    if whole.shapes == own.shapes:
        return [Candidate("server's list", SERVER, whole, "server", widths)]
    return [
        Candidate("server's list", SERVER, own, "server", widths, completed=False),
        Candidate("server's list*", SERVER, whole, "server", widths),
    ]


def engine_default(engine: str, max_batch_size: int, max_model_len: int) -> Candidate | None:
    """What an engine captures for itself, completed, where its ladder has a name here: rows of one width."""
    if engine not in ROW_LADDERS:
        return None
    widths = f"multiple:{max_model_len}"
    policy = completed(engine, widths, max_batch_size, max_model_len)
    return Candidate(f"default of {engine}", DEFAULTS, policy, engine, widths)


def _distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    distinct: dict[tuple[Shape, ...], Candidate] = {}
    for one in candidates:
        known = distinct.get(one.policy.shapes)
        distinct[one.policy.shapes] = one if known is None else replace(known, name=f"{known.name}, {one.name}")
    return list(distinct.values())


def _pow2(name: str, max_batch_size: int, max_model_len: int, multiple: int) -> Candidate:
    policy = DecodeBuckets(max_batch_size, max_model_len, width_multiple=multiple)
    return Candidate(name, DEFAULTS, policy, "pow2", f"multiple:{multiple}")
