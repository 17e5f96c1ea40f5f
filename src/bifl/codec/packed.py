"""Symbols as bits: 1 bit per binary symbol, 1.6 per trit, ⌈log2(total + 1)⌉ per vote count or level,
32 or 16 per float.

Each symbol vector has exactly one spelling; `unpack` refuses every other.

>>> import numpy as np
>>> from bifl.core.message import BINARY
>>> pack(np.array([1, 0, 1, 1], np.uint8), BINARY).hex()
'b0'
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
    """Make sure that all symbols are of the alphabet.

    Raises:
        ValueError: one is not.
    """
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
    """The symbols that `data`, of exactly `packed_size` bytes, spells.

    Raises:
        ValueError: data is not what `pack` makes of any symbols.
    """
    symbols = _read(np.frombuffer(data, np.uint8), count, alphabet)
    whole = alphabet.size & (alphabet.size - 1) == 0  # every pattern of bits is a symbol
    if not whole and len(symbols) and int(symbols.max()) >= alphabet.size:
        raise ValueError(f"symbol {int(symbols.argmax())} is {int(symbols.max())}, beyond the largest, {alphabet.size - 1}")
    if alphabet.size and pack(symbols[count - count % 40 :], alphabet) != data[packed_size(count - count % 40, alphabet) :]:
        raise ValueError("the padding after the last symbol is not zero")  # 40 symbols fill whole bytes at every width
    return symbols


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
