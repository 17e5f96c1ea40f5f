"""Validation samples: a share of the training samples in place of the test samples, to choose settings by. Nobody trains on them.

They are the same for every seed, as test samples are: runs of a comparison differ in what they do, never in what they are measured
on, and differences between seeds are those of the training. Where it is known who made a sample they are all samples of some users,
so that nobody has some in both parts; otherwise they are of every class the same share.

>>> labels = np.repeat([0, 1], 50)
>>> data = Dataset(np.zeros((100, 1), np.float32), labels, np.zeros((0, 1), np.float32), labels[:0], 2, 0.0, 1.0)
>>> divided = validated(data, 0.2)
>>> np.bincount(divided.test_labels).tolist(), len(divided.trained_on())
([10, 10], 80)
"""

from __future__ import annotations

import numpy as np

from bifl.data.arrays import LARGE_SHARE, LEAST_TESTS, groups_of, spread
from bifl.data.inputs import Dataset, Index
from bifl.errors import ConfigError


def validated(data: Dataset, share: float) -> Dataset:
    """The dataset with a share of its training samples to evaluate on, instead of its test samples, which are left out.

    Raises:
        ConfigError: these would be too few.
    """
    wanted = round(share * len(data.labels))
    if data.users is None:
        chosen, whose = np.flatnonzero(spread(groups_of(data.labels), wanted)), "training samples"
    else:
        chosen, whose = _of_whole_users(data.users, wanted), f"samples of {len(np.unique(data.users)):,} users, taken whole,"
    if len(chosen) < (1 if share >= LARGE_SHARE else LEAST_TESTS):
        raise ConfigError(
            f"validation={share:g} of {len(data.labels):,} {whose} are {len(chosen)}, too few to choose by: take a larger share"
        )
    return data.tested_on(chosen)._replace(validation=chosen)


def _of_whole_users(users: Index, wanted: int) -> Index:
    """All samples of some users, about so many: users at random but always the same, each that brings their number nearer."""
    names, owner, counts = np.unique(users, return_inverse=True, return_counts=True)
    chosen, total = np.zeros(len(names), np.bool_), 0
    for user in np.random.default_rng(0).permutation(len(names)):
        if abs(total + counts[user] - wanted) < abs(total - wanted):
            chosen[user], total = True, total + counts[user]
    return np.flatnonzero(chosen[owner])
