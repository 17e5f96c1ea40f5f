"""Messages survive the wire; no other bytes are taken for one."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bifl.algorithm import BINARY, FLOAT32, TERNARY, Alphabet, Message, Votes
from bifl.wire import WireError, decode, encode
from bifl.wire.pack import packed_size

alphabets = st.one_of(
    st.sampled_from([BINARY, TERNARY, FLOAT32]),
    st.builds(Votes, st.integers(1, 100_000), st.integers(1, 1000)),
    st.builds(Votes, st.integers(1, 2**48)),
)


def symbols_of(alphabet: Alphabet, count: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    generator = np.random.default_rng(seed)
    return generator.integers(0, alphabet.size, count) if alphabet.size else generator.normal(size=count).astype(np.float32)


@given(
    alphabet=alphabets,
    count=st.integers(0, 300),
    seed=st.integers(0, 1000),
    sender=st.none() | st.integers(0, 2**32 - 1),
    weight=st.integers(1, 2**30),
    round=st.integers(0, 2**32 - 1),
    reals=st.integers(0, 20),
    scales=st.integers(0, 5),
)
@example(alphabet=BINARY, count=1_000_000, seed=0, sender=1, weight=600, round=1, reals=0, scales=0)
@example(alphabet=Votes(100, 600), count=1_000_000, seed=0, sender=None, weight=1, round=1, reals=0, scales=0)
def test_round_trip(
    alphabet: Alphabet, count: int, seed: int, sender: int | None, weight: int, round: int, reals: int, scales: int
) -> None:
    generator = np.random.default_rng(seed)
    real, own = generator.normal(size=reals).astype(np.float32), generator.normal(size=scales).astype(np.float32)
    message = Message(symbols_of(alphabet, count, seed), alphabet, real, own, sender, weight, round)
    data = encode(message)
    back = decode(data, expect=count)
    assert back.symbols.tolist() == message.symbols.tolist()
    assert (back.real.tobytes(), back.scales.tobytes()) == (real.tobytes(), own.tobytes())
    assert back[1] == message[1]
    assert back[4:] == message[4:]
    assert len(data) == 56 + packed_size(count, alphabet) + 4 * (reals + scales) + 4
    assert encode(back) == data


@pytest.mark.parametrize(
    ("alphabet", "bits"),
    [(BINARY, 1), (TERNARY, 1.6), (Votes(1), 1), (Votes(3), 2), (Votes(100), 7), (Votes(127), 7), (Votes(128), 8)],
)
def test_bits_per_symbol(alphabet: Alphabet, bits: float) -> None:
    assert packed_size(4000, alphabet) * 8 / 4000 == bits


def test_golden_bytes() -> None:
    ballot = Message(
        np.array([1, 0, 1, 1, 0, 0, 0, 1, 1], np.uint8), BINARY, np.array([0.5], np.float32), sender=7, weight=600, round=3
    )
    assert encode(ballot).hex() == (
        "4249464c00010100" "0300000007000000" "5802000000000000" "0900000000000000" "0000000000000000" "0000000000000000"
        "0100000000000000" "b180" "0000003f" "1aca5c27"
    )  # fmt: skip
    news = Message(np.array([0, 3, 5]), Votes(5, 600), np.zeros(0, np.float32), round=3)
    assert encode(news).hex() == (
        "4249464c00030000" "0300000000000000" "0100000000000000" "0300000000000000" "0500000000000000" "5802000000000000"
        "0000000000000000" "0e80" "2936cf0e"
    )  # fmt: skip


SMALL = encode(Message(np.array([1, 0, 1, 1, 0], np.uint8), BINARY, np.array([1.5, -2], np.float32), sender=3, weight=4, round=2))


def test_every_single_flipped_bit_is_noticed() -> None:
    for position in range(8 * len(SMALL)):
        damaged = bytearray(SMALL)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(WireError):
            decode(bytes(damaged))


def test_every_truncation_and_extension_is_noticed() -> None:
    for length in range(len(SMALL)):
        with pytest.raises(WireError):
            decode(SMALL[:length])
    with pytest.raises(WireError):
        decode(SMALL + b"\0")


def checked(body: bytes) -> bytes:
    """A hostile sender computes the checksum too."""
    return body + struct.pack("<I", zlib.crc32(body))


@settings(max_examples=500)
@given(st.data())
def test_hostile_bytes_with_a_right_checksum(data: st.DataObject) -> None:
    body = bytearray(SMALL[:-4])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(4, len(body) - 1))] = data.draw(st.integers(0, 255))
    hostile = checked(bytes(body))
    try:
        message = decode(hostile)
    except WireError:
        return
    assert encode(message) == hostile  # then it is a message, and this is its only spelling


@given(st.binary(max_size=200))
def test_arbitrary_bytes(data: bytes) -> None:
    with pytest.raises(WireError):
        decode(data)


def test_a_message_for_another_model_is_refused_before_it_is_unpacked() -> None:
    with pytest.raises(WireError, match="holds 5 symbols, the model has 81958") as caught:
        decode(SMALL, expect=81_958)
    assert caught.value.offset == 24


def test_a_future_version_is_refused_by_name() -> None:
    with pytest.raises(WireError, match="version 9"):
        decode(SMALL[:4] + b"\x09" + SMALL[5:])


def test_symbols_outside_the_alphabet_are_not_encoded() -> None:
    for symbols, alphabet in (([-1, 1], BINARY), ([3], TERNARY), ([6], Votes(5))):
        with pytest.raises(ValueError, match="symbols run from 0 to"):
            encode(Message(np.array(symbols), alphabet, np.zeros(0, np.float32)))


@pytest.mark.parametrize("alphabet", [BINARY, TERNARY, Votes(3), Votes(100), Votes(40_000), FLOAT32])
def test_decoding_takes_a_bounded_multiple_of_the_message(alphabet: Alphabet) -> None:
    data = encode(Message(symbols_of(alphabet, 1_000_000, 0), alphabet, np.zeros(0, np.float32)))
    tracemalloc.start()
    decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * len(data)


def test_padding_must_be_zero() -> None:
    body = bytearray(SMALL[:-4])
    body[56] |= 1
    with pytest.raises(WireError, match="padding"):
        decode(checked(bytes(body)))


def test_votes_beyond_the_total_are_refused() -> None:
    data = encode(Message(np.array([5]), Votes(5), np.zeros(0, np.float32)))
    body = bytearray(data[:-4])
    body[56] = 0b11100000
    with pytest.raises(WireError, match="symbol 0 is 7"):
        decode(checked(bytes(body)))
