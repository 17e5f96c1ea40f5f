"""What both ends of a message know already: the context in which it is coded.

Every weight has a class: its vote count in the last broadcast, or what else that broadcast said of it. Symbols are coded class by
class, with probabilities that both ends count from the broadcasts they share (docs/wire-format.md). All arithmetic is on integers,
or single operations that IEEE 754 defines to the last bit, so that both ends agree on every machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.core.layout import Layout
from bifl.core.message import BINARY, UPDATE, Alphabet, Floats, Message, Selection, Selections, Symbols, Vector, Votes
from bifl.core.state import Public

Runs = list[tuple[int, int, int]]  # of weights of one class: the class, begin and end in the order of coding
Counts = npt.NDArray[np.int64]  # (classes, symbols)

NO_DIGEST = bytes(8)
_LEVELS = 256  # at most this many classes, and as many coarse symbols
_FLOAT_LEVELS = 64  # classes of float weights
_BLOCK = 2**14  # weights at a time, so that what is computed in between stays in the processor's cache
_FIRST_BLOCK = 1024  # about so many symbols are coded before anything is learnt from them …
_LESSONS = 9  # … and this often as many again: half a million teach the rest


class Coarse(NamedTuple):
    """Large alphabets in two parts: which of at most 256 equal drawers, coded, and the place in it, spelled out."""

    drawers: int
    width: int  # of a drawer

    @classmethod
    def of(cls, alphabet: Alphabet) -> Coarse:
        """The drawers of an alphabet; up to 256 symbols have one each."""
        width = -(-alphabet.size // _LEVELS)
        return cls(-(-alphabet.size // width), width)


class Sequence(NamedTuple):
    """The order in which weights are coded: block by block, in it class by class."""

    order: npt.NDArray[np.int64]  # (count,)
    blocks: list[Runs]

    @classmethod
    def of(cls, block: npt.NDArray[np.uint16], classes: npt.NDArray[np.uint8]) -> Sequence:
        """Of (count,) block numbers and classes."""
        keys = block << np.uint16(8) | classes
        sizes = np.bincount(keys)
        blocks: list[Runs] = [[] for _ in range(int(block.max(initial=0)) + 1)]
        end = 0
        for key in np.flatnonzero(sizes).tolist():
            begin, end = end, end + int(sizes[key])
            blocks[key >> 8].append((key & 255, begin, end))
        return cls(np.argsort(keys, kind="stable"), blocks)  # of 16 bit: a radix sort


class Precision(NamedTuple):
    """Binary digits of batch-norm on the wire, and bits of a change of layers kept real; 0 means float32 as it is."""

    upload: int
    broadcast: int
    upload_change: int = 0
    broadcast_change: int = 0


SHORT = Precision(6, 10)
BYTE = Precision(6, 10, 8, 8)
SIGN = Precision(6, 10, 1, 8)
EXACT = Precision(0, 0)


@dataclass(frozen=True, eq=False)
class VectorContext:
    """What one end knows of a vector of the messages of one exchange: the context in which its symbols are coded."""

    name: str
    layout: Layout
    known: Public | None  # what both ends know; None where nothing is made use of
    # what a coder knows before the first symbol, by all else that it depends on, once it was computed
    priors: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def count(self) -> int:
        """How many symbols a message has."""
        return self.layout.count

    def known_bytes(self) -> bytes:
        """What the coder takes from the public state."""
        if self.history is None:
            return self.classes.tobytes()
        classes, news = self.history
        symbols = news.symbols.astype("<u4").tobytes() if Coarse.of(news.alphabet).width > 1 else b""  # else they are the classes
        return b"".join([self.classes.tobytes(), repr(news.alphabet).encode(), classes.tobytes(), symbols])

    @cached_property
    def classes(self) -> npt.NDArray[np.uint8]:
        """(count,) what is known of what each symbol is about."""
        if self.known is None:
            raise ValueError("a context-free message has no classes")
        news = _vector(self.known.news, self.name)
        if news is not None and news.about is None and news.alphabet.size:
            return _classes(news)
        if self.name == UPDATE:
            return _levels(self.known.weights, self.layout)
        return _levels(self.known.vectors.get(self.name, np.zeros(self.layout.count, np.float32)), self.layout)

    def sequence(self, alphabet: Alphabet, *, upload: bool) -> Sequence:
        """The order of coding. Ballots need not learn from themselves when last round's are known: one block is the fastest."""
        return self._settled if upload and self._ballots(alphabet) else self._learning

    def _ballots(self, alphabet: Alphabet) -> bool:
        """Whether the history tells how clients voted."""
        return self.history is not None and alphabet == BINARY and isinstance(self.history[1].alphabet, Votes)

    @cached_property
    def _settled(self) -> Sequence:
        return Sequence.of(np.zeros(self.count, np.uint16), self.classes)

    @cached_property
    def _learning(self) -> Sequence:
        """Every second weight is in the last block, every fourth in the one before …: each doubles what was seen."""
        count = self.count
        doublings = max(0, (count // _FIRST_BLOCK).bit_length() - 1)
        block = np.full(count, min(doublings, _LESSONS), np.uint16)
        for step in range(1, doublings + 1):
            block[:: 1 << step] = min(doublings - step, _LESSONS)
        return Sequence.of(block, self.classes)

    @cached_property
    def levels(self) -> list[int]:
        """The classes that occur."""
        return np.flatnonzero(np.bincount(self.classes)).tolist()

    @cached_property
    def history(self) -> tuple[npt.NDArray[np.uint8], Vector] | None:
        """The classes before the last broadcast, and that broadcast; None before there were two of a kind."""
        if self.known is None:
            return None
        news, before = _vector(self.known.news, self.name), _vector(self.known.before, self.name)
        if news is None or before is None:
            return None
        same = before.alphabet == news.alphabet and news.about is None and before.about is None
        return (_classes(before), news) if same and news.alphabet.size else None

    def seen(self, alphabet: Alphabet, *, upload: bool) -> Counts:
        """(classes, drawers) how often weights of a class took each symbol a round ago; zeros where there is no history."""
        nothing = np.zeros((_LEVELS, Coarse.of(alphabet).drawers), np.int64)
        if self.history is None or (upload and not self._ballots(alphabet)):
            return nothing
        classes, news = self.history
        if upload and isinstance(news.alphabet, Votes):
            positive = np.bincount(classes, news.symbols, _LEVELS).astype(np.int64)
            return np.stack([np.bincount(classes, minlength=_LEVELS) * news.alphabet.total - positive, positive], 1)
        table = count_table(classes, news.symbols, news.alphabet)
        return table if table.shape == nothing.shape else nothing


@dataclass(frozen=True, eq=False)
class NarrowContext(VectorContext):
    """What is known of the vector of one message that is about some of the weights, or about no single ones."""

    whole: VectorContext
    about: Selection

    @property
    def count(self) -> int:
        """How many symbols the message has."""
        return self.about.length

    @cached_property
    def classes(self) -> npt.NDArray[np.uint8]:
        """(count,) those of the weights that it is about."""
        chosen = self.about.positions
        return np.zeros(self.count, np.uint8) if chosen is None else self.whole.classes[chosen]

    @cached_property
    def history(self) -> tuple[npt.NDArray[np.uint8], Vector] | None:
        """That of all weights; None for symbols that are about no single ones."""
        return None if self.about.positions is None else self.whole.history


def _update_alone(sender: int | None) -> Selections:
    return {UPDATE: None}


@dataclass(frozen=True, eq=False)
class Context:
    """What one end knows of the messages of one exchange; those for another model or round are refused."""

    layout: Layout
    round: int
    precision: Precision = EXACT  # of the real parameters, when writing
    known: Public | None = None  # what both ends know; None spells every message so that it can be read without
    selects: Callable[[int | None], Selections] = _update_alone  # sender → the vectors of its message; None is the server
    start: Floats | None = None  # the last numbers of layers kept real, where messages say how these changed
    grids: dict[int, Any] = field(default_factory=dict, init=False, repr=False)  # known real numbers, by digits, once computed
    _vectors: dict[str, VectorContext] = field(default_factory=dict, init=False, repr=False)

    def vector(self, name: str, about: Selection | None = None) -> VectorContext:
        """What is known of one vector; the same object for all messages, so that what is computed of it is kept."""
        if name not in self._vectors:
            self._vectors[name] = VectorContext(name, self.layout, self.known)
        whole = self._vectors[name]
        return whole if about is None else NarrowContext(name, self.layout, self.known, whole, about)

    @cached_property
    def digest(self) -> bytes:
        """8 bytes that differ where what the coder takes from the public state differs."""
        if self.known is None and self.start is None:
            return NO_DIGEST
        state = hashlib.sha256(f"{self.layout.fingerprint} {self.round}".encode())
        if self.start is not None:
            state.update(self.start.astype("<f4").tobytes())
        if self.known is None:
            return state.digest()[:8]
        state.update(self.known.real.astype("<f4").tobytes())
        state.update(self.vector(UPDATE).known_bytes())
        said = () if self.known.news is None else self.known.news.vectors
        for name in sorted({*self.known.vectors, *said} - {UPDATE}):
            state.update(f" {name} ".encode() + self.vector(name).known_bytes())
        return state.digest()[:8]


def count_table(classes: npt.NDArray[np.uint8], symbols: Symbols, alphabet: Alphabet) -> Counts:
    """(classes, drawers) how often weights of a class have each symbol."""
    drawers, width = Coarse.of(alphabet)
    places = classes * np.int64(drawers) + (symbols // width).astype(np.int64)
    return np.bincount(places, minlength=_LEVELS * drawers).reshape(_LEVELS, drawers)


def _vector(message: Message | None, name: str) -> Vector | None:
    """A broadcast's vector of this name; None where there is none."""
    return None if message is None else message.vectors.get(name)


def _classes(vector: Vector) -> npt.NDArray[np.uint8]:
    return (vector.symbols // Coarse.of(vector.alphabet).width).astype(np.uint8)


def _levels(weights: Floats, layout: Layout) -> npt.NDArray[np.uint8]:
    """(count,) float weights in equal steps between the powers of two that hold each layer."""
    levels, done = np.zeros(layout.count, np.uint8), 0
    for part in layout.split(weights):
        largest = np.frexp(max(np.max(part, initial=0.0), -np.min(part, initial=0.0)))[1]
        for start in range(0, part.size, _BLOCK):
            steps = part[start : start + _BLOCK].astype(np.float64)
            steps *= math.ldexp(1.0, 5 - int(largest))  # exact; the sum is rounded as IEEE 754 says, everywhere the same
            steps += _FLOAT_LEVELS // 2
            levels[done : done + len(steps)] = np.clip(steps, 0, _FLOAT_LEVELS - 1, out=steps)
            done += len(steps)
    return levels
