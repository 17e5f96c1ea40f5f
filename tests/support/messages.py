"""Messages, layouts and contexts for the tests of the codec."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from bifl.codec import SHORT, Context, Precision, decode, encode
from bifl.core import BINARY, FLOAT32, TERNARY, UPDATE, Alphabet, Message, Public, Selections, Vector, Votes
from bifl.core.layout import Layout, Tensor

HEADER, CHECKSUM = 68, 4
NOTHING = np.zeros(0, np.float32)
SMALL = encode(Message.of(np.array([1, 0, 1, 1, 0]), BINARY, np.array([1.5, -2], np.float32), sender=3, weight=4, round=2))

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
    news = None if said is None else Message.of(symbols_of(said, count, 1), said, real)
    before = None if earlier is None else Message.of(symbols_of(earlier, count, 1), earlier, real)
    weights = np.random.default_rng(2).uniform(-0.3, 0.3, count).astype(np.float32) if news is None else news.update.values()
    return Context(layout, 7, precision, Public(0, 6, layout, weights, real, news=news, before=before))


def upload_of(symbols: npt.NDArray[Any], alphabet: Alphabet, context: Context) -> Message:
    real = np.array([1.01, 0.99, 0.48, -0.2, 31, 0.11, 1100], np.float32)
    return Message.of(symbols, alphabet, real, sender=3, weight=600, round=context.round)


TWO: Selections = {UPDATE: None, "control": None}


def with_control(message: Message, alphabet: Alphabet = TERNARY) -> Message:
    """The message with a second vector, as long as the first."""
    symbols = symbols_of(alphabet, len(message.update.symbols), 3)
    return message.with_vectors({"control": Vector(symbols, alphabet, np.array([0.5, -2], np.float32))})


def for_two(context: Context) -> Context:
    """The same context where messages hold two vectors."""
    return replace(context, selects=lambda sender: TWO)


def same(back: Message, message: Message) -> bool:
    """Whether two messages say the same, but for the rounding of real numbers."""
    if back.vectors.keys() != message.vectors.keys() or back[2:] != message[2:]:
        return False
    pairs = ((vector, message.vectors[name]) for name, vector in back.vectors.items())
    return all(
        one.symbols.tolist() == other.symbols.tolist()
        and one.alphabet == other.alphabet
        and one.scales.tobytes() == other.scales.tobytes()
        for one, other in pairs
    )


def checked(body: bytes) -> bytes:
    """A hostile sender computes the checksum too."""
    return body + struct.pack("<I", zlib.crc32(body))


def peak_of(data: bytes, context: Context | None) -> int:
    tracemalloc.start()
    decode(data, context)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak
