"""The header of a GGUF file: its metadata, and where each tensor lies. No weight is read.

The layout is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` package has a
reader too; it makes array objects of every vocabulary entry, which takes seconds where this takes a tenth of
one, and it answers a truncated file with whatever numpy raises. Its tables of types are used here.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from nanoserve.model.errors import CheckpointError, UnsupportedModel

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
SCALAR_FORMATS: Final[Mapping[GGUFValueType, str]] = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor. `shape` is row-major (reversed in the file); `start` and `size` are bytes of the file."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    start: int
    size: int


@dataclass(frozen=True)
class GGUFHeader:
    """What a GGUF file says before its weights."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: tuple[GGUFTensor, ...]

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends an answer: end of sequence, of turn, of message."""
        keys = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
        return tuple(sorted({int(self.metadata[key]) for key in keys if key in self.metadata}))


def is_gguf(path: Path) -> bool:
    """Whether the file starts as a GGUF file does, whatever it is called."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_header(path: Path) -> GGUFHeader:
    """The header of `path`. Raises CheckpointError where it is no GGUF file, damaged or cut short."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, data)
    except (struct.error, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is damaged or cut short in its header ({error}): fetch it again") from error
    except (OSError, ValueError) as error:
        if isinstance(error, CheckpointError | UnsupportedModel):
            raise
        raise CheckpointError(f"{path} cannot be read as GGUF ({error}): fetch it again") from error


class _Cursor:
    """A place in the file that moves on as values are taken."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def scalar(self, kind: GGUFValueType) -> Any:
        return self.scalars(kind, 1)[0]

    def scalars(self, kind: GGUFValueType, count: int) -> tuple[Any, ...]:
        form = SCALAR_FORMATS[kind]
        self._require(count * struct.calcsize(form))
        values = struct.unpack_from(f"<{count}{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{count}{form}")
        return values

    def string(self) -> str:
        size = self.scalar(GGUFValueType.UINT64)
        self._require(size)
        self.at += size
        return self.data[self.at - size : self.at].decode("utf-8")

    def value(self, kind: GGUFValueType) -> Any:
        if kind is GGUFValueType.STRING:
            return self.string()
        if kind is not GGUFValueType.ARRAY:
            return self.scalar(kind)
        item = GGUFValueType(self.scalar(GGUFValueType.UINT32))
        count = self.scalar(GGUFValueType.UINT64)
        if item in SCALAR_FORMATS:
            return list(self.scalars(item, count))
        self._require(count)
        return [self.value(item) for _ in range(count)]

    def _require(self, size: int) -> None:
        """A damaged count must end here, not in a loop or an allocation of its size."""
        if size > len(self.data) - self.at:
            raise struct.error(f"{size} bytes wanted at byte {self.at} of {len(self.data)}")


def _parse(path: Path, data: mmap.mmap) -> GGUFHeader:
    cursor = _Cursor(data)
    if data[: len(MAGIC)] != MAGIC:
        raise CheckpointError(f"{path} is no GGUF file: it does not start with {MAGIC.decode()}")
    cursor.at = len(MAGIC)
    version = cursor.scalar(GGUFValueType.UINT32)
    if version not in VERSIONS:
        raise UnsupportedModel(f"{path}: GGUF version {version} is not implemented, only 2 and 3, little-endian")
    num_tensors, num_values = cursor.scalars(GGUFValueType.UINT64, 2)
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = cursor.string()
        metadata[key] = cursor.value(GGUFValueType(cursor.scalar(GGUFValueType.UINT32)))
    infos = [_tensor_info(cursor, path) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    start = math.ceil(cursor.at / alignment) * alignment
    tensors = tuple(_placed(*info, start) for info in infos)
    for tensor in tensors:
        if tensor.start + tensor.size > len(data):
            raise CheckpointError(
                f"{path} is cut short: {tensor.name} ends at byte {tensor.start + tensor.size} "
                f"of {len(data)}: fetch it again"
            )
    return GGUFHeader(path, metadata, tensors)


def _tensor_info(cursor: _Cursor, path: Path) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
    name = cursor.string()
    shape = cursor.scalars(GGUFValueType.UINT64, cursor.scalar(GGUFValueType.UINT32))[::-1]
    kind, offset = cursor.scalar(GGUFValueType.UINT32), cursor.scalar(GGUFValueType.UINT64)
    try:
        return name, shape, GGMLQuantizationType(kind), offset
    except ValueError:
        raise UnsupportedModel(f"{path}: {name} has tensor type {kind}, which is not known here") from None


def _placed(name: str, shape: tuple[int, ...], kind: GGMLQuantizationType, offset: int, start: int) -> GGUFTensor:
    block, block_bytes = GGML_QUANT_SIZES[kind]
    return GGUFTensor(name, shape, kind, start + offset, math.prod(shape) // block * block_bytes)
