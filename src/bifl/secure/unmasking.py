"""The server's part in the secure sums of a round: it passes shares on, adds masked summands up, and takes the masks away."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from bifl.core.message import Message
from bifl.core.sides import Abandoned, PrivateReplies, Signed
from bifl.core.sums import Total
from bifl.secure import cards, primitives
from bifl.secure.cards import Card, ShareOf, SumTerms
from bifl.secure.integers import Fields, Group, Parts, Sum, add_own, add_pair, check_packed, direction, fields, total_of, unpack

Place = Callable[[int], Hashable]  # client → which weights it speaks of
Like = Callable[[int], Message]  # client → an upload of the same form


@dataclass(frozen=True)
class SumState:
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
    masked: RawUploads | None = None
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


class RawUploads:
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


def enough(sum_terms: SumTerms, clients: Sequence[int], what: str) -> None:
    """Go on, or not.

    Raises:
        Abandoned: there are too few.
    """
    if len(clients) < sum_terms.least:
        raise Abandoned(
            f"round {sum_terms.round}: {len(clients)} clients {what}, and the secure sum needs {sum_terms.least}: nothing was "
            "counted"
        )


def roster(said: RawUploads, sum_terms: SumTerms) -> tuple[SumState, PrivateReplies]:
    """Everyone's card to everyone."""
    enough(sum_terms, list(said.uploads), "have sent keys")
    end = cards.body_size(len(sum_terms.sums))
    weights = {number: sum_terms.weighing.counts(images) for number, images in said.weights.items()}
    sum_state = SumState(tuple(Card(one, weights[one], data[:end], data[end:]) for one, data in sorted(said.uploads.items())))
    return sum_state, dict.fromkeys(said.uploads, cards.roster(sum_state.roster))


def card_fault(number: int, weight: int, data: bytes, sum_terms: SumTerms, signed: Signed | None) -> str | None:
    """Why a card would be refused by the other clients; None if nothing is found. Who signs what is known to some servers only."""
    end = cards.body_size(len(sum_terms.sums))
    if len(data) != cards.said_size(len(sum_terms.sums)):
        return f"its keys are {len(data)} bytes long, not {cards.said_size(len(sum_terms.sums))}"
    card = Card(number, sum_terms.weighing.counts(weight), data[:end], data[end:])
    if signed is not None and not signed(number, card.text(sum_terms.round, sum_terms.digest), card.signature):
        return "its keys are not signed by its node key, or for another run or model"
    keys = [card.channel, *(card.mask_key(sum) for sum in range(len(sum_terms.sums)))]
    return None if all(map(primitives.is_key, keys)) else "one of its keys is none"


def pass_on(sum_state: SumState, said: Mapping[int, bytes], sum_terms: SumTerms) -> tuple[SumState, PrivateReplies]:
    """Sealed letters and marks to those whom they are for."""
    numbers = [card.number for card in sum_state.roster]
    partners = [number for number in numbers if len(said.get(number, b"")) == sum_terms.dealt * (len(numbers) - 1)]
    enough(sum_terms, partners, "have dealt shares")
    sum_state = replace(sum_state, partners=tuple(partners), dealt={number: said[number] for number in partners})
    return sum_state, {
        receiver: cards.addressed((sender, sum_state.row(sender, receiver)) for sender in partners if sender != receiver)
        for receiver in partners
    }


def survivors(
    sum_state: SumState, masked: RawUploads, like: Like, sum_terms: SumTerms, place: Place
) -> tuple[SumState, PrivateReplies]:
    """Whose summands are there, and of the right form; told to each of them."""
    there = [number for number in sum_state.partners if number in masked.uploads]
    fitting = [number for number in there if masked_fault(sum_state, number, masked.uploads[number], like, place) is None]
    speaking = Counter(map(place, fitting))
    left = [number for number in fitting if speaking[place(number)] >= sum_terms.together]
    enough(sum_terms, left, "have sent what can be added up")
    private_reply = cards.addressed((number, b"") for number in left)
    return replace(sum_state, masked=masked, survivors=tuple(left)), dict.fromkeys(left, private_reply)


def masked_fault(sum_state: SumState, number: int, data: bytes, like: Like, place: Place) -> str | None:
    """Why a masked upload cannot be added up; None if it can."""
    form = sum_state.form(like, number, place)
    try:
        check_packed(data, (*form.symbols, *form.numbers))
    except ValueError as error:
        return f"its masked upload cannot be added up: {error}"
    return None


def _parts(sum_state: SumState, masked: RawUploads, number: int, form: Fields) -> tuple[Parts, Parts]:
    """A masked upload as residues."""
    parts = unpack(masked.uploads[number], (*form.symbols, *form.numbers))
    return parts[: len(form.symbols)], parts[len(form.symbols) :]


def to_sign(sum_state: SumState, sum: str) -> bytes:
    """What the survivors sign."""
    return cards.survivors_text(sum_state.digest, sum, sum_state.survivors)


def signatures(sum_state: SumState, said: Mapping[int, bytes], sum_terms: SumTerms, place: Place) -> PrivateReplies:
    """The survivors' signatures to all who have signed; in every part of the weights they must be enough to hide among."""
    signers = [number for number in sum_state.survivors if len(said.get(number, b"")) == cards.SIGNATURE]
    enough(sum_terms, signers, "have signed who is left")
    speaking = Counter(map(place, signers))
    if (fewest := min(speaking[place(number)] for number in sum_state.survivors)) < sum_terms.together:
        raise Abandoned(
            f"round {sum_terms.round}: of those who speak of a part of the weights {fewest} have signed who is left, "
            f"and the secure sum needs {sum_terms.together}: nothing was counted"
        )
    return dict.fromkeys(signers, cards.addressed((number, said[number]) for number in signers))


def unmask(
    sum_state: SumState, said: Mapping[int, bytes], like: Like, sum_terms: SumTerms, name: str, place: Place, count: int
) -> Total:
    """The sum, given what clients have revealed.

    Raises:
        Abandoned: too few have, or what they have revealed is not what was shared.
    """
    assert sum_state.masked is not None
    index = sum_terms.sums.index(name)
    said = {number: data for number, data in said.items() if revealed_fault(sum_state, number, data, sum_terms, name) is None}
    enough(sum_terms, list(said), "have revealed their shares")
    groups: dict[Hashable, Parts] = {}
    numbers: Parts = []
    keys = {number: secret_of(sum_state, said, number, index, sum_terms) for number in sum_state.partners}
    for number in sum_state.survivors:
        form = sum_state.form(like, number, place)
        parts = _parts(sum_state, sum_state.masked, number, form)
        which = Sum(name, form, sum_terms.agreed)
        add_own(parts, keys[number], which, -1)
        for lost in set(sum_state.partners).difference(sum_state.survivors):
            peers, sign = place(lost) == place(number), -direction(number, lost)
            add_pair(parts, keys[lost], sum_state.cards[number].mask_key(index), which, sign, peers=peers)
        known = groups.get(place(number))
        groups[place(number)] = parts[0] if known is None else _add(known, parts[0], form.symbols)
        numbers = _add(numbers, parts[1], form.numbers) if numbers else parts[1]
    return _total(sum_state, groups, numbers, like, place, count)


def _add(one: Parts, other: Parts, form: Sequence[Any]) -> Parts:
    return [field.wrap(first + second) for field, first, second in zip(form, one, other, strict=True)]


def revealed_fault(sum_state: SumState, number: int, data: bytes, sum_terms: SumTerms, name: str) -> str | None:
    """Why what a client reveals is not believed; None if all of it is what was committed to and dealt."""
    index = sum_terms.sums.index(name)
    if number not in sum_state.survivors or len(data) != primitives.SECRET + cards.REVEALED * (len(sum_state.partners) - 1):
        return f"what it reveals is {len(data)} bytes long, or it was not asked"
    if primitives.commitment(data[: primitives.SECRET]) != sum_state.cards[number].commitment(index):
        return "it has revealed another seed of its own mask than it committed to"
    for dealer, share in _revealed(sum_state, number, data).items():
        which = ShareOf(sum_terms.round, dealer, number, index, dealer in sum_state.survivors)
        if share is not None and which.mark(share) != sum_state.mark(which):
            return f"it has revealed another share of client {dealer}'s secret than it was dealt"
    return None


def _revealed(sum_state: SumState, number: int, data: bytes) -> dict[int, bytes | None]:
    """The shares that a client reveals, by dealer; None where it says that it holds none."""
    dealers = [one for one in sum_state.partners if one != number]
    rows = (data[start : start + cards.REVEALED] for start in range(primitives.SECRET, len(data), cards.REVEALED))
    return {dealer: row[1:] if row[0] else None for dealer, row in zip(dealers, rows, strict=True)}


def _total(sum_state: SumState, groups: Mapping[Hashable, Parts], numbers: Parts, like: Like, place: Place, count: int) -> Total:
    """Sums as a total, if they can be sums of what clients say."""
    weights = {card.number: card.weight for card in sum_state.roster if card.number in sum_state.survivors}
    sums = []
    for where, parts in groups.items():
        someone = next(number for number in sum_state.survivors if place(number) == where)
        weight = sum(weight for number, weight in weights.items() if place(number) == where)
        form = sum_state.form(like, someone, place).symbols
        signed = (
            [parts[0].astype(np.int64)] if len(form) == 1 else [field.signed(part) for field, part in zip(form, parts, strict=True)]
        )
        if len(form) == 1 and int(signed[0].max(initial=0)) > (like(someone).update.alphabet.size - 1) * weight // sum_state.unit:
            raise Abandoned("a secure sum holds a count of more than there are votes: a client has lied; nothing was counted")
        sums.append(Group(signed, weight, where if isinstance(where, int) else None))
    form = sum_state.form(like, sum_state.survivors[0], place).numbers
    signed = [field.signed(part) for field, part in zip(form, numbers, strict=True)]
    return total_of(sums, signed, like(sum_state.survivors[0]), list(weights.values()), sum_state.unit, count)


def secret_of(sum_state: SumState, said: Mapping[int, bytes], number: int, index: int, sum_terms: SumTerms) -> bytes:
    """The seed of a survivor's own mask, or of a lost one's key: as its owner says, or of the shares that others hold.

    All that is in `said` was checked: a secret that does not fit its card was dealt so.
    """
    alive, card = number in sum_state.survivors, sum_state.cards[number]
    if alive and number in said:
        return said[number][: primitives.SECRET]
    others = [holder for holder in sorted(said) if holder != number]
    held = {sum_state.places[holder] + 1: _revealed(sum_state, holder, said[holder])[number] for holder in others}
    shares = {place: share for place, share in held.items() if share is not None}
    why = f"can be used by {len(shares)} clients, and {sum_terms.least} are needed"
    if len(shares) >= sum_terms.least:
        secret = primitives.combine(dict(list(shares.items())[: sum_terms.least]))
        why = "are of another secret than its card is about"
        told = primitives.commitment(secret) if alive else primitives.public_key(secret)
        if told == (card.commitment(index) if alive else card.mask_key(index)):
            return secret
    gone = "does not reveal its mask" if alive else "was lost"
    raise Abandoned(f"round {sum_terms.round}: client {number} {gone}, and the shares that it has dealt {why}", {number})
