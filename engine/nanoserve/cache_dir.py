"""Where fetched files are kept, by one rule for the library and the tool."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`NANOSERVE_CACHE`, else `XDG_CACHE_HOME/nanoserve`, else `~/.cache/nanoserve`. It may not exist yet."""
    if chosen := os.environ.get("NANOSERVE_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "nanoserve"


def cached_model(file_name: str) -> Path:
    """Where the fetched model file of that name belongs. It may not exist yet."""
    return cache_dir() / "models" / file_name
