"""A client's own samples: what `--data` names, and whether it can be used before the client joins. Without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bifl.data.arrays import TABLES, from_npz, is_arrays, table_text
from bifl.data.datasets import dataset
from bifl.data.inputs import NONE, Array, Index
from bifl.errors import BiflError, ConfigError, DataError

_NOT_IMAGES = {
    "remote": "it has no images; give FILE.npz, a folder of LEAF's, or another name",
    "npz": "give the file itself: --data FILE.npz",
}


class Images(NamedTuple):
    """Inputs, pictures or others, and which of them are the client's."""

    images: Array  # (n, …) uint8, floats or tokens; pictures (n, channels, height, width) or (n, height, width) uint8
    labels: Array  # (n,) class numbers, or what else the run's task takes
    hand: Index | None = None  # all, if not told
    classes: int | None = None  # how many there are, where the dataset knows
    further: Mapping[str, Array] = NONE  # name → (n, …) what the run's network or task takes beside the inputs


def read_files(where: str, leaf: Sequence[str] = ("femnist", "celeba")) -> Images | None:
    """What `--data` names if that is an .npz file, or a folder of .npy files or of LEAF's, of one of these kinds; else None."""
    path = Path(where)
    if where.endswith(".npz") or (where and is_arrays(path)):
        data = from_npz(path)
        return Images(data.inputs, data.labels, further=data.further)
    return _read_leaf(where, leaf) if where and path.is_dir() else None


def check_data(where: str) -> str:
    """Read what `--data` names once; how it is to be called from any folder. Nothing is nothing to check."""
    if not where:
        return ""
    path = Path(where)
    try:
        if "\0" in where:
            raise DataError("a path has no NUL byte")
        images, name = read_files(where), dataset.spelled(where)
        if images is not None:
            labels, name = images.labels, str(path.resolve())
        elif name in _NOT_IMAGES:
            raise DataError(f"dataset '{name}': {_NOT_IMAGES[name]}")
        elif path.suffix.lower() in TABLES and path.is_file():
            raise DataError(f"'{where}' {table_text(path)}")
        elif ":" not in name and name not in dataset.names():
            kinds = "neither a file nor a folder here, nor a dataset"
            raise DataError(f"'{where}' is {kinds} (known: {', '.join(dataset.names())}); files must be called FILE.npz")
        else:
            labels = dataset.make(name, {}).labels
        if len(labels) < 2:
            raise DataError(f"'{where}' holds {len(labels)} training images, batch-norm needs two or more")
        return name
    except BiflError as error:
        raise ConfigError(f"--data cannot be used, and nothing was joined: {error}") from error


def _read_leaf(where: str, kinds: Sequence[str]) -> Images:
    reasons = {}
    for kind in kinds:
        try:
            data = dataset.make(kind, {"path": where, "test_share": 0.0})
        except DataError as error:
            reasons[kind] = str(error)
        else:
            return Images(data.inputs, data.labels, classes=data.classes)
    if len(set(reasons.values())) == 1:
        raise DataError(reasons[kinds[0]])
    raise DataError("; ".join(f"as {kind}: {reason}" for kind, reason in reasons.items()))
