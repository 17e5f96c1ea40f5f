"""Who holds which images (paper §4). A partition is a function (labels, clients, generator, users) → one index array per client.

All partitions shuffle, always end, and give sizes with a large common divisor, so that vote counts stay small integers.

>>> import numpy as np
>>> labels = np.repeat(np.arange(10), 60)
>>> parts = partition.make("by_class", {"classes_per_client": 3})(labels, 20, np.random.default_rng(0), None)
>>> [len(p) for p in parts] == [30] * 20
True
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from bifl.errors import ConfigError
from bifl.registry import Registry

Labels = npt.NDArray[np.int64]
Index = npt.NDArray[np.int64]
Users = npt.NDArray[np.int64]
Split = Callable[[Labels, int, np.random.Generator, Users | None], list[Index]]

partition: Registry[Split] = Registry("partition")


def split(deal: Split, labels: Labels, clients: int, seed: int, users: Users | None = None) -> list[Index]:
    """Deal the images out, and check that every client can train on what it got.

    Raises:
        ConfigError: a client would have fewer than the 2 images that batch-norm needs.
    """
    if clients > len(labels):
        raise ConfigError(f"clients={clients} is more than the {len(labels)} training images: use at most {len(labels) // 2}")
    parts = deal(labels, clients, np.random.default_rng([seed, 0]), users)
    smallest = min(len(part) for part in parts)
    if smallest < 2:
        raise ConfigError(
            f"a client would hold {smallest} of {len(labels)} images, training needs 2 or more: use fewer than {clients} clients"
        )
    return parts


def _deal_evenly(labels: Labels, hands: int, generator: np.random.Generator, users: Users | None = None) -> list[Index]:
    """Equal hands whose class counts are within one of each other; the few images that do not go round stay out."""
    order = generator.permutation(len(labels))
    order = order[: len(order) - len(order) % hands]
    by_class = order[np.argsort(labels[order], kind="stable")]
    return [np.sort(by_class[hand::hands]) for hand in generator.permutation(hands)]


@partition
def iid() -> Split:
    """Equal sizes, class counts within one of each other."""
    return _deal_evenly


@partition
def by_class(classes_per_client: int = 3) -> Split:
    """Each class cut to the smallest one's size and into equal shards; every client gets that many random shards."""
    if classes_per_client < 1:
        raise ConfigError(f"partition.classes_per_client must be 1 or more, not {classes_per_client}")

    def deal(labels: Labels, clients: int, generator: np.random.Generator, users: Users | None) -> list[Index]:
        classes, counts = np.unique(labels, return_counts=True)
        shards, rest = divmod(clients * classes_per_client, len(classes))
        if rest or not shards:
            raise ConfigError(
                f"by_class cuts {len(classes)} classes into {clients} clients × {classes_per_client} classes_per_client shards: "
                f"make that product a multiple of {len(classes)}"
            )
        size = int(counts.min()) // shards
        pieces = []
        for label in classes:
            images = generator.permutation(np.flatnonzero(labels == label))
            pieces += list(images[: size * shards].reshape(shards, size))
        hands = generator.permutation(len(pieces)).reshape(clients, classes_per_client)
        return [np.sort(np.concatenate([pieces[i] for i in hand])) for hand in hands]

    return deal


@partition
def unbalanced() -> Split:
    """A fifth of the clients share 40 % of the images, two fifths 40 %, two fifths 20 %; classes even."""

    def deal(labels: Labels, clients: int, generator: np.random.Generator, users: Users | None) -> list[Index]:
        large, medium = round(clients * 0.2), round(clients * 0.4)
        sizes = [4] * large + [2] * medium + [1] * (clients - large - medium)
        hands = _deal_evenly(labels, sum(sizes), generator)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        return [np.sort(np.concatenate(hands[a:b])) for a, b in pairwise(starts)]

    return deal
