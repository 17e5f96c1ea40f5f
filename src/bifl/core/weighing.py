"""What a client counts for in the sums: its samples, or once like all others (`weigh=`).

>>> Weighing.SAMPLES.counts(600), Weighing.ONCE.counts(600)
(600, 1)
"""

from __future__ import annotations

from enum import Enum


class Weighing(Enum):
    """What clients tell that they weigh, and what they count for."""

    SAMPLES = "a client counts for its samples"
    ONCE = "every client counts once"
    UNTOLD = "every client counts once, and nobody tells how many samples it has"

    def told(self, samples: int) -> int:
        """What a client says that it weighs, of so many samples."""
        return 1 if self is Weighing.UNTOLD else samples

    def counts(self, told: int) -> int:
        """What a client counts for that says that it weighs so much."""
        return told if self is Weighing.SAMPLES else 1
