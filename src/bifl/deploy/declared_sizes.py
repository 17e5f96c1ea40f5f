"""How many images the clients have declared, and how many one client may count for.

A ballot weighs as many votes as its client has images, and nobody but the client can count them. So each client declares the number
once, before its first round, and is held to it; and one whose number is out of all proportion is not counted unless the server's
operator says so. The limit depends on what all have declared, never on who came first:

    times the median of what the others have declared:  half as many times as there are others, at least 2, at most 10

Among clients of about the same size nobody then holds more than a third of the votes (of four clients 40 %, of three a half), and
of 21 clients or more nobody counts for more than ten. The median keeps the limit where it is if a few declare far too much or too
little. Two clients cannot check each other: one may count for twice the other.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from bifl.core.exact_sum import LARGEST_WEIGHT
from bifl.errors import RunError
from bifl.files import write_atomic, writing

DECLARED = "declared.json"  # in the run's folder
LEAST_TIMES, MOST_TIMES = 2, 10  # the median


def times(others: int) -> float:
    """How many times the median of the others a client may count for."""
    return min(max(others / 2, LEAST_TIMES), MOST_TIMES)


def over(images: Mapping[int, float], chosen: float = 0) -> dict[int, float]:
    """The clients that have more images than they may, each with its limit; one that the operator has `chosen`, unless 0."""
    others = len(images) - 1
    if not chosen and others < 1:
        return {}
    ranked = sorted(images.values())
    limits = {who: chosen or times(others) * _median_without(ranked, count) for who, count in images.items()}
    return {who: limits[who] for who, count in images.items() if count > limits[who]}


def _median_without(ranked: Sequence[float], value: float) -> float:
    """The median of all but one of the values, which are in order."""
    place, others = bisect_left(ranked, value), len(ranked) - 1
    middle = {(others - 1) // 2, others // 2}
    return mean(ranked[rank + (rank >= place)] for rank in middle)


class Declared:
    """What clients have declared so far, in a file that outlives the server if there is one."""

    def __init__(self, folder: Path | None = None) -> None:
        self._path = None if folder is None else folder / DECLARED
        self.images: dict[int, int] = {} if self._path is None else _read(self._path)

    def problem(self, number: int, images: int) -> str | None:
        """Why a client cannot declare this; None if it can."""
        known = self.images.get(number, images)
        if known != images:
            return f"it has declared {known} images before and says {images} now: the number cannot change during a run"
        return None

    def add(self, number: int, images: int) -> None:
        """Hold a client to its number of images."""
        if self.images.get(number) == images:
            return
        self.images[number] = images
        if self._path is not None:
            with writing(self._path):
                write_atomic(self._path, json.dumps({str(who): self.images[who] for who in sorted(self.images)}))

    def over(self, chosen: int, among: set[int] | None = None) -> dict[int, float]:
        """The clients that have more images than they may, each with its limit; judged by the declarations of some, or of all."""
        known = self.images if among is None else {who: self.images[who] for who in among}
        return over(known, chosen)


def _read(path: Path) -> dict[int, int]:
    try:
        found = json.loads(path.read_text())
        images = {int(who): count for who, count in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise RunError(f"cannot read '{path}': {error}; without it clients could declare other numbers of images") from error
    if not all(type(count) is int and 1 <= count <= LARGEST_WEIGHT for count in images.values()):
        raise RunError(f"'{path}' holds a number of images that no client can have: it was changed or damaged")
    return images
