"""Error feedback at the client (EF-signSGD, Karimireddy et al., 2019): signs, and what they could not say is added next time."""

from __future__ import annotations

import numpy as np

from bifl.core import (
    BINARY,
    Algorithm,
    Client,
    Message,
    Public,
    Sent,
    change,
    compressed,
    means,
    real,
    register,
    replace,
    scaled_change,
)  # fmt: skip


def upload(client: Client, public: Public) -> Sent:
    """Signs of the update and of what is left of earlier ones, with the mean magnitude of every layer."""
    wanted = change(client, public) + (client.memory if client.memory.size else np.float32(0))
    scales = np.array([np.abs(part).mean() for part in public.layout.layer_parts(wanted)], np.float32)
    message = Message.of((wanted > 0).astype(np.uint8), BINARY, client.real, scales)
    return Sent(message, memory=wanted - message.update.values() * public.layout.per_weight(scales))


@register
def ef_sign(down: str = "float") -> Algorithm:
    """FedAvg by signs of the update, each client remembering what its signs could not say.

    Take it to compare with: docs/results.md has the methods of the field side by side.
    """
    return compressed(Algorithm(upload, means, replace, reads=scaled_change, forward=real, keeps=("memory",)), down)
