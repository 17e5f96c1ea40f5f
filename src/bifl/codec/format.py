"""Messages as bytes, format version 1 (docs/wire-format.md): header, symbols, reals, scales, checksum.

>>> import numpy as np
>>> from bifl.core.message import BINARY, Message
>>> data = encode(Message(np.array([1, 0, 1], np.uint8), BINARY, np.zeros(0, np.float32)))
>>> len(data), decode(data).symbols
(73, array([1, 0, 1], dtype=uint8))
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from bifl.codec import reals
from bifl.codec.context import NO_DIGEST, Context
from bifl.codec.header import (
    ANY_MODEL,
    BROADCAST,
    CHECKSUM,
    CODED,
    CODED_QUICKLY,
    LAYOUT,
    MAGIC,
    PACKED,
    UPLOAD,
    VERSION,
    Header,
    WireError,
    read_header,
    refused,
    spell_alphabet,
)  # fmt: skip
from bifl.codec.packed import Bytes, check, pack, packed_size, unpack
from bifl.codec.range_coder import QUICK, STEADY, compress, costs, expand, ideal_bits
from bifl.core.message import Alphabet, Floats, Message, Symbols

Part = TypeVar("Part", bound=Any)
_PACES = {CODED: STEADY, CODED_QUICKLY: QUICK}


def encode(message: Message, context: Context | None = None) -> bytes:
    """Spell a message in the fewest bytes.

    Args:
        message: what to say.
        context: what both ends know; none spells everything out, reals as float32, for any reader.
    """
    alphabet, upload = message.alphabet, message.sender is not None
    check(message.symbols, alphabet)
    coder, symbols = PACKED, None
    if context is not None and context.known is not None and alphabet.size and len(message.symbols):
        least, around = packed_size(len(message.symbols), alphabet), context.narrowed(message.about)
        for choice in (CODED,) if upload else (CODED, CODED_QUICKLY):
            coded = compress(message.symbols, alphabet, around, _PACES[choice], upload=upload)
            if len(coded) < least:
                least, coder, symbols = len(coded), choice, coded
    if symbols is None:
        symbols = pack(message.symbols, alphabet)
    precision, real = _spell_reals(message, context)
    code, total, unit = spell_alphabet(alphabet)
    header = Header(
        MAGIC, VERSION, UPLOAD if upload else BROADCAST, code, coder, precision,
        message.round, message.sender or 0, message.weight, len(message.symbols),
        bytes.fromhex(context.layout.fingerprint) if context else ANY_MODEL, context.digest if context else NO_DIGEST,
        total, unit, len(message.real), len(message.scales), len(symbols), len(real),
    )  # fmt: skip
    sections, checksum = [LAYOUT.pack(*header), symbols, real, message.scales.astype("<f4").tobytes()], 0
    for section in sections:
        checksum = zlib.crc32(section, checksum)
    return b"".join([*sections, CHECKSUM.pack(checksum)])  # one copy of all, however many floats there are


def decode(data: bytes, context: Context | None = None, expect: int | None = None) -> Message:
    """Read a message.

    Memory stays below 32 times the larger of the message and the receiver's model.

    Args:
        data: exactly one message.
        context: the receiver's; a message for another model, round or context is refused. None takes those of any model that can
            be read without a context.
        expect: how many symbols the receiver's model has, where there is no context to tell.

    Raises:
        WireError: for every other sequence of bytes, naming offset and reason.
    """
    data = bytes(data)
    header = read_header(data)
    around = context
    if context is not None:
        _fits(header, context)
        around = context.narrowed(context.selects(header.sender if header.kind == UPLOAD else None))
        expect = around.count
    if expect is not None and header.symbols != expect:
        raise refused("symbols", f"holds {header.symbols} symbols, the model has {expect}")
    starts = list(accumulate(header.sections().values()))
    symbols, real, scales, _ = (memoryview(data)[begin:end] for begin, end in pairwise(starts))
    alphabet = header.spelled_alphabet()
    return Message(
        _section(starts[0], lambda: _read_symbols(symbols, header, alphabet, around)),
        alphabet,
        _section(starts[1], lambda: _read_reals(real, header, context)),
        np.frombuffer(scales, "<f4").astype(np.float32),
        header.sender if header.kind == UPLOAD else None,
        header.weight,
        header.round,
        around.about if around else None,
    )


def ideal_size(data: bytes, message: Message, context: Context | None) -> float | None:
    """How long `data`, which spells the message, would be if its symbols took their empirical conditional entropy.

    None where there is no context, or the symbols are floats.
    """
    if context is None or context.known is None or not message.alphabet.size:
        return None
    ideal = ideal_bits(message.symbols, message.alphabet, context.narrowed(message.about))
    return len(data) - read_header(data).symbol_bytes + ideal / 8


def bits_by_weight(data: bytes, message: Message, context: Context | None) -> npt.NDArray[np.float64]:
    """(symbols,) how many bits of `data`, which spells the message, went into each symbol."""
    header = read_header(data)
    if header.coder != PACKED and context is not None:
        context = context.narrowed(message.about)
        return costs(message.symbols, message.alphabet, context, _PACES[header.coder], upload=header.kind == UPLOAD)
    return np.full(header.symbols, 8 * header.symbol_bytes / max(header.symbols, 1))


def _fits(header: Header, context: Context) -> None:
    """Refuse by name what was not meant for this receiver."""
    fingerprint = context.layout.fingerprint
    if header.model != bytes.fromhex(fingerprint):
        raise refused("model", f"is for model {header.model.hex()}, this is {fingerprint}")
    if header.round != context.round:
        raise refused("round", f"is of round {header.round}, this is round {context.round}")
    if header.context not in (NO_DIGEST, context.digest):
        raise refused("context", f"was coded in context {header.context.hex()}, ours is {context.digest.hex()}")
    if header.reals != context.layout.reals:
        raise refused("reals", f"holds {header.reals} real numbers, the model has {context.layout.reals}")


def _spell_reals(message: Message, context: Context | None) -> tuple[int, bytes]:
    """Precision and bytes of the real parameters."""
    bits = 0 if context is None else context.precision[message.sender is None]
    if context is None or bits == 0:
        return 0, message.real.astype("<f4").tobytes()
    exact, numbers = reals.split(message.real, context.layout)
    if not reals.fits(numbers):
        return 0, message.real.astype("<f4").tobytes()
    dice = np.random.default_rng([message.round, 0 if message.sender is None else message.sender + 1])
    known, reference = _reference(bits, context)
    same = numbers == known
    same[: int(context.layout.normed.sum())] = False
    grid = np.where(same, reference, reals.to_grid(numbers, bits, dice))  # statistics that are no news cost no more than a bit
    return bits, exact.astype("<f4").tobytes() + reals.rice(grid - reference)


def _read_reals(data: Bytes, header: Header, context: Context | None) -> Floats:
    if not header.precision:
        return np.frombuffer(data, "<f4").astype(np.float32)
    if context is None:
        raise ValueError("the real numbers can be read only by who knows the model")
    layout = context.layout
    exact = int((~layout.normed).sum())
    if len(data) < 4 * exact:
        raise ValueError(f"{len(data)} bytes are too few for {exact} float32")
    known = context if context.known is None or header.context != NO_DIGEST else Context(layout, context.round)
    grid = reals.read_rice(data[4 * exact :], layout.reals - exact) + _reference(header.precision, known)[1]
    if not reals.on_grid(grid, header.precision):
        raise ValueError("a real number is too large")
    return reals.join(np.frombuffer(data[: 4 * exact], "<f4"), reals.from_grid(grid, header.precision), layout)


@lru_cache(maxsize=4)
def _reference(bits: int, context: Context) -> tuple[reals.Numbers, reals.Integers]:
    """What numbers are known, and the grid numbers that others are spelled as differences to: the same for a whole round."""
    real = np.zeros(context.layout.reals, np.float32) if context.known is None else context.known.real
    numbers = reals.split(real, context.layout)[1]
    numbers = numbers if reals.fits(numbers) else np.zeros_like(numbers)
    return numbers, reals.to_grid(numbers, bits, None)


def _read_symbols(data: Bytes, header: Header, alphabet: Alphabet, context: Context | None) -> Symbols:
    if header.coder == PACKED:
        return unpack(data, header.symbols, alphabet)
    if context is None:
        raise ValueError("the symbols can be read only in the context they were coded in")
    return expand(data, alphabet, context, _PACES[header.coder], upload=header.kind == UPLOAD)


def _section(offset: int, read: Callable[[], Part]) -> Part:
    try:
        return read()
    except ValueError as error:
        raise WireError(offset, str(error)) from None
