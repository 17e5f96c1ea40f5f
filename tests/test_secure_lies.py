"""A server of a secure sum that lies learns nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bifl.core.exchange import Abandoned
from bifl.core.message import TERNARY
from bifl.errors import Refused
from bifl.secure import cards, primitives, threshold, unmasking
from bifl.secure.identities import SimulatedKeys
from bifl.secure.member import Circle
from tests.circle import COUNT, SUM, Table, everywhere
from tests.test_secure_sum import plain, same

ALL = range(4)


class Begun:
    """A round up to the list of survivors: client 3 is lost after it has dealt shares."""

    def __init__(self) -> None:
        self.table = Table([1] * 4)
        self.talk, self.roster = self.table.keys(ALL)
        self.dealt, self.sealed = self.table.shares(self.talk, self.roster, ALL)
        self.left, self.survivors = self.table.uploads(self.dealt, self.sealed, range(3))
        self.signatures = self.table.agree(self.left, self.survivors, range(3))


def listed(*numbers: int) -> bytes:
    return cards.addressed((number, b"") for number in numbers)


def test_never_both_shares_of_one_client() -> None:
    """Told that client 3 is lost it reveals the key's share; told afterwards that client 3 is there, it signs nothing."""
    begun = Begun()
    member = begun.table.member(0)
    first = member.reveal(SUM, begun.signatures[0], everywhere)
    assert member.reveal(SUM, begun.signatures[0], everywhere) == first
    with pytest.raises(Refused, match="another list of survivors"):
        member.agree(SUM, listed(0, 1, 2, 3), everywhere)


def test_different_survivors_for_different_clients() -> None:
    """The server tells clients 0 and 1 that 3 is lost, and 2 and 3 that it is there: nobody gets enough signatures."""
    table = Table([1] * 4)
    talk, letters = table.keys(ALL)
    talk, letters = table.shares(talk, letters, ALL)
    for number in ALL:
        table.masked(number, letters[number])
    said = {number: table.member(number).agree(SUM, listed(0, 1, 2), everywhere) for number in (0, 1)}
    said |= {number: table.member(number).agree(SUM, listed(0, 1, 2, 3), everywhere) for number in (2, 3)}
    letter = cards.addressed(sorted(said.items()))
    for number in ALL:
        with pytest.raises(Refused, match="clients have signed the list of survivors"):
            table.member(number).reveal(SUM, letter, everywhere)


def test_another_attempt_at_a_round_tells_no_difference() -> None:
    """Who has revealed a sum of four reveals no sum of three in the same round: the difference would be one client's ballot."""
    table = Table([1] * 4)
    table.whole(ALL, ALL, ALL, ALL, ALL)
    same(table.whole(ALL, ALL, ALL, ALL, ALL)[0].tally(), plain(table, list(ALL)))  # the same sum again tells nothing new
    talk, letters = table.keys(ALL)
    talk, letters = table.shares(talk, letters, ALL)
    talk, letters = table.uploads(talk, letters, range(3))
    with pytest.raises(Refused, match="another list of survivors"):
        table.agree(talk, letters, range(3))


def test_no_second_upload_under_the_same_masks() -> None:
    """The server sends another model in the same round: what is trained of it would tell a difference."""
    table = Table([1] * 4)
    talk, letters = table.keys(ALL)
    _, letters = table.shares(talk, letters, ALL)
    first = table.masked(0, letters[0])
    assert table.masked(0, letters[0]) == first
    table.said[0] = table.said[0]._replace(symbols=1 - table.said[0].symbols)
    with pytest.raises(Refused, match="another upload in the same secure sum"):
        table.masked(0, letters[0])


def test_a_key_that_is_none() -> None:
    """A point of small order, signed by its owner, would give masks that everybody knows."""
    table = Table([1] * 4)
    talk, _ = table.keys(ALL)
    bad = talk.roster[1]._replace(body=talk.roster[1].body[:32] + bytes(32) + talk.roster[1].body[64:])
    bad = bad._replace(signature=table.identity.sign(1, bad.text(1, table.circle.terms)))
    letter = cards.roster([talk.roster[0], bad, *talk.roster[2:]])
    sealed = {number: table.member(number).shares(letter) for number in (0, 2, 3)}
    shares = cards.addressed((number, sealed[number][: table.circle.dealt]) for number in (2, 3))
    with pytest.raises(Refused, match="a key of client 1 is none"):
        table.masked(0, cards.addressed([(1, bytes(table.circle.dealt))]) + shares)


def test_no_way_back_to_an_earlier_round() -> None:
    table = Table([1] * 4)
    table.circle = table.circle._replace(round=5)
    table.whole(ALL, ALL, ALL, ALL, ALL)
    with pytest.raises(Refused, match="does not go back to 4"):
        table.member(0, table.circle._replace(round=4)).keys()
    for number in ALL:  # keys of a later round forget what was secret, not what was revealed
        table.member(number, table.circle._replace(round=6)).keys()
    with pytest.raises(Refused, match="does not go back to 4"):
        table.member(0, table.circle._replace(round=4)).keys()
    with pytest.raises(Refused, match="another list of survivors"):
        table.whole(*[range(3)] * 5)
    same(table.whole(ALL, ALL, ALL, ALL, ALL)[0].tally(), plain(table, list(ALL)))  # the same sum again tells nothing new
    table.circle = table.circle._replace(round=6)
    same(table.whole(*[range(3)] * 5)[0].tally(), plain(table, [0, 1, 2]))  # and the next round is another one
    with pytest.raises(Refused, match="does not go back to 5"):
        table.member(0, table.circle._replace(round=5)).keys()


class Haunted:
    """Six clients in three groups of two. Client 3, with whom client 0 speaks, is lost; the server knows its secrets, and goes on.

    The server has learnt them in an earlier sum, in which client 3 was lost after it had dealt shares; it replays client 3's card.
    """

    LEFT = (0, 1, 2, 4, 5)

    def __init__(self, run: str = "one", **told: Any) -> None:
        earlier = self._table("one")
        talk, letters = earlier.keys(range(6))
        talk, letters = earlier.shares(talk, letters, range(6))
        talk, letters = earlier.uploads(talk, letters, (1, 2, 4, 5))
        letters = earlier.agree(talk, letters, (1, 2, 4, 5))
        said = {number: earlier.member(number).reveal(SUM, letters[number], self.place) for number in (1, 2, 4, 5)}
        assert unmasking._seed(talk, said, 3, 0, earlier.circle)  # what takes all masks of client 3 away
        self.table = self._table(run)
        self.table.circle = self.table.circle._replace(**told)
        now, _ = self.table.keys(self.LEFT)
        self.talk = unmasking.Talk(tuple(sorted([*now.roster, talk.cards[3]])))
        self.letter = cards.roster(self.talk.roster)

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
        haunted.table.member(0).shares(haunted.letter)


def test_a_ghost_hides_nobody() -> None:
    """Where nothing tells the replayed card from a fresh one: the ghost signs nothing, and nobody reveals a sum of one client."""
    haunted = Haunted()
    table, left = haunted.table, haunted.LEFT
    dealt = {number: table.member(number).shares(haunted.letter) for number in left} | {3: bytes(5 * table.circle.dealt)}
    talk, letters = unmasking.passed_on(haunted.talk, dealt, table.circle)
    for number in left:
        table.masked(number, letters[number])
    said = {number: table.member(number).agree(SUM, listed(*range(6)), table.place) for number in left}
    for number in left:
        with pytest.raises(Refused, match="of a part of the weights fewer than 2 clients have signed who is left"):
            table.member(number).reveal(SUM, cards.addressed(sorted(said.items())), table.place)
    with pytest.raises(Abandoned, match="1 have signed who is left, and the secure sum needs 2"):
        unmasking.agreement(replace(talk, survivors=tuple(range(6))), said, table.circle, table.place)


def test_only_those_who_sign_are_counted() -> None:
    """A client that wants four to hide among wants four signatures: a list of four names is the server's word."""
    table = Table([1] * 4)
    table.identity = SimulatedKeys(7, least=4)
    talk, letters = table.keys(ALL)
    talk, letters = table.shares(talk, letters, ALL)
    talk, letters = table.uploads(talk, letters, ALL)
    signatures = table.agree(talk, letters, range(3))
    with pytest.raises(Refused, match="fewer than 4 clients have signed"):
        table.member(0).reveal(SUM, signatures[0], everywhere)


def test_the_server_cannot_sit_in_the_middle() -> None:
    """Keys of its own in a client's name are not signed by that client; nor is a client's own card replaced."""
    table = Table([1] * 4)
    talk, letters = table.keys(ALL)
    forged = talk.roster[1]._replace(body=primitives.public_key(primitives.seed()) + talk.roster[1].body[32:])
    letter = cards.roster([talk.roster[0], forged, *talk.roster[2:]])
    with pytest.raises(Refused, match="keys of client 1 are not signed"):
        table.member(0).shares(letter)
    with pytest.raises(Refused, match="does not hold this client's own"):
        table.member(1).shares(letter)
    heavier = cards.roster([talk.roster[0], talk.roster[1]._replace(weight=5), *talk.roster[2:]])
    with pytest.raises(Refused, match="keys of client 1 are not signed"):
        table.member(0).shares(heavier)
    table.member(0).shares(letters[0])
    again, other = table.keys([1, 2, 3]) if table.circle.least <= 3 else (talk, letters)
    with pytest.raises(Refused, match="another list of keys"):
        table.member(0).shares(cards.roster([talk.roster[0], *again.roster]))
    assert other


def test_signatures_of_others_on_another_list_do_not_count() -> None:
    begun = Begun()
    alone = cards.addressed([(0, begun.table.identity.sign(0, b"something else"))])
    with pytest.raises(Refused, match="only 0 clients have signed"):
        begun.table.member(0).reveal(SUM, alone, everywhere)


@pytest.mark.parametrize(
    ("survivors", "why"),
    [(listed(1, 2, 3), "lacks this client"), (listed(0, 1), "only 2 clients are left"), (listed(0, 1, 7), "has dealt no shares"),
     (listed(0, 1, 1), "twice"), (listed(2, 1, 0), "out of order"), (b"\0" * 5, "bytes long"), (b"", "bytes long"),
     (listed(*range(9)), "rows of 4")],
)  # fmt: skip
def test_hostile_lists_of_survivors(survivors: bytes, why: str) -> None:
    table = Table([1] * 4)
    talk, letters = table.keys(ALL)
    talk, letters = table.shares(talk, letters, ALL)
    table.masked(0, letters[0])
    with pytest.raises(Refused, match=why):
        table.member(0).agree(SUM, survivors, everywhere)


@given(st.binary(max_size=2000), st.sampled_from(["shares", "partners", "agree", "reveal"]))
@settings(max_examples=60)
def test_any_letter_is_refused_in_one_sentence(letter: bytes, step: str) -> None:
    begun = BEGUN
    member = begun.table.member(0)
    with pytest.raises(Refused):
        member.agree(SUM, letter, everywhere) if step == "agree" else (
            member.reveal(SUM, letter, everywhere) if step == "reveal" else getattr(member, step)(letter)
        )


def test_steps_come_in_order() -> None:
    table = Table([1] * 3)
    with pytest.raises(Refused, match="steps before it"):
        table.member(0).shares(b"")
    with pytest.raises(Refused, match="steps before it"):
        table.member(0).partners(b"")
    with pytest.raises(Refused, match="steps before it"):
        table.member(0).reveal(SUM, b"", everywhere)


@pytest.mark.parametrize(("clients", "colluders"), list(itertools.product((2, 3, 10, 100), (0, 1, 5))))
def test_the_threshold(clients: int, colluders: int) -> None:
    least = threshold(clients, colluders)
    assert 2 * least > clients + colluders >= 2 * (least - 1)


def test_a_masked_upload_looks_like_noise() -> None:
    """All ballots hold zeros; what is sent of them does not, and differs from round to round."""
    table = Table([1] * 4)
    seen = []
    for _ in range(2):
        table.notes = {number: {} for number in ALL}
        table.said = {number: said._replace(symbols=np.zeros(COUNT, np.uint8)) for number, said in table.said.items()}
        talk, letters = table.keys(ALL)
        _, letters = table.shares(talk, letters, ALL)
        seen.append(table.masked(0, letters[0]))
    assert seen[0] != seen[1]
    assert seen[0][:9] != bytes(9)


def test_circle_sizes() -> None:
    circle = Circle(1, ("a", "b"), 4, 3, 2)
    assert circle.sealed == 4 * primitives.SECRET + primitives.TAG
    assert circle.dealt == circle.sealed + 4 * cards.MARK


BEGUN = Begun()
