"""Who may sum what in a round: what clients of a secure sum and its server agree on before they begin."""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

from bifl.core.sums import Weighing
from bifl.secure import cards
from bifl.secure.cards import ShareOf


class SumTerms(NamedTuple):
    """Who may sum what."""

    round: int
    sums: tuple[str, ...]  # names
    most: int  # clients that take part in a round: n
    least: int  # that must be left: k, with 2k > n + colluders
    together: int  # survivors that must speak of the same weights, so that each has somebody to hide among
    agreed: bytes = b""  # a digest of whatever else all must agree on: settings, and the model that they speak of
    weighing: Weighing = Weighing.SAMPLES  # what a client counts for in the sums

    @property
    def digest(self) -> bytes:
        """A digest of what all must agree on: a client's keys are of use to nobody who was told something else."""
        numbers = struct.pack("<III", self.most, self.least, self.together)
        return hashlib.sha256(b"bifl circle 1 " + numbers + " ".join(self.sums).encode() + b" " + self.agreed).digest()

    @property
    def sealed(self) -> int:
        """Bytes of a sealed letter with shares."""
        return cards.sealed_size(len(self.sums))

    @property
    def dealt(self) -> int:
        """Bytes that a client deals another: the letter, and marks of the shares."""
        return cards.dealt_size(len(self.sums))

    def shares(self, dealer: int, holder: int) -> list[ShareOf]:
        """Those that one client deals another, in order."""
        return [ShareOf(self.round, dealer, holder, sum, own) for sum in range(len(self.sums)) for own in (False, True)]
