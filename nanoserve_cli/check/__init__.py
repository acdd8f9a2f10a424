"""Budgets: limits on the counts of a workload, kept in a file and checked.

`budget_file` reads what is written; `kinds` are the workloads, whose rows `checking` makes, or finds in a `results`
file; `judging` holds the limits against them, by the pure comparison of `verdicts`; `update` writes new limits.
`words` says a verdict, and the faces are `tables`, `documents` (JSON, JUnit) and `github`.
"""

DEFAULT_FILE = "nanoserve.budget.yaml"
"""The budget file that the commands mean when they are told none."""
