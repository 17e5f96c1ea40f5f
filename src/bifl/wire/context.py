"""What both ends of a message know already: the context in which it is coded.

Every weight has a class: its vote count in the last broadcast, or what else that broadcast said of it. Symbols are coded class by
class, with probabilities that both ends count from the broadcasts they share: how the weights of a class voted a round ago is the
best guess of how they will vote now. Where that is not known well enough, the first symbols of a message teach the later ones.

All arithmetic is on integers, or single operations that IEEE 754 defines to the last bit, so that both ends agree on every machine.
The digest names the context in a few bytes.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.layout import Layout
from bifl.message import BINARY, Alphabet, Floats, Message, Symbols, Votes
from bifl.wire.reals import EXACT, Precision

if TYPE_CHECKING:
    from bifl.algorithm import Shared

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


@dataclass(frozen=True, eq=False)
class Context:
    """One end's side of the wire, for the messages of one round.

    Attributes:
        layout: of the model; messages for another are refused.
        round: of the messages; others are refused.
        precision: of the real parameters, when writing.
        shared: the public state that both ends have; None spells every message so that it can be read without.
    """

    layout: Layout
    round: int
    precision: Precision = EXACT
    shared: Shared | None = None

    @cached_property
    def digest(self) -> bytes:
        """8 bytes that differ where what the coder takes from the public state differs."""
        if self.shared is None:
            return NO_DIGEST
        state = hashlib.sha256(f"{self.layout.fingerprint} {self.round}".encode())
        state.update(self.shared.real.astype("<f4").tobytes())
        state.update(self.classes.tobytes())
        if self._history is not None:
            classes, news = self._history
            state.update(repr(news.alphabet).encode())
            state.update(classes.tobytes())
            if Coarse.of(news.alphabet).width > 1:  # else they are the classes
                state.update(news.symbols.astype("<u4").tobytes())
        return state.digest()[:8]

    @cached_property
    def classes(self) -> npt.NDArray[np.uint8]:
        """(count,) what is known of each weight."""
        if self.shared is None:
            raise ValueError("a context-free message has no classes")
        if self.shared.news is None or self.shared.news.alphabet.size == 0:
            return _levels(self.shared.weights, self.layout)
        return _classes(self.shared.news)

    def sequence(self, alphabet: Alphabet, *, upload: bool) -> Sequence:
        """The order of coding. Ballots need not learn from themselves when last round's are known: one block is the fastest."""
        return self._settled if upload and self._ballots(alphabet) else self._learning

    def _ballots(self, alphabet: Alphabet) -> bool:
        """Whether the history tells how clients voted."""
        return self._history is not None and alphabet == BINARY and isinstance(self._history[1].alphabet, Votes)

    @cached_property
    def _settled(self) -> Sequence:
        return Sequence.of(np.zeros(self.layout.count, np.uint16), self.classes)

    @cached_property
    def _learning(self) -> Sequence:
        """Every second weight is in the last block, every fourth in the one before …: each doubles what was seen."""
        count = self.layout.count
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
    def _history(self) -> tuple[npt.NDArray[np.uint8], Message] | None:
        """The classes before the last broadcast, and that broadcast; None before there were two of a kind."""
        if self.shared is None or self.shared.news is None or self.shared.before is None:
            return None
        news, before = self.shared.news, self.shared.before
        return (_classes(before), news) if before.alphabet == news.alphabet and news.alphabet.size else None

    def seen(self, alphabet: Alphabet, *, upload: bool) -> Counts:
        """(classes, drawers) how often weights of a class took each symbol a round ago; zeros where there is no history."""
        drawers = Coarse.of(alphabet).drawers
        if self._history is None or (upload and not self._ballots(alphabet)):
            return np.zeros((_LEVELS, drawers), np.int64)
        classes, news = self._history
        if upload and isinstance(news.alphabet, Votes):
            positive = np.bincount(classes, news.symbols, _LEVELS).astype(np.int64)
            return np.stack([np.bincount(classes, minlength=_LEVELS) * news.alphabet.total - positive, positive], 1)
        if Coarse.of(news.alphabet).drawers != drawers:
            return np.zeros((_LEVELS, drawers), np.int64)
        return tabulated(classes, news.symbols, news.alphabet)


def tabulated(classes: npt.NDArray[np.uint8], symbols: Symbols, alphabet: Alphabet) -> Counts:
    """(classes, drawers) how often weights of a class have each symbol."""
    drawers, width = Coarse.of(alphabet)
    places = classes * np.int64(drawers) + (symbols // width).astype(np.int64)
    return np.bincount(places, minlength=_LEVELS * drawers).reshape(_LEVELS, drawers)


def _classes(message: Message) -> npt.NDArray[np.uint8]:
    return (message.symbols // Coarse.of(message.alphabet).width).astype(np.uint8)


def _levels(weights: Floats, layout: Layout) -> npt.NDArray[np.uint8]:
    """(count,) float weights in equal steps between the powers of two that hold each layer."""
    levels, done = np.zeros(layout.count, np.uint8), 0
    for part in layout.split(weights):
        largest = np.frexp(max(np.max(part, initial=0.0), -np.min(part, initial=0.0)))[1]
        for start in range(0, part.size, _BLOCK):
            steps = part[start : start + _BLOCK].astype(np.float64)
            steps *= math.ldexp(1.0, 5 - int(largest))  # exact; the sum is rounded as IEEE 754 says, everywhere the same
            steps += _FLOAT_LEVELS // 2
            np.clip(np.floor(steps, out=steps), 0, _FLOAT_LEVELS - 1, out=steps)
            levels[done : done + len(steps)] = steps
            done += len(steps)
    return levels
