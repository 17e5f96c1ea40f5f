"""The header of a message: its fields, how they are read, and what no encoder writes (docs/wire-format.md)."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from bifl.codec import reals
from bifl.codec.context import NO_DIGEST
from bifl.codec.packed import packed_size
from bifl.core.exact_sum import LARGEST_WEIGHT
from bifl.core.message import BINARY, FLOAT16, FLOAT32, TERNARY, Alphabet, Votes
from bifl.errors import BiflError

MAGIC = b"BIFL"
VERSION = 1
UPLOAD, BROADCAST = 1, 2
PACKED, CODED, CODED_QUICKLY = 0, 1, 2
LAYOUT = struct.Struct("<4sBBBBB3xIIII8s8sIIIIII")
CHECKSUM = struct.Struct("<I")
_VOTES, _LEVELS = 3, 5
_CODES = {BINARY: 1, TERNARY: 2, FLOAT32: 4, FLOAT16: 6}
_ALPHABETS = {code: alphabet for alphabet, code in _CODES.items()}
_FLOATS = (_CODES[FLOAT32], _CODES[FLOAT16])
_LEAST_LEVELS = 4  # fewer are binary or ternary
ANY_MODEL = bytes(8)
KINDS = {UPLOAD: "upload", BROADCAST: "broadcast"}
CODERS = {PACKED: "packed", CODED: "context", CODED_QUICKLY: "context, learning quickly"}


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
    total: int  # of vote counts, or how many levels there are; else 0
    unit: int  # of vote counts, else 0
    reals: int
    scales: int
    symbol_bytes: int
    real_bytes: int

    def sections(self) -> dict[str, int]:
        """Bytes of every part, in order."""
        sizes = (LAYOUT.size, self.symbol_bytes, self.real_bytes, 4 * self.scales, CHECKSUM.size)
        return dict(zip(("header", "symbols", "reals", "scales", "checksum"), sizes, strict=True))

    def spelled_alphabet(self) -> Alphabet:
        """The alphabet of the symbols."""
        if self.alphabet == _VOTES:
            return Votes(self.total, self.unit)
        return Alphabet(f"{self.total} levels", self.total) if self.alphabet == _LEVELS else _ALPHABETS[self.alphabet]


_OFFSETS = dict(zip(Header._fields, (0, 4, 5, 6, 7, 8, 12, 16, 20, 24, 28, 36, 44, 48, 52, 56, 60, 64), strict=True))


def read_header(data: bytes) -> Header:
    """The header of exactly one message, checked for sense and against the checksum.

    Raises:
        WireError: data is not a message.
    """
    if len(data) < LAYOUT.size + CHECKSUM.size:
        raise WireError(len(data), f"cut short, a message has at least {LAYOUT.size + CHECKSUM.size} bytes")
    header = Header(*LAYOUT.unpack_from(data))
    if header.magic != MAGIC:
        raise refused("magic", f"starts with {header.magic!r} instead of {MAGIC!r}")
    if header.version != VERSION:
        raise refused("version", f"has version {header.version}, this program reads version {VERSION}")
    body = len(data) - CHECKSUM.size
    if zlib.crc32(memoryview(data)[:body]) != CHECKSUM.unpack_from(data, body)[0]:
        raise WireError(body, "the checksum does not fit: the message was damaged or cut short")
    _sensible(header, data)
    return header


def spell_alphabet(alphabet: Alphabet) -> tuple[int, int, int]:
    """Code, total and unit of an alphabet: of levels, the total is how many there are."""
    if isinstance(alphabet, Votes):
        return _VOTES, alphabet.total, alphabet.unit
    return (_CODES[alphabet], 0, 0) if alphabet in _CODES else (_LEVELS, alphabet.size, 0)


def _sensible(header: Header, data: bytes) -> None:
    """Refuse what no encoder writes."""
    votes, levels = header.alphabet == _VOTES, header.alphabet == _LEVELS
    if header.kind not in KINDS:
        raise refused("kind", f"kind {header.kind} is unknown")
    if not (votes or levels) and header.alphabet not in _ALPHABETS:
        raise refused("alphabet", f"alphabet {header.alphabet} is unknown")
    if header.coder not in CODERS or (header.coder != PACKED and (header.alphabet in _FLOATS or not header.symbols)):
        raise refused("coder", f"coder {header.coder} is unknown for these symbols")
    if header.precision > reals.FINEST or any(data[9:12]):
        raise refused("precision", f"reals have {header.precision} digits, {reals.FINEST} is the most, or the padding is not zero")
    if header.kind == BROADCAST and header.sender:
        raise refused("sender", "a broadcast has no sender")
    if not 1 <= header.weight <= LARGEST_WEIGHT:
        raise refused("weight", f"weight must be from 1 to {LARGEST_WEIGHT}, not {header.weight}")
    if header.coder != PACKED and header.context == NO_DIGEST:
        raise refused("context", "coded symbols name no context")
    if levels and (header.total < _LEAST_LEVELS or header.total > LARGEST_WEIGHT or header.unit):
        raise refused(
            "total",
            f"total must be the number of levels, {_LEAST_LEVELS} or more, and unit 0, not {header.total} and {header.unit}",
        )
    least, most = (1, LARGEST_WEIGHT) if votes else (0, 0)
    if not levels and not (least <= header.total <= most and least <= header.unit <= most):
        raise refused("total", f"total and unit must be 1 or more for votes and 0 otherwise, not {header.total} and {header.unit}")
    whole = sum(header.sections().values())
    if whole != len(data):
        raise refused("symbols", f"is {len(data)} bytes long, its header calls for {whole}")
    packed = packed_size(header.symbols, header.spelled_alphabet())
    if header.coder == PACKED and header.symbol_bytes != packed:
        raise refused("symbol_bytes", f"{header.symbols} packed symbols take {packed} bytes, not {header.symbol_bytes}")
    if not header.precision and header.real_bytes != 4 * header.reals:
        raise refused("real_bytes", f"{header.reals} float32 take {4 * header.reals} bytes, not {header.real_bytes}")


def refused(field: str, reason: str) -> WireError:
    """The error of a header's field."""
    return WireError(_OFFSETS[field], reason)
