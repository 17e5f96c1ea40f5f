"""A compressed broadcast for any algorithm whose broadcast is the new weights: by composition, with error feedback at the server.

`compressed(algorithm, "sign")` broadcasts how the public weights change instead of the weights. What the message cannot say is
remembered by the server and added to the next change, so nothing is lost for good. Clients need no memory: they continue from the
public weights, which are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from bifl.core.algorithm import Absorb, Algorithm, Broadcast, Selects
from bifl.core.layout import Layout
from bifl.core.message import (
    BINARY,
    FLOAT16,
    FLOAT32,
    TERNARY,
    UPDATE,
    Alphabet,
    Floats,
    Message,
    Selection,
    Selections,
    Symbols,
    Vector,
    halves,
)
from bifl.core.rotation import MOST_IN_GROUP, groups, loud_alphabet, loudest, spread
from bifl.core.state import Public, Sent, Server
from bifl.core.sums import Tally
from bifl.errors import AlgorithmError, ConfigError

Code = Callable[[Floats, Layout], Vector]  # a change of all weights → symbols, and one scale for each layer
TERNARY_KEEPS = 1.0  # deviations: changes of a layer that are smaller are sent as 0
MOST_LEVELS = 256


def sign_code(change: Floats, layout: Layout) -> Vector:
    """One bit a weight: the sign; a layer's scale is its mean magnitude."""
    scales = [float(np.abs(part).mean()) for part in layout.layer_parts(change)]
    return _coded((change > 0).astype(np.uint8), BINARY, scales)


def ternary_code(change: Floats, layout: Layout) -> Vector:
    """A trit a weight: its sign where it is larger than a deviation, else 0; a layer's scale is the mean magnitude of those."""
    symbols, scales = [], []
    for part in layout.layer_parts(change):
        large = np.abs(part) > TERNARY_KEEPS * np.sqrt(np.square(part).mean())
        symbols.append(np.where(large, np.where(part > 0, 2, 0), 1).astype(np.uint8))
        scales.append(float(np.abs(part[large]).mean()) if large.any() else 0.0)
    return _coded(np.concatenate(symbols), TERNARY, scales)


def level_code(change: Floats, layout: Layout, *, levels: int) -> Vector:
    """The nearest of evenly spaced levels, up to three deviations of a layer."""
    scales = [3 * float(np.sqrt(np.square(part).mean())) for part in layout.layer_parts(change)]
    per_weight = np.maximum(layout.per_weight(scales), np.float32(1e-30))
    places = np.clip(np.rint((change / per_weight + 1) * ((levels - 1) / 2)), 0, levels - 1)
    return _coded(places.astype(np.uint8), Alphabet(f"{levels} levels", levels), scales)


def loudest_code(change: Floats, layout: Layout, *, group: int) -> Vector:
    """Of every group of weights the loudest; a layer's scale is the mean magnitude of those."""
    symbols = loudest(change, group)
    chosen = spread(symbols, group, layout.count)
    loud = [np.abs(part[said != 0]) for part, said in zip(layout.layer_parts(change), layout.layer_parts(chosen), strict=True)]
    return _coded(symbols, loud_alphabet(group), [float(part.mean()) if len(part) else 0.0 for part in loud])


def half_code(change: Floats, layout: Layout) -> Vector:
    """16-bit floats."""
    return _coded(halves(change), FLOAT16, [1.0] * len(layout.layers))


def _coded(symbols: Symbols, alphabet: Alphabet, scales: list[float]) -> Vector:
    return Vector(symbols, alphabet, np.asarray(scales, np.float32))


def said(news: Vector, layout: Layout, group: int) -> Floats:
    """(count,) the change that a vector of a compressed broadcast stands for: single IEEE operations, the same on every machine."""
    values = spread(news.symbols, group, layout.count) if group else news.values()
    return values * layout.per_weight(news.scales)


def _group(down: str) -> int:
    """G of `1ofG`; 0 for everything else."""
    first, _, group = down.partition("of")
    return int(group) if first == "1" and group.isdecimal() and 2 <= int(group) <= MOST_IN_GROUP else 0


def _code(down: str) -> Code:
    known: dict[str, Code] = {"sign": sign_code, "ternary": ternary_code, "float16": half_code}
    if down in known:
        return known[down]
    if _group(down):
        return partial(loudest_code, group=_group(down))
    if down.isdecimal() and 4 <= int(down) <= MOST_LEVELS:
        return partial(level_code, levels=int(down))
    raise ConfigError(
        f"algorithm.down must be float, float16, sign, ternary, 1of8 (or another number from 2 on) or a number of levels from 4 to "
        f"{MOST_LEVELS}, not '{down}'"
    )


def compressed(algorithm: Algorithm, down: str) -> Algorithm:
    """The algorithm with a compressed broadcast.

    Args:
        algorithm: its broadcast is the new weights as floats, and the new public vectors of the names that it has besides, all of
            which everyone takes over.
        down: `float` (as it is), `float16`, `sign`, `ternary`, `1of8` (the loudest of every eight weights), or a number of levels.
    """
    if down == "float":
        return algorithm
    group = _group(down)
    return replace(
        algorithm,
        broadcast=partial(_broadcast, inner=algorithm.broadcast, selects=algorithm.selects, code=_code(down), group=group),
        absorb=partial(add_changes, inner=algorithm.absorb, group=group),
        selects=partial(_selects, inner=algorithm.selects, group=group),
    )


def add_changes(public: Public, news: Message, *, inner: Absorb, group: int) -> Public:
    """The `absorb` of compressed broadcasts: what the algorithm makes of the vectors that the changes lead to."""
    whole = {
        name: vector._replace(symbols=_public(public, name) + said(vector, public.layout, group), alphabet=FLOAT32, about=None)
        for name, vector in news.vectors.items()
    }
    return inner(public, news.with_vectors(whole))


def _public(public: Public, name: str) -> Floats:
    """(count,) the public vector that a vector of a broadcast changes."""
    return public.weights if name == UPDATE else public.vectors.get(name, np.zeros(public.layout.count, np.float32))


def _selects(public: Public, sender: int | None, *, inner: Selects, group: int) -> Selections:
    """Uploads are about what they were about; the vectors of a broadcast about all weights, or groups of them."""
    abouts = inner(public, sender)
    if sender is not None or not group:
        return abouts
    return dict.fromkeys(abouts, Selection(groups(public.layout.count, group)))


def _broadcast(
    tally: Tally,
    public: Public,
    server: Server,
    *,
    inner: Broadcast,
    selects: Selects,
    code: Code,
    group: int,
) -> Sent:
    """The server's memory: of every vector a row for what was not said yet, then the rows that the inner broadcast keeps."""
    layout, names = public.layout, list(selects(public, None))
    rows = server.memory if server.memory.size else np.zeros((len(names), layout.count), np.float32)
    wanted, kept = Sent.of(inner(tally, public, server._replace(memory=rows[len(names) :])), rows[len(names) :])
    if kept.size % layout.count:
        raise AlgorithmError(
            f"with a compressed broadcast the server's memory must be rows of {layout.count} numbers, not {kept.shape}"
        )
    coded, unsaid = {}, []
    for name, left in zip(names, rows, strict=False):
        change = wanted.vectors[name].values() - _public(public, name) + left
        coded[name] = code(change, layout)
        unsaid.append(change - said(coded[name], layout, group))
    memory = np.concatenate([np.stack(unsaid), kept.reshape(-1, layout.count)]).astype(np.float32)
    return Sent(wanted._replace(vectors=coded), memory)
