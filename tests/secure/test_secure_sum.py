"""The secure sum by itself: masks cancel, shares recover, sums are exact whoever is lost, and a server that lies learns nothing."""

from __future__ import annotations

from secrets import token_bytes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bifl.core.message import BINARY, FLOAT32, TERNARY, Alphabet, Message
from bifl.core.sides import Abandoned
from bifl.core.sums import Tally, Total
from bifl.errors import Refused
from bifl.secure import cards, integers, primitives
from bifl.secure.identities import SimulatedKeys
from bifl.secure.integers import Field, Fields, Parts, Sum, add_own, add_pair, direction, fields, pack, packed_fault, unpack
from tests.support.secure_round import COUNT, SUM, Table, ballot

FORM = Fields((Field(9, 5),), (Field(4, 33), Field(2, 64)))
ALL = range(4)


def same(one: Tally, other: Tally) -> None:
    assert (one.clients, one.total, one.unit) == (other.clients, other.total, other.unit)
    assert (one.update.votes is None) == (other.update.votes is None)
    for first, second in (
        (one.update.votes, other.update.votes),
        (one.update.mean, other.update.mean),
        (one.real, other.real),
        (one.update.scales, other.update.scales),
    ):
        if first is not None and second is not None:
            assert first.tobytes() == second.tobytes()


def plain(table: Table, numbers: list[int]) -> Tally:
    total = Total()
    for number in numbers:
        total.add(table.said[number])
    return total.tally()


# ---- laws ------------------------------------------------------------------------------------------------------------


@given(st.integers(2, 6))
@settings(max_examples=10)
def test_masks_of_pairs_cancel(count: int) -> None:
    seeds = [token_bytes(primitives.SECRET) for _ in range(count)]
    publics = list(map(primitives.public_key, seeds))
    total = [np.zeros(field.length, field.kind) for field in FORM.flat]
    for own in range(count):
        parts = [np.zeros(field.length, field.kind) for field in FORM.flat]
        for other in set(range(count)) - {own}:
            add_pair(parts, seeds[own], publics[other], Sum(SUM, FORM), direction(own, other), peers=True)
        assert any(part.any() for part in parts)
        total = [field.wrap(one + two) for field, one, two in zip(FORM.flat, total, parts, strict=True)]
    assert not any(part.any() for part in total)


def test_a_mask_is_never_used_twice() -> None:
    """Sums, own masks and masks of pairs, symbols and numbers have streams of their own."""
    seed, other = token_bytes(primitives.SECRET), primitives.public_key(token_bytes(primitives.SECRET))
    seen = set()
    for name in ("ballot", "statistics"):
        for pair in (False, True):
            parts: Parts = [np.zeros(16, np.uint64), np.zeros(16, np.uint64)]
            form = Fields((Field(16, 64),), (Field(16, 64),))
            add_pair(parts, seed, other, Sum(name, form), 1, peers=True) if pair else add_own(parts, seed, Sum(name, form), 1)
            seen |= {part.tobytes() for part in parts}
    assert len(seen) == 8


@given(st.integers(2, 7), st.data())
@settings(max_examples=20)
def test_any_k_shares_recover_and_fewer_do_not(count: int, data: st.DataObject) -> None:
    least, secret = data.draw(st.integers(2, count)), token_bytes(primitives.SECRET)
    shares = dict(enumerate(primitives.split([token_bytes(primitives.SECRET), secret], least, count)[1], 1))
    chosen = data.draw(st.permutations(sorted(shares)))[:least]
    assert primitives.combine({one: shares[one] for one in chosen}) == secret
    assert primitives.combine({one: shares[one] for one in chosen[1:]}) != secret


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 64)), min_size=1, max_size=4))
@settings(max_examples=40)
def test_integers_are_packed_in_their_bits(given: list[tuple[int, int]]) -> None:
    form = [Field(*pair) for pair in given]
    numbers = np.random.default_rng(len(given)).integers(0, 2**63, 40, np.uint64)
    parts = [field.wrap(numbers[: field.length]) for field in form]
    data = pack(parts, form)
    assert packed_fault(data, form) is None
    assert len(data) == integers.size(form) == sum(-(-field.length * field.bits // 8) for field in form)
    for one, other in zip(parts, unpack(data, form), strict=True):
        assert one.tobytes() == other.tobytes()


def test_padding_is_zero() -> None:
    assert "padding" in str(packed_fault(b"\xff", [Field(1, 7)]))
    assert packed_fault(b"\xfe", [Field(1, 7)]) is None
    assert packed_fault(b"\xfe\0", [Field(1, 7)]) == "it is 2 bytes long instead of 1"


@pytest.mark.parametrize(("clients", "bits"), [(1, 1), (10, 4), (100, 7), (127, 7), (128, 8)])
def test_a_ballot_costs_as_many_bits_as_counts_need(clients: int, bits: int) -> None:
    assert bits == fields(ballot(0, 1), clients, clients).symbols[0].bits


PATTERNS = st.lists(st.sets(st.integers(0, 4)), min_size=4, max_size=4)


@given(PATTERNS, st.lists(st.sampled_from([300, 450, 600]), min_size=5, max_size=5), st.sampled_from([BINARY, TERNARY, FLOAT32]))
@settings(max_examples=20)
def test_the_sum_is_exact_whoever_is_lost(lost: list[set[int]], weights: list[int], alphabet: Alphabet) -> None:
    """In any step, above the threshold; below it the round is abandoned, and never a wrong sum."""
    table = Table(weights, alphabet=alphabet)
    there = [set(range(5))]
    for gone in lost:
        there.append(there[-1] - gone)
    try:
        total, _ = table.whole(*map(sorted, there))
    except Abandoned:
        assert len(there[-1]) < table.terms.least
        return
    assert len(there[-1]) >= table.terms.least
    same(total.tally(), plain(table, sorted(there[2])))


@pytest.mark.parametrize("alphabet", [BINARY, TERNARY, Alphabet("5 levels", 5), Alphabet("4 levels", 4), FLOAT32])
def test_every_alphabet_adds_up_as_without_masks(alphabet: Alphabet) -> None:
    table = Table([600, 450, 300, 600], alphabet=alphabet)
    total, _ = table.whole(ALL, ALL, ALL, ALL, ALL)
    same(total.tally(), plain(table, list(ALL)))


def test_groups_speak_of_their_own_weights() -> None:
    """Masks of symbols are shared within a group; the other numbers are added up over all."""
    table = Table([2, 4, 6, 8, 2], alphabet=TERNARY, place=lambda number: COUNT * (number % 2))
    there = [0, 1, 2, 3]
    sum_state, private_replies = table.keys(range(5))
    sum_state, private_replies = table.shares(sum_state, private_replies, range(5))
    sum_state, private_replies = table.uploads(sum_state, private_replies, there)
    total = table.reveal(sum_state, table.agree(sum_state, private_replies, there), there, 2 * COUNT).tally()
    wide = Total()
    for number in there:
        values = np.zeros(2 * COUNT, np.float32)
        values[COUNT * (number % 2) :][:COUNT] = table.said[number].update.values()
        wide.add(table.said[number].with_update(symbols=values, alphabet=FLOAT32))
    same(total, wide.tally())


def test_a_group_of_one_is_left_out() -> None:
    """A client that speaks alone of its weights would be read: it does not count."""
    table = Table([1] * 5, alphabet=TERNARY, place=lambda number: COUNT * (number == 4))
    sum_state, private_replies = table.keys(range(5))
    sum_state, private_replies = table.shares(sum_state, private_replies, range(5))
    sum_state, private_replies = table.uploads(sum_state, private_replies, range(5))
    assert sum_state.survivors == (0, 1, 2, 3)
    everyone = cards.addressed((number, b"") for number in range(5))
    with pytest.raises(Refused, match="fewer than 2 clients are left to speak"):
        table.member(0).agree(SUM, everyone, table.place)


def test_a_client_signs_no_sum_of_fewer_than_it_wants() -> None:
    """The experiment may deal the weights to small groups: a client's own wish counts in each."""
    table = Table([1] * 6, alphabet=TERNARY, place=lambda number: COUNT * (number % 2))
    sum_state, private_replies = table.keys(range(6))
    sum_state, private_replies = table.shares(sum_state, private_replies, range(6))
    sum_state, private_replies = table.uploads(sum_state, private_replies, range(6))
    table.identity = SimulatedKeys(7, least=4)
    with pytest.raises(Refused, match="fewer than 4 clients are left to speak"):
        table.member(0).agree(SUM, private_replies[0], table.place)
    table.identity = SimulatedKeys(7, least=3)
    assert table.member(0).agree(SUM, private_replies[0], table.place)


@pytest.mark.parametrize(("value", "counts"), [(2.0**6, 64.0), (-(2.0**7), -64.0), (np.nan, 0.0), (np.inf, 64.0), (63.5, 63.5)])
def test_numbers_out_of_range_count_as_its_end(value: float, counts: float) -> None:
    """Their owner does not refuse to send them: that would tell the server something of its data."""
    upload = Message.of(np.array([value], np.float32), FLOAT32, np.zeros(0, np.float32))
    form = fields(upload, 5, 5)
    whole, fraction, *_ = integers.summands(upload, 5, form)
    exact = form.symbols[0].signed(whole) + form.symbols[1].signed(fraction) * 2.0**-32
    assert exact == pytest.approx(5 * counts, rel=1e-6)
