"""The best ladders for the traffic: exact, from a histogram of decode steps, numpy only.

A `StepsHistogram` says how often the run had each size, an `Axis` which ladders are allowed on rows or on widths, a
`Price` what a step costs at the shape it runs as. The solvers answer with a `Curve`: the optimum for every number of
graphs. Costs are totals over the run; waste is `1 - open / padded`, with the histogram's own price as `open`::

    histogram = StepsHistogram.of(steps)
    curve = fit_staircase(histogram, Axis(256), Axis(8192, granularity=128), budget=36)
    curve.at(36).best                                   # a StaircaseBuckets
    1 - histogram.priced(price_cells) / curve.at(36).cost

Integer weights and prices are added up exactly, and ties are broken by rule: the same list on every machine.
"""

from __future__ import annotations

from nanoserve.fitting.axis import Axis
from nanoserve.fitting.baseline import pruned
from nanoserve.fitting.curve import Curve, Fitted, fewest
from nanoserve.fitting.histogram import StepsHistogram
from nanoserve.fitting.one_axis import fit_rows, fit_widths
from nanoserve.fitting.prices import Price, price_cells, price_rows, price_time
from nanoserve.fitting.product import FittedProduct, fit_product
from nanoserve.fitting.robust import Robust, minimax
from nanoserve.fitting.staircase import fit_staircase
from nanoserve.fitting.step_times import StepTimeFit, TimedShapes, fit_step_time

__all__ = [
    "Axis",
    "Curve",
    "Fitted",
    "FittedProduct",
    "Price",
    "Robust",
    "StepTimeFit",
    "StepsHistogram",
    "TimedShapes",
    "fewest",
    "fit_product",
    "fit_rows",
    "fit_staircase",
    "fit_step_time",
    "fit_widths",
    "minimax",
    "price_cells",
    "price_rows",
    "price_time",
    "pruned",
]
