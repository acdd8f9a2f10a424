"""The parts of the library that need torch, imported when they are used, with a sentence where torch is absent."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def has_engine() -> bool:
    """Whether torch is installed; it is not imported."""
    try:
        return find_spec("torch") is not None
    except ModuleNotFoundError:
        return False


def import_engine(module: str, what: str) -> ModuleType:
    """`module` of this package. ImportError, saying what to install, where `what` needs torch and there is none."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise ImportError(f"{what} needs torch: pip install 'nanoserve[engine]'") from error
        raise
