"""FedAvg with 16-bit floats both ways: the yardstick that costs nothing."""

from __future__ import annotations

import numpy as np

from bifl.core import FLOAT16, Algorithm, Client, Message, Public, Server, Tally, halves, real, register, replace


def upload(client: Client, public: Public) -> Message:
    """The weights, 16 bit each."""
    return Message.of(halves(client.aux), FLOAT16, client.real)


def broadcast(tally: Tally, public: Public, server: Server) -> Message:
    """Their mean, 16 bit each."""
    return Message.of(halves(tally.update.mean.astype(np.float32)), FLOAT16, tally.real)


@register
def float16() -> Algorithm:
    """FedAvg with 16-bit floats up and down.

    Take it as a yardstick of half the bits, also under secure_sum=true.
    """
    return Algorithm(upload, broadcast, replace, forward=real, keeps=())
