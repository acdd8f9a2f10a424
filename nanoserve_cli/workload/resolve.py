"""A trace by key or by path, to the file itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from nanoserve.cache_dir import cache_dir
from nanoserve_cli.assets import TRACES, Asset
from nanoserve_cli.workload.errors import TraceError, did_you_mean


def resolve_trace(name: str | Path, trace_dir: str | Path | None = None) -> Path:
    """The file of the trace that `name` is the key or the path of.

    A key is looked for in `trace_dir`, then in the folder that the environment names as `NANOSERVE_TRACES`,
    then in the cache that `nanoserve fetch` fills. Raises TraceError where there is no such file, with
    the command that gets it or the key that was probably meant.
    """
    if not str(name).strip():
        raise TraceError("the trace's name is empty: give a file or a key")
    asset = next((known for known in TRACES if known.key == str(name)), None)
    if asset is not None:
        folders = list(_folders(trace_dir))
        found = next((path for folder in folders for path in _places(folder, asset) if path.is_file()), None)
        if found is not None:
            return found
    path = Path(name)
    if path.exists():
        return path
    if asset is not None:
        where = ", ".join(str(folder) for folder in folders)
        raise TraceError(f"trace {asset.key} is not in {where}: run `nanoserve fetch {asset.key}`")
    raise TraceError(f"{name}: no such file, and no trace key: {did_you_mean(str(name), [t.key for t in TRACES])}")


def _folders(trace_dir: str | Path | None) -> Iterator[Path]:
    for folder in (trace_dir, os.environ.get("NANOSERVE_TRACES")):
        if folder:
            yield Path(folder)
    yield cache_dir() / "traces"


def _places(folder: Path, asset: Asset) -> Iterator[Path]:
    """Where the file may be: as the cache lays it out, in the folder itself, or in any folder within."""
    yield folder / PurePosixPath(asset.path).relative_to("traces")
    yield folder / asset.filename
    yield from sorted(folder.glob(f"*/{asset.filename}"))
