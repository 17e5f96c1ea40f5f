"""Messages as bytes, format version 2 (docs/wire-format.md): header, symbols, reals, scales, further vectors, checksum.

>>> import numpy as np
>>> from bifl.core.message import BINARY, Message
>>> data = encode(Message.of(np.array([1, 0, 1], np.uint8), BINARY, np.zeros(0, np.float32)))
>>> len(data), decode(data).update.symbols
(73, array([1, 0, 1], dtype=uint8))
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from bifl.codec import reals
from bifl.codec.context import NO_DIGEST, Context, VectorContext
from bifl.codec.header import (
    ANY_MODEL,
    BROADCAST,
    CHECKSUM,
    CODED,
    CODED_QUICKLY,
    MAGIC,
    PACKED,
    UPLOAD,
    VERSION,
    Header,
    VectorHeader,
    WireError,
    read_header,
    refused,
    vector_header,
)  # fmt: skip
from bifl.codec.packed import Bytes, check, pack, packed_size, unpack
from bifl.codec.range_coder import QUICK, STEADY, compress, costs, expand, ideal_bits
from bifl.core.message import UPDATE, Alphabet, Floats, Message, Selections, Symbols, Vector

Part = TypeVar("Part", bound=Any)
_PACES = {CODED: STEADY, CODED_QUICKLY: QUICK}


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
        raise refused("symbols", f"holds {header.symbols} symbols, the model has {expect}")
    elif expect is not None and header.others:
        raise refused("further", f"holds {header.further} further vectors, where the update alone is expected")
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
        raise refused("model", f"is for model {header.model.hex()}, this is {fingerprint}")
    if header.round != context.round:
        raise refused("round", f"is of round {header.round}, this is round {context.round}")
    if header.context not in (NO_DIGEST, context.digest):
        raise refused("context", f"was coded in context {header.context.hex()}, ours is {context.digest.hex()}")
    if header.reals != context.layout.reals:
        raise refused("reals", f"holds {header.reals} real numbers, the model has {context.layout.reals}")
    names = [vector.name for vector in header.vectors]
    if set(names) != set(abouts):
        raise refused("further", f"holds the vectors {', '.join(names)}, where those of this algorithm are {', '.join(abouts)}")
    for vector in header.vectors:
        if vector.symbols != (count := context.vector(vector.name, abouts[vector.name]).count):
            raise vector.refused("symbols", f"holds {vector.symbols} symbols, the model has {count}")


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


@lru_cache(maxsize=4)
def _reference(bits: int, context: Context) -> tuple[reals.Numbers, reals.Integers]:
    """What numbers are known, and the grid numbers that others are spelled as differences to: the same for a whole round."""
    real = np.zeros(context.layout.reals, np.float32) if context.known is None else context.known.real
    numbers = reals.split(real, context.layout)[1]
    numbers = numbers if reals.fits(numbers) else np.zeros_like(numbers)
    return numbers, reals.to_grid(numbers, bits, None)


def _read_symbols(data: Bytes, *, vector: VectorHeader, alphabet: Alphabet, context: VectorContext | None, upload: bool) -> Symbols:
    if vector.coder == PACKED:
        return unpack(data, vector.symbols, alphabet)
    if context is None:
        raise ValueError("the symbols can be read only in the context they were coded in")
    return expand(data, alphabet, context, _PACES[vector.coder], upload=upload)


def _read_floats(data: Bytes) -> Floats:
    return np.frombuffer(data, "<f4").astype(np.float32)
