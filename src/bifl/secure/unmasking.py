"""The server's part in the secure sums of a round: it passes letters on, adds masked summands up, and takes the masks away."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from bifl.core.message import Message
from bifl.core.sides import Abandoned, Letters, Signed
from bifl.core.sums import Total
from bifl.secure import cards, primitives
from bifl.secure.cards import Card, ShareOf
from bifl.secure.circle import Circle
from bifl.secure.integers import Fields, Group, Parts, check_packed, fields, total_of, unpacked
from bifl.secure.masks import Sum, add_own, add_pair, direction

Place = Callable[[int], Hashable]  # client → which weights it speaks of
Like = Callable[[int], Message]  # client → an upload of the same form


@dataclass(frozen=True)
class Talk:
    """What the server knows of a round's secure sums so far.

    Attributes:
        roster: everyone's card, in order.
        partners: clients that have dealt shares.
        dealt: what each of them has, for every other client on the roster.
        masked: uploads of the sum under way.
        survivors: whose uploads are in it.
    """

    roster: tuple[Card, ...]
    partners: tuple[int, ...] = ()
    dealt: Mapping[int, bytes] = field(default_factory=dict)
    masked: Said | None = None
    survivors: tuple[int, ...] = ()

    @cached_property
    def cards(self) -> dict[int, Card]:
        """By client."""
        return {card.number: card for card in self.roster}

    @cached_property
    def places(self) -> dict[int, int]:
        """Client → where it stands on the roster."""
        return {card.number: place for place, card in enumerate(self.roster)}

    def row(self, dealer: int, holder: int) -> bytes:
        """What one client has dealt another: a sealed letter, and the marks of the shares in it."""
        dealt = self.dealt[dealer]
        size = len(dealt) // (len(self.roster) - 1)
        place = self.places[holder] - (holder > dealer)
        return dealt[size * place : size * (place + 1)]

    def mark(self, which: ShareOf) -> bytes:
        """By which a share is known, as its dealer has told."""
        marks = self.row(which.dealer, which.holder)[cards.sealed_size(cards.sums_of(self.roster[0].body)) :]
        return marks[which.place : which.place + cards.MARK]

    @cached_property
    def digest(self) -> bytes:
        """Of who takes part, as clients compute it."""
        return cards.transcript(cards.roster(self.roster), self.partners)

    @cached_property
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
        self.uploads[upload.sender or 0] = upload.update.symbols.astype(np.uint8).tobytes()
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
    weights = {number: circle.weighing.counts(images) for number, images in said.weights.items()}
    talk = Talk(tuple(Card(one, weights[one], data[:end], data[end:]) for one, data in sorted(said.uploads.items())))
    return talk, dict.fromkeys(said.uploads, cards.roster(talk.roster))


def card_fault(number: int, weight: int, data: bytes, circle: Circle, signed: Signed | None) -> str | None:
    """Why a card would be refused by the other clients; None if nothing is found. Who signs what is known to some servers only."""
    end = cards.body_size(len(circle.sums))
    if len(data) != cards.said_size(len(circle.sums)):
        return f"its keys are {len(data)} bytes long, not {cards.said_size(len(circle.sums))}"
    card = Card(number, circle.weighing.counts(weight), data[:end], data[end:])
    if signed is not None and not signed(number, card.text(circle.round, circle.terms), card.signature):
        return "its keys are not signed by its node key, or for another run or model"
    keys = [card.channel, *(card.mask_key(sum) for sum in range(len(circle.sums)))]
    return None if all(map(primitives.is_key, keys)) else "one of its keys is none"


def passed_on(talk: Talk, said: Mapping[int, bytes], circle: Circle) -> tuple[Talk, Letters]:
    """Sealed letters and marks to those whom they are for."""
    numbers = [card.number for card in talk.roster]
    partners = [number for number in numbers if len(said.get(number, b"")) == circle.dealt * (len(numbers) - 1)]
    enough(circle, partners, "have dealt shares")
    talk = replace(talk, partners=tuple(partners), dealt={number: said[number] for number in partners})
    return talk, {
        receiver: cards.addressed((sender, talk.row(sender, receiver)) for sender in partners if sender != receiver)
        for receiver in partners
    }


def survivors(talk: Talk, masked: Said, like: Like, circle: Circle, place: Place) -> tuple[Talk, Letters]:
    """Whose summands are there, and of the right form; told to each of them."""
    there = [number for number in talk.partners if number in masked.uploads]
    fitting = [number for number in there if masked_fault(talk, number, masked.uploads[number], like, place) is None]
    speaking = Counter(map(place, fitting))
    left = [number for number in fitting if speaking[place(number)] >= circle.together]
    enough(circle, left, "have sent what can be added up")
    letter = cards.addressed((number, b"") for number in left)
    return replace(talk, masked=masked, survivors=tuple(left)), dict.fromkeys(left, letter)


def masked_fault(talk: Talk, number: int, data: bytes, like: Like, place: Place) -> str | None:
    """Why a masked upload cannot be added up; None if it can."""
    form = talk.form(like, number, place)
    try:
        check_packed(data, (*form.symbols, *form.numbers))
    except ValueError as error:
        return f"its masked upload cannot be added up: {error}"
    return None


def _parts(talk: Talk, masked: Said, number: int, form: Fields) -> tuple[Parts, Parts]:
    """A masked upload as residues."""
    parts = unpacked(masked.uploads[number], (*form.symbols, *form.numbers))
    return parts[: len(form.symbols)], parts[len(form.symbols) :]


def to_sign(talk: Talk, sum: str) -> bytes:
    """What the survivors sign."""
    return cards.survivors_text(talk.digest, sum, talk.survivors)


def agreement(talk: Talk, said: Mapping[int, bytes], circle: Circle, place: Place) -> Letters:
    """The survivors' signatures to all who have signed; in every part of the weights they must be enough to hide among."""
    signers = [number for number in talk.survivors if len(said.get(number, b"")) == cards.SIGNATURE]
    enough(circle, signers, "have signed who is left")
    speaking = Counter(map(place, signers))
    if (fewest := min(speaking[place(number)] for number in talk.survivors)) < circle.together:
        raise Abandoned(
            f"round {circle.round}: of those who speak of a part of the weights {fewest} have signed who is left, "
            f"and the secure sum needs {circle.together}: nothing was counted"
        )
    return dict.fromkeys(signers, cards.addressed((number, said[number]) for number in signers))


def unmasked(talk: Talk, said: Mapping[int, bytes], like: Like, circle: Circle, name: str, place: Place, count: int) -> Total:
    """The sum, given what clients have revealed.

    Raises:
        Abandoned: too few have, or what they have revealed is not what was shared.
    """
    assert talk.masked is not None
    index = circle.sums.index(name)
    said = {number: data for number, data in said.items() if revealed_fault(talk, number, data, circle, name) is None}
    enough(circle, list(said), "have revealed their shares")
    groups: dict[Hashable, Parts] = {}
    numbers: Parts = []
    keys = {number: _seed(talk, said, number, index, circle) for number in talk.partners}
    for number in talk.survivors:
        form = talk.form(like, number, place)
        parts = _parts(talk, talk.masked, number, form)
        which = Sum(name, form, circle.agreed)
        add_own(parts, keys[number], which, -1)
        for lost in set(talk.partners).difference(talk.survivors):
            peers, sign = place(lost) == place(number), -direction(number, lost)
            add_pair(parts, keys[lost], talk.cards[number].mask_key(index), which, sign, peers=peers)
        known = groups.get(place(number))
        groups[place(number)] = parts[0] if known is None else _added(known, parts[0], form.symbols)
        numbers = _added(numbers, parts[1], form.numbers) if numbers else parts[1]
    return _counted(talk, groups, numbers, like, place, count)


def _added(one: Parts, other: Parts, form: Sequence[Any]) -> Parts:
    return [field.wrapped(first + second) for field, first, second in zip(form, one, other, strict=True)]


def revealed_fault(talk: Talk, number: int, data: bytes, circle: Circle, name: str) -> str | None:
    """Why what a client reveals is not believed; None if all of it is what was committed to and dealt."""
    index = circle.sums.index(name)
    if number not in talk.survivors or len(data) != primitives.SECRET + cards.REVEALED * (len(talk.partners) - 1):
        return f"what it reveals is {len(data)} bytes long, or it was not asked"
    if primitives.commitment(data[: primitives.SECRET]) != talk.cards[number].commitment(index):
        return "it has revealed another seed of its own mask than it committed to"
    for dealer, share in _revealed(talk, number, data).items():
        which = ShareOf(circle.round, dealer, number, index, dealer in talk.survivors)
        if share is not None and which.mark(share) != talk.mark(which):
            return f"it has revealed another share of client {dealer}'s secret than it was dealt"
    return None


def _revealed(talk: Talk, number: int, data: bytes) -> dict[int, bytes | None]:
    """The shares that a client reveals, by dealer; None where it says that it holds none."""
    dealers = [one for one in talk.partners if one != number]
    rows = (data[start : start + cards.REVEALED] for start in range(primitives.SECRET, len(data), cards.REVEALED))
    return {dealer: row[1:] if row[0] else None for dealer, row in zip(dealers, rows, strict=True)}


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
        if len(form) == 1 and int(signed[0].max(initial=0)) > (like(someone).update.alphabet.size - 1) * weight // talk.unit:
            raise Abandoned("a secure sum holds a count of more than there are votes: a client has lied; nothing was counted")
        found.append(Group(signed, weight, where if isinstance(where, int) else None))
    form = talk.form(like, talk.survivors[0], place).numbers
    signed = [field.signed(part) for field, part in zip(form, numbers, strict=True)]
    return total_of(found, signed, like(talk.survivors[0]), list(weights.values()), talk.unit, count)


def _seed(talk: Talk, said: Mapping[int, bytes], number: int, index: int, circle: Circle) -> bytes:
    """The seed of a survivor's own mask, or of a lost one's key: as its owner says, or of the shares that others hold.

    All that is in `said` was checked: a secret that does not fit its card was dealt so.
    """
    alive, card = number in talk.survivors, talk.cards[number]
    if alive and number in said:
        return said[number][: primitives.SECRET]
    others = [holder for holder in sorted(said) if holder != number]
    held = {talk.places[holder] + 1: _revealed(talk, holder, said[holder])[number] for holder in others}
    shares = {place: share for place, share in held.items() if share is not None}
    why = f"can be used by {len(shares)} clients, and {circle.least} are needed"
    if len(shares) >= circle.least:
        secret = primitives.combine(dict(list(shares.items())[: circle.least]))
        why = "are of another secret than its card is about"
        told = primitives.commitment(secret) if alive else primitives.public_key(secret)
        if told == (card.commitment(index) if alive else card.mask_key(index)):
            return secret
    gone = "does not reveal its mask" if alive else "was lost"
    raise Abandoned(f"round {circle.round}: client {number} {gone}, and the shares that it has dealt {why}", {number})
