"""What clients of a secure sum and its server agree on, and write to each other, byte by byte.

Whatever is read here may come from anybody.

A card is a client's public keys of one round and the history of what it remembers, signed. Lists of clients are in rising order of
their numbers.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from bifl.core.sums import Weighing
from bifl.errors import Refused
from bifl.secure.primitives import DIGEST, PUBLIC, SECRET, TAG

SIGNATURE = 96  # bytes: r and s of ECDSA on P-384
_WHO = struct.Struct("<II")  # number, weight
_NUMBER = struct.Struct("<I")
_HEAD = struct.Struct("<III")  # round, number, weight
_SHARE = struct.Struct("<IIIBB")  # round, dealer, holder, which sum, which of its two secrets
MARK = 16  # bytes by which a share is known
REVEALED = 1 + SECRET  # whether there is a share, and the share


class Card(NamedTuple):
    """What a client signs for one round."""

    number: int
    weight: int
    body: bytes  # the channel's key; then, for every sum, the masks' key and the commitment to the own mask's seed; the history
    signature: bytes

    def text(self, round: int, terms: bytes) -> bytes:
        """What is signed; `terms` are a digest of what all must agree on."""
        return b"bifl keys 3 " + _HEAD.pack(round, self.number, self.weight) + terms + self.body

    @property
    def channel(self) -> bytes:
        """The public key that others seal letters with."""
        return self.body[:PUBLIC]

    def mask_key(self, sum: int) -> bytes:
        """The public key that pairs agree on their masks with."""
        start = PUBLIC + sum * (PUBLIC + DIGEST)
        return self.body[start : start + PUBLIC]

    def commitment(self, sum: int) -> bytes:
        """To the seed of the own mask."""
        start = PUBLIC + sum * (PUBLIC + DIGEST) + PUBLIC
        return self.body[start : start + DIGEST]

    @property
    def history(self) -> bytes:
        """A digest of all that the client's memory was made of but its own data."""
        return self.body[-DIGEST:]


class Secret(NamedTuple):
    """Which of a dealer's secrets a share is of: it has two for every sum."""

    sum: int
    own_mask: bool  # the seed of its own mask; else that of the masks' key

    @property
    def place(self) -> int:
        """Where its share stands among all that one client deals another."""
        return 2 * self.sum + self.own_mask


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
    def body(self) -> int:
        """Bytes of a card's body."""
        return PUBLIC + len(self.sums) * (PUBLIC + DIGEST) + DIGEST

    @property
    def card(self) -> int:
        """Bytes of a card as its owner sends it."""
        return self.body + SIGNATURE

    @property
    def sealed(self) -> int:
        """Bytes of a sealed letter with shares: two a sum."""
        return 2 * SECRET * len(self.sums) + TAG

    @property
    def dealt(self) -> int:
        """Bytes that a client deals another: the letter, and marks of the shares."""
        return self.sealed + 2 * MARK * len(self.sums)

    @property
    def secrets(self) -> list[Secret]:
        """A dealer's secrets, in the order in which it deals their shares."""
        return [Secret(sum, own_mask) for sum in range(len(self.sums)) for own_mask in (False, True)]

    def mark(self, dealer: int, holder: int, secret: Secret, share: bytes) -> bytes:
        """What everybody may know of a share: by it a wrong one is found, and nobody guesses 128 random bits."""
        text = _SHARE.pack(self.round, dealer, holder, secret.sum, secret.own_mask)
        return hashlib.sha256(b"bifl share 1 " + text + share).digest()[:MARK]

    def marks(self, dealer: int, holder: int, shares: Sequence[bytes]) -> bytes:
        """Of all that one client deals another, in order."""
        dealt = zip(self.secrets, shares, strict=False)  # none of a letter that cannot be opened
        return b"".join(self.mark(dealer, holder, secret, share) for secret, share in dealt)


def units(roster: Sequence[Card], place: Callable[[int], Hashable], number: int) -> tuple[int, int, int]:
    """What divides all weights; in units of it that of all who speak of the same weights as one client, and that of all."""
    unit = math.gcd(*(card.weight for card in roster))
    own = sum(card.weight for card in roster if place(card.number) == place(number))
    return unit, own // unit, sum(card.weight for card in roster) // unit


def roster(cards: Sequence[Card]) -> bytes:
    """All cards."""
    return b"".join(_WHO.pack(card.number, card.weight) + card.body + card.signature for card in cards)


def read_roster(data: bytes, terms: SumTerms) -> list[Card]:
    """All cards, at most so many as may take part."""
    start, end = _WHO.size, _WHO.size + terms.body
    cards = []
    for row in _rows(data, start + terms.card, terms.most, "cards"):
        number, weight = _WHO.unpack_from(row)
        cards.append(Card(number, weight, row[start:end], row[end:]))
    return cards


def addressed(rows: Iterable[tuple[int, bytes]]) -> bytes:
    """Something of every client, each after its number."""
    return b"".join(_NUMBER.pack(number) + data for number, data in rows)


def read_addressed(data: bytes, size: int, most: int, what: str) -> dict[int, bytes]:
    """Something of `size` bytes of every client, by number."""
    return {_NUMBER.unpack_from(row)[0]: row[_NUMBER.size :] for row in _rows(data, _NUMBER.size + size, most, what)}


def _rows(data: bytes, size: int, most: int, what: str) -> list[bytes]:
    """Rows that begin with rising numbers."""
    if len(data) % size or not 0 < len(data) // size <= most:
        raise Refused(f"the server's list of {what} is {len(data)} bytes long: it must be 1 to {most} rows of {size}")
    rows = [data[start : start + size] for start in range(0, len(data), size)]
    numbers = [_NUMBER.unpack_from(row)[0] for row in rows]
    if numbers != sorted(set(numbers)):
        raise Refused(f"the server's list of {what} names a client twice, or is out of order")
    return rows


def transcript(cards: bytes, partners: Iterable[int]) -> bytes:
    """A digest of who takes part with which keys, and who has dealt shares."""
    return hashlib.sha256(b"bifl roster 1 " + hashlib.sha256(cards).digest() + addressed((one, b"") for one in partners)).digest()


def survivors_text(digest: bytes, sum: str, survivors: Iterable[int]) -> bytes:
    """What clients sign to agree on whose summands are in a sum."""
    return b"bifl survivors 1 " + digest + sum.encode() + b" " + addressed((one, b"") for one in survivors)
