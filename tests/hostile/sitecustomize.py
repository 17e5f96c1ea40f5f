"""Makes every upload of the processes that find this file garbage: PYTHONPATH=tests/hostile bifl client … is a hostile client."""

from __future__ import annotations

import bifl.wire
from bifl.message import Message
from bifl.wire import Context

_encode = bifl.wire.encode


def garbage(message: Message, context: Context | None = None) -> bytes:
    return _encode(message, context) if message.sender is None else b"garbage" * 1000


bifl.wire.encode = garbage
