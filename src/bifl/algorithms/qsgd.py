"""Updates rounded at random to k levels (QSGD, Alistarh et al., 2017, with a layer's largest magnitude as its norm)."""

from __future__ import annotations

from functools import partial

import numpy as np

from bifl.core import (
    Algorithm,
    Alphabet,
    Client,
    Message,
    Public,
    change,
    compressed,
    means,
    random_levels,
    real,
    register,
    replace,
    scaled_change,
)  # fmt: skip
from bifl.errors import ConfigError


def upload(client: Client, public: Public, levels: int) -> Message:
    """Levels between ± the largest change of a layer, up or down at random so that the mean is right."""
    by = change(client, public)
    scales = np.array([np.abs(part).max() for part in public.layout.layer_parts(by)], np.float32)
    shares = by / np.maximum(public.layout.per_weight(scales), np.float32(1e-30))
    symbols = random_levels(shares, levels, public.stream(client.number, "rounding"))
    return Message.of(symbols, Alphabet(f"{levels} levels", levels), client.real, scales)


@register
def qsgd(levels: int = 5, down: str = "float") -> Algorithm:
    """FedAvg by updates rounded at random to `levels` levels; an odd number has a level for no change.

    Take it to compare with: docs/results.md has the methods of the field side by side.
    """
    if not 2 <= levels <= 256:
        raise ConfigError(f"algorithm.levels must be from 2 to 256, not {levels}")
    return compressed(Algorithm(partial(upload, levels=levels), means, replace, reads=scaled_change, forward=real, keeps=()), down)
