"""What a round asks of clients, and what they answer."""

from __future__ import annotations

from typing import NamedTuple


class NobodyVotes(Exception):
    """None of those who were drawn to vote may: the draw must be repeated without them."""


class Assignment(NamedTuple):
    """A client's part in an exchange."""

    number: int
    voted: bool  # its last ballot is in the news
    uploads: bool  # what it says will be counted
    letter: bytes = b""  # what the last exchange answered this client alone


class Turn(NamedTuple):
    """What came of it."""

    number: int
    upload: bytes | None  # None from a client that only trained
    loss: float | None  # of its training, if it trained
    images: int  # that it trains on


class Answer(NamedTuple):
    """What a round notes of a turn that was counted."""

    number: int
    size: int | None  # bytes of the upload; None where there was none
    ideal: float | None  # the same, if the coder were ideal
    loss: float | None
    images: int
    upload: bytes | None = None  # only where messages are kept


class Troubles(NamedTuple):
    """What a round's record says of clients that were not as they should be."""

    refused: int = 0  # uploads that could not be counted
    missing: int = 0  # clients that were asked and did not answer
    catch_up_bytes: int = 0  # to those who had missed broadcasts
