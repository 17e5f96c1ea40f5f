"""FEMNIST and CelebA as LEAF prepares them (Caldas et al., 2018), from its JSON folders or from Flower's hub.

A LEAF folder holds files all_data_*.json: {"users": […], "num_samples": […], "user_data": {user: {"x": […], "y": […]}}}.
FEMNIST's x are 784 pixels from 0 to 1, CelebA's are names of image files.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bifl.data.arrays import Bytes, from_arrays, label_array
from bifl.data.fetching import INSTALL, allowed, data_folder, pillow
from bifl.data.inputs import Array, Dataset
from bifl.errors import ConfigError, DataError
from bifl.files import parse_json
from bifl.processes import available_memory

_EXPANSION = 10  # bytes of Python objects for a byte of JSON


class Source(NamedTuple):
    """What FEMNIST and CelebA differ in."""

    name: str  # of the dataset, and of its folder in the data folder
    classes: int
    parse: Callable[[Any], Array]  # a user's `x` as pixels or file names; ValueError if it is neither
    pixels: Callable[[Path, Array], Bytes]  # (folder, those) → images
    hub: str  # its name at Flower's hub
    splits: tuple[str, ...]  # of it there
    user: str  # the column there of who made an image
    label: str  # the column there of its class
    mode: str  # of the images there, for PIL


def load(source: Source, path: str, share: float, test_share: float) -> Dataset:
    """The dataset from a LEAF folder, or from the hub where there is none: `path`, or the one in the data folder.

    A `share` of the users is used, chosen at random but always the same; of each user's images `test_share` are held out for
    testing.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"dataset.share must be greater than 0 and at most 1, not {share}")
    folder = Path(path) if path else data_folder() / source.name
    places = [sorted((folder / place).glob("all_data*.json")) for place in ("", "all_data", "data/all_data")]
    files = next((files for files in places if files), [])
    if path and not files:
        raise DataError(f"'{folder}' holds none of LEAF's files all_data_*.json")
    arrays = _from_files(source, folder, files, share) if files else _from_hub(source, folder, share)
    return from_arrays(arrays, str(folder) if files else source.hub, source.classes, test_share)


def _from_files(source: Source, folder: Path, files: list[Path], share: float) -> dict[str, Array]:
    everyone = [person for file in files for person in _people(file, source)]
    if not everyone:
        raise DataError(f"LEAF's files in '{folder}' hold no images")
    chosen = _chosen((name for name, *_ in everyone), share)
    names, images, labels = zip(*(person for person in everyone if person[0] in chosen), strict=True)
    return {
        "images": source.pixels(folder, np.concatenate(images)),
        "labels": np.concatenate(labels),
        "users": np.repeat(names, [len(part) for part in labels]),
    }


def _chosen(names: Iterable[str], share: float) -> set[str]:
    users = sorted(set(names))
    order = np.random.default_rng(0).permutation(len(users))
    return {users[place] for place in order[: math.ceil(share * len(users))]}


def _people(file: Path, source: Source) -> Iterator[tuple[str, Array, Array]]:
    """(name, images or what they can be had from, labels) of the users in one of LEAF's files who have some, each checked."""
    try:
        if _EXPANSION * file.stat().st_size > (free := available_memory()):
            raise DataError(f"'{file}' is too large to be read in the {free:,} bytes of memory that are free")
        content = parse_json(file.read_bytes())
        users, counts, data = content["users"], content["num_samples"], content["user_data"]
        if len(users) != len(counts):
            raise DataError(f"'{file}' names {len(users)} users but {len(counts)} num_samples")
        for user, count in zip(users, counts, strict=True):
            x, y = data[user]["x"], data[user]["y"]
            if not len(x) == len(y) == count:
                raise DataError(f"'{file}': user {user} has {len(x)} x, {len(y)} y and num_samples {count}: they must be equal")
            if count:
                labels = label_array(np.array(y), count, source.classes, f"'{file}': the labels of user {user}")
                yield str(user), source.parse(x), labels
    except OSError as error:
        raise DataError(f"cannot read '{file}': {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"'{file}' is not one of LEAF's files, or damaged: {what}") from error


def _from_hub(source: Source, folder: Path, share: float) -> dict[str, Array]:
    missing = f"{source.name} is not in '{folder}' (LEAF's all_data_*.json; or set dataset.path)"
    if not allowed():
        raise DataError(missing)
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    try:
        from flwr_datasets import FederatedDataset
    except ImportError:
        raise DataError(f"{missing}, and to fetch {source.hub} the package flwr-datasets is needed: {INSTALL}") from None
    try:
        remote = FederatedDataset(dataset=source.hub, partitioners={}, shuffle=False, cache_dir=str(data_folder() / "hub"))
        tables = [remote.load_split(split) for split in source.splits]
    except Exception as error:  # whatever the hub's client raises where there is no network
        reason = str(error).partition("\n")[0]
        raise DataError(f"{missing}, and {source.hub} could not be fetched ({type(error).__name__}: {reason})") from error
    chosen = _chosen((str(user) for table in tables for user in table[source.user]), share)
    images, labels, users = [], [], []
    for table in tables:
        for row, user in enumerate(map(str, table[source.user])):
            if user in chosen:
                example = table[row]
                images.append(_pixels(example["image"], source.mode))
                labels.append(int(example[source.label]))
                users.append(user)
    return {"images": np.stack(images), "labels": np.array(labels), "users": np.array(users)}


def _pixels(picture: Any, mode: str) -> Bytes:
    """(channels, height, width) of one of PIL's pictures."""
    picture = picture.convert(mode)
    if mode == "L":
        return np.asarray(picture, np.uint8)[None]
    return np.moveaxis(np.asarray(picture.resize((CELEBA_SIZE, CELEBA_SIZE)), np.uint8), 2, 0)


# ---- FEMNIST ---------------------------------------------------------------------------------------------------------


def _grey_pixels(x: Any) -> Array:
    pixels = np.array(x, np.float64)  # ragged rows are a ValueError
    if pixels.ndim != 2 or pixels.shape[1] != 784:
        raise ValueError(f"x must hold 784 pixels an image, not {pixels.shape}")
    if not (pixels.min() >= 0 and pixels.max() <= 1):
        raise ValueError(f"pixels must be from 0 to 1, not from {pixels.min()} to {pixels.max()}")
    return np.rint(pixels * 255).astype(np.uint8).reshape(-1, 28, 28)


FEMNIST = Source(
    "femnist", 62, _grey_pixels, lambda folder, pixels: pixels,
    "flwrlabs/femnist", ("train",), "writer_id", "character", "L",
)  # fmt: skip


# ---- CelebA ----------------------------------------------------------------------------------------------------------

CELEBA_SIZE = 84


def _file_names(x: Any) -> Array:
    if not all(isinstance(name, str) and name and name == os.path.basename(name) for name in x):
        raise ValueError("x must hold names of image files")
    return np.array(x, object)


def _read_pictures(folder: Path, names: Array) -> Bytes:
    image = pillow("celeba's")
    places = [folder / place / "img_align_celeba" for place in ("", "raw", "data/raw")]
    place = next((place for place in places if place.is_dir()), None)
    if place is None:
        raise DataError(f"CelebA's pictures are not in '{places[1]}': put the folder img_align_celeba there")
    if len(set(names)) < len(names):
        raise DataError(f"LEAF's files in '{folder}' name a picture twice")
    pictures = np.empty((len(names), 3, CELEBA_SIZE, CELEBA_SIZE), np.uint8)
    for number, name in enumerate(names):
        try:
            with image.open(place / name) as picture:
                pictures[number] = _pixels(picture, "RGB")
        except FileNotFoundError:
            raise DataError(f"'{place / name}' does not exist, though LEAF's files name it") from None
        except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
            raise DataError(f"'{place / name}' is not a picture, or damaged ({error})") from error
    return pictures


CELEBA = Source(
    "celeba", 2, _file_names, _read_pictures,
    "flwrlabs/celeba", ("train", "valid", "test"), "celeb_id", "Smiling", "RGB",
)  # fmt: skip
