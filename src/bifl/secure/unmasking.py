"""The server's part in the secure sums of a round: it passes letters on, adds masked summands up, and takes the masks away."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bifl.core.exchange import Abandoned, Letters
from bifl.core.message import Message
from bifl.core.sums import Total
from bifl.secure import cards, primitives
from bifl.secure.cards import Card
from bifl.secure.integers import Fields, Group, Parts, fields, size, total_of, unpacked
from bifl.secure.masks import Sum, add_own, add_pair, direction
from bifl.secure.member import Circle

Place = Callable[[int], Hashable]  # client → which weights it speaks of
Like = Callable[[int], Message]  # client → an upload of the same form


class Talk(NamedTuple):
    """What the server knows of a round's secure sums so far."""

    roster: tuple[Card, ...]
    partners: tuple[int, ...] = ()  # clients that have dealt shares
    masked: Said | None = None  # of the sum under way
    survivors: tuple[int, ...] = ()  # whose summands are in it

    def card(self, number: int) -> Card:
        """A client's."""
        return next(card for card in self.roster if card.number == number)

    @property
    def unit(self) -> int:
        """What divides the weight of everyone who has sent keys."""
        return math.gcd(*(card.weight for card in self.roster))

    def form(self, like: Like, number: int, place: Place) -> Fields:
        """The fields of a client's summand, as the client computes them."""
        own = sum(card.weight for card in self.roster if place(card.number) == place(number))
        return fields(like(number), own // self.unit, sum(card.weight for card in self.roster) // self.unit)


class Said:
    """What clients have said in a step, as bytes; an accumulator of exchanges. Masked summands are added up when all is known."""

    def __init__(self) -> None:
        self.uploads: dict[int, bytes] = {}
        self.weights: dict[int, int] = {}

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self.uploads)

    def add(self, upload: Message) -> None:
        """One more."""
        self.uploads[upload.sender or 0] = upload.symbols.astype(np.uint8).tobytes()
        self.weights[upload.sender or 0] = upload.weight

    def merge(self, other: Any) -> None:
        """All of another's."""
        self.uploads |= other.uploads
        self.weights |= other.weights


def enough(circle: Circle, found: Sequence[int], what: str) -> None:
    """Go on, or not.

    Raises:
        Abandoned: there are too few.
    """
    if len(found) < circle.least:
        raise Abandoned(
            f"round {circle.round}: {len(found)} clients {what}, and the secure sum needs {circle.least}: nothing was counted"
        )


def roster(said: Said, circle: Circle) -> tuple[Talk, Letters]:
    """Everyone's card to everyone."""
    enough(circle, list(said.uploads), "have sent keys")
    end = cards.body_size(len(circle.sums))
    talk = Talk(tuple(Card(one, said.weights[one], data[:end], data[end:]) for one, data in sorted(said.uploads.items())))
    return talk, dict.fromkeys(said.uploads, cards.roster(talk.roster))


def passed_on(talk: Talk, said: Mapping[int, bytes], circle: Circle) -> tuple[Talk, Letters]:
    """Sealed letters to those whom they are for."""
    numbers = [card.number for card in talk.roster]
    step = circle.sealed
    partners = [number for number in numbers if len(said.get(number, b"")) == step * (len(numbers) - 1)]
    enough(circle, partners, "have dealt shares")

    def sealed(sender: int, receiver: int) -> bytes:
        at = [number for number in numbers if number != sender].index(receiver)
        return said[sender][step * at : step * (at + 1)]

    letters = {
        receiver: cards.addressed((sender, sealed(sender, receiver)) for sender in partners if sender != receiver)
        for receiver in partners
    }
    return talk._replace(partners=tuple(partners)), letters


def survivors(talk: Talk, masked: Said, like: Like, circle: Circle, place: Place) -> tuple[Talk, Letters]:
    """Whose summands are there, and of the right form; told to each of them."""
    fitting = [number for number in talk.partners if number in masked.uploads and _fits(talk, masked, number, like, place)]
    there = Counter(map(place, fitting))
    left = [number for number in fitting if there[place(number)] >= circle.together]
    enough(circle, left, "have sent what can be added up")
    letter = cards.addressed((number, b"") for number in left)
    return talk._replace(masked=masked, survivors=tuple(left)), dict.fromkeys(left, letter)


def _fits(talk: Talk, masked: Said, number: int, like: Like, place: Place) -> bool:
    try:
        _parts(talk, masked, number, like, place)
    except ValueError:
        return False
    return True


def _parts(talk: Talk, masked: Said, number: int, like: Like, place: Place) -> tuple[Parts, Parts]:
    """A masked upload as residues.

    Raises:
        ValueError: it has another form.
    """
    form, data = talk.form(like, number, place), masked.uploads[number]
    if len(data) != upload_size(form):
        raise ValueError(f"{len(data)} bytes instead of {upload_size(form)}")
    parts = unpacked(data, (*form.symbols, *form.numbers))
    return parts[: len(form.symbols)], parts[len(form.symbols) :]


def upload_size(form: Fields) -> int:
    """Bytes of a masked upload."""
    return size((*form.symbols, *form.numbers))


def agreement(talk: Talk, said: Mapping[int, bytes], circle: Circle) -> Letters:
    """The survivors' signatures to all who have signed."""
    signers = [number for number in talk.survivors if len(said.get(number, b"")) == cards.SIGNATURE]
    enough(circle, signers, "have signed who is left")
    return dict.fromkeys(signers, cards.addressed((number, said[number]) for number in signers))


def unmasked(talk: Talk, said: Mapping[int, bytes], like: Like, circle: Circle, name: str, place: Place, count: int) -> Total:
    """The sum, given what clients have revealed.

    Raises:
        Abandoned: too few have, or what they have revealed is not what was shared.
    """
    assert talk.masked is not None
    index = circle.sums.index(name)
    said = {number: data for number, data in said.items() if len(data) == _revealed_size(talk)}
    enough(circle, list(said), "have revealed their shares")
    groups: dict[Hashable, Parts] = {}
    numbers: Parts = []
    keys = {number: _seed(talk, said, number, index, circle) for number in talk.partners}
    for number in talk.survivors:
        parts = _parts(talk, talk.masked, number, like, place)
        form = talk.form(like, number, place)
        add_own(parts, keys[number], Sum(name, form), -1)
        for lost in set(talk.partners).difference(talk.survivors):
            peers, sign = place(lost) == place(number), -direction(number, lost)
            add_pair(parts, keys[lost], talk.card(number).mask_key(index), Sum(name, form), sign, peers=peers)
        known = groups.get(place(number))
        groups[place(number)] = parts[0] if known is None else _added(known, parts[0], form.symbols)
        numbers = _added(numbers, parts[1], form.numbers) if numbers else parts[1]
    return _counted(talk, groups, numbers, like, place, count)


def _added(one: Parts, other: Parts, form: Sequence[Any]) -> Parts:
    return [field.wrapped(first + second) for field, first, second in zip(form, one, other, strict=True)]


def _revealed_size(talk: Talk) -> int:
    return primitives.SECRET + cards.REVEALED * (len(talk.partners) - 1)


def _counted(talk: Talk, groups: Mapping[Hashable, Parts], numbers: Parts, like: Like, place: Place, count: int) -> Total:
    """Sums as a total, if they can be sums of what clients say."""
    weights = {card.number: card.weight for card in talk.roster if card.number in talk.survivors}
    found = []
    for where, parts in groups.items():
        someone = next(number for number in talk.survivors if place(number) == where)
        weight = sum(weight for number, weight in weights.items() if place(number) == where)
        form = talk.form(like, someone, place).symbols
        signed = (
            [parts[0].astype(np.int64)] if len(form) == 1 else [field.signed(part) for field, part in zip(form, parts, strict=True)]
        )
        if len(form) == 1 and int(signed[0].max(initial=0)) > (like(someone).alphabet.size - 1) * weight // talk.unit:
            raise Abandoned("a secure sum holds a count of more than there are votes: a client has lied; nothing was counted")
        found.append(Group(signed, weight, where if isinstance(where, int) else None))
    form = talk.form(like, talk.survivors[0], place).numbers
    signed = [field.signed(part) for field, part in zip(form, numbers, strict=True)]
    return total_of(found, signed, like(talk.survivors[0]), list(weights.values()), talk.unit, count)


def _seed(talk: Talk, said: Mapping[int, bytes], number: int, index: int, circle: Circle) -> bytes:
    """The seed of a survivor's own mask, or of a lost one's key: as its owner says, or of the shares that others hold."""
    alive, card = number in talk.survivors, talk.card(number)

    def right(secret: bytes) -> bool:
        if alive:
            return primitives.commitment(secret) == card.commitment(index)
        return primitives.public_key(secret) == card.mask_key(index)

    if alive and number in said and right(said[number][: primitives.SECRET]):
        return said[number][: primitives.SECRET]
    indices = {one.number: place + 1 for place, one in enumerate(talk.roster)}
    shares = {}
    for holder, data in sorted(said.items()):
        if holder != number:
            at = [one for one in talk.partners if one != holder].index(number)
            row = data[primitives.SECRET :][cards.REVEALED * at : cards.REVEALED * (at + 1)]
            if row[0]:
                shares[indices[holder]] = row[1:]
    enough(circle, list(shares), f"hold a share of client {number}'s secret")
    order = sorted(shares)
    for start in range(len(order) - circle.least + 1):  # a liar's share spoils those that it is in
        secret = primitives.combine({one: shares[one] for one in order[start : start + circle.least]})
        if right(secret):
            return secret
    raise Abandoned(
        f"round {circle.round}: what clients have revealed of client {number} is not what was shared: nothing was counted"
    )
