"""Messages as bytes, format version 2 (docs/wire-format.md): header, symbols, reals, scales, further vectors, checksum.

First the header: its fields, how they are read, and what no encoder writes; then how a whole message is spelled and read;
last a digest of the public state, by which two ends find out whether they know the same.

>>> import numpy as np
>>> from bifl.core.message import BINARY, Message
>>> data = encode(Message.of(np.array([1, 0, 1], np.uint8), BINARY, np.zeros(0, np.float32)))
>>> len(data), decode(data).update.symbols
(73, array([1, 0, 1], dtype=uint8))
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.codec import reals
from bifl.codec.context import NO_DIGEST, Context, VectorContext
from bifl.codec.symbols import QUICK, STEADY, Bytes, check, compress, costs, expand, ideal_bits, pack, packed_size, unpack
from bifl.core.message import (
    BINARY,
    FLOAT16,
    FLOAT32,
    LONGEST_NAME,
    MOST_VECTORS,
    TERNARY,
    UPDATE,
    Alphabet,
    Floats,
    Message,
    Selections,
    Symbols,
    Vector,
    Votes,
    even_levels,
    is_name,
)
from bifl.core.state import Public
from bifl.core.sums import LARGEST_TRAINED, LARGEST_WEIGHT, all_below
from bifl.errors import BiflError

MAGIC = b"BIFL"
VERSION = 2
UPLOAD, BROADCAST = 1, 2
PACKED, CODED, CODED_QUICKLY = 0, 1, 2
FIELDS = {  # of the first header, in the order of its bytes, each with its code in Python's `struct`; x is a zero
    "magic": "4s",
    "version": "B",
    "kind": "B",
    "alphabet": "B",
    "coder": "B",
    "precision": "B",
    "further": "B",
    "change_bits": "B",
    "padding": "x",
    "round": "I",
    "sender": "I",
    "weight": "I",
    "symbols": "I",
    "model": "8s",
    "context": "8s",
    "total": "I",
    "unit": "I",
    "reals": "I",
    "scales": "I",
    "symbol_bytes": "I",
    "real_bytes": "I",
}
VECTOR_FIELDS = {  # of the header of each further vector
    "name": f"{LONGEST_NAME}s",
    "alphabet": "B",
    "coder": "B",
    "padding": "2x",
    "total": "I",
    "unit": "I",
    "symbols": "I",
    "symbol_bytes": "I",
    "scales": "I",
}
LAYOUT = struct.Struct("<" + "".join(FIELDS.values()))
VECTOR_LAYOUT = struct.Struct("<" + "".join(VECTOR_FIELDS.values()))
CHECKSUM = struct.Struct("<I")
_VOTES, _LEVELS = 3, 5
_CODES = {BINARY: 1, TERNARY: 2, FLOAT32: 4, FLOAT16: 6}
_ALPHABETS = {code: alphabet for alphabet, code in _CODES.items()}
_FLOATS = (_CODES[FLOAT32], _CODES[FLOAT16])
_LEAST_LEVELS = 4  # fewer are binary or ternary
ANY_MODEL = bytes(8)
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


class VectorHeader(NamedTuple):
    """What a message says of one of its vectors, in the order of `VECTOR_FIELDS`."""

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
        return even_levels(self.total) if self.alphabet == _LEVELS else _ALPHABETS[self.alphabet]

    def section(self, part: str) -> str:
        """The name of one of its sections, which are its header, symbols and scales."""
        return part if self.name == UPDATE else f"{self.name} {part}"

    def demand(self, holds: bool, field: str, reason: str) -> None:
        """Refuse the message for what one of these fields says, unless something holds."""
        if not holds:
            raise WireError(self.offsets[field], reason if self.name == UPDATE else f"in the vector '{self.name}': {reason}")

    def packed(self) -> bytes:
        """The bytes of the header of a vector that is not the update."""
        return VECTOR_LAYOUT.pack(self.name.encode("ascii"), *self[1:-1])


class Header(NamedTuple):
    """What a message says of itself, in the order of `FIELDS`."""

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


def _offsets(fields: Mapping[str, str]) -> dict[str, int]:
    """Where each field begins: behind all before it."""
    offsets, size = dict[str, int](), 0
    for field, code in fields.items():
        offsets[field] = size
        size += struct.calcsize(f"<{code}")
    return offsets


_OFFSETS = _offsets(FIELDS) | {"body": LAYOUT.size}
_VECTOR_OFFSETS = _offsets(VECTOR_FIELDS)


def read_header(data: bytes) -> Header:
    """The header of exactly one message, checked for sense and against the checksum."""
    if len(data) < LAYOUT.size + CHECKSUM.size:
        raise WireError(len(data), f"cut short, a message has at least {LAYOUT.size + CHECKSUM.size} bytes")
    header = Header(*LAYOUT.unpack_from(data))
    demand(header.magic == MAGIC, "magic", f"starts with {header.magic!r} instead of {MAGIC!r}")
    demand(header.version == VERSION, "version", f"has version {header.version}, this program reads version {VERSION}")
    body = len(data) - CHECKSUM.size
    if zlib.crc32(memoryview(data)[:body]) != CHECKSUM.unpack_from(data, body)[0]:
        raise WireError(body, "the checksum does not fit: the message was damaged or cut short")
    header = header._replace(others=_others(header, memoryview(data)[:body]))
    _sensible(header, data)
    return header


def of_this_version(message: bytes) -> bytes:
    """The message of a model file; one of version 1 differs in its version and its checksum alone."""
    body, place = message[: -CHECKSUM.size], _OFFSETS["version"]
    sound = len(message) >= LAYOUT.size and zlib.crc32(body) == CHECKSUM.unpack_from(message, len(body))[0]
    if not sound or message[: place + 1] != MAGIC + b"\1":
        return message
    lifted = MAGIC + bytes([VERSION]) + body[place + 1 :]
    return lifted + CHECKSUM.pack(zlib.crc32(lifted))


def _spell_alphabet(alphabet: Alphabet) -> tuple[int, int, int]:
    """Code, total and unit of an alphabet: of levels, the total is how many there are."""
    if isinstance(alphabet, Votes):
        return _VOTES, alphabet.total, alphabet.unit
    return (_CODES[alphabet], 0, 0) if alphabet in _CODES else (_LEVELS, alphabet.size, 0)


def _others(header: Header, body: memoryview) -> tuple[VectorHeader, ...]:
    """The headers of the further vectors, each of which stands behind the vector before it."""
    most = MOST_VECTORS - 1
    demand(header.further <= most, "further", f"holds {header.further} further vectors, {most} are the most")
    vectors: list[VectorHeader] = []
    start = LAYOUT.size + header.symbol_bytes + header.real_bytes + 4 * header.scales
    for _ in range(header.further):
        fits = start + VECTOR_LAYOUT.size <= len(body)
        demand(fits, "further", f"is too short for the {header.further} further vectors that it names")
        raw, *fields = VECTOR_LAYOUT.unpack_from(body, start)
        name = raw.rstrip(b"\0").decode("latin-1")
        before = vectors[-1].name if vectors else ""
        if not is_name(name) or name == UPDATE or name <= before:
            raise WireError(start, f"a further vector is called {name!r}: names are letters from a to z or _, and rise")
        offsets = {field: start + offset for field, offset in _VECTOR_OFFSETS.items()}
        if any(body[offsets["padding"] : offsets["total"]]):
            raise WireError(offsets["padding"], f"the padding in the header of the vector '{name}' is not zero")
        vector = VectorHeader._make((name, *fields, offsets))
        vectors.append(vector)
        start += VECTOR_LAYOUT.size + vector.symbol_bytes + 4 * vector.scales
    return tuple(vectors)


def _sensible(header: Header, data: bytes) -> None:
    """Refuse what no encoder writes."""
    demand(header.kind in KINDS, "kind", f"kind {header.kind} is unknown")
    reason = f"reals have {header.precision} digits, {reals.FINEST} is the most, or the padding is not zero"
    demand(header.precision <= reals.FINEST and not data[_OFFSETS["padding"]], "precision", reason)
    reason = f"changes of layers kept real have {header.change_bits} bits: 8 or 1, beside rounded numbers"
    demand(header.change_bits in reals.CHANGE_BITS and bool(header.precision or not header.change_bits), "change_bits", reason)
    demand(header.kind == UPLOAD or not header.sender, "sender", "a broadcast has no sender")
    reason = f"weight must be from 1 to {LARGEST_WEIGHT}, not {header.weight}"
    demand(1 <= header.weight <= LARGEST_WEIGHT, "weight", reason)
    for vector in header.vectors:
        _sensible_alphabet(vector)
    named = header.context != NO_DIGEST
    demand(named or all(vector.coder == PACKED for vector in header.vectors), "context", "coded symbols name no context")
    demand(named or not header.change_bits, "context", "changes of layers kept real name no context")
    whole = sum(header.sections().values())
    demand(whole == len(data), "symbols", f"is {len(data)} bytes long, its header calls for {whole}")
    for vector in header.vectors:
        size = packed_size(vector.symbols, vector.spelled_alphabet())
        reason = f"{vector.symbols} packed symbols take {size} bytes, not {vector.symbol_bytes}"
        vector.demand(vector.coder != PACKED or vector.symbol_bytes == size, "symbol_bytes", reason)
    reason = f"{header.reals} float32 take {4 * header.reals} bytes, not {header.real_bytes}"
    demand(header.precision > 0 or header.real_bytes == 4 * header.reals, "real_bytes", reason)


def _sensible_alphabet(vector: VectorHeader) -> None:
    """Refuse an alphabet or a coder that no encoder writes."""
    code, total, unit = vector.alphabet, vector.total, vector.unit
    vector.demand(code in (_VOTES, _LEVELS, *_ALPHABETS), "alphabet", f"alphabet {code} is unknown")
    codable = code not in _FLOATS and vector.symbols > 0
    reason = f"coder {vector.coder} is unknown for these symbols"
    vector.demand(vector.coder == PACKED or (vector.coder in CODERS and codable), "coder", reason)
    if code == _LEVELS:
        reason = f"total must be the number of levels, {_LEAST_LEVELS} or more, and unit 0, not {total} and {unit}"
        vector.demand(_LEAST_LEVELS <= total <= LARGEST_WEIGHT and not unit, "total", reason)
        return
    least, most = (1, LARGEST_WEIGHT) if code == _VOTES else (0, 0)
    reason = f"total and unit must be 1 or more for votes and 0 otherwise, not {total} and {unit}"
    vector.demand(least <= total <= most and least <= unit <= most, "total", reason)


def field_error(field: str, reason: str) -> WireError:
    """The error of a field of the first header, or of the `body` behind it."""
    return WireError(_OFFSETS[field], reason)


def free_numbers(message: Message) -> list[npt.NDArray[Any]]:
    """All numbers of a message that its alphabets do not bound."""
    vectors = message.vectors.values()
    symbols = [vector.symbols for vector in vectors if vector.alphabet.size == 0]
    return [message.real, *(vector.scales for vector in vectors), *symbols]


def refuse_infinite(*vectors: npt.NDArray[Any]) -> None:
    """Refuse numbers that are not finite and below `LARGEST_TRAINED`."""
    if not all_below(LARGEST_TRAINED, *vectors):
        raise field_error("body", "holds numbers that are not finite or far too large")


def demand(holds: bool, field: str, reason: str) -> None:
    """Refuse a message for what a field of the first header says, unless something holds."""
    if not holds:
        raise field_error(field, reason)


def encode(message: Message, context: Context | None = None) -> bytes:
    """Spell a message in the fewest bytes. Without a context everything is spelled out, reals as float32, for any reader."""
    upload = message.sender is not None
    spelled = {name: _spell_vector(name, vector, context, upload) for name, vector in message.vectors.items()}
    update, symbols, scales = spelled.pop(UPDATE)
    precision, change_bits, real = reals.spell(message, context)
    header = Header(
        MAGIC, VERSION, UPLOAD if upload else BROADCAST, update.alphabet, update.coder, precision, len(spelled),
        change_bits, message.round, message.sender or 0, message.weight, update.symbols,
        bytes.fromhex(context.layout.fingerprint) if context else ANY_MODEL, context.digest if context else NO_DIGEST,
        update.total, update.unit, len(message.real), update.scales, len(symbols), len(real),
    )  # fmt: skip
    sections, checksum = [header.packed(), symbols, real, scales], 0
    for _, (vector, *parts) in sorted(spelled.items()):
        sections += [vector.packed(), *parts]
    for section in sections:
        checksum = zlib.crc32(section, checksum)
    return b"".join([*sections, CHECKSUM.pack(checksum)])  # one copy of all, however many floats there are


def _spell_vector(name: str, vector: Vector, context: Context | None, upload: bool) -> tuple[VectorHeader, bytes, bytes]:
    """A vector's header, symbols and scales."""
    symbols, alphabet = vector.symbols, vector.alphabet
    check(symbols, alphabet)
    coder, spelled = PACKED, None
    if context is not None and context.known is not None and alphabet.size and len(symbols):
        least, around = packed_size(len(symbols), alphabet), context.vector(name, vector.about)
        for choice in (CODED,) if upload else (CODED, CODED_QUICKLY):
            coded = compress(symbols, alphabet, around, _PACES[choice], upload=upload)
            if len(coded) < least:
                least, coder, spelled = len(coded), choice, coded
    if spelled is None:
        spelled = pack(symbols, alphabet)
    if not is_name(name):
        raise ValueError(f"{name!r} is no name of a vector: 1 to {LONGEST_NAME} letters from a to z or _")
    code, total, unit = _spell_alphabet(alphabet)
    header = VectorHeader(name, code, coder, total, unit, len(symbols), len(spelled), len(vector.scales), {})
    return header, spelled, vector.scales.astype("<f4").tobytes()


def decode(data: bytes, context: Context | None = None, expect: int | None = None) -> Message:
    """Read exactly one message; for every other sequence of bytes a WireError names offset and reason.

    Memory stays below 32 times the larger of the message and, for each of the vectors that the receiver expects, its model.

    Args:
        data: the message.
        context: the receiver's; None takes messages of any model that can be read without a context.
        expect: how many symbols the update of the receiver's model has, where there is no context to tell.
    """
    data = bytes(data)
    header = read_header(data)
    sender = header.sender if header.kind == UPLOAD else None
    abouts: Selections = {}
    if context is not None:
        abouts = context.selects(sender)
        _fits(header, context, abouts)
    elif expect is not None:
        demand(header.symbols == expect, "symbols", f"holds {header.symbols} symbols, the model has {expect}")
        demand(not header.others, "further", f"holds {header.further} further vectors, where the update alone is expected")
    sizes = header.sections()
    spans = dict(zip(sizes, pairwise([0, *accumulate(sizes.values())]), strict=True))

    @contextmanager
    def section(name: str) -> Iterator[memoryview]:
        begin, end = spans[name]
        try:
            yield memoryview(data)[begin:end]
        except ValueError as error:
            raise WireError(begin, str(error)) from None

    vectors = {}
    for vector in header.vectors:
        about, alphabet = abouts.get(vector.name), vector.spelled_alphabet()
        around = None if context is None else context.vector(vector.name, about)
        with section(vector.section("symbols")) as part:
            symbols = _read_symbols(part, vector, alphabet, around, sender is not None)
        with section(vector.section("scales")) as part:
            vectors[vector.name] = Vector(symbols, alphabet, reals.read_floats(part), about)
    with section("reals") as part:
        if context is not None and context.known is not None and header.context == NO_DIGEST:
            context = Context(context.layout, context.round)  # for any reader: the numbers are no differences to what is known
        real = reals.read(part, header.precision, header.change_bits, context, header.round, sender)
    return Message(vectors, real, sender, header.weight, header.round)


def ideal_size(data: bytes, message: Message, context: Context | None) -> float | None:
    """How long `data`, which spells the message, would be if its symbols took their empirical conditional entropy.

    None where there is no context, or all vectors are floats.
    """
    coded = {name: vector for name, vector in message.vectors.items() if vector.alphabet.size}
    if context is None or context.known is None or not coded:
        return None
    sizes = {vector.name: vector.symbol_bytes for vector in read_header(data).vectors}  # last: it takes a checksum of all bytes
    ideal = (ideal_bits(one.symbols, one.alphabet, context.vector(name, one.about)) for name, one in coded.items())
    return len(data) - sum(sizes[name] for name in coded) + sum(ideal) / 8


def bits_by_weight(data: bytes, message: Message, context: Context | None) -> dict[str, npt.NDArray[np.float64]]:
    """Name of a vector → (symbols,) how many bits of `data`, which spells the message, went into each symbol."""
    header, bits = read_header(data), {}
    for part in header.vectors:
        vector = message.vectors[part.name]
        if part.coder != PACKED and context is not None:
            around, upload = context.vector(part.name, vector.about), header.kind == UPLOAD
            bits[part.name] = costs(vector.symbols, vector.alphabet, around, _PACES[part.coder], upload=upload)
        else:
            bits[part.name] = np.full(part.symbols, 8 * part.symbol_bytes / max(part.symbols, 1))
    return bits


def _fits(header: Header, context: Context, abouts: Selections) -> None:
    """Refuse by name what was not meant for this receiver."""
    fingerprint = context.layout.fingerprint
    demand(header.model.hex() == fingerprint, "model", f"is for model {header.model.hex()}, this is {fingerprint}")
    demand(header.round == context.round, "round", f"is of round {header.round}, this is round {context.round}")
    if header.context != NO_DIGEST:  # the digest is made where it is needed
        reason = f"was coded in context {header.context.hex()}, ours is {context.digest.hex()}"
        demand(header.context == context.digest, "context", reason)
    count = context.layout.reals
    demand(header.reals == count, "reals", f"holds {header.reals} real numbers, the model has {count}")
    names = [vector.name for vector in header.vectors]
    reason = f"holds the vectors {', '.join(names)}, where those of this algorithm are {', '.join(abouts)}"
    demand(set(names) == set(abouts), "further", reason)
    for vector in header.vectors:
        count = context.vector(vector.name, abouts[vector.name]).count
        vector.demand(vector.symbols == count, "symbols", f"holds {vector.symbols} symbols, the model has {count}")


def _read_symbols(data: Bytes, vector: VectorHeader, alphabet: Alphabet, context: VectorContext | None, upload: bool) -> Symbols:
    if vector.coder == PACKED:
        return unpack(data, vector.symbols, alphabet)
    if context is None:
        raise ValueError("the symbols can be read only in the context they were coded in")
    return expand(data, alphabet, context, _PACES[vector.coder], upload=upload)


def digest_of(parts: Iterable[bytes]) -> bytes:
    """SHA-256 of several things of any length, each with its length before it: none can end where another one begins."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def state_digest(public: Public, messages: Iterable[Message | None], first: str = "") -> bytes:
    """A digest of a text, the public state, and the broadcasts that count as part of it."""
    known = f"{public.layout.fingerprint} {public.seed} {public.round}"
    vectors = [public.weights, public.real, public.scales]
    broadcasts = (b"" if message is None else encode(message) for message in messages)
    named = (part for name, vector in sorted(public.vectors.items()) for part in (name.encode(), _float_bytes(vector)))
    return digest_of([first.encode(), known.encode(), *map(_float_bytes, vectors), *broadcasts, *named])


def _float_bytes(vector: Floats) -> bytes:
    return np.ascontiguousarray(vector, "<f4").tobytes()
