"""Messages coded with the previous broadcasts as context, and the digest that names this context."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bifl.codec import SHORT, Context, WireError, bits_by_weight, decode, encode, ideal_size, read_header
from bifl.codec.context import Coarse
from bifl.codec.format import CODED_QUICKLY
from bifl.core import BINARY, TERNARY, UPDATE, Alphabet, Message, Public, Votes
from bifl.core.layout import Layout, Tensor
from tests.support.messages import (
    CHECKSUM,
    SMALL,
    alphabets,
    checked,
    context_of,
    counts,
    layout_of,
    peak_of,
    same,
    symbols_of,
    upload_of,
)


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
    bits = bits_by_weight(data, message, context)[UPDATE]
    assert abs(bits.sum() / 8 - read_header(data).symbol_bytes) < 8


def test_a_broadcast_unlike_the_last_is_learnt_quickly() -> None:
    """The server takes the shorter of two spellings: one trusts the last round's changes, one learns faster from the message."""
    alphabet, layout, real = Votes(20), layout_of(5000), np.zeros(7, np.float32)
    before = Message.of(symbols_of(alphabet, 5000, 1), alphabet, real)
    news = Message.of((before.update.symbols * 8 + 3) % 21, alphabet, real)
    context = Context(layout, 7, SHORT, Public(0, 6, layout, news.update.values(), real, news=news, before=before))
    message = Message.of(20 - news.update.symbols, alphabet, real, round=7)
    data = encode(message, context)
    assert read_header(data).coder == CODED_QUICKLY  # the golden broadcast below is like the last, its coder is the other
    assert same(decode(data, context), message)


@pytest.mark.floats
@pytest.mark.parametrize(
    ("sender", "alphabet", "golden"),
    [(4, BINARY, "47e3952af244f92b"), (None, Votes(5), "50fb09e6d751ad3b"), (4, TERNARY, "fc2cab6da2a66e73")],
)
def test_golden_bytes_of_the_context_coder(sender: int | None, alphabet: Alphabet, golden: str) -> None:
    """Probabilities come from integers alone: these bytes, here their hash, must be the same on every machine."""
    number = np.arange(3000)
    layout = Layout(("l",), (Tensor("l.weight", (3000,), 0),), (Tensor("norm.weight", (3,)),), (Tensor("norm", (1,)),))
    real = np.array([1, 1, 0.5, -30, 0.5, 4], np.float32)
    counts = [number * number % 17 % 6 + (number % step == 0) * (number % 2) for step in (97, 41, 29)]
    before, news = (Message.of(np.minimum(votes, 5), Votes(5), real) for votes in counts[:2])
    public = Public(0, 2, layout, news.update.values(), real, news=news, before=before)
    symbols = ((alphabet.size - 1) * np.minimum(counts[2], 5) + 2) // 5
    message = Message.of(symbols, alphabet, real + np.float32(0.25), sender=sender, weight=600, round=3)
    data = encode(message, Context(layout, 3, SHORT, public))
    assert read_header(data).coder == 1
    assert hashlib.sha256(data).hexdigest()[:16] == golden


def test_what_was_meant_for_somebody_else_is_refused_by_name() -> None:
    context = context_of(64, Votes(10), Votes(10))
    message = upload_of(symbols_of(BINARY, 64, 1), BINARY, context)
    data = encode(message, context)
    other = context_of(64, Votes(11), Votes(10))
    for receiver, reason, offset in (
        (Context(layout_of(65), 7), "is for model .*, this is", 28),
        (Context(context.layout, 8, known=context.known), "is of round 7, this is round 8", 12),
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


def other_news(public: Public, place: int, step: int) -> Public:
    assert public.news is not None
    symbols = public.news.update.symbols.copy()
    symbols[place] += step
    return public._replace(news=public.news.with_update(symbols=symbols))


def test_the_digest_covers_everything_that_the_coder_uses() -> None:
    """Two ends that differ in one of these would decode each other's messages to nonsense, so their digests must differ."""
    layout, alphabet, real = layout_of(64), Votes(700), np.arange(7, dtype=np.float32)
    symbols = np.full(64, 300)
    news, before = Message.of(symbols, alphabet, real), Message.of(symbols, alphabet, real)
    public = Public(0, 6, layout, news.update.values(), real, news=news, before=before)
    ours = Context(layout, 7, SHORT, public)
    others = {
        "round": Context(layout, 8, SHORT, public),
        "real": Context(layout, 7, SHORT, public._replace(real=real + np.float32(1))),
        "news, another drawer": Context(layout, 7, SHORT, other_news(public, 5, 30)),
        "news, the same drawer": Context(layout, 7, SHORT, other_news(public, 5, 1)),
        "before": Context(layout, 7, SHORT, public._replace(before=before.with_update(symbols=symbols + 30))),
        "no before": Context(layout, 7, SHORT, public._replace(before=None)),
        "alphabet": Context(
            layout,
            7,
            SHORT,
            public._replace(news=news.with_update(alphabet=Votes(701)), before=before.with_update(alphabet=Votes(701))),
        ),
    }
    assert Coarse.of(alphabet).width == 3  # 300 and 301 are in one drawer, 330 is not
    assert others["news, the same drawer"].vector(UPDATE).classes.tolist() == ours.vector(UPDATE).classes.tolist()
    digests = {name: context.digest for name, context in others.items()} | {"ours": ours.digest}
    assert len(set(digests.values())) == len(digests), digests
    assert Context(layout, 7, SHORT, public._replace(round=99)).digest == ours.digest, "what the coder does not use is not in it"


def test_a_difference_within_a_drawer_is_noticed() -> None:
    """Ballots are coded with the exact vote counts, also where the classes are coarser."""
    ours = context_of(3000, Votes(700), Votes(700))
    assert isinstance(ours.known, Public)
    assert ours.known.news is not None
    theirs = Context(ours.layout, 7, SHORT, other_news(ours.known, int(ours.known.news.update.symbols.argmin()), 1))
    mine, other = ours.vector(UPDATE), theirs.vector(UPDATE)
    assert other.classes.tolist() == mine.classes.tolist()
    assert other.seen(BINARY, upload=True).tolist() != mine.seen(BINARY, upload=True).tolist()
    data = encode(upload_of(symbols_of(BINARY, 3000, 1), BINARY, ours), ours)
    with pytest.raises(WireError, match="was coded in context"):
        decode(data, theirs)


def test_bytes_after_the_last_coded_symbol_are_refused() -> None:
    context = context_of(3000, Votes(10), Votes(10))
    data = encode(upload_of(symbols_of(BINARY, 3000, 1), BINARY, context), context)
    end = 68 + read_header(data).symbol_bytes
    for extra, reason in ((b"\x7a" * 8, "bytes left after the last coded symbol"), (b"\x7a", "words of 4 bytes")):
        body = bytearray(data[:end] + extra + data[end:-CHECKSUM])
        body[60:64] = struct.pack("<I", end - 68 + len(extra))
        with pytest.raises(WireError, match=reason):
            decode(checked(bytes(body)), context)


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
