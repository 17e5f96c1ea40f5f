"""Reads .npz files that may come from anyone: sizes are checked before memory is allocated, and nothing is unpickled."""

from __future__ import annotations

import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from bifl.processes import available_memory

Array = npt.NDArray[Any]
LARGE = 64 * 2**20
"""Bytes that any file may unpack to."""
RATIO = 100
"""Beyond these bytes a file may unpack to this many times its own size."""
_KINDS = "biufSU"  # truth values, whole numbers, floats, texts; no objects, no records
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what numpy writes
_ENCRYPTED = 0x1
_RAISED = (
    EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, MemoryError, SyntaxError,
    NotImplementedError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What zipfile and numpy raise on damaged files, depending on where the damage is."""


class Damaged(ValueError):
    """A file that is not .npz, is damaged, or would take too much memory; says why."""


def read(path: Path, wanted: Collection[str] | None = None) -> dict[str, Array]:
    """The arrays of an .npz file, or those of them that are wanted and there; OSError or `Damaged` if it cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist() if info.filename.endswith(".npy")}
            chosen = {name: info for name, info in members.items() if wanted is None or name in wanted}
            _check_total(chosen, path.stat().st_size)
            return {name: _array(archive, info, name) for name, info in chosen.items()}
    except _RAISED as error:
        raise Damaged(str(error) or type(error).__name__) from error


def map_folder(folder: Path) -> dict[str, Array]:
    """The arrays of a folder's .npy files by name, mapped into memory: what is not used is never read."""
    arrays = {}
    for path in sorted(folder.glob("*.npy")):
        try:
            with path.open("rb") as file:
                shape, dtype = _checked_form(file, path.stem, file.seek(0, 2))
            arrays[path.stem] = np.load(path, mmap_mode="r", allow_pickle=False) if math.prod(shape) else np.zeros(shape, dtype)
        except _RAISED as error:
            raise Damaged(f"'{path.name}': {str(error) or type(error).__name__}") from error
    return arrays


def _check_total(members: dict[str, zipfile.ZipInfo], size: int) -> None:
    """Refuse what would take too much memory, by what the zip file's directory says: reading never goes beyond that."""
    for name, info in members.items():
        if info.flag_bits & _ENCRYPTED:
            raise Damaged(f"'{name}' is encrypted")
        if info.compress_type not in _METHODS:
            raise Damaged(f"'{name}' is compressed in a way that numpy does not write")
    total, packed = (sum(getattr(info, field) for info in members.values()) for field in ("file_size", "compress_size"))
    if packed > size:
        raise Damaged(f"its arrays take {packed:,} bytes in a file of {size:,}")
    if total > max(LARGE, RATIO * size):
        raise Damaged(
            f"its {size:,} bytes would unpack to {total:,}, and more than {RATIO} times a file's size is not read: "
            "if that is meant, write it uncompressed, with numpy.savez"
        )
    if total > (free := available_memory()):
        raise Damaged(f"its arrays take {total:,} bytes, and {free:,} are free")


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> Array:
    with archive.open(info) as member, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of headers that Python 2 wrote
        _checked_form(member, name, info.file_size)  # before memory for its shape is allocated
        member.seek(0)
        array: Array = np.lib.format.read_array(member, allow_pickle=False)
    return array


def _checked_form(file: IO[bytes], name: str, size: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """An array's shape and type, if it holds no objects and is as long as these say in a file of that size."""
    file.seek(0)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise Damaged(f"'{name}' has version {version} of numpy's format, 1.0 and 2.0 can be read")
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    length = size - file.tell()
    if dtype.kind not in _KINDS or dtype.itemsize == 0:
        raise Damaged(f"'{name}' holds {dtype}: neither numbers nor texts")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != length:
        raise Damaged(f"'{name}' is {shape} of {dtype} by its header, but has {length:,} bytes")
    return shape, dtype
