"""UCI HAR: windows of a phone's accelerometer and gyroscope (Anguita et al., 2013), from UCI's text files or an .npz file.

The test set are the nine persons that UCI chose, whatever the file says: no person is in both.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bifl.data.arrays import INPUTS, from_arrays, read_npz
from bifl.data.inputs import Array, Dataset
from bifl.errors import DataError

CHANNELS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
SAMPLES = 128
CLASSES = 6
TEST_PERSONS = (2, 4, 9, 10, 12, 13, 18, 20, 24)
_MOST_BYTES = 2**28  # of a text file: the largest of UCI's has 15 MB


def load(path: Path) -> Dataset:
    """The dataset in UCI's folder, in an .npz file with signals (or inputs), labels and users, or in a folder that holds either."""
    folders = [folder for folder in (path, path / "UCI HAR Dataset") if (folder / "train").is_dir()]
    places = [path] if path.is_file() else [*folders, *sorted(path.glob("*.npz"))]
    if not places:
        raise DataError(f"'{path}' holds no UCI HAR: give dataset.path= the folder 'UCI HAR Dataset' or an .npz file")
    place = places[0]
    arrays = read_npz(place) if place.suffix == ".npz" else _from_text(place)
    if "users" not in arrays:
        raise DataError(f"'{place}' has no array 'users', only {', '.join(arrays) or 'nothing'}")
    users = arrays["users"]
    if users.dtype.kind not in "iu":  # "2" is not 2: nobody would be tested
        raise DataError(f"users of '{place}' must be the numbers that UCI gave the persons, from 1 to 30, not {users.dtype}")
    taken = {name: arrays[name] for name in (*INPUTS, "labels", "users") if name in arrays}
    data = from_arrays(taken | {"split": np.isin(users, TEST_PERSONS).astype(np.uint8)}, place, CLASSES)
    if data.inputs.shape[1:] != (len(CHANNELS), SAMPLES) or data.inputs.dtype.kind != "f":
        shape, kind = data.inputs.shape, data.inputs.dtype
        raise DataError(f"the windows of '{place}' must be (n, {len(CHANNELS)}, {SAMPLES}) floats, not {shape} {kind}")
    return data


def _from_text(folder: Path) -> dict[str, Array]:
    """Inputs, labels and users. UCI counts activities from 1: walking, upstairs, downstairs, sitting, standing, laying."""

    def both(name: str, kind: type[np.generic]) -> Array:
        return np.concatenate([_table(folder / half / f"{name}_{half}.txt", kind) for half in ("train", "test")])

    try:
        signals = np.stack([both(f"Inertial Signals/{channel}", np.float32) for channel in CHANNELS], axis=1)
        return {"inputs": signals, "labels": both("y", np.int64).ravel() - 1, "users": both("subject", np.int64).ravel()}
    except ValueError as error:
        raise DataError(f"the files in '{folder}' do not have the same numbers of rows or columns: {error}") from error


def _table(file: Path, kind: type[np.generic]) -> Array:
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise DataError(f"'{file}' is larger than any of UCI HAR's files")
        return np.loadtxt(file, dtype=kind, ndmin=2)
    except OSError as error:
        raise DataError(f"cannot read '{file}': {error.strerror or error}") from error
    except ValueError as error:
        raise DataError(f"'{file}' is not one of UCI HAR's files, or damaged: {error}") from error
