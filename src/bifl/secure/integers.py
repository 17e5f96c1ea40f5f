"""Messages as integers of fixed width, the masks that hide them in a sum, and such sums as the totals that servers count.

Ballots and levels are added as they are, times the sender's weight in units: ⌈log2((size − 1)·total/unit + 1)⌉ bits a symbol, which
is ⌈log2(total/unit + 1)⌉ for ballots. Floats are added as `bifl.core.sums` adds them, in integers and multiples of 2⁻³²: so
the sum of all is bit for bit the one that a server makes that sees every upload. A number beyond the range counts as the range's
end, and one that is none as 0: if its owner refused to send it, that would tell something of its data.

There is a mask for every pair of clients, which cancels in the sum, and one of the client's own. A pair's mask is added by the one
with the smaller number and subtracted by the other. When a client is lost after others have added their masks with it, the server
is given the seed of its key, and takes those masks away. The own mask keeps a summand hidden that came late, after its sender was
declared lost: its seed and the key's are never both revealed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.core.message import BINARY, UPDATE, Alphabet, Floats, Message, Vector
from bifl.core.sums import ExactSum, Total, VectorSum, VoteSum, fixed_point
from bifl.secure import REAL_LIMIT, WEIGHT_LIMIT
from bifl.secure.primitives import agree_key, derive_key, keystream

HALF = 2**31  # |fractions|, in multiples of 2⁻³²
WIDEST = 64
_CHUNK = 2**15  # numbers that are packed at a time: whole bytes at every width

Integers = npt.NDArray[np.int64]
Residues = npt.NDArray[np.unsignedinteger]
Octets = npt.NDArray[np.uint8]
Parts = list[Residues]  # the residues of an upload, field by field


class Field(NamedTuple):
    """A vector of integers modulo 2^bits."""

    length: int
    bits: int

    @property
    def kind(self) -> np.dtype[np.unsignedinteger]:
        """The smallest type that holds them."""
        return np.min_scalar_type((1 << self.bits) - 1).newbyteorder("<")

    def wrap(self, numbers: Integers | Residues) -> Residues:
        """Integers modulo 2^bits."""
        residues: Residues = numbers.astype(self.kind)
        return residues & self.kind.type((1 << self.bits) - 1)

    def signed(self, residues: Residues) -> Integers:
        """The integers nearest to 0."""
        numbers = residues.astype(np.int64)  # 64 bits: two's complement does it
        return numbers if self.bits == WIDEST else np.where(numbers >= 1 << (self.bits - 1), numbers - (1 << self.bits), numbers)


class Fields(NamedTuple):
    """What an upload is made of: symbols of the update, which only those add up who speak of the same weights, and numbers, which
    all add up: real numbers, scales, and the further vectors.
    """

    symbols: tuple[Field, ...]
    numbers: tuple[Field, ...]

    @property
    def flat(self) -> tuple[Field, ...]:
        """All, in order."""
        return self.symbols + self.numbers


def adds_exactly(alphabet: Alphabet) -> bool:
    """Whether symbols are added as they are: their values must be exact multiples of each other."""
    return alphabet.size > 0 and (alphabet.size - 1) & (alphabet.size - 2) == 0


def fields(like: Message, own: int, total: int) -> Fields:
    """The fields of uploads like one, given the weight of all who speak of the same weights, and of all, in units."""
    update = like.update
    length = len(update.symbols)
    exact = (Field(length, _signed_bits(WEIGHT_LIMIT * own)), Field(length, _signed_bits(HALF * own)))
    symbols = (Field(length, ((update.alphabet.size - 1) * own).bit_length()),) if adds_exactly(update.alphabet) else exact
    bounds = [(len(values), most) for values, largest in _numbers(like) for most in (largest, HALF)]
    return Fields(symbols, tuple(Field(size, _signed_bits(most * total)) for size, most in bounds))


def _numbers(message: Message) -> list[tuple[Floats, int]]:
    """The numbers of an upload that all add up, and what each is below."""
    numbers = [(message.real, REAL_LIMIT), (message.update.scales, REAL_LIMIT)]
    for _, vector in _others(message):
        numbers += [(vector.values(), WEIGHT_LIMIT), (vector.scales, REAL_LIMIT)]
    return numbers


def _others(message: Message) -> list[tuple[str, Vector]]:
    """The further vectors, by their names, in order."""
    return [(name, vector) for name, vector in sorted(message.vectors.items()) if name != UPDATE]


def _signed_bits(most: int) -> int:
    return min(WIDEST, most.bit_length() + 1)


def summands(upload: Message, times: int, form: Fields) -> Parts:
    """An upload as integers, `times` its symbols and numbers."""
    update = upload.update
    whole = adds_exactly(update.alphabet)
    symbols = [update.symbols.astype(np.int64) * times] if whole else _exact(update.values(), times, WEIGHT_LIMIT)
    numbers = [part for values, largest in _numbers(upload) for part in _exact(values, times, largest)]
    return [field.wrap(part) for field, part in zip(form.flat, [*symbols, *numbers], strict=True)]


def _exact(values: Floats, times: int, most: int) -> list[Integers]:
    end = np.nextafter(np.float32(most), np.float32(0))
    return [part * times for part in fixed_point(np.nan_to_num(np.clip(values, -end, end)))]


def pack(parts: Sequence[Residues], form: Sequence[Field]) -> bytes:
    """Residues as bytes, each in its bits."""
    packed = []
    for part, field in zip(parts, form, strict=True):
        octets = part.astype(field.kind.newbyteorder(">")).view(np.uint8).reshape(len(part), field.kind.itemsize)
        for begin in range(0, field.length, _CHUNK):
            bits = np.unpackbits(octets[begin : begin + _CHUNK], axis=1)
            packed.append(np.packbits(bits[:, -field.bits :]).tobytes())
    return b"".join(packed)


def size(form: Sequence[Field]) -> int:
    """How many bytes that makes."""
    return sum(-(-field.length * field.bits // 8) for field in form)


def packed_fault(data: bytes | Octets, form: Sequence[Field]) -> str | None:
    """Why data are not what `pack` makes of residues; None if they are."""
    if len(data) != size(form):
        return f"it is {len(data)} bytes long instead of {size(form)}"
    end = 0
    for field in form:
        end += size([field])
        if field.length and data[end - 1] & ((1 << (-field.length * field.bits) % 8) - 1):
            return "the padding after its last number is not zero"
    return None


def unpack(data: bytes | Octets, form: Sequence[Field]) -> Parts:
    """The residues of checked data."""
    raw, parts, start = np.frombuffer(data, np.uint8), [], 0
    for field in form:
        octets = np.zeros((field.length, field.kind.itemsize), np.uint8)
        for begin in range(0, field.length, _CHUNK):
            count = min(_CHUNK, field.length - begin)
            end = start - (-count * field.bits // 8)
            bits = np.zeros((count, 8 * field.kind.itemsize), np.uint8)
            bits[:, -field.bits :] = np.unpackbits(raw[start:end])[: count * field.bits].reshape(count, field.bits)
            octets[begin : begin + count] = np.packbits(bits, axis=1)
            start = end
        parts.append(octets.view(field.kind.newbyteorder(">"))[:, 0].astype(field.kind))
    return parts


# ---- masks -----------------------------------------------------------------------------------------------------------------


class Sum(NamedTuple):
    """One of a round's sums, as one upload takes part in it."""

    name: str
    form: Fields
    agreed: bytes = b""  # a digest of what all must agree on: with others no masks cancel

    def key(self, what: str) -> bytes:
        """What keys are derived for."""
        return f"{self.name} {what}".encode()


def add_own(parts: Parts, seed: bytes, sum: Sum, sign: int) -> None:
    """Add a client's own mask, or subtract it (`sign` −1)."""
    symbols, numbers = sum.form
    _add(parts[: len(symbols)], symbols, derive_key(seed, sum.key("own symbols")), sign)
    _add(parts[len(symbols) :], numbers, derive_key(seed, sum.key("own numbers")), sign)


def add_pair(parts: Parts, seed: bytes, other: bytes, sum: Sum, sign: int, *, peers: bool) -> None:
    """Add the mask of a pair, or subtract it, given the seed of one's key and the other's public key.

    Their symbols share one only if they speak of the same weights (`peers`).
    """
    shared, (symbols, numbers) = agree_key(seed, other, sum.key("pair") + sum.agreed), sum.form
    if peers:
        _add(parts[: len(symbols)], symbols, derive_key(shared, b"symbols"), sign)
    _add(parts[len(symbols) :], numbers, derive_key(shared, b"numbers"), sign)


def direction(own: int, other: int) -> int:
    """Whether a client adds the mask of a pair or subtracts it."""
    return 1 if own < other else -1


def _add(parts: Parts, form: Sequence[Field], key: bytes, sign: int) -> None:
    """Add a key stream modulo each field's 2^bits, in place."""
    sizes = [field.length * field.kind.itemsize for field in form]
    stream, start = memoryview(keystream(key, sum(sizes))), 0
    for part, field, size in zip(parts, form, sizes, strict=True):
        if size:
            mask = np.frombuffer(stream[start : start + size], field.kind)
            np.add(part, mask, out=part) if sign > 0 else np.subtract(part, mask, out=part)
            np.bitwise_and(part, field.kind.type((1 << field.bits) - 1), out=part)
        start += size


# ---- sums ------------------------------------------------------------------------------------------------------------------


class Group(NamedTuple):
    """The sum of those who speak of the same weights."""

    symbols: list[Integers]  # in units
    weight: int  # of them, not in units
    place: int | None  # where they speak; None: of all weights


def total_of(
    groups: Sequence[Group], numbers: Sequence[Integers], like: Message, weights: Sequence[int], unit: int, count: int
) -> Total:
    """What a server has counted that knows sums only: of symbols in groups, and of the other numbers, in units.

    `like` is an upload, `weights` are those of all who are in the sums, `count` is how many weights the model has.
    """
    weight = sum(weights)
    halves = zip(numbers[::2], numbers[1::2], strict=True)
    real, update_scales, *sums = (ExactSum(whole * unit, fraction * unit, weight) for whole, fraction in halves)
    vectors = {UPDATE: _update_sum(groups, like, update_scales, weight, unit, count)}
    for place, (name, vector) in enumerate(_others(like)):
        values, scales = sums[2 * place : 2 + 2 * place]
        if vector.alphabet == BINARY:  # a sum of −1 and 1
            votes = np.clip((numbers[4 + 4 * place] * unit + weight) // 2, 0, weight)
            vectors[name] = VectorSum(ballots=VoteSum(votes), scales=scales)
        else:
            vectors[name] = VectorSum(weights=values, scales=scales)
    return Total(len(weights), math.gcd(*weights), real, vectors)


def _update_sum(groups: Sequence[Group], like: Message, scales: ExactSum, weight: int, unit: int, count: int) -> VectorSum:
    """The sum of the updates, which groups may have said of different weights."""
    alphabet = like.update.alphabet
    if groups[0].place is None and alphabet.size == 2:
        return VectorSum(ballots=VoteSum(groups[0].symbols[0] * unit), scales=scales)
    ends = [count, *((group.place or 0) + len(group.symbols[0]) for group in groups)]  # groups may speak of more than weights
    halves = [np.zeros(max(ends) if groups[0].place is not None else len(like.update.symbols), np.int64) for _ in range(2)]
    for group in groups:
        where = slice(None) if group.place is None else slice(group.place, group.place + len(group.symbols[0]))
        for half, part in zip(halves, _halves(group, alphabet, unit), strict=True):
            half[where] += part
    return VectorSum(weights=ExactSum(halves[0], halves[1], weight), scales=scales)


def _halves(group: Group, alphabet: Alphabet, unit: int) -> tuple[Integers, Integers]:
    """Values in whole numbers and multiples of 2⁻³²; of levels, which step by 2/(size − 1) from −1, that is exact."""
    if not adds_exactly(alphabet):
        whole, fraction = group.symbols
        return whole * unit, fraction * unit
    steps = alphabet.size - 1
    above = 2 * group.symbols[0] * unit - steps * group.weight
    return above // steps, (above % steps) * (2**32 // steps)
