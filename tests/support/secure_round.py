"""Clients and server of a secure sum, without networks and training: every step of it can be left out, repeated or lied about."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Hashable

import numpy as np

from bifl.core.message import BINARY, Alphabet, Floats, Message
from bifl.core.sides import PrivateReplies
from bifl.core.sums import Total
from bifl.exchanges.exchange import message_of
from bifl.secure import threshold, unmasking
from bifl.secure.cards import SumTerms
from bifl.secure.identities import SimulatedKeys
from bifl.secure.member import Member
from bifl.secure.unmasking import SumState

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
        self.terms = SumTerms(1, (SUM,), count, threshold(count, colluders), 2 + colluders)
        self.identity, self.place, self.alphabet = SimulatedKeys(7), place, alphabet
        self.random: Callable[[int], bytes] = secrets.token_bytes
        self.weights = dict(enumerate(weights))
        self.notes: dict[int, dict[str, bytes]] = {number: {} for number in self.weights}
        self.said = {number: ballot(number, weight, alphabet) for number, weight in self.weights.items()}

    def member(self, number: int, terms: SumTerms | None = None) -> Member:
        return Member(self.notes[number], self.identity, number, self.weights[number], terms or self.terms, self.random)

    def like(self, number: int) -> Message:
        return ballot(number, 1, self.alphabet)

    def keys(self, there: Collection[int]) -> tuple[SumState, PrivateReplies]:
        said = {number: self.member(number).keys(NEVER) for number in there}
        return unmasking.roster(said, self.weights, self.terms)

    def shares(
        self, sum_state: SumState, private_replies: PrivateReplies, there: Collection[int]
    ) -> tuple[SumState, PrivateReplies]:
        said = {number: self.member(number).shares(private_replies[number]) for number in there}
        return unmasking.pass_on(sum_state, said, self.terms)

    def masked(self, number: int, private_reply: bytes) -> bytes:
        member = self.member(number)
        member.partners(private_reply)
        return member.masked(self.said[number], SUM, self.place)

    def uploads(
        self, sum_state: SumState, private_replies: PrivateReplies, there: Collection[int]
    ) -> tuple[SumState, PrivateReplies]:
        said = {number: message_of(self.masked(number, private_replies[number])) for number in there}
        return unmasking.survivors(sum_state, said, self, self.terms)

    def agree(self, sum_state: SumState, private_replies: PrivateReplies, there: Collection[int]) -> PrivateReplies:
        said = {number: self.member(number).agree(SUM, private_replies[number], self.place) for number in there}
        return unmasking.signatures(sum_state, said, self.terms, self)

    def reveal(self, sum_state: SumState, private_replies: PrivateReplies, there: Collection[int], count: int = COUNT) -> Total:
        said = {number: self.member(number).reveal(SUM, private_replies[number], self.place) for number in there}
        return unmasking.unmask(sum_state, said, self, self.terms, SUM, count)

    def whole(self, *there: Collection[int]) -> tuple[Total, SumState]:
        """A round, given who is there in each of its five steps."""
        sum_state, private_replies = self.keys(there[0])
        sum_state, private_replies = self.shares(sum_state, private_replies, there[1])
        sum_state, private_replies = self.uploads(sum_state, private_replies, there[2])
        private_replies = self.agree(sum_state, private_replies, there[3])
        return self.reveal(sum_state, private_replies, there[4]), sum_state
