"""Changes in few bits, as others in the field say them: signs, levels, the largest, 16-bit floats. The yardsticks of `murmur`."""

from __future__ import annotations

from math import inf

import numpy as np

from bifl import core
from bifl.core import Client, Message, Public


def average_of(upload: core.Upload, reads: core.Reads, down: str, keeps: tuple[str, ...] = ()) -> core.Algorithm:
    """FedAvg by changes that are said so."""
    algorithm = core.Algorithm(upload, core.means, core.replace, reads=reads, forward=core.real, keeps=keeps)
    return core.compress_broadcast(algorithm, down)


# ---- right in the mean -------------------------------------------------------------------------------------------------------


@core.register
def dither(width: float = 2.0, down: str = "float") -> core.Algorithm:
    """z-SignFedAvg: signs of the update after uniform noise, as wide as `width` times its mean magnitude.

    Take it to compare with: docs/results.md has the methods of the field side by side.
    """
    # Tang et al., AAAI 2024: with noise uniform on ±s, s·sign(Δ + noise) is Δ in the mean wherever |Δ| ≤ s
    core.require(0 < width < inf, "width", width, "greater than 0")

    def upload(client: Client, public: Public) -> Message:
        by = core.change(client, public)
        scales = public.layout.per_layer(by, lambda part: width * core.mean_magnitude(part))
        bits = core.dithered_signs(by, public.layout.per_weight(scales), public.stream(client.number, "dither"))
        return Message.of(bits, core.BINARY, client.real, scales)

    return average_of(upload, core.scaled_change, down)


@core.register
def qsgd(levels: int = 5, down: str = "float") -> core.Algorithm:
    """FedAvg by updates rounded at random to `levels` levels; an odd number has a level for no change.

    Take it to compare with: docs/results.md has the methods of the field side by side.
    """
    # Alistarh et al., 2017, with a layer's largest magnitude as its norm
    core.require(2 <= levels <= 256, "levels", levels, "from 2 to 256")

    def upload(client: Client, public: Public) -> Message:
        by = core.change(client, public)
        scales = public.layout.per_layer(by, lambda part: np.abs(part).max())
        shares = by / np.maximum(public.layout.per_weight(scales), np.float32(1e-30))
        symbols = core.random_levels(shares, levels, public.stream(client.number, "rounding"))
        return Message.of(symbols, core.even_levels(levels), client.real, scales)

    return average_of(upload, core.scaled_change, down)


# ---- with error feedback at the client ---------------------------------------------------------------------------------------


def change_and_error(client: Client, public: Public, decay: float = 1.0) -> core.Floats:
    """(count,) the update and what is left of earlier ones, a little less in every round."""
    return core.change(client, public) + np.float32(decay) * core.recall(client.memory, public.layout.count)


@core.register
def ef_sign(down: str = "float") -> core.Algorithm:
    """FedAvg by signs of the update, each client remembering what its signs could not say.

    Take it to compare with: docs/results.md has the methods of the field side by side.
    """

    def upload(client: Client, public: Public) -> core.Sent:
        change = change_and_error(client, public)
        scales = public.layout.per_layer(change, core.mean_magnitude)
        message = Message.of((change > 0).astype(np.uint8), core.BINARY, client.real, scales)
        return core.Sent(message, memory=change - message.update.values() * public.layout.per_weight(scales))

    return average_of(upload, core.scaled_change, down, keeps=("memory",))  # Karimireddy et al., 2019


@core.register
def top_k(share: float = 0.01, down: str = "float") -> core.Algorithm:
    """FedAvg by the largest `share` of the changes, each client remembering the others.

    Take it as the yardstick of sparse updates.
    """
    core.require(0 < share <= 1, "share", share, "greater than 0 and at most 1")

    def upload(client: Client, public: Public) -> core.Sent:
        """Which weights, a bit each before coding, and their changes in order, 32 bit each."""
        change = change_and_error(client, public)
        most = max(1, round(share * len(change)))
        chosen = np.zeros(len(change), np.uint8)
        chosen[np.argpartition(np.abs(change), -most)[-most:]] = 1
        message = Message.of(chosen, core.BINARY, client.real, change[chosen > 0])
        return core.Sent(message, memory=np.where(chosen > 0, np.float32(0), change))

    def reads(upload: Message, public: Public) -> Message:
        """The changes where they belong. A liar's bits may be fewer or more than its numbers: those that have none count as 0."""
        by = np.zeros(public.layout.count, np.float32)
        places = np.flatnonzero(upload.update.symbols)[: len(upload.update.scales)]
        by[places] = upload.update.scales[: len(places)]
        return core.apply_change(upload, public, by).with_update(scales=core.NOTHING)

    return average_of(upload, reads, down, keeps=("memory",))  # Stich et al., 2018


# ---- without a scale ---------------------------------------------------------------------------------------------------------


@core.register
def float16() -> core.Algorithm:
    """FedAvg with 16-bit floats up and down.

    Take it as a yardstick of half the bits, also under secure_sum=true.
    """

    def upload(client: Client, public: Public) -> Message:
        return Message.of(core.halves(client.aux), core.FLOAT16, client.real)

    def broadcast(tally: core.Tally, public: Public, server: core.Server) -> Message:
        return Message.of(core.halves(tally.update.mean.astype(np.float32)), core.FLOAT16, tally.real)

    return core.Algorithm(upload, broadcast, core.replace, forward=core.real, keeps=())


@core.register
def sign_majority(step: float = 0.002) -> core.Algorithm:
    """signSGD with majority vote: everybody takes a step of fixed length in the direction most clients went.

    Take it to compare with, also under secure_sum=true: docs/results.md has the methods of the field side by side.
    """
    core.require(0 < step < inf, "step", step, "greater than 0")

    def upload(client: Client, public: Public) -> Message:
        return Message.of((core.change(client, public) > 0).astype(np.uint8), core.BINARY, client.real)

    def absorb(public: Public, news: Message) -> Public:
        return core.take_over(public, news)._replace(weights=public.weights + np.float32(step) * news.update.values())

    # Bernstein et al., 2018
    return core.Algorithm(upload, core.majority, core.replace, absorb=absorb, forward=core.real, keeps=())
