"""A digest of the public state, by which two ends find out whether they know the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from bifl.codec.format import encode
from bifl.core.message import Message
from bifl.core.state import Public


def state_digest(public: Public, messages: Iterable[Message | None], first: str = "") -> bytes:
    """SHA-256 of a text, the public state, and the broadcasts that count as part of it."""
    state = hashlib.sha256(f"{first}{public.layout.fingerprint} {public.seed} {public.round}".encode())
    for vector in (public.weights, public.real, public.scales):
        state.update(np.ascontiguousarray(vector, "<f4").tobytes())
    for message in messages:
        state.update(b"-" if message is None else encode(message))
    return state.digest()
