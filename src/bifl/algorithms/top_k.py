"""The largest changes as floats, with error feedback at the client (Stich et al., 2018): the yardstick of sparse updates."""

from __future__ import annotations

from functools import partial

import numpy as np

from bifl.core import (
    BINARY,
    NOTHING,
    Algorithm,
    Client,
    Message,
    Public,
    Sent,
    change,
    changed,
    compressed,
    means,
    real,
    register,
    replace,
)  # fmt: skip
from bifl.errors import ConfigError


def upload(client: Client, public: Public, share: float) -> Sent:
    """Which weights, a bit each before coding, and their changes in order, 32 bit each."""
    wanted = change(client, public) + (client.memory if client.memory.size else np.float32(0))
    most = max(1, round(share * len(wanted)))
    chosen = np.zeros(len(wanted), np.uint8)
    chosen[np.argpartition(np.abs(wanted), -most)[-most:]] = 1
    message = Message.of(chosen, BINARY, client.real, wanted[chosen > 0])
    return Sent(message, memory=np.where(chosen > 0, np.float32(0), wanted))


def reads(upload: Message, public: Public) -> Message:
    """The changes where they belong. A liar's bits may be fewer or more than its numbers: those that have none count as 0."""
    by = np.zeros(public.layout.count, np.float32)
    places = np.flatnonzero(upload.update.symbols)[: len(upload.update.scales)]
    by[places] = upload.update.scales[: len(places)]
    return changed(upload, public, by).with_update(scales=NOTHING)


@register
def top_k(share: float = 0.01, down: str = "float") -> Algorithm:
    """FedAvg by the largest `share` of the changes, each client remembering the others.

    Take it as the yardstick of sparse updates.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"algorithm.share must be greater than 0 and at most 1, not {share}")
    return compressed(Algorithm(partial(upload, share=share), means, replace, reads=reads, forward=real, keeps=("memory",)), down)
