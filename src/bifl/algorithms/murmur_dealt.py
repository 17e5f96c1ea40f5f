"""murmur in a form that can be added up unread, for secure sums: one rotation and one scale for all in a round.

The coordinates of the rotated update are dealt to disjoint groups of clients, which take turns: about `together` clients speak of
each. A client tells each of its coordinates in `levels` levels between ± the scale, up or down at random so that the mean is right.
The scale is `width` times the mean deviation of last round's updates, which uploads tell as a number and the broadcast repeats.
"""

from __future__ import annotations

import dataclasses
from math import inf

import numpy as np

from bifl import core
from bifl.core import BINARY, FLOAT32, TERNARY, UPDATE, Algorithm, Client, Message, Public, Sent, Server, Tally

FIRST = 0.01  # deviation of an update that is expected before anyone has told
ALPHABETS = {2: BINARY, 3: TERNARY} | {levels: core.even_levels(levels) for levels in (5, 9, 17)}


def with_deviation(algorithm: Algorithm) -> Algorithm:
    """The algorithm with one more scale in its broadcast, the mean deviation, which is all that stays public of the scales."""

    def broadcast(tally: Tally, public: Public, server: Server) -> Sent:
        message, memory = Sent.of(algorithm.broadcast(tally, public, server), server.memory)
        return Sent(message.with_update(scales=np.concatenate([message.update.scales, tally.update.scales])), memory)

    def absorb(public: Public, news: Message) -> Public:
        return algorithm.absorb(public, news.with_update(scales=news.update.scales[:-1]))._replace(scales=news.update.scales[-1:])

    return dataclasses.replace(algorithm, broadcast=broadcast, absorb=absorb)


@core.register
def murmur_dealt(together: int = 10, levels: int = 3, width: float = 2.5, forward: str = "real", down: str = "sign") -> Algorithm:
    """murmur for secure sums: coordinates dealt to groups of clients, one scale and rotation for all.

    Take it with secure_sum=true: murmur's own uploads cannot be added up unread.
    """
    core.require(2 <= together <= 10**6, "together", together, "from 2 clients to 1,000,000")
    core.require(levels in ALPHABETS, "levels", levels, f"one of {', '.join(map(str, ALPHABETS))}")
    core.require(0 < width < inf, "width", width, "greater than 0")

    def groups(public: Public) -> int:
        return max(1, public.voters // together)

    def window(public: Public, sender: int) -> tuple[int, int]:
        """Where a client's coordinates begin and end: it moves on by a group in every round."""
        count, parts = public.layout.count, groups(public)
        turn = (sender + public.round) % parts
        return turn * count // parts, (turn + 1) * count // parts

    def selects(public: Public, sender: int | None) -> core.Selections:
        if sender is None:
            return {UPDATE: None}
        begin, end = window(public, sender)
        return {UPDATE: core.Selection(end - begin, place=begin)}

    def scale(public: Public) -> np.float32:
        """What the outer levels stand for."""
        return np.float32(width) * (public.scales[-1] if public.round else np.float32(FIRST))

    def upload(client: Client, public: Public) -> Message:
        """Levels of the own coordinates, and how far the update's coordinates are from 0 in the root mean square."""
        rotated = core.rotate(core.change(client, public), public.stream(None, "rotation"))
        begin, end = window(public, client.number)
        deviation = np.sqrt(np.square(rotated, dtype=np.float64).mean())
        shares = rotated[begin:end] / max(scale(public), np.float32(1e-30))
        symbols = core.random_levels(shares, levels, public.stream(client.number, "rounding"))
        return Message.of(symbols, ALPHABETS[levels], client.real, np.array([deviation], np.float32))

    def reads(upload: Message, public: Public) -> Message:
        """The levels where they belong, and 0 for coordinates that others speak of."""
        spread = np.zeros(public.layout.count, np.float32)
        begin, end = window(public, upload.sender or 0)
        spread[begin:end] = upload.update.values()
        return upload.with_update(symbols=spread, alphabet=FLOAT32, about=None)

    def broadcast(tally: Tally, public: Public, server: Server) -> Message:
        """The public weights and the mean update. One group told of each coordinate: the mean over all is that much too small."""
        count = public.layout.count
        rotated = np.zeros(core.rotated_length(count), np.float32)
        rotated[:count] = tally.update.mean.astype(np.float32) * (scale(public) * np.float32(groups(public)))
        by = core.unrotate(rotated, count, public.stream(None, "rotation"))
        return Message.of(public.weights + by, FLOAT32, tally.real)

    algorithm = Algorithm(upload, broadcast, core.replace, reads=reads, selects=selects, forward=core.forward_of(forward), keeps=())
    return with_deviation(core.compress_broadcast(algorithm, down))
