"""Symbols as bits: packed, each by itself, or coded in a context that both ends know (docs/wire-format.md).

Packed: each symbol vector has exactly one spelling; `unpack` refuses every other.

>>> import numpy as np
>>> from bifl.core.message import BINARY
>>> pack(np.array([1, 0, 1, 1], np.uint8), BINARY).hex()
'b0'

Coded: in as many bits as they surprise, by a range coder (constriction). Symbols of one class follow each other, so that one model
serves a whole run of them: tens of millions a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import constriction
import numpy as np
import numpy.typing as npt

from bifl.codec.context import Coarse, Counts, Runs, VectorContext, count_table
from bifl.core.message import FLOAT16, TERNARY, Alphabet, Symbols
from bifl.core.sums import all_below

Bytes = bytes | memoryview  # to read from: parts of a message need not be copied

_TRITS = 5  # 3⁵ = 243 ≤ 256
_FLOATS = {32: "<f4", 16: "<f2"}
_LARGEST_HALF = 65504.0
_POWERS = 3 ** np.arange(_TRITS, dtype=np.uint8)[::-1]


def bits_per_symbol(alphabet: Alphabet) -> int:
    """Width of a packed symbol in whole bits (trits apart)."""
    return alphabet.bits if alphabet.size == 0 else (alphabet.size - 1).bit_length()


def packed_size(count: int, alphabet: Alphabet) -> int:
    """Bytes that `count` symbols take."""
    if alphabet == TERNARY:
        return -(-count // _TRITS)
    return -(-count * bits_per_symbol(alphabet) // 8)


def check(symbols: Symbols, alphabet: Alphabet) -> None:
    """Raise a ValueError unless all symbols are of the alphabet."""
    if alphabet == FLOAT16 and not all_below(_LARGEST_HALF, symbols):
        raise ValueError(f"float16 holds no number beyond {_LARGEST_HALF:g}")
    if alphabet.size and len(symbols) and (symbols.min() < 0 or symbols.max() >= alphabet.size):
        raise ValueError(f"{alphabet.name} symbols run from 0 to {alphabet.size - 1}, not from {symbols.min()} to {symbols.max()}")


def pack(symbols: Symbols, alphabet: Alphabet) -> bytes:
    """The one spelling of symbols that are in the alphabet."""
    if alphabet.size == 0:
        return symbols.astype(_FLOATS[alphabet.bits], copy=False).tobytes()
    if alphabet == TERNARY:
        trits = np.zeros(packed_size(len(symbols), alphabet) * _TRITS, np.uint8)
        trits[: len(symbols)] = symbols
        packed: npt.NDArray[np.uint8] = (trits.reshape(-1, _TRITS) * _POWERS).sum(1, dtype=np.uint8)
        return packed.tobytes()
    width = bits_per_symbol(alphabet)
    if width == 1:
        return np.packbits(symbols.astype(np.uint8)).tobytes()
    shifts = np.arange(width)[::-1]
    return np.packbits(((symbols[:, None] >> shifts) & 1).astype(np.uint8)).tobytes()


def unpack(data: Bytes, count: int, alphabet: Alphabet) -> Symbols:
    """The symbols that `data`, of exactly `packed_size` bytes, spells; a ValueError if `pack` makes it of none."""
    symbols = _read(np.frombuffer(data, np.uint8), count, alphabet)
    if alphabet.size & (alphabet.size - 1):  # elsewhere every pattern of bits is a symbol
        _check_largest(symbols, alphabet)
    if alphabet.size and pack(symbols[count - count % 40 :], alphabet) != data[packed_size(count - count % 40, alphabet) :]:
        raise ValueError("the padding after the last symbol is not zero")  # 40 symbols fill whole bytes at every width
    return symbols


def _check_largest(symbols: Symbols, alphabet: Alphabet) -> None:
    if len(symbols) and int(symbols.max()) >= alphabet.size:
        raise ValueError(f"symbol {int(symbols.argmax())} is {int(symbols.max())}, beyond the largest, {alphabet.size - 1}")


def _read(raw: npt.NDArray[np.uint8], count: int, alphabet: Alphabet) -> Symbols:
    if alphabet.size == 0:
        return raw.view(_FLOATS[alphabet.bits]).astype(np.float32)
    if alphabet == TERNARY:
        if len(raw) and int(raw.max()) >= 3**_TRITS:
            raise ValueError(f"five trits make a byte of at most {3**_TRITS - 1}, not {int(raw.max())}")
        return (raw[:, None] // _POWERS % 3).astype(np.uint8).ravel()[:count]
    width = bits_per_symbol(alphabet)
    bits = np.unpackbits(raw, count=count * width).reshape(count, width)
    if width == 1:
        return bits[:, 0]
    counts = np.zeros(count, f"u{1 << max(0, (width - 1).bit_length() - 3)}")  # the smallest unsigned type that holds them
    for column in bits.T:  # a column at a time: memory stays below 20 times that of the message
        counts <<= 1
        counts |= column
    return counts


# ---- in a context ----------------------------------------------------------------------------------------------------------

_MODELS = constriction.stream.model
_ONE = 1 << 24  # probabilities are multiples of 1/_ONE
_UNIT = 64  # one count
_FLAT = 1  # for every symbol, so that none is impossible
_KERNEL = (1, 4, 6, 4, 1)
_MANY = 32  # in alphabets larger than this, neighbouring symbols are alike

Run = npt.NDArray[np.int32]


class Pace(NamedTuple):
    """How much is learnt from what. Counts of a class a round ago are one each; against them weigh …"""

    own: int  # … those of the message itself, each,
    nearby: int  # those of classes and symbols nearby, together,
    distant: int  # and those farther off


STEADY = Pace(4, 512, 512)
QUICK = Pace(64, 2048, 2048)  # for rounds that are not like the last, as where the learning rate steps down


class Model(NamedTuple):
    """How likely the symbols of a class are."""

    odds: npt.NDArray[np.int64]  # (symbols,) in 1/_ONE
    coder: Any  # the same for constriction


Models = dict[int, Model]  # by class


def compress(symbols: Symbols, alphabet: Alphabet, context: VectorContext, pace: Pace, *, upload: bool) -> bytes:
    """The symbols, coded in their context."""
    width = Coarse.of(alphabet).width
    sequence = context.sequence(alphabet, upload=upload)
    small = symbols.astype(f"u{_bytes(alphabet)}", copy=False)  # gathering single bytes is several times faster
    drawers = np.take(small // width if width > 1 else small, sequence.order).astype(np.int32)
    encoder = constriction.stream.queue.RangeEncoder()

    def code(begin: int, end: int, model: Model) -> Run:
        run = drawers[begin:end]
        encoder.encode(run, model.coder)
        return run

    _code_all(code, sequence.blocks, alphabet, context, pace, upload)
    if width > 1:
        encoder.encode((symbols % width).astype(np.int32), _MODELS.Uniform(width))
    words: npt.NDArray[np.uint32] = encoder.get_compressed()
    return words.astype("<u4").tobytes()


def expand(data: Bytes, alphabet: Alphabet, context: VectorContext, pace: Pace, *, upload: bool) -> Symbols:
    """The symbols that `compress` coded in the same context; a ValueError if it did not make these bytes."""
    if len(data) % 4:
        raise ValueError(f"coded symbols come in words of 4 bytes, {len(data)} bytes are none")
    decoder = constriction.stream.queue.RangeDecoder(np.frombuffer(data, "<u4").astype(np.uint32))
    sequence = context.sequence(alphabet, upload=upload)
    drawers = np.empty(len(sequence.order), np.int32)

    def code(begin: int, end: int, model: Model) -> Run:
        run: Run = decoder.decode(model.coder, end - begin)
        drawers[begin:end] = run
        return run

    width = Coarse.of(alphabet).width
    symbols = np.empty(len(drawers), f"u{_bytes(alphabet)}")
    try:
        _code_all(code, sequence.blocks, alphabet, context, pace, upload)
        symbols[sequence.order] = drawers
        if width > 1:
            symbols *= width
            symbols += decoder.decode(_MODELS.Uniform(width), len(symbols)).astype(symbols.dtype)
    except AssertionError as error:  # constriction's word for bytes that no encoder makes
        raise ValueError(f"the coded symbols are damaged ({error})") from None
    if not decoder.maybe_exhausted():
        raise ValueError("there are bytes left after the last coded symbol")
    _check_largest(symbols, alphabet)
    return symbols


def ideal_bits(symbols: Symbols, alphabet: Alphabet, context: VectorContext) -> float:
    """The empirical conditional entropy: what the symbols would take if their frequencies in each class were known for nothing."""
    table = count_table(context.classes, symbols, alphabet).astype(np.float64)
    surprise = np.log2(np.maximum(table.sum(1, keepdims=True), 1)) - np.log2(np.maximum(table, 1))
    return float((table * surprise).sum() + len(symbols) * np.log2(Coarse.of(alphabet).width))


def costs(symbols: Symbols, alphabet: Alphabet, context: VectorContext, pace: Pace, *, upload: bool) -> npt.NDArray[np.float64]:
    """(count,) bits that `compress` spends on each symbol."""
    width = Coarse.of(alphabet).width
    sequence = context.sequence(alphabet, upload=upload)
    drawers = (symbols // width).astype(np.int32)[sequence.order]
    bits = np.full(len(drawers), np.log2(width))

    def code(begin: int, end: int, model: Model) -> Run:
        run = drawers[begin:end]
        bits[sequence.order[begin:end]] += np.log2(model.odds.sum()) - np.log2(model.odds[run])
        return run

    _code_all(code, sequence.blocks, alphabet, context, pace, upload)
    return bits


def _code_all(
    code: Callable[[int, int, Model], Run], blocks: list[Runs], alphabet: Alphabet, context: VectorContext, pace: Pace, upload: bool
) -> None:
    """Code every run of every block, learning from each block for the next."""
    key = alphabet, pace, upload
    if key not in context.priors:  # the same for all messages of a round
        table = context.seen(alphabet, upload=upload)
        context.priors[key] = table, _models(table, pace, context.levels)
    table, models = context.priors[key]
    table, (*learning, last) = table.copy(), blocks
    for runs in learning:
        for level, begin, end in runs:
            table[level] += pace.own * np.bincount(code(begin, end, models[level]), minlength=table.shape[1])
        models = _models(table, pace, list(models))
    for level, begin, end in last:
        code(begin, end, models[level])


def _models(table: Counts, pace: Pace, levels: list[int]) -> Models:
    odds = _odds(table, pace)
    return {level: Model(odds[level], _coder(odds[level])) for level in levels}


def _odds(table: Counts, pace: Pace) -> Counts:
    """(classes, symbols) multiples of 1/_ONE, from counts: each class's own, those around in proportion, and a little for all."""
    table = _reduced(table)  # no product below leaves int64
    nearby = _blurred(table)
    distant = _blurred(_reduced(_blurred(nearby)))
    weights = _UNIT * table + _FLAT
    for around, share in ((nearby, pace.nearby), (distant, pace.distant)):
        weights += _UNIT * share * around // np.maximum(around.sum(1, keepdims=True), 1)
    odds: Counts = 1 + weights * (_ONE - table.shape[1]) // weights.sum(1, keepdims=True)
    return odds


def _reduced(table: Counts) -> Counts:
    return table >> max(0, int(table.max()).bit_length() - 20)


def _blurred(table: Counts) -> Counts:
    """Every class with a share of the classes around it and, in large alphabets, every symbol with one of those around it."""
    rows = _spread(table)
    return _spread(rows.T).T if table.shape[1] > _MANY else rows


def _spread(table: Counts) -> Counts:
    reach = len(_KERNEL) // 2
    padded = np.pad(table, ((reach, reach), (0, 0)))
    return np.asarray(sum(weight * padded[shift : shift + len(table)] for shift, weight in enumerate(_KERNEL)))


def _coder(odds: npt.NDArray[np.int64]) -> Any:
    if len(odds) == 2:
        return _MODELS.Bernoulli(float(odds[1]) / float(odds.sum()), perfect=False)
    return _MODELS.Categorical(odds.astype(np.float32), perfect=False)


def _bytes(alphabet: Alphabet) -> int:
    """Of the smallest unsigned integers that hold every symbol, and a last drawer's places beyond the largest."""
    return 1 if alphabet.size <= 256 else 2 if alphabet.size <= 2**16 - 256 else 4
