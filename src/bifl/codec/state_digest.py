"""A digest of the public state, by which two ends find out whether they know the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from bifl.codec.format import encode
from bifl.core.message import Floats, Message
from bifl.core.state import Public


def digest_of(parts: Iterable[bytes]) -> bytes:
    """SHA-256 of several things of any length, each with its length before it: none can end where another one begins."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def state_digest(public: Public, messages: Iterable[Message | None], first: str = "") -> bytes:
    """Of a text, the public state, and the broadcasts that count as part of it."""
    known = f"{public.layout.fingerprint} {public.seed} {public.round}"
    vectors = [public.weights, public.real, public.scales]
    broadcasts = (b"" if message is None else encode(message) for message in messages)
    named = (part for name, vector in sorted(public.vectors.items()) for part in (name.encode(), _floats(vector)))
    return digest_of([first.encode(), known.encode(), *map(_floats, vectors), *broadcasts, *named])


def _floats(vector: Floats) -> bytes:
    return np.ascontiguousarray(vector, "<f4").tobytes()
