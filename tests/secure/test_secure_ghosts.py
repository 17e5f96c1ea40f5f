"""A server of a secure sum counts nobody who is not there, or who was told something else."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bifl.core.message import TERNARY
from bifl.core.sides import Abandoned
from bifl.errors import Refused
from bifl.secure import cards, unmasking
from bifl.secure.identities import SimulatedKeys
from bifl.secure.unmasking import RawUploads
from tests.secure.test_secure_lies import listed
from tests.secure.test_secure_sum import plain
from tests.support.secure_round import COUNT, SUM, Table, everywhere

ALL = range(4)


class Haunted:
    """Six clients in three groups of two. Client 3, with whom client 0 speaks, is lost; the server knows its secrets, and goes on.

    The server has learnt them in an earlier sum, in which client 3 was lost after it had dealt shares; it replays client 3's card.
    """

    LEFT = (0, 1, 2, 4, 5)

    def __init__(self, run: str = "one", **told: Any) -> None:
        earlier = self._table("one")
        sum_state, private_replies = earlier.keys(range(6))
        sum_state, private_replies = earlier.shares(sum_state, private_replies, range(6))
        sum_state, private_replies = earlier.uploads(sum_state, private_replies, (1, 2, 4, 5))
        private_replies = earlier.agree(sum_state, private_replies, (1, 2, 4, 5))
        said = {number: earlier.member(number).reveal(SUM, private_replies[number], self.place) for number in (1, 2, 4, 5)}
        assert unmasking._seed(sum_state, said, 3, 0, earlier.sum_terms)  # what takes all masks of client 3 away
        self.table = self._table(run)
        self.table.sum_terms = self.table.sum_terms._replace(**told)
        now, _ = self.table.keys(self.LEFT)
        self.sum_state = unmasking.SumState(tuple(sorted([*now.roster, sum_state.cards[3]])))
        self.private_reply = cards.roster(self.sum_state.roster)

    @staticmethod
    def place(number: int) -> int:
        return COUNT * (number % 3)

    def _table(self, run: str) -> Table:
        table = Table([1] * 6, alphabet=TERNARY, place=self.place)
        table.identity = SimulatedKeys(7, run=run)
        return table


@pytest.mark.parametrize(
    "told",
    [{"run": "another"}, {"round": 2}, {"most": 7}, {"least": 5}, {"together": 3}, {"agreed": b"another model"}],
    ids="".join,
)
def test_keys_are_of_no_use_where_something_else_was_told(told: dict[str, Any]) -> None:
    """In another run or round, with another model, or other settings."""
    haunted = Haunted(**told)
    with pytest.raises(Refused, match="keys of client 3 are not signed by that client's node key"):
        haunted.table.member(0).shares(haunted.private_reply)


def test_a_ghost_hides_nobody() -> None:
    """Where nothing tells the replayed card from a fresh one: the ghost signs nothing, and nobody reveals a sum of one client."""
    haunted = Haunted()
    table, left = haunted.table, haunted.LEFT
    dealt = {number: table.member(number).shares(haunted.private_reply) for number in left} | {3: bytes(5 * table.sum_terms.dealt)}
    sum_state, private_replies = unmasking.passed_on(haunted.sum_state, dealt, table.sum_terms)
    for number in left:
        table.masked(number, private_replies[number])
    said = {number: table.member(number).agree(SUM, listed(*range(6)), table.place) for number in left}
    for number in left:
        with pytest.raises(Refused, match="of a part of the weights fewer than 2 clients have signed who is left"):
            table.member(number).reveal(SUM, cards.addressed(sorted(said.items())), table.place)
    with pytest.raises(Abandoned, match="1 have signed who is left, and the secure sum needs 2"):
        unmasking.signatures(replace(sum_state, survivors=tuple(range(6))), said, table.sum_terms, table.place)


def test_only_those_who_sign_are_counted() -> None:
    """A client that wants four to hide among wants four signatures: a list of four names is the server's word."""
    table = Table([1] * 4)
    table.identity = SimulatedKeys(7, least=4)
    sum_state, private_replies = table.keys(ALL)
    sum_state, private_replies = table.shares(sum_state, private_replies, ALL)
    sum_state, private_replies = table.uploads(sum_state, private_replies, ALL)
    signatures = table.agree(sum_state, private_replies, range(3))
    with pytest.raises(Refused, match="fewer than 4 clients have signed"):
        table.member(0).reveal(SUM, signatures[0], everywhere)


@pytest.mark.parametrize("lost", [(), (3,)], ids=["all", "one lost"])
def test_no_masks_cancel_among_those_who_train_different_models(lost: tuple[int, ...]) -> None:
    """Sent after the keys were checked: others could be made to say nothing, and the sum would be what client 0 says."""
    table, there = Table([1] * 4), [number for number in ALL if number not in lost]
    sum_state, private_replies = table.keys(ALL)
    sum_state, private_replies = table.shares(sum_state, private_replies, ALL)
    told, said = table.sum_terms, RawUploads()
    for number in there:
        table.sum_terms = told._replace(agreed=b"this model" if number else b"another one")
        said.uploads[number] = table.masked(number, private_replies[number])
    table.sum_terms = told._replace(agreed=b"this model")
    sum_state, private_replies = unmasking.survivors(sum_state, said, table.like, table.sum_terms, everywhere)
    with contextlib.suppress(Abandoned):  # what is left is noise: most often counts above all votes
        found = table.reveal(sum_state, table.agree(sum_state, private_replies, there), there).tally()
        assert not np.array_equal(found.real, plain(table, there).real)
