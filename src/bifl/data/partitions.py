"""Who holds which samples (paper §4). A partition is a function (labels, clients, generator, users) → one index array per client.

All partitions always end and, `by_user` apart, shuffle and give sizes with a large common divisor, so that vote counts stay small
integers. All but `shared` hold every sample at most once.

>>> import numpy as np
>>> labels = np.repeat(np.arange(10), 60)
>>> parts = partition.make("by_class", {"classes_per_client": 3})(labels, 20, np.random.default_rng(0), None)
>>> [len(p) for p in parts] == [30] * 20
True
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, overload

import numpy as np

from bifl.core.randomness import stream
from bifl.data.arrays import explaining_failures
from bifl.data.inputs import Index
from bifl.errors import ConfigError
from bifl.registry import Registry, short

Split = Callable[[Index, int, np.random.Generator, Index | None], Sequence[Index]]

partition: Registry[Split] = Registry("partition")


def split(deal: Split, labels: Index, clients: int, seed: int, users: Index | None = None) -> Sequence[Index]:
    """Deal the samples out, and check that every client can train on what it got."""
    if isinstance(deal, Shared):
        return deal(labels, clients, np.random.default_rng([seed, 0]), users)
    if clients > len(labels):
        raise ConfigError(f"clients={clients} is more than the {len(labels)} training samples: use at most {len(labels) // 2}")
    sentence = (
        "a partition is a function (labels, clients, generator, users) → a list with one array of sample numbers for each of "
        f"the {clients} clients, from 0 to {len(labels) - 1}"
    )
    with explaining_failures(sentence, ConfigError):
        dealt = deal(labels, clients, np.random.default_rng([seed, 0]), users)
    parts = [np.asarray(part) for part in dealt] if isinstance(dealt, list | tuple) else []
    numbers = all(part.ndim == 1 and (part.dtype.kind in "iu" or not part.size) for part in parts)
    within = numbers and all(0 <= part.min() <= part.max() < len(labels) for part in parts if part.size)
    if len(parts) != clients or not within:
        raise ConfigError(f"{sentence}: this one returned something else")
    smallest = min(len(part) for part in parts)
    if smallest < 2:
        raise ConfigError(
            f"a client would hold {smallest} of {len(labels)} samples, training needs 2 or more: use fewer than {clients} clients"
        )
    return [part.astype(np.int64, copy=False) for part in parts]


def dealer(name: str, parameters: Mapping[str, Any]) -> Split:
    """The partition called `name`."""
    sentence = (
        f"partition '{short(name)}' is a function whose arguments all have defaults and which returns the one that deals, "
        "(labels, clients, generator, users) → one array of sample numbers for each client"
    )
    with explaining_failures(sentence, ConfigError):
        made = partition.make(name, parameters)
    if not callable(made):
        raise ConfigError(f"{sentence}: this one returned a {type(made).__name__}")
    return made


def _deal_evenly(labels: Index, hands: int, generator: np.random.Generator, users: Index | None = None) -> list[Index]:
    """Equal hands whose class counts are within one of each other; the few samples that do not go round stay out."""
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

    def deal(labels: Index, clients: int, generator: np.random.Generator, users: Index | None) -> list[Index]:
        classes, counts = np.unique(labels, return_counts=True)
        shards, rest = divmod(clients * classes_per_client, len(classes))
        if rest or not shards:
            raise ConfigError(
                f"by_class cuts {len(classes)} classes into {clients} clients × {classes_per_client} classes_per_client shards: "
                f"make that product a multiple of {len(classes)}"
            )
        size = int(counts.min()) // shards
        if not size:
            raise ConfigError(f"by_class cuts a class of {counts.min()} samples into {shards} shards: use fewer clients")
        pieces = []
        for label in classes:
            samples = generator.permutation(np.flatnonzero(labels == label))
            pieces += list(samples[: size * shards].reshape(shards, size))
        hands = generator.permutation(len(pieces)).reshape(clients, classes_per_client)
        return [np.sort(np.concatenate([pieces[i] for i in hand])) for hand in hands]

    return deal


@partition
def unbalanced() -> Split:
    """A fifth of the clients share 40 % of the samples, two fifths 40 %, two fifths 20 %; classes even."""

    def deal(labels: Index, clients: int, generator: np.random.Generator, users: Index | None) -> list[Index]:
        large, medium = round(clients / 5), clients * 2 // 5  # 20, 40, 40 of 100; 18, 35, 36 of FEMNIST's 89, as the paper
        sizes = [4] * large + [2] * medium + [1] * (clients - large - medium)
        return _join(_deal_evenly(labels, sum(sizes), generator), sizes)

    return deal


@partition
def dirichlet(concentration: float = 0.5) -> Split:
    """Equal sizes; each client's mix of classes is drawn from a Dirichlet distribution, the more lopsided the smaller it is.

    Every client draws its mix from Dir(concentration·classes·p), p being the mix of all samples, as in Hsu, Qi and Brown (2019).
    The mixes are then scaled, by classes and clients in turn, until they use all samples up, so that the last client's is no odder
    than the first's. What rounding leaves is drawn by each client's mix from what is left, or where it has none of that, by how
    many there are: it always ends, and every client gets ⌊n/M⌋ samples.
    """
    if not 0 < concentration < float("inf"):
        raise ConfigError(f"partition.concentration must be greater than 0, not {concentration}")

    def deal(labels: Index, clients: int, generator: np.random.Generator, users: Index | None) -> list[Index]:
        classes, counts = np.unique(labels, return_counts=True)
        size = len(labels) // clients
        mixes = np.nan_to_num(generator.dirichlet(concentration * len(classes) * counts / len(labels), size=clients)) + 1e-9
        for _ in range(100):
            mixes *= counts / mixes.sum(0)
            mixes *= size / mixes.sum(1, keepdims=True)
        held = np.floor(mixes * np.minimum(1, counts / mixes.sum(0))).astype(np.int64)
        left = counts - held.sum(0)
        for client, mix in enumerate(mixes):
            while missing := size - int(held[client].sum()):
                chance = np.where(left > 0, mix, 0)
                chance = chance if chance.sum() > 1e-6 else left.astype(np.float64)
                extra = np.minimum(generator.multinomial(missing, chance / chance.sum()), left)
                held[client] += extra
                left -= extra
        piles = [
            np.split(generator.permutation(np.flatnonzero(labels == label)), np.cumsum(column))[:clients]
            for label, column in zip(classes, held.T, strict=True)
        ]
        return [np.sort(np.concatenate(hand)) for hand in zip(*piles, strict=True)]

    return deal


@partition
def quantity(skew: float = 1.0) -> Split:
    """Sizes fall off like (client + 1)^−skew, classes even; 0 is equal sizes.

    The samples are cut into equal hands, ten for each client on average; every client gets one, and the others go out in
    proportion to those shares (largest remainders first). The largest client is the first.
    """
    if not 0 <= skew < float("inf"):
        raise ConfigError(f"partition.skew must be 0 or more, not {skew}")

    def deal(labels: Index, clients: int, generator: np.random.Generator, users: Index | None) -> list[Index]:
        hands = clients * max(1, min(10, len(labels) // (2 * clients)))
        share = np.arange(1, clients + 1) ** -float(skew)
        exact = (hands - clients) * share / share.sum()
        sizes = 1 + np.floor(exact).astype(np.int64)
        sizes[np.argsort(np.floor(exact) - exact, kind="stable")[: hands - int(sizes.sum())]] += 1
        return _join(_deal_evenly(labels, hands, generator), sizes)

    return deal


@dataclass(frozen=True, eq=False)
class Drawn(Sequence[Index]):
    """One part of `size` for each client: distinct samples, drawn from its own stream of `key` when they are asked for.

    >>> parts = Drawn(np.arange(60_000), size=20, clients=10**9, key=7)
    >>> len(parts), len(parts[123_456_789]), bool((parts[5] == parts[5]).all())
    (1000000000, 20, True)
    """

    samples: Index
    size: int
    clients: int
    key: int

    def among(self, samples: Index) -> Drawn:
        """The same draws from other samples of the same number."""
        return replace(self, samples=samples)

    def __len__(self) -> int:
        return self.clients

    @overload
    def __getitem__(self, number: int) -> Index: ...
    @overload
    def __getitem__(self, number: slice) -> list[Index]: ...
    def __getitem__(self, number: int | slice) -> Index | list[Index]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(self.clients))]
        if not -self.clients <= number < self.clients:
            raise IndexError(f"there are {self.clients} clients, and no client {number}")
        generator = stream(self.key, 0, number % self.clients, "shared images")
        return np.sort(self.samples[generator.choice(len(self.samples), self.size, replace=False)])


@dataclass(frozen=True)
class Shared:
    """Deals the same samples to many."""

    images: int

    def __call__(self, labels: Index, clients: int, generator: np.random.Generator, users: Index | None) -> Drawn:
        """A part for each client, drawn when it is asked for."""
        if self.images > len(labels):
            raise ConfigError(
                f"partition.images={self.images} is more than the {len(labels)} training samples: use at most that many"
            )
        return Drawn(np.arange(len(labels)), self.images, clients, int(generator.integers(2**63)))


@partition
def shared(images: int = 20) -> Split:
    """That many random samples for each client, whatever the others have: for more clients than the samples go round."""
    if images < 2:
        raise ConfigError(f"partition.images must be 2 or more, not {images}")
    return Shared(images)


@partition
def by_user(at_least: int = 0) -> Split:
    """Whole users: dealt to `clients` clients of similar size, or merged until a client has more than `at_least` samples.

    at_least=0: the user with the most samples first (equals in random order), each to the client that has the fewest so far; with
    as many clients as users, everyone is a client. Otherwise the authors' rule: users in sorted order, merged until a client
    exceeds `at_least` samples, then the next client begins; the first `clients` of these are used, all other users stay out.
    """
    if at_least < 0:
        raise ConfigError(f"partition.at_least must be 0 or more, not {at_least}")

    def deal(labels: Index, clients: int, generator: np.random.Generator, users: Index | None) -> list[Index]:
        if users is None:
            raise ConfigError("partition=by_user needs a dataset that knows who made each sample, such as mnist_writers or femnist")
        _, owner, counts = np.unique(users, return_inverse=True, return_counts=True)
        client_of = _merged(counts, at_least) if at_least else _balanced(counts, clients, generator)
        most = int(client_of.max()) + 1
        if most < clients:
            rule = f", merged to more than {at_least} samples each," if at_least else ""
            raise ConfigError(f"clients={clients} is more than the {len(counts)} users{rule} give: use at most {most}")
        return [np.flatnonzero(client_of[owner] == client) for client in range(clients)]

    return deal


def _merged(counts: Index, at_least: int) -> Index:
    """The client of each user, −1 for those left over: the next one begins when this one exceeds `at_least` samples."""
    client_of = np.full(len(counts), -1)
    client, begin, held = 0, 0, 0
    for user, count in enumerate(counts):
        held += count
        if held > at_least:
            client_of[begin : user + 1] = client
            client, begin, held = client + 1, user + 1, 0
    return client_of


def _balanced(counts: Index, clients: int, generator: np.random.Generator) -> Index:
    """The client of each user: the user with the most samples first, each to the client that has the fewest so far."""
    client_of = np.zeros(len(counts), np.int64)
    held = [(0, client) for client in range(min(clients, len(counts)))]
    order = generator.permutation(len(counts))
    for user in order[np.argsort(-counts[order], kind="stable")]:
        samples, client = heapq.heappop(held)
        client_of[user] = client
        heapq.heappush(held, (samples + int(counts[user]), client))
    return client_of


def _join(hands: list[Index], sizes: Sequence[int] | Index) -> list[Index]:
    """One client after the other gets that many hands."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return [np.sort(np.concatenate(hands[a:b])) for a, b in pairwise(starts)]
