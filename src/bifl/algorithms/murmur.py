"""murmur, what bifl recommends: FedAvg at about 0.1 bit up and 1 bit down, everything included.

A client sends its update in a random rotation, of every `group` coordinates only which is loudest, and its sign (`core.rotation`).
The more vote, the less each must say: the default group grows with the number of voters. The server broadcasts the sign of the
change and remembers what that could not say (`core.compression`). Clients remember nothing.

`compress_uploads` says what any algorithm uploads in this way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from bifl import core
from bifl.algorithms.server_optimizers import momentum, stepping
from bifl.core import UPDATE, Client, Floats, Message, Public, Vector

PER_VOTER = 1.3  # of the numbers in a group: the mean update then errs by about a seventh of an update's square
Remember = Callable[[Client, Message], Floats]  # a client, and what others make of its upload → its memory


def group_of(public: Public, group: int) -> int:
    """How many coordinates make a group: as given, or the largest power of two that is not above 1.3 times the voters."""
    return group or min(core.MOST_IN_GROUP, 1 << (max(1, int(PER_VOTER * public.voters)).bit_length() - 1))


def unbiased(values: Floats, size: int, dice: np.random.Generator) -> Vector:
    """The loudest of every group, and the scale that makes the mean of many such vectors right: Σx² / Σ|x of the loudest|."""
    rotated = core.rotate(values, dice)
    heard = rotated[: len(values)]  # the few behind are as good as these: no coordinate of a random rotation is special
    symbols = core.loudest(heard, size)
    told = float(np.dot(core.spread(symbols, size, len(heard)), heard))
    scale = np.square(rotated, dtype=np.float64).sum() / max(told, 1e-30)
    return Vector(symbols, core.loud_alphabet(size), np.array([scale], np.float32))


def nearest(values: Floats, size: int, dice: np.random.Generator) -> Vector:
    """The same with the scale that comes nearest to the numbers: for who remembers what it said of them (EF21)."""
    vector = unbiased(values, size, dice)
    squares = np.square(values, dtype=np.float64).sum()
    scale = squares / max(float(vector.scales[0]) * len(vector.symbols), 1e-30)
    return vector._replace(scales=np.array([scale], np.float32))


def decode(vector: Vector, size: int, count: int, dice: np.random.Generator) -> Floats:
    """(count,) what such a vector stands for, given the same random numbers."""
    rotated = np.zeros(core.rotated_length(count), np.float32)
    rotated[:count] = core.spread(vector.symbols, size, count) * vector.scales[0]
    return core.unrotate(rotated, count, dice)


class Code(NamedTuple):
    """How a vector of an upload is said, in groups of its numbers, with random numbers that both ends can draw."""

    say: Callable[[Floats, int, np.random.Generator], Vector]  # numbers, size of a group and dice → what is said
    hear: Callable[[Vector, int, int, np.random.Generator], Floats] = decode  # that, the size, how many numbers, and the dice
    dice: str = "rotation"  # the name of its stream


UNBIASED, NEAREST = Code(unbiased), Code(nearest)


def compress_uploads(
    algorithm: core.Algorithm, group: int, codes: Mapping[str, Code], remember: Remember | None = None
) -> core.Algorithm:
    """The algorithm with uploads that are said in groups, as murmur says an update.

    Args:
        algorithm: its uploads are floats of all weights: of the update the weights, which are said as how they changed.
        group: how many coordinates make a group; 0 goes by the voters.
        codes: how each vector of an upload is said.
        remember: what a client keeps, given what was said; None where it keeps nothing.
    """
    wanted = f"from 0 (chosen by the number of voters) to {core.MOST_IN_GROUP}"
    core.require(0 <= group <= core.MOST_IN_GROUP, "group", group, wanted)

    def dice(public: Public, sender: int, name: str) -> np.random.Generator:
        return public.stream(sender, codes[name].dice if name == UPDATE else f"{codes[name].dice} of the {name}")

    def upload(client: Client, public: Public) -> Message | core.Sent:
        message, size, vectors = core.Sent.of(algorithm.upload(client, public)).message, group_of(public, group), {}
        for name, vector in message.vectors.items():
            values = vector.values() - (public.weights if name == UPDATE else 0)
            vectors[name] = codes[name].say(values, size, dice(public, client.number, name))
        message = message.with_vectors(vectors)
        if remember is None:
            return message
        return core.Sent(message, remember(client, reads(message._replace(sender=client.number), public)))

    def reads(upload: Message, public: Public) -> Message:
        size, vectors = group_of(public, group), {}
        for name, vector in upload.vectors.items():
            by = codes[name].hear(vector, size, public.layout.count, dice(public, upload.sender or 0, name))
            symbols = public.weights + by if name == UPDATE else by
            vectors[name] = vector._replace(symbols=symbols, alphabet=core.FLOAT32, about=None)
        return upload.with_vectors(vectors)

    def selects(public: Public, sender: int | None) -> core.Selections:
        abouts = algorithm.selects(public, sender)
        if sender is None:
            return abouts
        return dict.fromkeys(abouts, core.Selection(core.groups(public.layout.count, group_of(public, group))))

    return dataclasses.replace(algorithm, upload=upload, reads=reads, selects=selects, uploads="")


@core.register
def murmur(group: int = 0, forward: str = "real", down: str = "sign") -> core.Algorithm:
    """FedAvg at a tenth of a bit up and one bit down; forward=binary trains a network of 1-bit weights.

    Take it unless you need what another has: with few voters and many, with clients that are alike, differ, sleep or remember
    nothing. Where clients hold few classes each, group=32 says more; down=1of8 halves the broadcast.
    """
    average = core.Algorithm(core.floats, core.means, core.replace, forward=core.forward_of(forward), keeps=())
    return core.compress_broadcast(compress_uploads(average, group, {UPDATE: UNBIASED}), down)


@core.register
def murmur_momentum(group: int = 0, forward: str = "real", down: str = "sign", beta: float = 0.5) -> core.Algorithm:
    """murmur with momentum at the server: the same bits a round, fewer rounds. v ← β·v + the mean change, a step of v.

    Take it for clients that are alike; where each holds few classes it is less accurate than murmur.
    """
    return core.compress_broadcast(stepping(murmur(group, forward, "float"), momentum(1.0, beta), 1), down)
