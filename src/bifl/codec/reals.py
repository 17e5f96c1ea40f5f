"""The real numbers of a message: float32, or in a few bits each.

Batch-norm is rounded to a grid without bias, then spelled as differences to what both ends know (docs/wire-format.md). Grid numbers
are consecutive integers; their differences to the reference are spelled in Rice's code, with one parameter for every 32 of them.
Of layers kept real a message may tell how they changed.

>>> import numpy as np
>>> values = np.array([1.0, -0.3, 100.3])
>>> grid = to_grid(values, 7, np.random.default_rng(0))
>>> from_grid(grid, 7)
array([  1.      ,  -0.296875, 100.      ])
>>> read_rice(rice(grid), 3).tolist() == grid.tolist()
True
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bifl.codec.context import Context
from bifl.codec.symbols import Bytes, pack, packed_size, unpack
from bifl.core.layout import Layout
from bifl.core.message import Floats, Message, even_levels
from bifl.core.randomness import random_words, stream, uniform
from bifl.core.sums import all_below

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

LARGEST = 2.0**62  # where the grid ends
_BINADES = 63  # of the grid: numbers below 2, then one for every power of two
_SQUARES = 30  # variances are taken times 2^30, so that the grid is as fine for small ones
_SNAP = 2.0**-10  # numbers this close to the grid, in steps, are on it: they were rounded before
_BLOCK = 32  # numbers that share a Rice parameter
_PARAMETER_BITS = 5
_LARGEST_PARAMETER = 20  # the grid's largest difference, 2·63·2^12, has 20 bits
FINEST = 12
CHANGE_BITS = (0, 1, 8)  # that a change may have


def spell(message: Message, context: Context | None) -> tuple[int, int, bytes]:
    """Binary digits, bits of a change, and the bytes of a message's real numbers; 0 digits where they are float32 as they are."""
    as_it_is = 0, 0, message.real.astype("<f4").tobytes()
    if context is None:
        return as_it_is
    is_upload, how = message.sender is not None, context.precision
    bits, change_bits = (how.upload, how.upload_change) if is_upload else (how.broadcast, how.broadcast_change)
    if bits == 0:
        return as_it_is
    exact, numbers = split(message.real, context.layout)
    if not fits(numbers):
        return as_it_is
    dice = np.random.default_rng([message.round, 0 if message.sender is None else message.sender + 1])
    known, reference = _reference(bits, context)
    same = numbers == known
    same[: int(context.layout.normed.sum())] = False
    grid = np.where(same, reference, to_grid(numbers, bits, dice))  # statistics that are no news cost no more than a bit
    changes = None
    if change_bits and context.start is not None:
        kept = _kept(context.layout)
        with np.errstate(invalid="ignore"):  # after a broadcast that diverged there is nothing to take changes from
            by = exact[kept].astype(np.float64) - context.start
        changes = spell_changes(by, context.layout, change_bits, dither(message.round, message.sender, len(by)))
        exact = exact if changes is None else exact[~kept]
    section = exact.astype("<f4").tobytes() + (changes or b"") + rice(grid - reference)
    return bits, 0 if changes is None else change_bits, section


def read(data: Bytes, bits: int, change_bits: int, context: Context | None, round: int, sender: int | None) -> Floats:
    """The real numbers that `spell` spelled in the same context; a ValueError if it did not make these bytes."""
    if not bits:
        return read_floats(data)
    if context is None:
        raise ValueError("the real numbers can be read only by who knows the model")
    layout = context.layout
    exact = np.zeros(int((~layout.normed).sum()), np.float32)  # ϑ, and the layers kept real
    kept = _kept(layout) & bool(change_bits)
    end = 4 * int((~kept).sum())
    after = end + (changes_size(layout, change_bits) if change_bits else 0)
    if len(data) < after:
        raise ValueError(f"{len(data)} bytes are too few for the {after} of ϑ and layers kept real")
    exact[~kept] = read_floats(data[:end])
    if change_bits:
        if context.start is None:
            raise ValueError("the layers kept real can be read only by who knows what they changed from")
        changes = read_changes(data[end:after], layout, change_bits, dither(round, sender, int(kept.sum())))
        with np.errstate(over="ignore"):  # only a liar's are too large: infinity, which whoever reads it refuses
            exact[kept] = context.start + changes
    grid = read_rice(data[after:], layout.reals - len(exact)) + _reference(bits, context)[1]
    if not on_grid(grid, bits):
        raise ValueError("a real number is too large")
    return join(exact, from_grid(grid, bits), layout)


def read_floats(data: Bytes) -> Floats:
    """Numbers that are float32 as they are."""
    return np.frombuffer(data, "<f4").astype(np.float32)


def _kept(layout: Layout) -> npt.NDArray[np.bool_]:
    """Which of the numbers that are not rounded to the grid are of layers kept real."""
    return layout.of_kept[~layout.normed]


def _reference(bits: int, context: Context) -> tuple[Numbers, Integers]:
    """What numbers are known, and the grid numbers that others are spelled as differences to: the same for a whole round."""
    if bits not in context.grids:
        real = np.zeros(context.layout.reals, np.float32) if context.known is None else context.known.real
        numbers = split(real, context.layout)[1]
        numbers = numbers if fits(numbers) else np.zeros_like(numbers)
        context.grids[bits] = numbers, to_grid(numbers, bits, None)
    grid: tuple[Numbers, Integers] = context.grids[bits]
    return grid


# ---- batch-norm --------------------------------------------------------------------------------------------------------


def split(real: Floats, layout: Layout) -> tuple[Floats, Numbers]:
    """A real vector as what stays float32, and what goes on the grid: γ, β, mean/deviation and variance in 2^−30."""
    trained = real[: layout.trained]
    first, second = np.split(real[layout.trained :].astype(np.float64), 2)
    with np.errstate(invalid="ignore"):  # after a training that diverged there are infinities: `fits` tells the caller
        variance = np.maximum(second - first**2, 2.0**-_SQUARES)
        ratio = first / np.sqrt(variance)
    return trained[~layout.normed], np.concatenate([trained[layout.normed], ratio, np.ldexp(variance, _SQUARES)])


def join(exact: Floats, numbers: Numbers, layout: Layout) -> Floats:
    """The real vector that `split` took apart."""
    real = np.empty(layout.reals, np.float32)
    trained = real[: layout.trained]
    trained[~layout.normed] = exact
    normed, ratio, scaled = np.split(numbers, [int(layout.normed.sum()), (len(numbers) + int(layout.normed.sum())) // 2])
    trained[layout.normed] = normed
    variance = np.maximum(np.ldexp(scaled, -_SQUARES), 0)
    first = ratio * np.sqrt(variance)
    with np.errstate(over="ignore"):  # numbers that only a liar sends: infinity, which whoever reads it refuses
        real[layout.trained :] = np.concatenate([first, variance + first**2])
    return real


def fits(numbers: Numbers) -> bool:
    """Whether the grid reaches that far."""
    return all_below(LARGEST, numbers)


def to_grid(numbers: Numbers, bits: int, dice: np.random.Generator | None) -> Integers:
    """(n,) the grid numbers of numbers that fit, rounded up or down at random, or without dice to the nearest."""
    exact = np.abs(numbers)
    exponent = np.maximum(np.frexp(exact)[1] - 1, 0)
    up = 0.5 if dice is None else np.clip(dice.random(len(numbers)), _SNAP, 1 - _SNAP)
    digits = np.floor(np.ldexp(exact, bits - exponent) + up).astype(np.int64)
    grid: Integers = np.where(numbers < 0, -1, 1) * (digits + (exponent.astype(np.int64) << bits))
    return grid


def from_grid(grid: Integers, bits: int) -> Numbers:
    """(n,) the numbers that grid numbers stand for."""
    magnitude = np.abs(grid)
    exponent = np.maximum((magnitude >> bits) - 1, 0)
    numbers: Numbers = np.ldexp((magnitude - (exponent << bits)).astype(np.float64), exponent - bits)
    return np.where(grid < 0, -numbers, numbers)


def on_grid(grid: Integers, bits: int) -> bool:
    """Whether all these numbers are of the grid."""
    return bool(np.all(np.abs(grid) <= _BINADES << bits))


def rice(numbers: Integers) -> bytes:
    """Integers, small ones in fewer bits: Rice parameters, then all quotients in unary, then all remainders."""
    folded = np.where(numbers < 0, -2 * numbers - 1, 2 * numbers)  # 0, −1, 1, −2 … as 0, 1, 2, 3 …
    padded = np.zeros((-(-len(folded) // _BLOCK), _BLOCK), np.int64)
    padded.ravel()[: len(folded)] = folded
    choices = np.arange(_LARGEST_PARAMETER + 1)
    cost = (padded[:, :, None] >> choices).sum(1) + _BLOCK * choices
    parameters = cost.argmin(1)
    width = np.repeat(parameters, _BLOCK)[: len(folded)]
    quotient = folded >> width
    unary = np.zeros(int(quotient.sum()) + len(quotient), np.uint8)
    unary[np.cumsum(quotient + 1) - 1] = 1
    which, shift = _places(width)
    return np.packbits(np.concatenate([_bits(parameters), unary, ((folded[which] >> shift) & 1).astype(np.uint8)])).tobytes()


def read_rice(data: Bytes, count: int) -> Integers:
    """The integers that `rice` spelled; a ValueError if it did not spell these bytes."""
    blocks = -(-count // _BLOCK)
    if blocks * _PARAMETER_BITS + count > 8 * len(data):
        raise ValueError(f"{len(data)} bytes are too few for {count} real numbers")
    most = blocks * (_PARAMETER_BITS + 2 * _BLOCK * (_LARGEST_PARAMETER + 2))  # bits: the best parameter never takes more
    if 8 * len(data) > most:
        raise ValueError(f"{len(data)} bytes are too many for {count} real numbers")
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    head = bits[: blocks * _PARAMETER_BITS].reshape(blocks, _PARAMETER_BITS)
    parameters = head.astype(np.int64) @ (1 << np.arange(_PARAMETER_BITS)[::-1])
    if np.any(parameters > _LARGEST_PARAMETER):
        raise ValueError(f"a Rice parameter is {parameters.max()}, the largest is {_LARGEST_PARAMETER}")
    width = np.repeat(parameters, _BLOCK)[:count]
    ends = np.flatnonzero(bits[head.size :])[:count] + 1
    rest = bits[head.size + (int(ends[-1]) if count else 0) :] if len(ends) == count else bits[:0]
    if len(ends) < count or not 0 <= len(rest) - int(width.sum()) < 8 or rest[int(width.sum()) :].any():
        raise ValueError(f"the section does not spell {count} real numbers")
    which, shift = _places(width)
    folded = (np.diff(ends, prepend=0) - 1) << width
    np.add.at(folded, which, rest[: len(which)].astype(np.int64) << shift)
    numbers: Integers = np.where(folded & 1, -(folded + 1) >> 1, folded >> 1)
    return numbers


# ---- layers kept real --------------------------------------------------------------------------------------------------


def dither(round: int, sender: int | None, count: int) -> Numbers:
    """(count,) numbers from 0 to 1 that a message is rounded with; its reader draws the same."""
    return uniform(random_words(stream(0, round, sender, "changes of layers kept real"), count))


def spell_changes(changes: Numbers, layout: Layout, bits: int, dither: Numbers) -> bytes | None:
    """How the layers kept real changed: every tensor's largest change, float32, and the level next to each number plus its dither.

    The reader takes the dither off again: the error is at most half a step, and nothing on average. None for what is not finite.
    """
    with np.errstate(over="ignore"):
        largest = np.array([np.abs(part).max(initial=0) for part in _by_tensor(changes, layout)], np.float32)
    if not np.all(np.isfinite(largest)):
        return None
    steps = _steps(largest, layout, bits)
    places = np.floor(changes / np.where(steps > 0, steps, 1) + (2**bits - 1) / 2 + dither)
    return largest.astype("<f4").tobytes() + pack(places.clip(0, 2**bits - 1).astype(np.uint8), even_levels(2**bits))


def read_changes(data: Bytes, layout: Layout, bits: int, dither: Numbers) -> Numbers:
    """The changes that `spell_changes` spelled, in exactly `changes_size` bytes; a ValueError if it did not."""
    head = 4 * len(layout.kept)
    largest = np.frombuffer(data[:head], "<f4")
    if not np.all((largest >= 0) & np.isfinite(largest)):
        raise ValueError("the largest change of a layer kept real is negative or not finite")
    levels = unpack(data[head:], len(dither), even_levels(2**bits)) + (0.5 - dither) - (2**bits - 1) / 2
    changes: Numbers = levels * _steps(largest, layout, bits)
    return changes


def changes_size(layout: Layout, bits: int) -> int:
    """Bytes of the changes of all layers kept real."""
    return 4 * len(layout.kept) + packed_size(sum(tensor.size for tensor in layout.kept), even_levels(2**bits))


def _by_tensor(changes: Numbers, layout: Layout) -> list[Numbers]:
    return np.split(changes, np.cumsum([tensor.size for tensor in layout.kept]))[:-1]


def _steps(largest: Floats, layout: Layout, bits: int) -> Numbers:
    """(count,) from one level to the next."""
    return np.repeat(largest.astype(np.float64) * (2.0 / (2**bits - 1)), [tensor.size for tensor in layout.kept])


def _bits(parameters: Integers) -> npt.NDArray[np.uint8]:
    return ((parameters[:, None] >> np.arange(_PARAMETER_BITS)[::-1]) & 1).astype(np.uint8).ravel()


def _places(width: Integers) -> tuple[Integers, Integers]:
    """For every remainder bit: which number it belongs to, and its place in it, high places first."""
    which = np.repeat(np.arange(len(width)), width)
    return which, np.repeat(np.cumsum(width), width) - 1 - np.arange(len(which))
