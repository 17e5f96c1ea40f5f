"""The server's part in the secure sums of a round: it passes shares on, adds masked summands up, and takes the masks away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from bifl.core import Message, Total
from bifl.core.sides import Abandoned, PrivateReplies, Signed
from bifl.secure import cards, integers, primitives
from bifl.secure.cards import Card, Secret, SumTerms
from bifl.secure.integers import Field, Fields, Parts


class Speakers(Protocol):
    """How clients speak in a sum."""

    def place(self, number: int) -> Hashable:
        """Which weights a client speaks of; None of all."""

    def like(self, number: int) -> Message:
        """An upload of the form of its own."""


@dataclass(frozen=True)
class SumState:
    """What the server knows of a round's secure sums so far."""

    roster: tuple[Card, ...]  # everyone's card, in order
    partners: tuple[int, ...] = ()  # clients that have dealt shares
    dealt: Mapping[int, bytes] = field(default_factory=dict)  # what each of them has, for every other client on the roster
    masked: Mapping[int, Message] = field(default_factory=dict)  # uploads of the sum under way
    survivors: tuple[int, ...] = ()  # whose uploads are in it

    @cached_property
    def cards(self) -> dict[int, Card]:
        """By client."""
        return {card.number: card for card in self.roster}

    @cached_property
    def places(self) -> dict[int, int]:
        """Client → where it stands on the roster."""
        return {card.number: place for place, card in enumerate(self.roster)}

    @cached_property
    def digest(self) -> bytes:
        """Of who takes part, as clients compute it."""
        return cards.transcript(cards.roster(self.roster), self.partners)

    def row(self, dealer: int, holder: int) -> bytes:
        """What one client has dealt another: a sealed letter, and the marks of the shares in it."""
        dealt = self.dealt[dealer]
        size = len(dealt) // (len(self.roster) - 1)
        place = self.places[holder] - (holder > dealer)
        return dealt[size * place : size * (place + 1)]

    def form(self, speakers: Speakers, number: int) -> Fields:
        """The fields of a client's summand, as the client computes them."""
        _, own, total = cards.units(self.roster, speakers.place, number)
        return integers.fields(speakers.like(number), own, total)


def abandon_few(terms: SumTerms, clients: Sequence[int], what: str) -> None:
    """Abandon the round if these are too few."""
    if len(clients) < terms.least:
        raise Abandoned(
            f"round {terms.round}: {len(clients)} clients {what}, and the secure sum needs {terms.least}: nothing was counted"
        )


# ---- step by step: what is refused, and what is answered -----------------------------------------------------------------


def card_fault(number: int, weight: int, data: bytes, terms: SumTerms, signed: Signed | None) -> str | None:
    """Why a card would be refused by the other clients; None if nothing is found. Who signs what is known to some servers only."""
    if len(data) != terms.card:
        return f"its keys are {len(data)} bytes long, not {terms.card}"
    card = Card(number, terms.weighing.counts(weight), data[: terms.body], data[terms.body :])
    if signed is not None and not signed(number, card.text(terms.round, terms.digest), card.signature):
        return "its keys are not signed by its node key, or for another run or model"
    keys = [card.channel, *(card.mask_key(sum) for sum in range(len(terms.sums)))]
    return None if all(map(primitives.is_key, keys)) else "one of its keys is none"


def roster(keys: Mapping[int, bytes], weights: Mapping[int, int], terms: SumTerms) -> tuple[SumState, PrivateReplies]:
    """Everyone's card to everyone."""
    sent = {number: data for number, data in sorted(keys.items()) if len(data) == terms.card}
    abandon_few(terms, list(sent), "have sent keys")
    signed = [
        Card(number, terms.weighing.counts(weights[number]), data[: terms.body], data[terms.body :])
        for number, data in sent.items()
    ]
    return SumState(tuple(signed)), dict.fromkeys(sent, cards.roster(signed))


def pass_on(state: SumState, sent: Mapping[int, bytes], terms: SumTerms) -> tuple[SumState, PrivateReplies]:
    """Sealed letters and marks to those whom they are for."""
    numbers = [card.number for card in state.roster]
    partners = [number for number in numbers if len(sent.get(number, b"")) == terms.dealt * (len(numbers) - 1)]
    abandon_few(terms, partners, "have dealt shares")
    state = replace(state, partners=tuple(partners), dealt={number: sent[number] for number in partners})
    return state, {
        receiver: cards.addressed((sender, state.row(sender, receiver)) for sender in partners if sender != receiver)
        for receiver in partners
    }


def masked_fault(state: SumState, number: int, upload: Message, speakers: Speakers) -> str | None:
    """Why a masked upload cannot be added up; None if it can."""
    fault = integers.packed_fault(upload.update.symbols, state.form(speakers, number).flat)
    return None if fault is None else f"its masked upload cannot be added up: {fault}"


def survivors(
    state: SumState, masked: Mapping[int, Message], speakers: Speakers, terms: SumTerms
) -> tuple[SumState, PrivateReplies]:
    """Whose summands are there, and of the right form; told to each of them."""
    there = [number for number in state.partners if number in masked]
    fitting = [number for number in there if masked_fault(state, number, masked[number], speakers) is None]
    speaking = Counter(map(speakers.place, fitting))
    left = [number for number in fitting if speaking[speakers.place(number)] >= terms.together]
    abandon_few(terms, left, "have sent what can be added up")
    private_reply = cards.addressed((number, b"") for number in left)
    return replace(state, masked=masked, survivors=tuple(left)), dict.fromkeys(left, private_reply)


def to_sign(state: SumState, sum: str) -> bytes:
    """What the survivors sign."""
    return cards.survivors_text(state.digest, sum, state.survivors)


def signatures(state: SumState, signed: Mapping[int, bytes], terms: SumTerms, speakers: Speakers) -> PrivateReplies:
    """The survivors' signatures to all who have signed; in every part of the weights they must be enough to hide among."""
    signers = [number for number in state.survivors if len(signed.get(number, b"")) == cards.SIGNATURE]
    abandon_few(terms, signers, "have signed who is left")
    speaking = Counter(map(speakers.place, signers))
    if (fewest := min(speaking[speakers.place(number)] for number in state.survivors)) < terms.together:
        raise Abandoned(
            f"round {terms.round}: of those who speak of a part of the weights {fewest} have signed who is left, "
            f"and the secure sum needs {terms.together}: nothing was counted"
        )
    return dict.fromkeys(signers, cards.addressed((number, signed[number]) for number in signers))


def revealed_fault(state: SumState, number: int, data: bytes, terms: SumTerms, name: str) -> str | None:
    """Why what a client reveals is not believed; None if all of it is what was committed to and dealt."""
    index = terms.sums.index(name)
    if number not in state.survivors or len(data) != primitives.SECRET + cards.REVEALED * (len(state.partners) - 1):
        return f"what it reveals is {len(data)} bytes long, or it was not asked"
    if primitives.commitment(data[: primitives.SECRET]) != state.cards[number].commitment(index):
        return "it has revealed another seed of its own mask than it committed to"
    for dealer, share in _revealed(state, number, data).items():
        secret = Secret(index, own_mask=dealer in state.survivors)
        start = terms.sealed + cards.MARK * secret.place
        mark = state.row(dealer, number)[start : start + cards.MARK]
        if share is not None and terms.mark(dealer, number, secret, share) != mark:
            return f"it has revealed another share of client {dealer}'s secret than it was dealt"
    return None


def unmask(state: SumState, revealed: Mapping[int, bytes], speakers: Speakers, terms: SumTerms, name: str, count: int) -> Total:
    """The sum over a model of so many weights, given what clients have revealed."""
    index = terms.sums.index(name)
    revealed = {number: data for number, data in revealed.items() if revealed_fault(state, number, data, terms, name) is None}
    abandon_few(terms, list(revealed), "have revealed their shares")
    groups: dict[Hashable, Parts] = {}
    numbers: Parts = []
    keys = {number: secret_of(state, revealed, number, index, terms) for number in state.partners}
    for number in state.survivors:
        form = state.form(speakers, number)
        parts = integers.unpack(state.masked[number].update.symbols.astype(np.uint8, copy=False), form.flat)
        which = integers.Sum(name, form, terms.agreed)
        integers.add_own(parts, keys[number], which, -1)
        for lost in set(state.partners).difference(state.survivors):
            peers, sign = speakers.place(lost) == speakers.place(number), -integers.direction(number, lost)
            integers.add_pair(parts, keys[lost], state.cards[number].mask_key(index), which, sign, peers=peers)
        symbols, rest = parts[: len(form.symbols)], parts[len(form.symbols) :]
        where = speakers.place(number)
        groups[where] = _add(groups[where], symbols, form.symbols) if where in groups else symbols
        numbers = _add(numbers, rest, form.numbers) if numbers else rest
    return _total(state, groups, numbers, speakers, count)


def _add(one: Parts, other: Parts, form: Sequence[Field]) -> Parts:
    return [field.wrap(first + second) for field, first, second in zip(form, one, other, strict=True)]


def _revealed(state: SumState, number: int, data: bytes) -> dict[int, bytes | None]:
    """The shares that a client reveals, by dealer; None where it says that it holds none."""
    dealers = [one for one in state.partners if one != number]
    rows = (data[start : start + cards.REVEALED] for start in range(primitives.SECRET, len(data), cards.REVEALED))
    return {dealer: row[1:] if row[0] else None for dealer, row in zip(dealers, rows, strict=True)}


def _total(state: SumState, groups: Mapping[Hashable, Parts], numbers: Parts, speakers: Speakers, count: int) -> Total:
    """Sums as a total, if they can be sums of what clients say."""
    weights = {card.number: card.weight for card in state.roster if card.number in state.survivors}
    first = state.survivors[0]
    unit, _, _ = cards.units(state.roster, speakers.place, first)
    sums = []
    for where, parts in groups.items():
        someone = next(number for number in state.survivors if speakers.place(number) == where)
        weight = sum(weight for number, weight in weights.items() if speakers.place(number) == where)
        form = state.form(speakers, someone).symbols
        if len(form) == 1:
            signed = [parts[0].astype(np.int64)]
            if int(signed[0].max(initial=0)) > (speakers.like(someone).update.alphabet.size - 1) * weight // unit:
                raise Abandoned("a secure sum holds a count of more than there are votes: a client has lied; nothing was counted")
        else:
            signed = [field.signed(part) for field, part in zip(form, parts, strict=True)]
        sums.append(integers.Group(signed, weight, where if isinstance(where, int) else None))
    signed = [field.signed(part) for field, part in zip(state.form(speakers, first).numbers, numbers, strict=True)]
    return integers.total_of(sums, signed, speakers.like(first), list(weights.values()), unit, count)


def secret_of(state: SumState, revealed: Mapping[int, bytes], number: int, index: int, terms: SumTerms) -> bytes:
    """The seed of a survivor's own mask, or of a lost one's key: as its owner says, or of the shares that others hold.

    All that is in `revealed` was checked: a secret that does not fit its card was dealt so.
    """
    alive, card = number in state.survivors, state.cards[number]
    if alive and number in revealed:
        return revealed[number][: primitives.SECRET]
    others = [holder for holder in sorted(revealed) if holder != number]
    held = {state.places[holder] + 1: _revealed(state, holder, revealed[holder])[number] for holder in others}
    shares = {place: share for place, share in held.items() if share is not None}
    why = f"can be used by {len(shares)} clients, and {terms.least} are needed"
    if len(shares) >= terms.least:
        secret = primitives.combine(dict(list(shares.items())[: terms.least]))
        why = "are of another secret than its card is about"
        shown = primitives.commitment(secret) if alive else primitives.public_key(secret)
        if shown == (card.commitment(index) if alive else card.mask_key(index)):
            return secret
    gone = "does not reveal its mask" if alive else "was lost"
    raise Abandoned(f"round {terms.round}: client {number} {gone}, and the shares that it has dealt {why}", {number})
