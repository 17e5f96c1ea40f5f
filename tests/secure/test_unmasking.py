"""Clients of a secure sum that lie are noticed, named and left out, and the sum of the others is right."""

from __future__ import annotations

import itertools
from secrets import token_bytes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bifl.core.sides import Abandoned
from bifl.core.sums import Total
from bifl.errors import Refused
from bifl.exchanges.exchange import message_of
from bifl.secure import cards, primitives, unmasking
from bifl.secure import member as members
from tests.secure.test_secure_sum import plain, same
from tests.support.secure_round import COUNT, SUM, Table, everywhere

ALL = range(4)


def spoiled(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


class Revealed:
    """Seven clients, five of which must be left; client 6 is lost after it has dealt shares."""

    def __init__(self) -> None:
        self.table = table = Table([1] * 7, colluders=2)
        sum_state, private_replies = table.keys(range(7))
        sum_state, private_replies = table.shares(sum_state, private_replies, range(7))
        self.sum_state, private_replies = table.uploads(sum_state, private_replies, range(6))
        private_replies = table.agree(self.sum_state, private_replies, range(6))
        self.said = {number: table.member(number).reveal(SUM, private_replies[number], everywhere) for number in range(6)}

    def total(self, said: dict[int, bytes]) -> Total:
        return unmasking.unmask(self.sum_state, said, self.table, self.table.terms, SUM, COUNT)

    def fault(self, number: int, data: bytes) -> str | None:
        return unmasking.revealed_fault(self.sum_state, number, data, self.table.terms, SUM)


REVEALED = Revealed()


@given(st.integers(0, 5), st.integers(0, 6 * cards.REVEALED + primitives.SECRET - 1))
@settings(max_examples=30)
def test_a_client_that_reveals_something_wrong_is_named_and_left_out(liar: int, at: int) -> None:
    """Whichever byte is wrong, and wherever the liar stands among the others: five right ones are enough."""
    shown = spoiled(REVEALED.said[liar], at)
    why = REVEALED.fault(liar, shown)
    if at >= primitives.SECRET and (at - primitives.SECRET) % cards.REVEALED == 0:  # it says that it holds no share
        assert why is None
    else:
        assert why is not None
        assert why.startswith("it has revealed another ")
        assert REVEALED.fault(liar, REVEALED.said[liar]) is None
    same(REVEALED.total(REVEALED.said | {liar: shown}).tally(), plain(REVEALED.table, [*range(6)]))


def test_wrong_shares_are_noticed() -> None:
    """Too few are right: nothing is counted."""
    wrong = {number: spoiled(REVEALED.said[number], 20) for number in (1, 3)}
    with pytest.raises(Abandoned, match="4 clients have revealed their shares, and the secure sum needs 5"):
        REVEALED.total(REVEALED.said | wrong)


def test_one_whose_letters_cannot_be_read_is_at_fault_when_it_is_lost() -> None:
    table = Table([1] * 4)
    sum_state, private_replies = table.keys(ALL)
    said = {number: table.member(number).shares(private_replies[number]) for number in ALL}
    said[3] = spoiled(said[3], 0)  # what it has dealt client 0
    sum_state, private_replies = unmasking.pass_on(sum_state, said, table.terms)
    sum_state, private_replies = table.uploads(sum_state, private_replies, range(3))
    with pytest.raises(Abandoned, match=r"client 3 was lost, .* can be used by 2 clients, and 3 are needed") as found:
        table.reveal(sum_state, table.agree(sum_state, private_replies, range(3)), range(3))
    assert found.value.at_fault == {3}
    same(table.whole(range(3), range(3), range(3), range(3), range(3))[0].tally(), plain(table, [0, 1, 2]))  # again, without it


def test_one_that_frames_another_with_wrong_marks_is_not_believed() -> None:
    """Client 3 deals client 0 a share with another mark: client 0 says that it holds none, and nobody takes it for a liar."""
    table = Table([1] * 4)
    sum_state, private_replies = table.keys(ALL)
    said = {number: table.member(number).shares(private_replies[number]) for number in ALL}
    said[3] = spoiled(said[3], table.terms.sealed)
    sum_state, private_replies = unmasking.pass_on(sum_state, said, table.terms)
    sum_state, private_replies = table.uploads(sum_state, private_replies, ALL)
    signatures = table.agree(sum_state, private_replies, ALL)
    shown = table.member(0).reveal(SUM, signatures[0], everywhere)
    assert unmasking.revealed_fault(sum_state, 0, shown, table.terms, SUM) is None
    assert shown[-cards.REVEALED :] == bytes(cards.REVEALED)
    same(table.reveal(sum_state, signatures, ALL).tally(), plain(table, list(ALL)))


def test_shares_of_another_secret_stop_a_round_and_their_dealer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one client can still do: it is in the sum, and takes its mask with it when the others have revealed theirs."""
    table = Table([1] * 4)
    sum_state, private_replies = table.keys(ALL)
    said = {number: table.member(number).shares(private_replies[number]) for number in range(3)}
    monkeypatch.setattr(
        members, "split", lambda secret, *sizes: primitives.split([token_bytes(primitives.SECRET) for _ in secret], *sizes)
    )
    said[3] = table.member(3).shares(private_replies[3])
    monkeypatch.undo()
    sum_state, private_replies = unmasking.pass_on(sum_state, said, table.terms)
    sum_state, private_replies = table.uploads(sum_state, private_replies, ALL)
    private_replies = table.agree(sum_state, private_replies, ALL)
    with pytest.raises(Abandoned, match=r"client 3 does not reveal its mask, .* of another secret") as found:
        table.reveal(sum_state, private_replies, range(3))
    assert found.value.at_fault == {3}
    with pytest.raises(Refused, match="another list of survivors"):  # or the difference of two sums would tell one ballot
        table.whole(range(3), range(3), range(3), range(3), range(3))


def test_marks_tell_every_share_from_every_other() -> None:
    share = token_bytes(primitives.SECRET)
    rounds = [cards.SumTerms(round, ("a", "b"), 3, 2, 2) for round in (1, 2)]
    marks = {
        terms.mark(dealer, holder, secret, share)
        for terms in rounds
        for dealer, holder, secret in itertools.product((1, 2), (1, 2), terms.secrets)
    }
    assert len(marks) == 32


def test_a_count_beyond_all_votes_is_noticed() -> None:
    table = Table([1] * 4)
    table.said[1] = table.said[1].with_update(symbols=np.full(COUNT, 6, np.uint8))
    with pytest.raises(Abandoned, match="more than there are votes"):
        table.whole(ALL, ALL, ALL, ALL, ALL)


def test_an_upload_of_another_form_is_left_out() -> None:
    table = Table([1] * 4)
    sum_state, private_replies = table.keys(ALL)
    sum_state, private_replies = table.shares(sum_state, private_replies, ALL)
    said = {number: table.masked(number, private_replies[number]) for number in ALL}
    said[2] += b"\0"
    masked = {number: message_of(data) for number, data in said.items()}
    sum_state, _ = unmasking.survivors(sum_state, masked, table, table.terms)
    assert sum_state.survivors == (0, 1, 3)
