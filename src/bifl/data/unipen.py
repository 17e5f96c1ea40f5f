"""UNIPEN's characters by writer (Guyon et al., 1994), drawn as 28×28 images: an .npz file with images, labels and users.

>>> import numpy as np
>>> spread(np.array([7, 7, 7, 7, 7, 7, 8, 8, 8, 8, 9, 9]), 6).nonzero()[0].size
6
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from bifl.data.arrays import Dataset, Index, assemble, checked_share, from_npz
from bifl.errors import ConfigError, DataError

CLASSES = 62  # 0–9, A–Z, a–z, in FEMNIST's order


def load(path: Path, images: int, test_share: float) -> Dataset:
    """The dataset.

    Args:
        path: of the file.
        images: how many to use, of every writer the same share; 0 means all.
        test_share: of these, and of every writer's, that are held out for testing.

    Raises:
        DataError: the file is missing, damaged, or something else.
    """
    data = from_npz(path, CLASSES)
    if data.users is None or data.inputs.shape[1:] != (1, 28, 28):
        raise DataError(f"'{path}' must hold 28×28 images and the array 'users', who wrote each")
    if not 0 <= images <= len(data.labels):
        raise ConfigError(f"dataset.images must be from 0, for all, to the {len(data.labels):,} of '{path}', not {images:.9g}")
    checked_share(test_share, images or len(data.labels))
    chosen = spread(data.users, images or len(data.labels))
    users = data.users[chosen]
    test = spread(users, round(test_share * len(users)))
    return assemble(data.inputs[chosen], data.labels[chosen], users, CLASSES, test, f"'{path}'")


def spread(groups: Index, count: int) -> npt.NDArray[np.bool_]:
    """(n,) which samples are chosen: exactly `count`, at random but always the same, of every group nearly the same share."""
    shuffled = np.random.default_rng(0).permutation(len(groups))
    order = shuffled[np.argsort(groups[shuffled], kind="stable")]
    chosen = np.zeros(len(groups), np.bool_)
    chosen[order[np.arange(count) * len(groups) // max(1, count)]] = True
    return chosen
