"""What a fit is made from: recorded decode steps, each load cut into the part that is fitted and the part held out."""

from __future__ import annotations

from dataclasses import dataclass

from nanoserve.fitting import StepsHistogram
from nanoserve.steps import Steps
from nanoserve.workload import Workload
from nanoserve_cli.observed.model import Observed
from nanoserve_cli.traffic import Traffic


@dataclass(frozen=True, eq=False)
class Part:
    """A stretch of recorded steps. `live_cells` is None where only rows are known; widths are then all 1."""

    histogram: StepsHistogram
    live_cells: int | None

    @property
    def by_rows(self) -> Part:
        """The same steps with their widths forgotten."""
        return Part(self.histogram.rows_only(), None)

    @classmethod
    def of(cls, steps: Steps) -> Part:
        """A part of a run. ValueError where it has no step."""
        return cls(StepsHistogram.of(steps), int(steps.live_cells.sum()))


@dataclass(frozen=True, eq=False)
class Load:
    """The traffic at `factor` times its arrival rate. `held` is None where nothing is held out.

    `inner` is the fit part cut once more, so that choices about the fit need not look at what is held out; None where
    the source has no time. `workload` is what was simulated, None where steps were recorded; `cut_ns` is when the
    held-out part of the run begins.
    """

    factor: float
    fit: Part
    held: Part | None
    inner: tuple[Part, Part] | None = None
    workload: Workload | None = None
    cut_ns: int = 0

    @property
    def judged(self) -> Part:
        """The part that lists are judged by: the one held out, or else the one they were fitted to."""
        return self.fit if self.held is None else self.held

    @property
    def parts(self) -> tuple[Part, ...]:
        """Both, or the one there is."""
        return (self.fit,) if self.held is None else (self.fit, self.held)

    @property
    def most_rows(self) -> int:
        """The most rows of any step."""
        return max(int(part.histogram.rows.max()) for part in self.parts)

    @property
    def most_width(self) -> int:
        """The widest step; 1 where widths are not known."""
        return max(int(part.histogram.width.max()) for part in self.parts)


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything that is known of the traffic. `has_widths` is false where only rows were recorded.

    `size` says how much there is of it, in what (requests, steps, samples). `source_sha256` is of the file, None where
    requests were drawn. `traffic` is there where requests were simulated, `observed` where a file was read.
    """

    label: str
    kind: str
    loads: tuple[Load, ...]
    has_widths: bool
    max_batch_size: int
    max_model_len: int
    size: tuple[int, str]
    notes: tuple[str, ...]
    source_sha256: str | None = None
    traffic: Traffic | None = None
    observed: Observed | None = None

    @property
    def where(self) -> str:
        """What the figures that judge are of."""
        return "on the part held out" if self.loads[0].held is not None else "on what it was fitted to"

    @property
    def server_sizes(self) -> tuple[int, ...]:
        """The server's own capture list, in rows, ascending; empty where the source holds none."""
        return (self.observed and self.observed.capture_sizes) or ()
