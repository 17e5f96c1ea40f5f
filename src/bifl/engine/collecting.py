"""What a round notes of clients' answers while they come."""

from __future__ import annotations

import math
from collections.abc import Callable

from bifl.core.exact_sum import ExactSum
from bifl.engine.turns import Answer


class UploadCollector:
    """Notes what an exchange's answers cost, who sent them, and how their training went.

    Args:
        keep: takes a copy of an upload, by its sender.
        trains: whether clients train in this exchange.
    """

    def __init__(self, keep: Callable[[str, bytes], None], trains: bool) -> None:
        self._keep, self._trains = keep, trains
        self.bytes = 0
        self._losses = ExactSum()
        self.trained: set[int] = set()
        self.answers: dict[int, Answer] = {}  # by client, without uploads
        self._senders: set[int] = set()
        self._ideals: list[float | None] = []  # bytes of each upload, if the coder were ideal

    @property
    def ideal(self) -> float | None:
        """Their sum, in whatever order they came."""
        known = [size for size in self._ideals if size is not None]
        return math.fsum(known) if len(known) == len(self._ideals) else None

    @property
    def loss(self) -> float:
        """Their mean training loss; NaN where nobody told."""
        return float(self._losses.mean()) if self._losses.weight else math.nan

    @property
    def counted(self) -> frozenset[int]:
        """The clients whose uploads were counted."""
        return frozenset(self._senders)

    def note(self, answer: Answer) -> None:
        """One more answer."""
        self.answers[answer.number] = answer._replace(upload=None)
        if answer.loss is not None:
            self._losses.add(answer.loss, answer.images)
        if self._trains:
            self.trained.add(answer.number)
        if answer.size is not None:
            self._senders.add(answer.number)
            self.bytes += answer.size
            self._ideals.append(answer.ideal)
        if answer.upload is not None:
            self._keep(f"{answer.number:05d}", answer.upload)
