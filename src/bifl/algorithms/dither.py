"""z-SignFedAvg (Tang et al., AAAI 2024): the sign of the update after noise is added, so that the mean of many signs is the update.

With noise uniform on ±s, s·sign(Δ + noise) is Δ in the mean wherever |Δ| ≤ s. s is `width` times the layer's mean |Δ|.
"""

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
    compressed,
    dithered_signs,
    means,
    real,
    register,
    replace,
    scaled_change,
)  # fmt: skip
from bifl.errors import ConfigError


def upload(client: Client, public: Public, width: float) -> Message:
    """One bit a weight, and s of every layer."""
    by = change(client, public)
    scales = np.array([width * np.abs(part).mean() for part in public.layout.layer_parts(by)], np.float32)
    bits = dithered_signs(by, public.layout.per_weight(scales), public.stream(client.number, "dither"))
    return Message.of(bits, BINARY, client.real, scales)


@register
def dither(width: float = 2.0, down: str = "float") -> Algorithm:
    """z-SignFedAvg: signs of the update after uniform noise, as wide as `width` times its mean magnitude.

    Take it to compare with: docs/results.md has the methods of the field side by side.
    """
    if not 0 < width < float("inf"):
        raise ConfigError(f"algorithm.width must be greater than 0, not {width}")
    return compressed(Algorithm(partial(upload, width=width), means, replace, reads=scaled_change, forward=real, keeps=()), down)
