"""Messages survive the wire, and no other bytes are taken for one. With a context: test_context.py."""

from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bifl.codec import EXACT, SHORT, Context, WireError, decode, encode, read_header
from bifl.codec.symbols import packed_size
from bifl.core import BINARY, FLOAT32, TERNARY, UPDATE, Alphabet, Message, Public, Vector, Votes
from bifl.core.layout import Layout, Tensor
from tests.support.messages import (
    CHECKSUM,
    HEADER,
    NOTHING,
    SMALL,
    alphabets,
    checked,
    context_of,
    counts,
    for_two,
    layout_of,
    peak_of,
    same,
    symbols_of,
    upload_of,
    with_control,
)  # fmt: skip


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
    message = Message.of(symbols_of(alphabet, count, seed), alphabet, real, own, sender, weight, round)
    data = encode(message)
    back = decode(data, expect=count)
    assert same(back, message)
    assert (back.real.tobytes(), back.update.scales.tobytes()) == (real.tobytes(), own.tobytes())
    assert len(data) == HEADER + packed_size(count, alphabet) + 4 * (reals + scales) + CHECKSUM
    assert encode(back) == data


@pytest.mark.parametrize(
    ("alphabet", "bits"),
    [(BINARY, 1), (TERNARY, 1.6), (Votes(1), 1), (Votes(3), 2), (Votes(100), 7), (Votes(127), 7), (Votes(128), 8)],
)
def test_packed_bits_per_symbol(alphabet: Alphabet, bits: float) -> None:
    assert packed_size(4000, alphabet) * 8 / 4000 == bits


@pytest.mark.floats
def test_golden_bytes() -> None:
    """Format version 2. A change here is a new version."""
    layout = Layout(("l",), (Tensor("l.weight", (9,), 0),), (), ())
    ballot = Message.of(np.array([1, 0, 1, 1, 0, 0, 0, 1, 1]), BINARY, np.array([0.5], np.float32), sender=7, weight=600, round=3)
    assert encode(ballot, Context(layout, 3, EXACT)).hex(" ", -4) == (
        "4249464c 02010100 00000000 03000000 07000000 58020000 09000000 90d2085b 7f7bd1f1 "
        "00000000 00000000 00000000 00000000 01000000 00000000 02000000 04000000 b1800000 003f344d d14f"
    )
    news = Message.of(np.array([0, 3, 5]), Votes(5, 600), NOTHING, round=3)
    assert encode(news).hex(" ", -4) == (
        "4249464c 02020300 00000000 03000000 00000000 01000000 03000000 00000000 00000000 "
        "00000000 00000000 05000000 58020000 00000000 00000000 02000000 00000000 0e80ffc0 97d2"
    )


@pytest.mark.floats
def test_golden_bytes_of_a_further_vector() -> None:
    """It stands between the scales and the checksum: nothing before it is otherwise, but for the count at byte 9."""
    alone = Message.of(np.array([1, 0, 1]), BINARY, NOTHING, sender=7, weight=600, round=3)
    levels = Vector(np.array([3, 0, 1]), Alphabet("4 levels", 4), np.array([0.5], np.float32))
    data, plain = encode(alone.with_vectors({"control": levels})), encode(alone)
    assert data[:9] + b"\0" + data[10 : len(plain) - CHECKSUM] == plain[:-CHECKSUM]
    assert data[len(plain) - CHECKSUM : -CHECKSUM].hex(" ", -4) == (
        "636f6e74 726f6c00 00000000 00000000 05000000 04000000 00000000 03000000 01000000 01000000 c4000000 3f"
    )
    assert same(decode(data), alone.with_vectors({"control": levels}))


@given(st.lists(st.tuples(st.text("abc_z", min_size=1, max_size=16), alphabets, counts), max_size=7, unique_by=lambda row: row[0]))
def test_round_trip_of_many_vectors(rows: list[tuple[str, Alphabet, int]]) -> None:
    alone = Message.of(symbols_of(TERNARY, 9, 0), TERNARY, NOTHING, sender=7, weight=600, round=3)
    scales = np.array([2.0], np.float32)
    message = alone.with_vectors(
        {name: Vector(symbols_of(alphabet, count, 1), alphabet, scales) for name, alphabet, count in rows if name != UPDATE}
    )
    data = encode(message)
    sizes = [40 + packed_size(count, alphabet) + 4 for _, alphabet, count in rows]
    assert len(data) == len(encode(alone)) + sum(sizes)
    assert same(decode(data), message)
    assert encode(decode(data)) == data


def test_vectors_that_the_receiver_does_not_expect_are_refused() -> None:
    alone = context_of(64, Votes(10), Votes(10))
    message = upload_of(symbols_of(BINARY, 64, 1), BINARY, alone)
    two = with_control(message)
    assert same(decode(encode(two, for_two(alone)), for_two(alone)), two)
    with pytest.raises(WireError, match="holds the vectors update, control, where those of this algorithm are update") as caught:
        decode(encode(two, alone), alone)
    assert caught.value.offset == 9
    with pytest.raises(WireError, match="holds the vectors update, where those of this algorithm are update, control"):
        decode(encode(message, for_two(alone)), for_two(alone))
    with pytest.raises(WireError, match="where the update alone is expected"):
        decode(encode(two), expect=64)
    longer = two.with_vectors({"control": Vector(symbols_of(BINARY, 65, 1), BINARY)})
    with pytest.raises(WireError, match="in the vector 'control': holds 65 symbols, the model has 64"):
        decode(encode(longer, Context(alone.layout, 7)), for_two(alone))


def test_the_last_broadcasts_are_the_context_of_a_vector_of_their_name() -> None:
    """A control of vote counts is as cheap after two broadcasts of it as an update is, and another digest without them."""
    known = context_of(3000, Votes(10), Votes(10)).known
    assert isinstance(known, Public)
    assert known.news is not None
    controls = {"control": known.news.update}
    told = known._replace(news=known.news.with_vectors(controls), before=known.news.with_vectors(controls))
    context, less = (for_two(Context(layout_of(3000), 7, SHORT, public)) for public in (told, known))
    message = known.news._replace(round=7).with_vectors(controls)
    data = encode(message, context)
    assert same(decode(data, context), message)
    update, control = read_header(data).vectors
    assert control.symbol_bytes == update.symbol_bytes < 0.7 * read_header(encode(message, less)).others[0].symbol_bytes
    assert context.digest != less.digest
    moved = for_two(Context(layout_of(3000), 7, SHORT, known._replace(vectors={"control": np.ones(3000, np.float32)})))
    assert moved.digest != less.digest


CONTEXTS = {name: context_of(64, said, said) for name, said in {"votes": Votes(10), "binary": BINARY, "none": None}.items()}
CODED = [
    (context, encode(upload_of(symbols_of(alphabet, 64, 1), alphabet, context)._replace(sender=sender), context))
    for context in CONTEXTS.values()
    for alphabet, sender in ((BINARY, 3), (TERNARY, 3), (Votes(10), None), (Votes(700), None))
]
CODED += [
    (for_two(context), encode(with_control(decode(data, context), alphabet), for_two(context)))
    for context, data in CODED[::3]
    for alphabet in (BINARY, FLOAT32)
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


def test_mutated_messages_are_messages_or_refused(pytestconfig: pytest.Config) -> None:
    """`pytest tests/codec/test_wire.py -k mutated --fuzz 200000` for the long one."""
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
        damaged = checked(bytes(body))
        try:
            message = decode(damaged, context if generator.random() < 0.8 else None)
        except WireError:
            continue
        taken += 1
        header = read_header(damaged)
        assert len(message.real) == header.reals
        assert list(message.vectors) == [part.name for part in header.vectors]
        for part in header.vectors:
            vector = message.vectors[part.name]
            assert (len(vector.symbols), len(vector.scales)) == (part.symbols, part.scales)
            assert vector.alphabet.size == 0 or len(vector.symbols) == 0 or vector.symbols.max() < vector.alphabet.size
        assert header.precision == 0 or np.all(np.isfinite(message.real)), "rounded numbers are finite, float32 may be anything"
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


def test_other_versions_are_refused_by_name() -> None:
    with pytest.raises(WireError, match="version 9"):
        decode(SMALL[:4] + b"\x09" + SMALL[5:])


UPLOAD = encode(Message.of(np.array([1, 0, 1]), BINARY, NOTHING, sender=3, weight=4, round=2))
BROADCAST = encode(Message.of(np.array([1, 0, 1]), BINARY, NOTHING, weight=4, round=2))


@pytest.mark.parametrize(
    ("data", "offset", "field", "reason"),
    [
        (UPLOAD, 5, b"\3", "kind 3 is unknown"),
        (UPLOAD, 6, b"\7", "alphabet 7 is unknown"),
        (UPLOAD, 7, b"\3", "coder 3 is unknown"),
        (UPLOAD, 8, b"\x0d", "reals have 13 digits"),
        (UPLOAD, 10, b"\1", "8 or 1, beside rounded numbers"),
        (UPLOAD, 11, b"\1", "the padding is not zero"),
        (BROADCAST, 16, b"\3", "a broadcast has no sender"),
        (UPLOAD, 20, bytes(4), "weight must be from 1 to 1073741824, not 0"),
        (UPLOAD, 20, struct.pack("<I", 2**30 + 1), "weight must be from 1 to 1073741824, not 1073741825"),
        (UPLOAD, 7, b"\1", "coded symbols name no context"),
        (UPLOAD, 44, b"\1", "total and unit must be 1 or more for votes"),
        (UPLOAD, 52, b"\1", "1 float32 take 4 bytes, not 0"),
        (UPLOAD, 60, b"\2\0\0\0\xff\xff\xff\xff", "its header calls for"),
    ],
)
def test_header_fields_that_no_encoder_writes_are_refused(data: bytes, offset: int, field: bytes, reason: str) -> None:
    body = bytearray(data[:-CHECKSUM])
    body[offset : offset + len(field)] = field
    with pytest.raises(WireError, match=reason):
        decode(checked(bytes(body)))


TWICE = encode(with_control(Message.of(np.array([1, 0, 1]), BINARY, NOTHING, sender=3, weight=4, round=2)))
AT = HEADER + 1  # of the further vector


@pytest.mark.parametrize(
    ("offset", "field", "reason"),
    [
        (9, b"\0", "its header calls for"),
        (9, b"\2", "is too short for the 2 further vectors that it names"),
        (9, b"\xff", "holds 255 further vectors, 7 are the most"),
        (AT, b"Control", "a further vector is called 'Control'"),
        (AT, b"update\0", "a further vector is called 'update'"),
        (AT, bytes(7), "a further vector is called ''"),
        (AT, b"con\0rol", "a further vector is called 'con"),
        (AT + 16, b"\7", "in the vector 'control': alphabet 7 is unknown"),
        (AT + 17, b"\3", "in the vector 'control': coder 3 is unknown"),
        (AT + 17, b"\1", "coded symbols name no context"),
        (AT + 18, b"\1", "the padding in the header of the vector 'control' is not zero"),
        (AT + 20, b"\1", "in the vector 'control': total and unit must be 1 or more for votes"),
        (AT + 28, b"\xff\xff\xff\xff", "in the vector 'control': 4294967295 packed symbols take 858993459 bytes, not 1"),
        (AT + 32, b"\xff\xff\xff\xff", "its header calls for"),
        (AT + 36, b"\xff\xff\xff\xff", "its header calls for"),
    ],
)
def test_fields_of_a_further_vector_that_no_encoder_writes_are_refused(offset: int, field: bytes, reason: str) -> None:
    body = bytearray(TWICE[:-CHECKSUM])
    body[offset : offset + len(field)] = field
    with pytest.raises(WireError, match=reason):
        decode(checked(bytes(body)))


def test_a_vector_has_one_name_and_one_place() -> None:
    """Two of one name, or in another order, would be two spellings of one message."""
    body, control = TWICE[:-CHECKSUM], TWICE[AT:-CHECKSUM]
    assert body.endswith(control)
    for second in (control, control.replace(b"control", b"abcdefg")):
        twice = bytearray(body + second)
        twice[9] = 2
        with pytest.raises(WireError, match="names are letters from a to z or _, and rise"):
            decode(checked(bytes(twice)))


def test_errors_cross_from_worker_processes() -> None:
    error = pickle.loads(pickle.dumps(WireError(36, "was coded in another context")))
    assert (type(error), error.offset, error.reason) == (WireError, 36, "was coded in another context")
    assert str(error) == "bad message at byte 36: was coded in another context"


def test_symbols_outside_the_alphabet_are_not_encoded() -> None:
    for symbols, alphabet in (([-1, 1], BINARY), ([3], TERNARY), ([6], Votes(5))):
        with pytest.raises(ValueError, match="symbols run from 0 to"):
            encode(Message.of(np.array(symbols), alphabet, NOTHING))


@pytest.mark.parametrize("alphabet", [BINARY, TERNARY, Votes(3), Votes(100), Votes(40_000), FLOAT32])
def test_decoding_takes_a_bounded_multiple_of_the_message(alphabet: Alphabet) -> None:
    data = encode(Message.of(symbols_of(alphabet, 1_000_000, 0), alphabet, NOTHING))
    assert peak_of(data, None) < 32 * len(data)
    assert peak_of(encode(with_control(decode(data), alphabet)), None) < 32 * 2 * len(data)


def test_padding_must_be_zero() -> None:
    body = bytearray(SMALL[:-CHECKSUM])
    body[HEADER] |= 1
    with pytest.raises(WireError, match="padding"):
        decode(checked(bytes(body)))


def test_five_trits_have_one_spelling() -> None:
    body = bytearray(encode(Message.of(np.zeros(40, np.uint8), TERNARY, NOTHING))[:-CHECKSUM])
    body[HEADER] = 243
    with pytest.raises(WireError, match="at most 242, not 243"):
        decode(checked(bytes(body)))


def test_votes_beyond_the_total_are_refused() -> None:
    body = bytearray(encode(Message.of(np.array([5]), Votes(5), NOTHING))[:-CHECKSUM])
    body[HEADER] = 0b11100000
    with pytest.raises(WireError, match="symbol 0 is 7"):
        decode(checked(bytes(body)))


def test_numbers_that_do_not_fit_the_grid_travel_as_they_are() -> None:
    context = Context(layout_of(2), 1, SHORT)
    for value in (np.nan, np.inf, -1e30):
        message = Message.of(np.array([1, 0]), BINARY, np.array([1, 1, value, 1, 1, 0, 1], np.float32), sender=0, round=1)
        assert decode(encode(message, context), context).real.tobytes() == message.real.tobytes()
