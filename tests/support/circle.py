"""Clients and server of a secure sum, without networks and training: every step of it can be left out, repeated or lied about."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable

import numpy as np

from bifl.core.message import BINARY, Alphabet, Floats, Message
from bifl.core.sides import Letters
from bifl.core.sums import Total
from bifl.secure import threshold, unmasking
from bifl.secure.circle import Circle
from bifl.secure.identities import SimulatedKeys
from bifl.secure.integers import fields, packed, summands
from bifl.secure.masks import Sum
from bifl.secure.member import Member
from bifl.secure.unmasking import Said, Talk

SUM = "ballot"
COUNT = 24
NEVER = bytes(32)  # the history of clients that remember nothing


def ballot(number: int, weight: int, alphabet: Alphabet = BINARY, count: int = COUNT) -> Message:
    dice = np.random.default_rng([number, weight])
    symbols = dice.integers(0, alphabet.size, count).astype(np.uint8) if alphabet.size else _floats(dice, count)
    return Message.of(symbols, alphabet, _floats(dice, 3), _floats(dice, 1), number, weight, 1)


def _floats(dice: np.random.Generator, count: int) -> Floats:
    return dice.normal(0, 3, count).astype(np.float32)


def everywhere(number: int) -> Hashable:
    return None


class Table:
    """All clients of a round.

    Args:
        weights: of the clients.
        colluders: of them.
        alphabet: of their ballots.
        place: where each speaks.
    """

    def __init__(
        self, weights: list[int], colluders: int = 0, alphabet: Alphabet = BINARY, place: Callable[[int], Hashable] = everywhere
    ) -> None:
        count = len(weights)
        self.circle = Circle(1, (SUM,), count, threshold(count, colluders), 2 + colluders)
        self.identity, self.place, self.alphabet = SimulatedKeys(7), place, alphabet
        self.weights = dict(enumerate(weights))
        self.notes: dict[int, dict[str, bytes]] = {number: {} for number in self.weights}
        self.said = {number: ballot(number, weight, alphabet) for number, weight in self.weights.items()}

    def member(self, number: int, circle: Circle | None = None) -> Member:
        return Member(self.notes[number], self.identity, number, self.weights[number], circle or self.circle)

    def like(self, number: int) -> Message:
        return ballot(number, 1, self.alphabet)

    def keys(self, there: Collection[int]) -> tuple[Talk, Letters]:
        said = Said()
        for number in there:
            said.uploads[number], said.weights[number] = self.member(number).keys(NEVER), self.weights[number]
        return unmasking.roster(said, self.circle)

    def shares(self, talk: Talk, letters: Letters, there: Collection[int]) -> tuple[Talk, Letters]:
        said = {number: self.member(number).shares(letters[number]) for number in there}
        return unmasking.passed_on(talk, said, self.circle)

    def masked(self, number: int, letter: bytes) -> bytes:
        member = self.member(number)
        member.partners(letter)
        times, own, total = member.units(self.place)
        form = fields(self.said[number], own, total)
        parts = summands(self.said[number], times, form)
        member.mask(parts, Sum(SUM, form), self.place)
        data = packed((*parts[0], *parts[1]), (*form.symbols, *form.numbers))
        member.once(SUM, data)
        return data

    def uploads(self, talk: Talk, letters: Letters, there: Collection[int]) -> tuple[Talk, Letters]:
        said = Said()
        for number in there:
            said.uploads[number] = self.masked(number, letters[number])
        return unmasking.survivors(talk, said, self.like, self.circle, self.place)

    def agree(self, talk: Talk, letters: Letters, there: Collection[int]) -> Letters:
        said = {number: self.member(number).agree(SUM, letters[number], self.place) for number in there}
        return unmasking.agreement(talk, said, self.circle, self.place)

    def reveal(self, talk: Talk, letters: Letters, there: Collection[int], count: int = COUNT) -> Total:
        said = {number: self.member(number).reveal(SUM, letters[number], self.place) for number in there}
        return unmasking.unmasked(talk, said, self.like, self.circle, SUM, self.place, count)

    def whole(self, *there: Collection[int]) -> tuple[Total, Talk]:
        """A round, given who is there in each of its five steps."""
        talk, letters = self.keys(there[0])
        talk, letters = self.shares(talk, letters, there[1])
        talk, letters = self.uploads(talk, letters, there[2])
        letters = self.agree(talk, letters, there[3])
        return self.reveal(talk, letters, there[4]), talk
