"""Messages as bytes, format version 2 (docs/wire-format.md): header, symbols, reals, scales, further vectors, checksum.

First the header: its fields, how they are read, and what no encoder writes; then how a whole message is spelled and read.

>>> import numpy as np
>>> from bifl.core.message import BINARY, Message
>>> data = encode(Message.of(np.array([1, 0, 1], np.uint8), BINARY, np.zeros(0, np.float32)))
>>> len(data), decode(data).update.symbols
(73, array([1, 0, 1], dtype=uint8))
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeVar

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
    is_name,
)
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
_PACES = {CODED: STEADY, CODED_QUICKLY: QUICK}

Part = TypeVar("Part", bound=Any)


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

    def error(self, field: str, reason: str) -> WireError:
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
_OFFSETS["body"] = LAYOUT.size
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
        raise field_error("magic", f"starts with {header.magic!r} instead of {MAGIC!r}")
    if header.version != VERSION:
        raise field_error("version", f"has version {header.version}, this program reads version {VERSION}")
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
        raise field_error("further", f"holds {header.further} further vectors, {MOST_VECTORS - 1} are the most")
    vectors: list[VectorHeader] = []
    start = LAYOUT.size + header.symbol_bytes + header.real_bytes + 4 * header.scales
    for _ in range(header.further):
        if start + VECTOR_LAYOUT.size > len(body):
            raise field_error("further", f"is too short for the {header.further} further vectors that it names")
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
        raise field_error("kind", f"kind {header.kind} is unknown")
    if header.precision > reals.FINEST or data[11]:
        raise field_error(
            "precision", f"reals have {header.precision} digits, {reals.FINEST} is the most, or the padding is not zero"
        )
    if header.change_bits not in reals.CHANGE_BITS or (header.change_bits and not header.precision):
        raise field_error(
            "change_bits", f"changes of layers kept real have {header.change_bits} bits: 8 or 1, beside rounded numbers"
        )
    if header.kind == BROADCAST and header.sender:
        raise field_error("sender", "a broadcast has no sender")
    if not 1 <= header.weight <= LARGEST_WEIGHT:
        raise field_error("weight", f"weight must be from 1 to {LARGEST_WEIGHT}, not {header.weight}")
    for vector in header.vectors:
        _sensible_alphabet(vector)
    if header.in_context and header.context == NO_DIGEST:
        raise field_error("context", "coded symbols name no context")
    if header.change_bits and header.context == NO_DIGEST:
        raise field_error("context", "changes of layers kept real name no context")
    whole = sum(header.sections().values())
    if whole != len(data):
        raise field_error("symbols", f"is {len(data)} bytes long, its header calls for {whole}")
    for vector in header.vectors:
        size = packed_size(vector.symbols, vector.spelled_alphabet())
        if vector.coder == PACKED and vector.symbol_bytes != size:
            raise vector.error("symbol_bytes", f"{vector.symbols} packed symbols take {size} bytes, not {vector.symbol_bytes}")
    if not header.precision and header.real_bytes != 4 * header.reals:
        raise field_error("real_bytes", f"{header.reals} float32 take {4 * header.reals} bytes, not {header.real_bytes}")


def _sensible_alphabet(vector: VectorHeader) -> None:
    """Refuse an alphabet or a coder that no encoder writes."""
    votes, levels = vector.alphabet == _VOTES, vector.alphabet == _LEVELS
    if not (votes or levels) and vector.alphabet not in _ALPHABETS:
        raise vector.error("alphabet", f"alphabet {vector.alphabet} is unknown")
    if vector.coder not in CODERS or (vector.coder != PACKED and (vector.alphabet in _FLOATS or not vector.symbols)):
        raise vector.error("coder", f"coder {vector.coder} is unknown for these symbols")
    if levels and (vector.total < _LEAST_LEVELS or vector.total > LARGEST_WEIGHT or vector.unit):
        raise vector.error(
            "total",
            f"total must be the number of levels, {_LEAST_LEVELS} or more, and unit 0, not {vector.total} and {vector.unit}",
        )
    least, most = (1, LARGEST_WEIGHT) if votes else (0, 0)
    if not levels and not (least <= vector.total <= most and least <= vector.unit <= most):
        raise vector.error(
            "total", f"total and unit must be 1 or more for votes and 0 otherwise, not {vector.total} and {vector.unit}"
        )


def field_error(field: str, reason: str) -> WireError:
    """The error of a field of the first header, or of the `body` behind it."""
    return WireError(_OFFSETS[field], reason)


def encode(message: Message, context: Context | None = None) -> bytes:
    """Spell a message in the fewest bytes.

    Args:
        message: what to say.
        context: what both ends know; none spells everything out, reals as float32, for any reader.
    """
    upload = message.sender is not None
    spelled = {name: _spell_vector(name, vector, context, upload) for name, vector in message.vectors.items()}
    update, symbols, scales = spelled.pop(UPDATE)
    precision, change_bits, real = _spell_reals(message, context)
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
    header = vector_header(name, alphabet, coder, len(symbols), len(spelled), len(vector.scales))
    return header, spelled, vector.scales.astype("<f4").tobytes()


def decode(data: bytes, context: Context | None = None, expect: int | None = None) -> Message:
    """Read a message.

    Memory stays below 32 times the larger of the message and, for each of the vectors that the receiver expects, its model.

    Args:
        data: exactly one message.
        context: the receiver's; a message for another model, round or context is refused, and one with other vectors. None takes
            those of any model that can be read without a context.
        expect: how many symbols the update of the receiver's model has, where there is no context to tell.

    Raises:
        WireError: for every other sequence of bytes, naming offset and reason.
    """
    data = bytes(data)
    header = read_header(data)
    sender = header.sender if header.kind == UPLOAD else None
    abouts: Selections = {}
    if context is not None:
        abouts = context.selects(sender)
        _fits(header, context, abouts)
    elif expect is not None and header.symbols != expect:
        raise field_error("symbols", f"holds {header.symbols} symbols, the model has {expect}")
    elif expect is not None and header.others:
        raise field_error("further", f"holds {header.further} further vectors, where the update alone is expected")
    sizes = header.sections()
    spans = dict(zip(sizes, pairwise([0, *accumulate(sizes.values())]), strict=True))

    def section(name: str, read: Callable[[Bytes], Part]) -> Part:
        begin, end = spans[name]
        try:
            return read(memoryview(data)[begin:end])
        except ValueError as error:
            raise WireError(begin, str(error)) from None

    vectors = {}
    for vector in header.vectors:
        about, alphabet = abouts.get(vector.name), vector.spelled_alphabet()
        around = None if context is None else context.vector(vector.name, about)
        read = partial(_read_symbols, vector=vector, alphabet=alphabet, context=around, upload=sender is not None)
        symbols, scales = section(vector.section("symbols"), read), section(vector.section("scales"), _read_floats)
        vectors[vector.name] = Vector(symbols, alphabet, scales, about)
    real = section("reals", lambda part: _read_reals(part, header, context))
    return Message(vectors, real, sender, header.weight, header.round)


def ideal_size(data: bytes, message: Message, context: Context | None) -> float | None:
    """How long `data`, which spells the message, would be if its symbols took their empirical conditional entropy.

    None where there is no context, or all vectors are floats.
    """
    sizes = {vector.name: vector.symbol_bytes for vector in read_header(data).vectors}
    coded = {name: vector for name, vector in message.vectors.items() if vector.alphabet.size}
    if context is None or context.known is None or not coded:
        return None
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
    if header.model != bytes.fromhex(fingerprint):
        raise field_error("model", f"is for model {header.model.hex()}, this is {fingerprint}")
    if header.round != context.round:
        raise field_error("round", f"is of round {header.round}, this is round {context.round}")
    if header.context not in (NO_DIGEST, context.digest):
        raise field_error("context", f"was coded in context {header.context.hex()}, ours is {context.digest.hex()}")
    if header.reals != context.layout.reals:
        raise field_error("reals", f"holds {header.reals} real numbers, the model has {context.layout.reals}")
    names = [vector.name for vector in header.vectors]
    if set(names) != set(abouts):
        raise field_error("further", f"holds the vectors {', '.join(names)}, where those of this algorithm are {', '.join(abouts)}")
    for vector in header.vectors:
        if vector.symbols != (count := context.vector(vector.name, abouts[vector.name]).count):
            raise vector.error("symbols", f"holds {vector.symbols} symbols, the model has {count}")


def _spell_reals(message: Message, context: Context | None) -> tuple[int, int, bytes]:
    """Precision, bits of a change and bytes of the real parameters."""
    upload = message.sender is not None
    bits = 0 if context is None else context.precision.digits(upload)
    if context is None or bits == 0:
        return 0, 0, message.real.astype("<f4").tobytes()
    exact, numbers = reals.split(message.real, context.layout)
    if not reals.fits(numbers):
        return 0, 0, message.real.astype("<f4").tobytes()
    dice = np.random.default_rng([message.round, 0 if message.sender is None else message.sender + 1])
    known, reference = _reference(bits, context)
    same = numbers == known
    same[: int(context.layout.normed.sum())] = False
    grid = np.where(same, reference, reals.to_grid(numbers, bits, dice))  # statistics that are no news cost no more than a bit
    rounded, change_bits, changes = reals.rice(grid - reference), context.precision.change_bits(upload), None
    if change_bits and context.start is not None:
        kept, dither = _kept(context), reals.dither(message.round, message.sender, len(context.start))
        with np.errstate(invalid="ignore"):  # after a broadcast that diverged there is nothing to take changes from
            by = exact[kept].astype(np.float64) - context.start
        changes = reals.spell_changes(by, context.layout, change_bits, dither)
        exact = exact if changes is None else exact[~kept]
    section = exact.astype("<f4").tobytes() + (changes or b"") + rounded
    return bits, 0 if changes is None else change_bits, section


def _read_reals(data: Bytes, header: Header, context: Context | None) -> Floats:
    if not header.precision:
        return _read_floats(data)
    if context is None:
        raise ValueError("the real numbers can be read only by who knows the model")
    layout = context.layout
    exact, rounded = _read_exact(data, header, context)
    known = context if context.known is None or header.context != NO_DIGEST else Context(layout, context.round)
    grid = reals.read_rice(rounded, layout.reals - len(exact)) + _reference(header.precision, known)[1]
    if not reals.on_grid(grid, header.precision):
        raise ValueError("a real number is too large")
    return reals.join(exact, reals.from_grid(grid, header.precision), layout)


def _read_exact(data: Bytes, header: Header, context: Context) -> tuple[Floats, Bytes]:
    """What is not rounded to the grid: ϑ, and the layers kept real, as they are or by how they changed; and the other bytes."""
    exact = np.zeros(int((~context.layout.normed).sum()), np.float32)
    kept = _kept(context) if header.change_bits else np.zeros(len(exact), np.bool_)
    end = 4 * int((~kept).sum())
    after = end + (reals.changes_size(context.layout, header.change_bits) if header.change_bits else 0)
    if len(data) < after:
        raise ValueError(f"{len(data)} bytes are too few for the {after} of ϑ and layers kept real")
    exact[~kept] = np.frombuffer(data[:end], "<f4")
    if header.change_bits:
        if context.start is None:
            raise ValueError("the layers kept real can be read only by who knows what they changed from")
        dither = reals.dither(header.round, header.sender if header.kind == UPLOAD else None, int(kept.sum()))
        changes = reals.read_changes(data[end:after], context.layout, header.change_bits, dither)
        with np.errstate(over="ignore"):  # only a liar's are too large: infinity, which whoever reads it refuses
            exact[kept] = context.start + changes
    return exact, data[after:]


def _kept(context: Context) -> npt.NDArray[np.bool_]:
    """Which of the numbers that are not rounded to the grid are of layers kept real."""
    return context.layout.of_kept[~context.layout.normed]


def _reference(bits: int, context: Context) -> tuple[reals.Numbers, reals.Integers]:
    """What numbers are known, and the grid numbers that others are spelled as differences to: the same for a whole round."""
    if bits not in context.grids:
        real = np.zeros(context.layout.reals, np.float32) if context.known is None else context.known.real
        numbers = reals.split(real, context.layout)[1]
        numbers = numbers if reals.fits(numbers) else np.zeros_like(numbers)
        context.grids[bits] = numbers, reals.to_grid(numbers, bits, None)
    grid: tuple[reals.Numbers, reals.Integers] = context.grids[bits]
    return grid


def _read_symbols(data: Bytes, *, vector: VectorHeader, alphabet: Alphabet, context: VectorContext | None, upload: bool) -> Symbols:
    if vector.coder == PACKED:
        return unpack(data, vector.symbols, alphabet)
    if context is None:
        raise ValueError("the symbols can be read only in the context they were coded in")
    return expand(data, alphabet, context, _PACES[vector.coder], upload=upload)


def _read_floats(data: Bytes) -> Floats:
    return np.frombuffer(data, "<f4").astype(np.float32)
