"""What a round asks of clients, and what they answer."""

from __future__ import annotations

import math
from typing import NamedTuple


class NobodyVotes(Exception):
    """None of those who were drawn to vote may: the draw must be repeated without them."""


class Task(NamedTuple):
    """A client's part in an exchange."""

    number: int
    voted: bool  # its last ballot is in the news
    uploads: bool  # what it says will be counted


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


class Score(NamedTuple):
    """The global model on one chunk of the test images, or of those that a client holds out."""

    client: int | None
    chunk: int
    images: int
    correct: int
    loss: float


class Evaluation(NamedTuple):
    """The global model on the test images, or where there are none on all that clients hold out; and client by client."""

    accuracy: float
    loss: float
    clients: list[float]  # accuracy of each that holds images out

    @classmethod
    def of(cls, scores: list[Score]) -> Evaluation:
        """Add up; in one order, whoever computed what."""
        scores = sorted(scores, key=lambda score: (score.client is not None, score.client or 0, score.chunk))
        tests = [score for score in scores if score.client is None] or scores
        images = sum(score.images for score in tests) or math.nan
        owners = {score.client: [0, 0] for score in scores if score.client is not None}
        for score in scores:
            if score.client is not None:
                owners[score.client][0] += score.correct
                owners[score.client][1] += score.images
        clients = [correct / count for correct, count in owners.values()]
        return cls(sum(s.correct for s in tests) / images, sum(s.loss for s in tests) / images, clients)
