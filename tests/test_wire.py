"""Messages survive the wire, in any context; no other bytes are taken for one."""

from __future__ import annotations

import hashlib
import struct
import tracemalloc
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bifl.algorithm import BINARY, FLOAT32, TERNARY, Alphabet, Message, Shared, Votes
from bifl.layout import Layout, Tensor
from bifl.wire import EXACT, SHORT, Context, Precision, WireError, bits_by_weight, decode, encode, ideal_size, read_header
from bifl.wire.pack import packed_size

HEADER, CHECKSUM = 68, 4
NOTHING = np.zeros(0, np.float32)

alphabets = st.one_of(
    st.sampled_from([BINARY, TERNARY, FLOAT32]),
    st.builds(Votes, st.integers(1, 300), st.integers(1, 1000)),
    st.builds(Votes, st.integers(1, 2**30)),
)
counts = st.integers(0, 40) | st.sampled_from([127, 128, 129, 1023, 3000])


def layout_of(count: int) -> Layout:
    half = count // 2
    coded = (Tensor("a.weight", (half,), 0), Tensor("b.weight", (count - half,), 1))
    return Layout(("a", "b"), coded, (Tensor("norm.weight", (3,)),), (Tensor("norm", (1,)),))


def symbols_of(alphabet: Alphabet, count: int, seed: int) -> npt.NDArray[Any]:
    """Symbols with a preference, so that there is something to code."""
    generator = np.random.default_rng(seed)
    if not alphabet.size:
        return generator.normal(size=count).astype(np.float32)
    return generator.binomial(alphabet.size - 1, generator.beta(0.3, 0.3, count))


def context_of(count: int, said: Alphabet | None = None, earlier: Alphabet | None = None, precision: Precision = SHORT) -> Context:
    """What both ends know after no, one or two broadcasts."""
    layout = layout_of(count)
    real = np.array([1, 1, 0.5, -0.25, 30, 0.1, 1000], np.float32)
    news = None if said is None else Message(symbols_of(said, count, 1), said, real)
    before = None if earlier is None else Message(symbols_of(earlier, count, 1), earlier, real)
    weights = np.random.default_rng(2).uniform(-0.3, 0.3, count).astype(np.float32) if news is None else news.values()
    return Context(layout, 7, precision, Shared(0, 6, layout, weights, real, news=news, before=before))


def upload_of(symbols: npt.NDArray[Any], alphabet: Alphabet, context: Context) -> Message:
    real = np.array([1.01, 0.99, 0.48, -0.2, 31, 0.11, 1100], np.float32)
    return Message(symbols, alphabet, real, sender=3, weight=600, round=context.round)


def same(back: Message, message: Message) -> bool:
    return back.symbols.tolist() == message.symbols.tolist() and back[1] == message[1] and back[4:] == message[4:]


@given(
    alphabet=alphabets,
    count=counts,
    seed=st.integers(0, 1000),
    sender=st.none() | st.integers(0, 2**32 - 1),
    weight=st.integers(1, 2**30),
    round=st.integers(0, 2**32 - 1),
    reals=st.integers(0, 20),
    scales=st.integers(0, 5),
)
@example(alphabet=BINARY, count=1_000_000, seed=0, sender=1, weight=600, round=1, reals=0, scales=0)
@example(alphabet=Votes(100, 600), count=1_000_000, seed=0, sender=None, weight=1, round=1, reals=0, scales=0)
def test_round_trip_without_a_context(
    alphabet: Alphabet, count: int, seed: int, sender: int | None, weight: int, round: int, reals: int, scales: int
) -> None:
    generator = np.random.default_rng(seed)
    real, own = generator.normal(size=reals).astype(np.float32), generator.normal(size=scales).astype(np.float32)
    message = Message(symbols_of(alphabet, count, seed), alphabet, real, own, sender, weight, round)
    data = encode(message)
    back = decode(data, expect=count)
    assert same(back, message)
    assert (back.real.tobytes(), back.scales.tobytes()) == (real.tobytes(), own.tobytes())
    assert len(data) == HEADER + packed_size(count, alphabet) + 4 * (reals + scales) + CHECKSUM
    assert encode(back) == data


@given(
    alphabet=alphabets, count=counts, said=st.none() | alphabets, earlier=st.none() | alphabets, seed=st.integers(0, 9),
    sender=st.none() | st.integers(0, 99),
)  # fmt: skip
@example(alphabet=BINARY, count=1_000_000, said=Votes(100), earlier=Votes(100), seed=1, sender=1)
@example(alphabet=Votes(100), count=1_000_000, said=Votes(100), earlier=Votes(100), seed=1, sender=None)
@example(alphabet=Votes(54_000), count=100_000, said=Votes(54_000), earlier=Votes(54_000), seed=1, sender=None)
@example(alphabet=Votes(97), count=10_000, said=Votes(100), earlier=Votes(98), seed=1, sender=None)
def test_round_trip_in_a_context(
    alphabet: Alphabet, count: int, said: Alphabet | None, earlier: Alphabet | None, seed: int, sender: int | None
) -> None:
    context = context_of(count, said, earlier)
    message = upload_of(symbols_of(alphabet, count, seed), alphabet, context)._replace(sender=sender)
    data = encode(message, context)
    back = decode(data, context_of(count, said, earlier))  # the other end's own
    assert same(back, message)
    assert encode(back, context) == data, "what was rounded once stays"
    packed = encode(message, Context(context.layout, 7, SHORT))
    assert read_header(data).symbol_bytes <= read_header(packed).symbol_bytes, "smallest wins"
    assert same(decode(packed, context), message), "a plain message is read in any context"
    assert decode(packed, context).real.tobytes() == back.real.tobytes(), "both spell reals alike"


def test_a_predictable_ballot_costs_what_it_surprises() -> None:
    context = context_of(100_000, Votes(10), Votes(10))
    message = upload_of(np.random.default_rng(5).binomial(1, symbols_of(Votes(10), 100_000, 1) / 10), BINARY, context)
    data = encode(message, context)
    ideal = ideal_size(data, message, context)
    assert ideal is not None
    assert len(data) < 100_000 / 8 / 1.5
    assert ideal < len(data) < 1.02 * ideal
    bits = bits_by_weight(data, message, context)
    assert abs(bits.sum() / 8 - read_header(data).symbol_bytes) < 8


@pytest.mark.parametrize(
    ("alphabet", "bits"),
    [(BINARY, 1), (TERNARY, 1.6), (Votes(1), 1), (Votes(3), 2), (Votes(100), 7), (Votes(127), 7), (Votes(128), 8)],
)
def test_packed_bits_per_symbol(alphabet: Alphabet, bits: float) -> None:
    assert packed_size(4000, alphabet) * 8 / 4000 == bits


@pytest.mark.floats
def test_golden_bytes() -> None:
    """Format version 1. A change here is a new version."""
    layout = Layout(("l",), (Tensor("l.weight", (9,), 0),), (), ())
    ballot = Message(np.array([1, 0, 1, 1, 0, 0, 0, 1, 1]), BINARY, np.array([0.5], np.float32), sender=7, weight=600, round=3)
    assert encode(ballot, Context(layout, 3, EXACT)).hex(" ", -4) == (
        "4249464c 01010100 00000000 03000000 07000000 58020000 09000000 90d2085b 7f7bd1f1 "
        "00000000 00000000 00000000 00000000 01000000 00000000 02000000 04000000 b1800000 003f8905 7ba4"
    )
    news = Message(np.array([0, 3, 5]), Votes(5, 600), NOTHING, round=3)
    assert encode(news).hex(" ", -4) == (
        "4249464c 01020300 00000000 03000000 00000000 01000000 03000000 00000000 00000000 "
        "00000000 00000000 05000000 58020000 00000000 00000000 02000000 00000000 0e80de37 ad08"
    )


@pytest.mark.floats
@pytest.mark.parametrize(
    ("sender", "alphabet", "golden"),
    [(4, BINARY, "7649e9204bc3e09e"), (None, Votes(5), "046e941567bc0b0a"), (4, TERNARY, "f2657968e16714bc")],
)
def test_golden_bytes_of_the_context_coder(sender: int | None, alphabet: Alphabet, golden: str) -> None:
    """Probabilities come from integers alone: these bytes, here their hash, must be the same on every machine."""
    number = np.arange(3000)
    layout = Layout(("l",), (Tensor("l.weight", (3000,), 0),), (Tensor("norm.weight", (3,)),), (Tensor("norm", (1,)),))
    real = np.array([1, 1, 0.5, -30, 0.5, 4], np.float32)
    counts = [number * number % 17 % 6 + (number % step == 0) * (number % 2) for step in (97, 41, 29)]
    before, news = (Message(np.minimum(votes, 5), Votes(5), real) for votes in counts[:2])
    shared = Shared(0, 2, layout, news.values(), real, news=news, before=before)
    symbols = ((alphabet.size - 1) * np.minimum(counts[2], 5) + 2) // 5
    message = Message(symbols, alphabet, real + np.float32(0.25), sender=sender, weight=600, round=3)
    data = encode(message, Context(layout, 3, SHORT, shared))
    assert read_header(data).coder == 1
    assert hashlib.sha256(data).hexdigest()[:16] == golden


SMALL = encode(Message(np.array([1, 0, 1, 1, 0]), BINARY, np.array([1.5, -2], np.float32), sender=3, weight=4, round=2))
CONTEXTS = {name: context_of(64, said, said) for name, said in {"votes": Votes(10), "binary": BINARY, "none": None}.items()}
CODED = [
    (context, encode(upload_of(symbols_of(alphabet, 64, 1), alphabet, context)._replace(sender=sender), context))
    for context in CONTEXTS.values()
    for alphabet, sender in ((BINARY, 3), (TERNARY, 3), (Votes(10), None), (Votes(700), None))
]


@pytest.mark.parametrize("number", range(len(CODED)))
def test_every_single_flipped_bit_is_noticed(number: int) -> None:
    context, data = CODED[number]
    for position in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(WireError):
            decode(bytes(damaged), context)


def test_every_truncation_and_extension_is_noticed() -> None:
    for context, data in CODED:
        for length in range(len(data)):
            with pytest.raises(WireError):
                decode(data[:length], context)
        with pytest.raises(WireError):
            decode(data + b"\0", context)


def checked(body: bytes) -> bytes:
    """A hostile sender computes the checksum too."""
    return body + struct.pack("<I", zlib.crc32(body))


def test_mutated_messages_are_messages_or_refused(pytestconfig: pytest.Config) -> None:
    """`pytest tests/test_wire.py -k mutated --fuzz 200000` for the long one."""
    generator = np.random.default_rng(0)
    taken = 0
    for _ in range(pytestconfig.getoption("--fuzz") or 5_000):
        context, data = CODED[generator.integers(len(CODED))]
        body = bytearray(data[:-CHECKSUM])
        for _ in range(generator.integers(1, 5)):
            kind, place = generator.integers(6), generator.integers(4, len(body))
            if kind < 4:
                body[place] = generator.integers(256)
            elif kind == 4:
                del body[place : place + generator.integers(1, 9)]
            else:
                body[place:place] = generator.bytes(int(generator.integers(1, 9)))
            if len(body) < 8:
                break
        try:
            message = decode(checked(bytes(body)), context if generator.random() < 0.8 else None)
        except WireError:
            continue
        taken += 1
        assert message.alphabet.size == 0 or (len(message.symbols) == 0 or message.symbols.max() < message.alphabet.size)
        assert np.all(np.isfinite(message.real)) or message.real.dtype == np.float32
    assert taken


def test_hostile_bytes_of_a_packed_message_have_one_spelling() -> None:
    generator = np.random.default_rng(0)
    taken = 0
    for _ in range(3000):
        body = bytearray(SMALL[:-CHECKSUM])
        for _ in range(generator.integers(1, 3)):
            body[generator.integers(12, len(body))] = generator.integers(256)
        hostile = checked(bytes(body))
        try:
            message = decode(hostile)
        except WireError:
            continue
        taken += 1
        zeros = bytearray(hostile)
        zeros[28:44] = bytes(16)  # any model, any context: neither matters for a plain message
        assert encode(message) == checked(bytes(zeros[:-CHECKSUM]))
    assert taken


@given(st.binary(max_size=200))
def test_arbitrary_bytes(data: bytes) -> None:
    with pytest.raises(WireError):
        decode(data)
    with pytest.raises(WireError):
        decode(checked(b"BIFL\1" + data))


def test_what_was_meant_for_somebody_else_is_refused_by_name() -> None:
    context = context_of(64, Votes(10), Votes(10))
    message = upload_of(symbols_of(BINARY, 64, 1), BINARY, context)
    data = encode(message, context)
    other = context_of(64, Votes(11), Votes(10))
    for receiver, reason, offset in (
        (Context(layout_of(65), 7), "is for model .*, this is", 28),
        (Context(context.layout, 8, shared=context.shared), "is of round 7, this is round 8", 12),
        (other, f"was coded in context {context.digest.hex()}, ours is {other.digest.hex()}", 36),
        (Context(context.layout, 7), "was coded in context", 36),
    ):
        with pytest.raises(WireError, match=reason) as caught:
            decode(data, receiver)
        assert caught.value.offset == offset
    with pytest.raises(WireError, match="holds 5 symbols, the model has 81958"):
        decode(SMALL, expect=81_958)
    with pytest.raises(WireError, match="only in the context"):
        decode(data)
    assert same(decode(encode(message, Context(context.layout, 7)), other), message), "a plain message is for everybody"


def test_other_versions_are_refused_by_name() -> None:
    with pytest.raises(WireError, match="version 9"):
        decode(SMALL[:4] + b"\x09" + SMALL[5:])


def test_symbols_outside_the_alphabet_are_not_encoded() -> None:
    for symbols, alphabet in (([-1, 1], BINARY), ([3], TERNARY), ([6], Votes(5))):
        with pytest.raises(ValueError, match="symbols run from 0 to"):
            encode(Message(np.array(symbols), alphabet, NOTHING))


@pytest.mark.parametrize("alphabet", [BINARY, TERNARY, Votes(3), Votes(100), Votes(40_000), FLOAT32])
def test_decoding_takes_a_bounded_multiple_of_the_message(alphabet: Alphabet) -> None:
    data = encode(Message(symbols_of(alphabet, 1_000_000, 0), alphabet, NOTHING))
    assert peak_of(data, None) < 32 * len(data)


def test_a_tiny_message_is_no_bomb() -> None:
    context = context_of(1_000_000, Votes(100), Votes(100))
    sure = (symbols_of(Votes(100), 1_000_000, 1) > 50).astype(np.uint8)
    data = encode(upload_of(sure, BINARY, context), context)
    assert len(data) < 100_000
    assert context.digest  # what the receiver prepares once per round
    assert peak_of(data, context) < 32 * 1_000_000
    claims_more = bytearray(data[:-CHECKSUM])
    claims_more[24:28] = struct.pack("<I", 2**32 - 1)
    with pytest.raises(WireError, match="holds 4294967295 symbols"):
        decode(checked(bytes(claims_more)), context)
    claims_reals = bytearray(data[:-CHECKSUM])
    claims_reals[52:56] = struct.pack("<I", 2**32 - 1)
    with pytest.raises(WireError, match="holds 4294967295 real numbers, the model has 7"):
        decode(checked(bytes(claims_reals)), context)


def peak_of(data: bytes, context: Context | None) -> int:
    tracemalloc.start()
    decode(data, context)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_padding_must_be_zero() -> None:
    body = bytearray(SMALL[:-CHECKSUM])
    body[HEADER] |= 1
    with pytest.raises(WireError, match="padding"):
        decode(checked(bytes(body)))


def test_five_trits_have_one_spelling() -> None:
    body = bytearray(encode(Message(np.zeros(40, np.uint8), TERNARY, NOTHING))[:-CHECKSUM])
    body[HEADER] = 243
    with pytest.raises(WireError, match="at most 242, not 243"):
        decode(checked(bytes(body)))


def test_votes_beyond_the_total_are_refused() -> None:
    body = bytearray(encode(Message(np.array([5]), Votes(5), NOTHING))[:-CHECKSUM])
    body[HEADER] = 0b11100000
    with pytest.raises(WireError, match="symbol 0 is 7"):
        decode(checked(bytes(body)))


def test_numbers_that_do_not_fit_the_grid_travel_as_they_are() -> None:
    context = Context(layout_of(2), 1, SHORT)
    for value in (np.nan, np.inf, -1e30):
        message = Message(np.array([1, 0]), BINARY, np.array([1, 1, value, 1, 1, 0, 1], np.float32), sender=0, round=1)
        assert decode(encode(message, context), context).real.tobytes() == message.real.tobytes()
