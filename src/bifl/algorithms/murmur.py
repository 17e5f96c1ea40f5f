"""murmur, what bifl recommends: FedAvg at about 0.1 bit up and 1 bit down, everything included.

A client sends its update in a random rotation, of every `group` coordinates only which is loudest, and its sign (`core.rotation`).
The more vote, the less each must say: the default group grows with the number of voters. The server broadcasts the sign of the
change and remembers what that could not say (`core.compression`). Clients remember nothing.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from bifl.algorithms.eden import forward_of
from bifl.algorithms.server_optimizers import momentum, stepping
from bifl.core import (
    UPDATE,
    Algorithm,
    Client,
    Floats,
    Message,
    Public,
    Selection,
    Selections,
    Vector,
    change,
    changed,
    compressed,
    means,
    register,
    replace,
    rotate,
    rotated_length,
    unrotate,
)  # fmt: skip
from bifl.core.rotation import MOST, groups, loud_alphabet, loudest, spread
from bifl.errors import ConfigError

PER_VOTER = 1.3  # of the numbers in a group: the mean update then errs by about a seventh of an update's square


def group_of(public: Public, group: int) -> int:
    """How many coordinates make a group: as given, or the largest power of two that is not above 1.3 times the voters."""
    return group or min(MOST, 1 << (max(1, int(PER_VOTER * public.voters)).bit_length() - 1))


def selects(public: Public, sender: int | None, group: int) -> Selections:
    """Uploads are about groups of coordinates, the broadcast about all weights."""
    return {UPDATE: None if sender is None else Selection(groups(public.layout.count, group_of(public, group)))}


def coded(values: Floats, size: int, dice: np.random.Generator) -> Vector:
    """The loudest of every group, and the scale that makes the mean of many such vectors right: Σx² / Σ|x of the loudest|."""
    rotated = rotate(values, dice)
    heard = rotated[: len(values)]  # the few behind are as good as these: no coordinate of a random rotation is special
    symbols = loudest(heard, size)
    told = float(np.dot(spread(symbols, size, len(heard)), heard))
    scale = np.square(rotated, dtype=np.float64).sum() / max(told, 1e-30)
    return Vector(symbols, loud_alphabet(size), np.array([scale], np.float32))


def decoded(vector: Vector, size: int, count: int, dice: np.random.Generator) -> Floats:
    """(count,) what such a vector stands for, given the same random numbers."""
    rotated = np.zeros(rotated_length(count), np.float32)
    rotated[:count] = spread(vector.symbols, size, count) * vector.scales[0]
    return unrotate(rotated, count, dice)


def upload(client: Client, public: Public, group: int) -> Message:
    """The update, coded."""
    dice = public.stream(client.number, "rotation")
    return Message({UPDATE: coded(change(client, public), group_of(public, group), dice)}, client.real)


def reads(upload: Message, public: Public, group: int) -> Message:
    """The update that an upload stands for."""
    dice = public.stream(upload.sender or 0, "rotation")
    return changed(upload, public, decoded(upload.update, group_of(public, group), public.layout.count, dice))


def check_group(group: int) -> None:
    """Refuse a group that the config must not give."""
    if not 0 <= group <= MOST:
        raise ConfigError(f"algorithm.group must be from 0 (chosen by the number of voters) to {MOST}, not {group}")


@register
def murmur(group: int = 0, forward: str = "real", down: str = "sign") -> Algorithm:
    """FedAvg at a tenth of a bit up and one bit down; forward=binary trains a network of 1-bit weights.

    Take it unless you need what another has: with few voters and many, with clients that are alike, differ, sleep or remember
    nothing. Where clients hold few classes each, group=32 says more; down=1of8 halves the broadcast.
    """
    check_group(group)
    algorithm = Algorithm(
        partial(upload, group=group), means, replace,
        reads=partial(reads, group=group), selects=partial(selects, group=group), forward=forward_of(forward), keeps=(),
    )  # fmt: skip
    return compressed(algorithm, down)


@register
def murmur_momentum(group: int = 0, forward: str = "real", down: str = "sign", beta: float = 0.5) -> Algorithm:
    """murmur with momentum at the server: the same bits a round, fewer rounds. v ← β·v + the mean change, a step of v.

    Take it for clients that are alike; where each holds few classes it is less accurate than murmur.
    """
    return compressed(stepping(murmur(group, forward, "float"), momentum(1.0, beta), 1), down)
