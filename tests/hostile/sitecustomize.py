"""Makes every upload of the processes that find this file garbage: PYTHONPATH=tests/hostile bifl client … is a hostile client."""

from __future__ import annotations

import bifl.codec
from bifl.codec import Context
from bifl.core.message import Message

_encode = bifl.codec.encode


def garbage(message: Message, context: Context | None = None) -> bytes:
    return _encode(message, context) if message.sender is None else b"garbage" * 1000


bifl.codec.encode = garbage
