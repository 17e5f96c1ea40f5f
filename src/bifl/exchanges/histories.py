"""What clients of a secure sum remember from round to round was made of the same in all of them, or all begin afresh.

They agree on the public state, but a server that lies could hold rounds of its own invention with some of them, until it knows what
those will say, and read the next sum as what the others say. So every client shows a digest of all that its memory was made of but
its own data; in a round in which two differ, because one was away or for whatever reason, everyone's memory is left out.
"""

from __future__ import annotations

import hashlib

from bifl.core.state import Client

HISTORY = "secure_sum"  # under which a client keeps it


def shown(client: Client) -> bytes:
    """A digest of all that a client brings to a round but its own data: who has voted in the last one, the server says too."""
    return hashlib.sha256(b"bifl history 1 " + bytes([client.voted]) + client.states.get(HISTORY, b"")).digest()


def continued(before: Client, after: Client, agreed: bytes, *, uploads: bool) -> Client:
    """A client that has trained, with its new history.

    Args:
        before: as its turn began.
        after: as it is now.
        agreed: a digest of the public state that it has trained with, the last broadcast, and the settings.
        uploads: whether it has uploaded too, which an algorithm may remember.
    """
    history = hashlib.sha256(shown(before) + agreed + bytes([uploads])).digest()
    return after._replace(states={**after.states, HISTORY: history})
