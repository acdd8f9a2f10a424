"""What can be wrong with a model somebody asks for: it is not implemented, or its files are not sound."""

from __future__ import annotations


class UnsupportedModel(ValueError):
    """The checkpoint is well formed and asks for something this engine does not implement."""


class CheckpointError(ValueError):
    """A file of the checkpoint is missing, damaged, or does not fit the others."""
