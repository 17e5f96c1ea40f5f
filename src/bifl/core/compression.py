"""A compressed broadcast for any algorithm whose broadcast is the new weights: by composition, with error feedback at the server.

`compress_broadcast(algorithm, "sign")` broadcasts how the public weights change instead of the weights. What the message cannot say
is remembered by the server and added to the next change, so nothing is lost for good. Clients need no memory: they continue from
the public weights, which are the same for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from bifl.core import message
from bifl.core.algorithm import Algorithm, Broadcast, require
from bifl.core.layout import Layout, mean_magnitude
from bifl.core.message import BINARY, FLOAT16, FLOAT32, TERNARY, UPDATE, Floats, Message, Selection, Selections, Vector
from bifl.core.rotation import MOST_IN_GROUP, groups, loud_alphabet, loudest, spread
from bifl.core.state import Public, Sent, Server, recall
from bifl.core.sums import Tally
from bifl.errors import AlgorithmError

Code = Callable[[Floats, Layout], Vector]  # a change of all weights → symbols, and one scale for each layer
TERNARY_KEEPS = 1.0  # deviations: changes of a layer that are smaller are sent as 0
MOST_LEVELS = 256
MOST_ONE_IN = 1_000_000


def sign_code(change: Floats, layout: Layout) -> Vector:
    """One bit a weight: the sign; a layer's scale is its mean magnitude."""
    return Vector((change > 0).astype(np.uint8), BINARY, layout.per_layer(change, mean_magnitude))


def ternary_code(change: Floats, layout: Layout) -> Vector:
    """A trit a weight: its sign where it is larger than a deviation, else 0; a layer's scale is the mean magnitude of those."""
    deviations = layout.per_layer(change, lambda part: TERNARY_KEEPS * np.sqrt(np.square(part).mean()))
    large = np.abs(change) > layout.per_weight(deviations)
    return Vector(np.where(large, np.where(change > 0, 2, 0), 1).astype(np.uint8), TERNARY, _mean_of(large, change, layout))


def level_code(change: Floats, layout: Layout, *, levels: int) -> Vector:
    """The nearest of evenly spaced levels, up to three deviations of a layer."""
    scales = layout.per_layer(change, lambda part: 3 * float(np.sqrt(np.square(part).mean())))
    per_weight = np.maximum(layout.per_weight(scales), np.float32(1e-30))
    places = np.clip(np.rint((change / per_weight + 1) * ((levels - 1) / 2)), 0, levels - 1)
    return Vector(places.astype(np.uint8), message.even_levels(levels), scales)


def loudest_code(change: Floats, layout: Layout, *, group: int) -> Vector:
    """Of every group of weights the loudest; a layer's scale is the mean magnitude of those."""
    symbols = loudest(change, group)
    chosen = spread(symbols, group, layout.count) != 0
    return Vector(symbols, loud_alphabet(group), _mean_of(chosen, change, layout))


def largest_code(change: Floats, layout: Layout, *, one_in: int) -> Vector:
    """The largest of all weights, one in so many, as their signs and one magnitude for all layers (STC, Sattler et al., 2019)."""
    most = max(1, round(len(change) / one_in))
    places = np.argpartition(np.abs(change), -most)[-most:]
    symbols = np.ones(len(change), np.uint8)
    symbols[places] = np.where(change[places] > 0, 2, 0)
    return Vector(symbols, TERNARY, np.full(len(layout.layers), mean_magnitude(change[places]), np.float32))


def _mean_of(chosen: npt.NDArray[np.bool_], change: Floats, layout: Layout) -> Floats:
    """(layers,) the mean magnitude of each layer's chosen changes; 0 where there are none."""
    parts = zip(layout.layer_parts(change), layout.layer_parts(chosen), strict=True)
    return np.array([mean_magnitude(part[of_part]) if of_part.any() else 0 for part, of_part in parts], np.float32)


def half_code(change: Floats, layout: Layout) -> Vector:
    """16-bit floats."""
    return Vector(message.halves(change), FLOAT16, np.ones(len(layout.layers), np.float32))


def _number(down: str, begins: str, most: int) -> int:
    """G of `1ofG`, or N of `topN`, from 2 on; 0 for everything else."""
    number = down.removeprefix(begins)
    return int(number) if number != down and number.isdecimal() and 2 <= int(number) <= most else 0


def _code(down: str) -> Code:
    known: dict[str, Code] = {"sign": sign_code, "ternary": ternary_code, "float16": half_code}
    if down in known:
        return known[down]
    if group := _number(down, "1of", MOST_IN_GROUP):
        return partial(loudest_code, group=group)
    if one_in := _number(down, "top", MOST_ONE_IN):
        return partial(largest_code, one_in=one_in)
    wanted = (
        "float, float16, sign, ternary, 1of8 (or another number from 2 on), top100 (or another number from 2 on) or a number of "
        f"levels from 4 to {MOST_LEVELS}"
    )
    require(down.isdecimal() and 4 <= int(down) <= MOST_LEVELS, "down", down, wanted)
    return partial(level_code, levels=int(down))


def compress_broadcast(algorithm: Algorithm, down: str) -> Algorithm:
    """The algorithm with a compressed broadcast.

    Args:
        algorithm: its broadcast is the new weights as floats, and the new public vectors of the names that it has besides, all of
            which everyone takes over.
        down: `float` (as it is), `float16`, `sign`, `ternary`, `1of8` (the loudest of every eight weights), `top100`
            (the largest hundredth of all), or a number of levels.
    """
    if down == "float":
        return algorithm
    code, group = _code(down), _number(down, "1of", MOST_IN_GROUP)

    def selects(public: Public, sender: int | None) -> Selections:
        abouts = algorithm.selects(public, sender)
        if sender is not None or not group:
            return abouts
        return dict.fromkeys(abouts, Selection(groups(public.layout.count, group)))

    def change_of(vector: Vector, layout: Layout) -> Floats:
        """(count,) what a vector of the broadcast stands for: single IEEE operations, the same on every machine."""
        values = spread(vector.symbols, group, layout.count) if group else vector.values()
        return values * layout.per_weight(vector.scales)

    def broadcast(tally: Tally, public: Public, server: Server) -> Sent:
        """The server's memory: of every vector a row for what was not said yet, then the rows that the inner broadcast keeps."""
        names, vectors, unsaid = list(algorithm.selects(public, None)), {}, []
        left, wanted, kept = behind_rows(algorithm.broadcast, len(names), tally, public, server)
        for name, row in zip(names, left, strict=True):
            change = wanted.vectors[name].values() - _public(public, name) + row
            vectors[name] = code(change, public.layout)
            unsaid.append(change - change_of(vectors[name], public.layout))
        return Sent(wanted._replace(vectors=vectors), np.concatenate([np.stack(unsaid), kept]).astype(np.float32))

    def absorb(public: Public, news: Message) -> Public:
        """What the algorithm makes of the vectors that the changes lead to."""
        whole = {
            name: Vector(_public(public, name) + change_of(vector, public.layout), FLOAT32, vector.scales)
            for name, vector in news.vectors.items()
        }
        return algorithm.absorb(public, news.with_vectors(whole))

    return dataclasses.replace(algorithm, broadcast=broadcast, absorb=absorb, selects=selects)


def _public(public: Public, name: str) -> Floats:
    """(count,) the public vector that a vector of a broadcast changes."""
    return public.weights if name == UPDATE else public.vectors.get(name, np.zeros(public.layout.count, np.float32))


def behind_rows(inner: Broadcast, rows: int, tally: Tally, public: Public, server: Server) -> tuple[Floats, Message, Floats]:
    """What an inner broadcast says where so many rows of the server's memory, of all weights each, belong to the outer one.

    The outer one's rows, the message, and the rows that the inner one keeps, which stand behind those.
    """
    count = public.layout.count
    memory = recall(server.memory, rows, count)
    news, kept = Sent.of(inner(tally, public, server._replace(memory=memory[rows:])), memory[rows:])
    if kept.size % count:
        raise AlgorithmError(
            "with a compressed broadcast or a server optimiser the memory of the server must be rows of "
            f"{count} numbers, not {kept.shape}"
        )
    return memory[:rows], news, kept.reshape(-1, count)
