"""signSGD with majority vote (Bernstein et al., 2018): one bit up, one bit down, no private state."""

from __future__ import annotations

from functools import partial

import numpy as np

from bifl.core import (
    BINARY,
    Algorithm,
    Client,
    Message,
    Public,
    change,
    majority,
    real,
    register,
    replace,
    take_over,
)  # fmt: skip
from bifl.errors import ConfigError


def direction(client: Client, public: Public) -> Message:
    """Where training moved each weight."""
    return Message.of((change(client, public) > 0).astype(np.uint8), BINARY, client.real)


def absorb(public: Public, news: Message, step: float) -> Public:
    """A step of fixed length where most clients went."""
    return take_over(public, news)._replace(weights=public.weights + np.float32(step) * news.update.values())


@register
def sign_majority(step: float = 0.002) -> Algorithm:
    """signSGD with majority vote: everybody takes a step of fixed length in the direction most clients went.

    Take it to compare with, also under secure_sum=true: docs/results.md has the methods of the field side by side.
    """
    if not 0 < step < float("inf"):
        raise ConfigError(f"algorithm.step must be greater than 0, not {step}")
    return Algorithm(direction, majority, replace, absorb=partial(absorb, step=step), forward=real, keeps=())
