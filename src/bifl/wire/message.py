"""Messages as bytes, format version 1 (docs/wire-format.md): header, symbols, reals, scales, checksum.

>>> import numpy as np
>>> from bifl.message import BINARY, Message
>>> data = encode(Message(np.array([1, 0, 1], np.uint8), BINARY, np.zeros(0, np.float32)))
>>> len(data), decode(data).symbols
(73, array([1, 0, 1], dtype=uint8))
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from bifl.errors import BiflError
from bifl.message import BINARY, FLOAT32, TERNARY, Alphabet, Floats, Message, Symbols, Votes
from bifl.tally import LARGEST_WEIGHT
from bifl.wire import reals
from bifl.wire.context import NO_DIGEST, Context
from bifl.wire.entropy import QUICK, STEADY, compress, costs, expand, ideal_bits
from bifl.wire.pack import check, pack, packed_size, unpack

MAGIC = b"BIFL"
VERSION = 1
UPLOAD, BROADCAST = 1, 2
PACKED, CODED, CODED_QUICKLY = 0, 1, 2
_LAYOUT = struct.Struct("<4sBBBBB3xIIII8s8sIIIIII")
_CHECKSUM = struct.Struct("<I")
_VOTES = 3
_CODES = {BINARY: 1, TERNARY: 2, FLOAT32: 4}
_ALPHABETS = {code: alphabet for alphabet, code in _CODES.items()}
_ANY_MODEL = bytes(8)
Part = TypeVar("Part", bound=Any)
KINDS = {UPLOAD: "upload", BROADCAST: "broadcast"}
CODERS = {PACKED: "packed", CODED: "context", CODED_QUICKLY: "context, learning quickly"}
_PACES = {CODED: STEADY, CODED_QUICKLY: QUICK}


class WireError(BiflError, ValueError):
    """Bytes that are not a message, or not the one expected."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"bad message at byte {offset}: {reason}")
        self.offset = offset
        self.reason = reason

    def __reduce__(self) -> tuple[type[WireError], tuple[int, str]]:
        return WireError, (self.offset, self.reason)  # errors cross from worker processes


class Header(NamedTuple):
    """What a message says of itself, in the order of its bytes."""

    magic: bytes
    version: int
    kind: int  # UPLOAD or BROADCAST
    alphabet: int
    coder: int  # of the symbols: PACKED, CODED or CODED_QUICKLY
    precision: int  # of the reals: binary digits after the first, 0 for float32
    round: int
    sender: int  # 0 for the server
    weight: int  # |D_i|
    symbols: int  # how many
    model: bytes  # fingerprint of the layout; zeros where there is none
    context: bytes  # digest; zeros if the message can be read without
    total: int  # of vote counts, else 0
    unit: int  # of vote counts, else 0
    reals: int
    scales: int
    symbol_bytes: int
    real_bytes: int

    def sections(self) -> dict[str, int]:
        """Bytes of every part, in order."""
        sizes = (_LAYOUT.size, self.symbol_bytes, self.real_bytes, 4 * self.scales, _CHECKSUM.size)
        return dict(zip(("header", "symbols", "reals", "scales", "checksum"), sizes, strict=True))

    def spelled_alphabet(self) -> Alphabet:
        """The alphabet of the symbols."""
        return Votes(self.total, self.unit) if self.alphabet == _VOTES else _ALPHABETS[self.alphabet]


_OFFSETS = dict(zip(Header._fields, (0, 4, 5, 6, 7, 8, 12, 16, 20, 24, 28, 36, 44, 48, 52, 56, 60, 64), strict=True))


def encode(message: Message, context: Context | None = None) -> bytes:
    """Spell a message in the fewest bytes.

    Args:
        message: what to say.
        context: what both ends know; none spells everything out, reals as float32, for any reader.
    """
    alphabet, upload = message.alphabet, message.sender is not None
    check(message.symbols, alphabet)
    coder, symbols = PACKED, None
    if context is not None and context.shared is not None and alphabet.size and len(message.symbols):
        least = packed_size(len(message.symbols), alphabet)
        for choice in (CODED,) if upload else (CODED, CODED_QUICKLY):
            coded = compress(message.symbols, alphabet, context, _PACES[choice], upload=upload)
            if len(coded) < least:
                least, coder, symbols = len(coded), choice, coded
    if symbols is None:
        symbols = pack(message.symbols, alphabet)
    precision, real = _spell_reals(message, context)
    votes = (alphabet.total, alphabet.unit) if isinstance(alphabet, Votes) else (0, 0)
    header = Header(
        MAGIC, VERSION, UPLOAD if upload else BROADCAST, _CODES.get(alphabet, _VOTES), coder, precision,
        message.round, message.sender or 0, message.weight, len(message.symbols),
        bytes.fromhex(context.layout.fingerprint) if context else _ANY_MODEL, context.digest if context else NO_DIGEST,
        *votes, len(message.real), len(message.scales), len(symbols), len(real),
    )  # fmt: skip
    body = b"".join((_LAYOUT.pack(*header), symbols, real, message.scales.astype("<f4").tobytes()))
    return body + _CHECKSUM.pack(zlib.crc32(body))


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
    expect = context.layout.count if context else expect
    if context is not None:
        _fits(header, context)
    if expect is not None and header.symbols != expect:
        raise _refused("symbols", f"holds {header.symbols} symbols, the model has {expect}")
    starts = list(accumulate(header.sections().values()))
    symbols, real, scales, _ = (data[begin:end] for begin, end in pairwise(starts))
    alphabet = header.spelled_alphabet()
    return Message(
        _section(starts[0], lambda: _read_symbols(symbols, header, alphabet, context)),
        alphabet,
        _section(starts[1], lambda: _read_reals(real, header, context)),
        np.frombuffer(scales, "<f4").astype(np.float32),
        header.sender if header.kind == UPLOAD else None,
        header.weight,
        header.round,
    )


def read_header(data: bytes) -> Header:
    """The header of exactly one message, checked for sense and against the checksum.

    Raises:
        WireError: data is not a message.
    """
    if len(data) < _LAYOUT.size + _CHECKSUM.size:
        raise WireError(len(data), f"cut short, a message has at least {_LAYOUT.size + _CHECKSUM.size} bytes")
    header = Header(*_LAYOUT.unpack_from(data))
    if header.magic != MAGIC:
        raise _refused("magic", f"starts with {header.magic!r} instead of {MAGIC!r}")
    if header.version != VERSION:
        raise _refused("version", f"has version {header.version}, this program reads version {VERSION}")
    body = len(data) - _CHECKSUM.size
    if zlib.crc32(memoryview(data)[:body]) != _CHECKSUM.unpack_from(data, body)[0]:
        raise WireError(body, "the checksum does not fit: the message was damaged or cut short")
    _sensible(header, data)
    return header


def ideal_size(data: bytes, message: Message, context: Context) -> float | None:
    """How long `data`, which spells the message, would be if its symbols took their empirical conditional entropy.

    None where there is no context, or the symbols are floats.
    """
    if context.shared is None or not message.alphabet.size:
        return None
    return len(data) - read_header(data).symbol_bytes + ideal_bits(message.symbols, message.alphabet, context) / 8


def bits_by_weight(data: bytes, message: Message, context: Context | None) -> npt.NDArray[np.float64]:
    """(count,) how many bits of `data`, which spells the message, went into each symbol."""
    header = read_header(data)
    if header.coder != PACKED and context is not None:
        return costs(message.symbols, message.alphabet, context, _PACES[header.coder], upload=header.kind == UPLOAD)
    return np.full(header.symbols, 8 * header.symbol_bytes / max(header.symbols, 1))


def _sensible(header: Header, data: bytes) -> None:
    """Refuse what no encoder writes."""
    votes = header.alphabet == _VOTES
    if header.kind not in KINDS:
        raise _refused("kind", f"kind {header.kind} is unknown")
    if not votes and header.alphabet not in _ALPHABETS:
        raise _refused("alphabet", f"alphabet {header.alphabet} is unknown")
    if header.coder not in CODERS or (header.coder != PACKED and (header.alphabet == _CODES[FLOAT32] or not header.symbols)):
        raise _refused("coder", f"coder {header.coder} is unknown for these symbols")
    if header.precision > reals.FINEST or any(data[9:12]):
        raise _refused("precision", f"reals have {header.precision} digits, {reals.FINEST} is the most, or the padding is not zero")
    if header.kind == BROADCAST and header.sender:
        raise _refused("sender", "a broadcast has no sender")
    if not 1 <= header.weight <= LARGEST_WEIGHT:
        raise _refused("weight", f"weight must be from 1 to {LARGEST_WEIGHT}, not {header.weight}")
    if header.coder != PACKED and header.context == NO_DIGEST:
        raise _refused("context", "coded symbols name no context")
    least, most = (1, LARGEST_WEIGHT) if votes else (0, 0)
    if not (least <= header.total <= most and least <= header.unit <= most):
        raise _refused(
            "total", f"{header.total} votes in units of {header.unit} cannot be: vote counts have both, nothing else has"
        )
    whole = sum(header.sections().values())
    if whole != len(data):
        raise _refused("symbols", f"is {len(data)} bytes long, its header calls for {whole}")
    packed = packed_size(header.symbols, header.spelled_alphabet())
    if header.coder == PACKED and header.symbol_bytes != packed:
        raise _refused("symbol_bytes", f"{header.symbols} packed symbols take {packed} bytes, not {header.symbol_bytes}")
    if not header.precision and header.real_bytes != 4 * header.reals:
        raise _refused("real_bytes", f"{header.reals} float32 take {4 * header.reals} bytes, not {header.real_bytes}")


def _fits(header: Header, context: Context) -> None:
    """Refuse by name what was not meant for this receiver."""
    fingerprint = context.layout.fingerprint
    if header.model != bytes.fromhex(fingerprint):
        raise _refused("model", f"is for model {header.model.hex()}, this is {fingerprint}")
    if header.round != context.round:
        raise _refused("round", f"is of round {header.round}, this is round {context.round}")
    if header.context not in (NO_DIGEST, context.digest):
        raise _refused("context", f"was coded in context {header.context.hex()}, ours is {context.digest.hex()}")
    if header.reals != context.layout.reals:
        raise _refused("reals", f"holds {header.reals} real numbers, the model has {context.layout.reals}")


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


def _read_reals(data: bytes, header: Header, context: Context | None) -> Floats:
    if not header.precision:
        return np.frombuffer(data, "<f4").astype(np.float32)
    if context is None:
        raise ValueError("the real numbers can be read only by who knows the model")
    layout = context.layout
    exact = int((~layout.normed).sum())
    if len(data) < 4 * exact:
        raise ValueError(f"{len(data)} bytes are too few for {exact} float32")
    known = context if context.shared is None or header.context != NO_DIGEST else Context(layout, context.round)
    grid = reals.read_rice(data[4 * exact :], layout.reals - exact) + _reference(header.precision, known)[1]
    if not reals.on_grid(grid, header.precision):
        raise ValueError("a real number is too large")
    return reals.join(np.frombuffer(data[: 4 * exact], "<f4"), reals.from_grid(grid, header.precision), layout)


@lru_cache(maxsize=4)
def _reference(bits: int, context: Context) -> tuple[reals.Numbers, reals.Integers]:
    """What numbers are known, and the grid numbers that others are spelled as differences to: the same for a whole round."""
    real = np.zeros(context.layout.reals, np.float32) if context.shared is None else context.shared.real
    numbers = reals.split(real, context.layout)[1]
    numbers = numbers if reals.fits(numbers) else np.zeros_like(numbers)
    return numbers, reals.to_grid(numbers, bits, None)


def _read_symbols(data: bytes, header: Header, alphabet: Alphabet, context: Context | None) -> Symbols:
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


def _refused(field: str, reason: str) -> WireError:
    return WireError(_OFFSETS[field], reason)
