"""The header of a message: its fields, how they are read, and what no encoder writes (docs/wire-format.md)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from bifl.codec import reals
from bifl.codec.context import NO_DIGEST
from bifl.codec.packed import packed_size
from bifl.core.message import BINARY, FLOAT16, FLOAT32, LONGEST_NAME, MOST_VECTORS, TERNARY, UPDATE, Alphabet, Votes, is_name
from bifl.core.sums import LARGEST_WEIGHT
from bifl.errors import BiflError

MAGIC = b"BIFL"
VERSION = 2
UPLOAD, BROADCAST = 1, 2
PACKED, CODED, CODED_QUICKLY = 0, 1, 2
LAYOUT = struct.Struct("<4sBBBBBBBxIIII8s8sIIIIII")
VECTOR_LAYOUT = struct.Struct(f"<{LONGEST_NAME}sBB2xIIIII")
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


class VectorHeader(NamedTuple):
    """What a message says of one of its vectors."""

    name: str
    alphabet: int
    coder: int  # of the symbols: PACKED, CODED or CODED_QUICKLY
    total: int  # of vote counts, or how many levels there are; else 0
    unit: int  # of vote counts, else 0
    symbols: int  # how many
    symbol_bytes: int
    scales: int  # how many
    offsets: Mapping[str, int]  # where these fields stand in the message

    def spelled_alphabet(self) -> Alphabet:
        """The alphabet of the symbols."""
        if self.alphabet == _VOTES:
            return Votes(self.total, self.unit)
        return Alphabet(f"{self.total} levels", self.total) if self.alphabet == _LEVELS else _ALPHABETS[self.alphabet]

    def section(self, part: str) -> str:
        """The name of one of its sections, which are its header, symbols and scales."""
        return part if self.name == UPDATE else f"{self.name} {part}"

    def refused(self, field: str, reason: str) -> WireError:
        """The error of one of these fields."""
        return WireError(self.offsets[field], reason if self.name == UPDATE else f"in the vector '{self.name}': {reason}")

    def packed(self) -> bytes:
        """The bytes of the header of a vector that is not the update."""
        return VECTOR_LAYOUT.pack(self.name.encode("ascii"), *self[1:-1])


class Header(NamedTuple):
    """What a message says of itself, in the order of its bytes."""

    magic: bytes
    version: int
    kind: int  # UPLOAD or BROADCAST
    alphabet: int  # of the update, as all that a `VectorHeader` says of other vectors
    coder: int
    precision: int  # of the reals: binary digits after the first, 0 for float32
    further: int  # how many vectors there are beside the update
    change_bits: int  # of a change of layers kept real; 0 for float32
    round: int
    sender: int  # 0 for the server
    weight: int  # |D_i|
    symbols: int
    model: bytes  # fingerprint of the layout; zeros where there is none
    context: bytes  # digest; zeros if the message can be read without
    total: int
    unit: int
    reals: int
    scales: int
    symbol_bytes: int
    real_bytes: int
    others: tuple[VectorHeader, ...] = ()  # of the further vectors, from where they stand

    def packed(self) -> bytes:
        """The bytes of the first header."""
        return LAYOUT.pack(*self[:-1])

    @property
    def update(self) -> VectorHeader:
        """What it says of the update."""
        return VectorHeader(
            UPDATE, self.alphabet, self.coder, self.total, self.unit, self.symbols, self.symbol_bytes, self.scales, _OFFSETS
        )

    @property
    def vectors(self) -> tuple[VectorHeader, ...]:
        """What it says of each of its vectors."""
        return (self.update, *self.others)

    @property
    def in_context(self) -> bool:
        """Whether any symbols are coded in a context."""
        return any(vector.coder != PACKED for vector in self.vectors)

    def sections(self) -> dict[str, int]:
        """Bytes of every part, in order."""
        sizes = {"header": LAYOUT.size, "symbols": self.symbol_bytes, "reals": self.real_bytes, "scales": 4 * self.scales}
        for vector in self.others:
            sizes |= {
                vector.section("header"): VECTOR_LAYOUT.size,
                vector.section("symbols"): vector.symbol_bytes,
                vector.section("scales"): 4 * vector.scales,
            }
        return sizes | {"checksum": CHECKSUM.size}


_OFFSETS = dict(zip(Header._fields, (0, 4, 5, 6, 7, 8, 9, 10, 12, 16, 20, 24, 28, 36, 44, 48, 52, 56, 60, 64), strict=False))
_VECTOR_OFFSETS = dict(zip(VectorHeader._fields, (0, 16, 17, 20, 24, 28, 32, 36), strict=False))


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
    header = header._replace(others=_others(header, memoryview(data)[:body]))
    _sensible(header, data)
    return header


def vector_header(name: str, alphabet: Alphabet, coder: int, symbols: int, symbol_bytes: int, scales: int) -> VectorHeader:
    """What a message that is to be written says of one of its vectors."""
    if not is_name(name):
        raise ValueError(f"{name!r} is no name of a vector: 1 to {LONGEST_NAME} letters from a to z or _")
    code, total, unit = _spell(alphabet)
    return VectorHeader(name, code, coder, total, unit, symbols, symbol_bytes, scales, {})


def _spell(alphabet: Alphabet) -> tuple[int, int, int]:
    """Code, total and unit of an alphabet: of levels, the total is how many there are."""
    if isinstance(alphabet, Votes):
        return _VOTES, alphabet.total, alphabet.unit
    return (_CODES[alphabet], 0, 0) if alphabet in _CODES else (_LEVELS, alphabet.size, 0)


def _others(header: Header, body: memoryview) -> tuple[VectorHeader, ...]:
    """The headers of the further vectors, each of which stands behind the vector before it."""
    if header.further >= MOST_VECTORS:
        raise refused("further", f"holds {header.further} further vectors, {MOST_VECTORS - 1} are the most")
    vectors: list[VectorHeader] = []
    start = LAYOUT.size + header.symbol_bytes + header.real_bytes + 4 * header.scales
    for _ in range(header.further):
        if start + VECTOR_LAYOUT.size > len(body):
            raise refused("further", f"is too short for the {header.further} further vectors that it names")
        raw, *fields = VECTOR_LAYOUT.unpack_from(body, start)
        name = raw.rstrip(b"\0").decode("latin-1")
        before = vectors[-1].name if vectors else ""
        if not is_name(name) or name == UPDATE or name <= before:
            raise WireError(start, f"a further vector is called {name!r}: names are letters from a to z or _, and rise")
        if any(body[start + LONGEST_NAME + 2 : start + LONGEST_NAME + 4]):
            raise WireError(start + LONGEST_NAME + 2, f"the padding in the header of the vector '{name}' is not zero")
        offsets = {field: start + offset for field, offset in _VECTOR_OFFSETS.items()}
        vector = VectorHeader._make((name, *fields, offsets))
        vectors.append(vector)
        start += VECTOR_LAYOUT.size + vector.symbol_bytes + 4 * vector.scales
    return tuple(vectors)


def _sensible(header: Header, data: bytes) -> None:
    """Refuse what no encoder writes."""
    if header.kind not in KINDS:
        raise refused("kind", f"kind {header.kind} is unknown")
    if header.precision > reals.FINEST or data[11]:
        raise refused("precision", f"reals have {header.precision} digits, {reals.FINEST} is the most, or the padding is not zero")
    if header.change_bits not in reals.CHANGE_BITS or (header.change_bits and not header.precision):
        raise refused("change_bits", f"changes of layers kept real have {header.change_bits} bits: 8 or 1, beside rounded numbers")
    if header.kind == BROADCAST and header.sender:
        raise refused("sender", "a broadcast has no sender")
    if not 1 <= header.weight <= LARGEST_WEIGHT:
        raise refused("weight", f"weight must be from 1 to {LARGEST_WEIGHT}, not {header.weight}")
    for vector in header.vectors:
        _sensible_alphabet(vector)
    if header.in_context and header.context == NO_DIGEST:
        raise refused("context", "coded symbols name no context")
    if header.change_bits and header.context == NO_DIGEST:
        raise refused("context", "changes of layers kept real name no context")
    whole = sum(header.sections().values())
    if whole != len(data):
        raise refused("symbols", f"is {len(data)} bytes long, its header calls for {whole}")
    for vector in header.vectors:
        size = packed_size(vector.symbols, vector.spelled_alphabet())
        if vector.coder == PACKED and vector.symbol_bytes != size:
            raise vector.refused("symbol_bytes", f"{vector.symbols} packed symbols take {size} bytes, not {vector.symbol_bytes}")
    if not header.precision and header.real_bytes != 4 * header.reals:
        raise refused("real_bytes", f"{header.reals} float32 take {4 * header.reals} bytes, not {header.real_bytes}")


def _sensible_alphabet(vector: VectorHeader) -> None:
    """Refuse an alphabet or a coder that no encoder writes."""
    votes, levels = vector.alphabet == _VOTES, vector.alphabet == _LEVELS
    if not (votes or levels) and vector.alphabet not in _ALPHABETS:
        raise vector.refused("alphabet", f"alphabet {vector.alphabet} is unknown")
    if vector.coder not in CODERS or (vector.coder != PACKED and (vector.alphabet in _FLOATS or not vector.symbols)):
        raise vector.refused("coder", f"coder {vector.coder} is unknown for these symbols")
    if levels and (vector.total < _LEAST_LEVELS or vector.total > LARGEST_WEIGHT or vector.unit):
        raise vector.refused(
            "total",
            f"total must be the number of levels, {_LEAST_LEVELS} or more, and unit 0, not {vector.total} and {vector.unit}",
        )
    least, most = (1, LARGEST_WEIGHT) if votes else (0, 0)
    if not levels and not (least <= vector.total <= most and least <= vector.unit <= most):
        raise vector.refused(
            "total", f"total and unit must be 1 or more for votes and 0 otherwise, not {vector.total} and {vector.unit}"
        )


def refused(field: str, reason: str) -> WireError:
    """The error of a field of the first header."""
    return WireError(_OFFSETS[field], reason)
