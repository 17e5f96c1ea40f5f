"""Whether a client's data can be used, before it joins: as far as that can be told without the run. Without torch."""

from __future__ import annotations

from pathlib import Path

from bifl.data.arrays import TABLES, from_npz, is_arrays, table_text
from bifl.data.datasets import dataset
from bifl.data.inputs import Dataset
from bifl.errors import BiflError, ConfigError, DataError

_NOT_IMAGES = {
    "remote": "it has no images; give FILE.npz, a folder of LEAF's, or another name",
    "npz": "give the file itself: --data FILE.npz",
}


def check_data(where: str) -> str:
    """Read what `--data` names once; how it is to be called from any folder. Nothing is nothing to check."""
    if not where:
        return ""
    path = Path(where)
    try:
        if "\0" in where:
            raise DataError("a path has no NUL byte")
        if where.endswith(".npz") or is_arrays(path):
            _enough(from_npz(path), where)
            return str(path.resolve())
        if path.is_dir():
            _enough(_leaf(where), where)
            return str(path.resolve())
        name = dataset.spelled(where)
        if name in _NOT_IMAGES:
            raise DataError(f"dataset '{name}': {_NOT_IMAGES[name]}")
        if path.suffix.lower() in TABLES and path.is_file():
            raise DataError(f"'{where}' {table_text(path)}")
        if ":" not in name and name not in dataset.names():
            kinds = "neither a file nor a folder here, nor a dataset"
            raise DataError(f"'{where}' is {kinds} (known: {', '.join(dataset.names())}); files must be called FILE.npz")
        _enough(dataset.make(name, {}), where)
        return name
    except BiflError as error:
        raise ConfigError(f"--data cannot be used, and nothing was joined: {error}") from error


def _leaf(where: str) -> Dataset:
    reasons = {}
    for kind in ("femnist", "celeba"):
        try:
            return dataset.make(kind, {"path": where, "test_share": 0.0})
        except DataError as error:
            reasons[kind] = str(error)
    if len(set(reasons.values())) == 1:
        raise DataError(reasons["femnist"])
    raise DataError("; ".join(f"as {kind}: {reason}" for kind, reason in reasons.items()))


def _enough(data: Dataset, where: str) -> None:
    if len(data.labels) < 2:
        raise DataError(f"'{where}' holds {len(data.labels)} training images, batch-norm needs two or more")
