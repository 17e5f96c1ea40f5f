"""A client of a secure sum and a server that lies: it learns nothing, and counts nobody who is not there."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from dataclasses import replace
from secrets import token_bytes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bifl.core.message import TERNARY
from bifl.core.sides import Abandoned
from bifl.errors import Refused
from bifl.exchanges.exchange import message_of
from bifl.secure import cards, primitives, threshold, unmasking
from bifl.secure import member as members
from bifl.secure.cards import SumTerms
from bifl.secure.identities import SimulatedKeys
from bifl.secure.integers import Fields, Sum, add_own, add_pair, fields, pack, size, unpack
from tests.secure.test_secure_sum import plain, same
from tests.support.secure_round import COUNT, NEVER, SUM, Table, everywhere

ALL = range(4)


class Begun:
    """A round up to the list of survivors: client 3 is lost after it has dealt shares."""

    def __init__(self) -> None:
        self.table = Table([1] * 4)
        self.sum_state, self.roster = self.table.keys(ALL)
        self.dealt, self.sealed = self.table.shares(self.sum_state, self.roster, ALL)
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
    sum_state, private_replies = table.keys(ALL)
    sum_state, private_replies = table.shares(sum_state, private_replies, ALL)
    for number in ALL:
        table.masked(number, private_replies[number])
    said = {number: table.member(number).agree(SUM, listed(0, 1, 2), everywhere) for number in (0, 1)}
    said |= {number: table.member(number).agree(SUM, listed(0, 1, 2, 3), everywhere) for number in (2, 3)}
    private_reply = cards.addressed(sorted(said.items()))
    for number in ALL:
        with pytest.raises(Refused, match="clients have signed the list of survivors"):
            table.member(number).reveal(SUM, private_reply, everywhere)


def test_another_attempt_at_a_round_tells_no_difference() -> None:
    """Who has revealed a sum of four reveals no sum of three in the same round: the difference would be one client's ballot."""
    table = Table([1] * 4)
    table.whole(ALL, ALL, ALL, ALL, ALL)
    same(table.whole(ALL, ALL, ALL, ALL, ALL)[0].tally(), plain(table, list(ALL)))  # the same sum again tells nothing new
    sum_state, private_replies = table.keys(ALL)
    sum_state, private_replies = table.shares(sum_state, private_replies, ALL)
    sum_state, private_replies = table.uploads(sum_state, private_replies, range(3))
    with pytest.raises(Refused, match="another list of survivors"):
        table.agree(sum_state, private_replies, range(3))


def test_no_second_upload_under_the_same_masks() -> None:
    """The server sends another model in the same round: what is trained of it would tell a difference."""
    table = Table([1] * 4)
    sum_state, private_replies = table.keys(ALL)
    _, private_replies = table.shares(sum_state, private_replies, ALL)
    first = table.masked(0, private_replies[0])
    assert table.masked(0, private_replies[0]) == first
    table.said[0] = table.said[0].with_update(symbols=1 - table.said[0].update.symbols)
    with pytest.raises(Refused, match="another upload in the same secure sum"):
        table.masked(0, private_replies[0])


def test_a_key_that_is_none() -> None:
    """A point of small order, signed by its owner, would give masks that everybody knows."""
    table = Table([1] * 4)
    sum_state, _ = table.keys(ALL)
    bad = sum_state.roster[1]._replace(body=sum_state.roster[1].body[:32] + bytes(32) + sum_state.roster[1].body[64:])
    bad = bad._replace(signature=table.identity.sign(1, bad.text(1, table.terms.digest)))
    private_reply = cards.roster([sum_state.roster[0], bad, *sum_state.roster[2:]])
    sealed = {number: table.member(number).shares(private_reply) for number in (0, 2, 3)}
    shares = cards.addressed((number, sealed[number][: table.terms.dealt]) for number in (2, 3))
    with pytest.raises(Refused, match="a key of client 1 is none"):
        table.masked(0, cards.addressed([(1, bytes(table.terms.dealt))]) + shares)


def test_no_way_back_to_an_earlier_round() -> None:
    table = Table([1] * 4)
    table.terms = table.terms._replace(round=5)
    table.whole(ALL, ALL, ALL, ALL, ALL)
    with pytest.raises(Refused, match="does not go back to 4"):
        table.member(0, table.terms._replace(round=4)).keys(NEVER)
    for number in ALL:  # keys of a later round forget what was secret, not what was revealed
        table.member(number, table.terms._replace(round=6)).keys(NEVER)
    with pytest.raises(Refused, match="does not go back to 4"):
        table.member(0, table.terms._replace(round=4)).keys(NEVER)
    with pytest.raises(Refused, match="another list of survivors"):
        table.whole(*[range(3)] * 5)
    same(table.whole(ALL, ALL, ALL, ALL, ALL)[0].tally(), plain(table, list(ALL)))  # the same sum again tells nothing new
    table.terms = table.terms._replace(round=6)
    same(table.whole(*[range(3)] * 5)[0].tally(), plain(table, [0, 1, 2]))  # and the next round is another one
    with pytest.raises(Refused, match="does not go back to 5"):
        table.member(0, table.terms._replace(round=5)).keys(NEVER)


def test_the_server_cannot_sit_in_the_middle() -> None:
    """Keys of its own in a client's name are not signed by that client; nor is a client's own card replaced."""
    table = Table([1] * 4)
    sum_state, private_replies = table.keys(ALL)
    forged = sum_state.roster[1]._replace(
        body=primitives.public_key(token_bytes(primitives.SECRET)) + sum_state.roster[1].body[32:]
    )
    private_reply = cards.roster([sum_state.roster[0], forged, *sum_state.roster[2:]])
    with pytest.raises(Refused, match="keys of client 1 are not signed"):
        table.member(0).shares(private_reply)
    with pytest.raises(Refused, match="does not hold this client's own"):
        table.member(1).shares(private_reply)
    heavier = cards.roster([sum_state.roster[0], sum_state.roster[1]._replace(weight=5), *sum_state.roster[2:]])
    with pytest.raises(Refused, match="keys of client 1 are not signed"):
        table.member(0).shares(heavier)
    table.member(0).shares(private_replies[0])
    again, other = table.keys([1, 2, 3]) if table.terms.least <= 3 else (sum_state, private_replies)
    with pytest.raises(Refused, match="another list of keys"):
        table.member(0).shares(cards.roster([sum_state.roster[0], *again.roster]))
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
    sum_state, private_replies = table.keys(ALL)
    sum_state, private_replies = table.shares(sum_state, private_replies, ALL)
    table.masked(0, private_replies[0])
    with pytest.raises(Refused, match=why):
        table.member(0).agree(SUM, survivors, everywhere)


@given(st.binary(max_size=2000), st.sampled_from(["shares", "partners", "agree", "reveal"]))
@settings(max_examples=60)
def test_any_letter_is_refused_in_one_sentence(private_reply: bytes, step: str) -> None:
    begun = BEGUN
    member = begun.table.member(0)
    with pytest.raises(Refused):
        member.agree(SUM, private_reply, everywhere) if step == "agree" else (
            member.reveal(SUM, private_reply, everywhere) if step == "reveal" else getattr(member, step)(private_reply)
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


def spread(data: bytes) -> float:
    """Chi-square of a histogram of the bytes: of noise 255 on average, with a deviation of √(2·255) = 22.6."""
    counts, expected = np.bincount(np.frombuffer(data, np.uint8), minlength=256), len(data) / 256
    return float((np.square(counts - expected) / expected).sum())


def combined(one: bytes, other: bytes) -> bytes:
    return (np.frombuffer(one, np.uint8) ^ np.frombuffer(other, np.uint8)).tobytes()


@pytest.mark.parametrize("symbol", [0, 1])
def test_a_masked_upload_looks_like_noise(symbol: int) -> None:
    """All ballots hold one symbol and the number 0; of what is sent no byte is more frequent, and no upload is like another.

    Nor is it without the own mask, which survivors reveal, nor without those of pairs, which tell nothing of one that came late.
    Secrets are counted up instead of drawn, so that the figures are always the same: all are below 255 + 3 · 22.6 = 323.
    """
    numbers = itertools.count(1)
    count, seen = 2**16, []
    for _ in range(2):
        table = Table([1] * 4)
        table.random = lambda size: hashlib.sha256(b"%d" % next(numbers)).digest()[:size]
        symbols, real = np.full(count, symbol, np.uint8), np.zeros(count // 8, np.float32)
        table.said = {number: said._replace(real=real).with_update(symbols=symbols) for number, said in table.said.items()}
        sum_state, private_replies = table.keys(ALL)
        _, private_replies = table.shares(sum_state, private_replies, ALL)
        seen += [table.masked(number, private_replies[number]) for number in (0, 1)]
    form = fields(table.said[1], 4, 4)
    key, own = (bytes.fromhex(secret) for secret in json.loads(table.notes[1][members.NOTE])["seeds"][0])
    seen += [_less(seen[-1], form, own), _less(seen[-1], form, key, *(sum_state.cards[other].mask_key(0) for other in (0, 2, 3)))]
    seen += [combined(one, other) for one, other in itertools.combinations(seen[:4], 2)]
    assert len(seen) == 12
    for data in seen:
        assert len(data) == size(form.flat) > 80_000
        assert spread(data) < 255 + 3 * 22.6


def _less(masked: bytes, form: Fields, secret: bytes, *others: bytes) -> bytes:
    """What client 1 sends without its own mask; or, given the keys of clients 0, 2 and 3, without those of pairs."""
    parts, sum = unpack(masked, form.flat), Sum(SUM, form)
    if not others:
        add_own(parts, secret, sum, -1)
    for sign, other in zip((1, -1, -1), others, strict=False):
        add_pair(parts, secret, other, sum, sign, peers=True)
    return pack(parts, form.flat)


def test_sizes_of_sums() -> None:
    terms = SumTerms(1, ("a", "b"), 4, 3, 2)
    assert terms.sealed == 4 * primitives.SECRET + primitives.TAG
    assert terms.dealt == terms.sealed + 4 * cards.MARK


# ---- clients that are not there ----------------------------------------------------------------------------------------------


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
        assert unmasking.secret_of(sum_state, said, 3, 0, earlier.terms)  # what takes all masks of client 3 away
        self.table = self._table(run)
        self.table.terms = self.table.terms._replace(**told)
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
    dealt = {number: table.member(number).shares(haunted.private_reply) for number in left} | {3: bytes(5 * table.terms.dealt)}
    sum_state, private_replies = unmasking.pass_on(haunted.sum_state, dealt, table.terms)
    for number in left:
        table.masked(number, private_replies[number])
    said = {number: table.member(number).agree(SUM, listed(*range(6)), table.place) for number in left}
    for number in left:
        with pytest.raises(Refused, match="of a part of the weights fewer than 2 clients have signed who is left"):
            table.member(number).reveal(SUM, cards.addressed(sorted(said.items())), table.place)
    with pytest.raises(Abandoned, match="1 have signed who is left, and the secure sum needs 2"):
        unmasking.signatures(replace(sum_state, survivors=tuple(range(6))), said, table.terms, table)


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
    told, said = table.terms, {}
    for number in there:
        table.terms = told._replace(agreed=b"this model" if number else b"another one")
        said[number] = message_of(table.masked(number, private_replies[number]))
    table.terms = told._replace(agreed=b"this model")
    sum_state, private_replies = unmasking.survivors(sum_state, said, table, table.terms)
    with contextlib.suppress(Abandoned):  # what is left is noise: most often counts above all votes
        found = table.reveal(sum_state, table.agree(sum_state, private_replies, there), there).tally()
        assert not np.array_equal(found.real, plain(table, there).real)


BEGUN = Begun()
