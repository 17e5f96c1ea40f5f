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

from bifl.core.algorithm import Algorithm
from bifl.core.layout import Layout
from bifl.core.loudest import MOST, groups, loud_alphabet, loudest, spread
from bifl.core.message import BINARY, FLOAT16, TERNARY, Alphabet, Floats, Message, Selection, Symbols
from bifl.core.state import Public, Sent, Server
from bifl.core.sums import Tally
from bifl.errors import AlgorithmError, ConfigError

Code = Callable[[Floats, Layout], Message]  # a change of all weights → symbols, and one scale for each layer
TERNARY_KEEPS = 1.0  # deviations: changes of a layer that are smaller are sent as 0
MOST_LEVELS = 256


def sign_code(change: Floats, layout: Layout) -> Message:
    """One bit a weight: the sign; a layer's scale is its mean magnitude."""
    scales = [float(np.abs(part).mean()) for part in layout.layer_parts(change)]
    return _coded((change > 0).astype(np.uint8), BINARY, scales)


def ternary_code(change: Floats, layout: Layout) -> Message:
    """A trit a weight: its sign where it is larger than a deviation, else 0; a layer's scale is the mean magnitude of those."""
    symbols, scales = [], []
    for part in layout.layer_parts(change):
        large = np.abs(part) > TERNARY_KEEPS * np.sqrt(np.square(part).mean())
        symbols.append(np.where(large, np.where(part > 0, 2, 0), 1).astype(np.uint8))
        scales.append(float(np.abs(part[large]).mean()) if large.any() else 0.0)
    return _coded(np.concatenate(symbols), TERNARY, scales)


def level_code(change: Floats, layout: Layout, *, levels: int) -> Message:
    """The nearest of evenly spaced levels, up to three deviations of a layer."""
    scales = [3 * float(np.sqrt(np.square(part).mean())) for part in layout.layer_parts(change)]
    per_weight = np.maximum(layout.per_weight(scales), np.float32(1e-30))
    places = np.clip(np.rint((change / per_weight + 1) * ((levels - 1) / 2)), 0, levels - 1)
    return _coded(places.astype(np.uint8), Alphabet(f"{levels} levels", levels), scales)


def loudest_code(change: Floats, layout: Layout, *, group: int) -> Message:
    """Of every group of weights the loudest; a layer's scale is the mean magnitude of those."""
    symbols = loudest(change, group)
    chosen = spread(symbols, group, layout.count)
    loud = [np.abs(part[said != 0]) for part, said in zip(layout.layer_parts(change), layout.layer_parts(chosen), strict=True)]
    return _coded(symbols, loud_alphabet(group), [float(part.mean()) if len(part) else 0.0 for part in loud])


def half_code(change: Floats, layout: Layout) -> Message:
    """16-bit floats."""
    rounded = np.clip(change, -60000, 60000).astype(np.float16).astype(np.float32)
    return _coded(rounded, FLOAT16, [1.0] * len(layout.layers))


def _coded(symbols: Symbols, alphabet: Alphabet, scales: list[float]) -> Message:
    return Message(symbols, alphabet, np.zeros(0, np.float32), np.asarray(scales, np.float32))


def said(news: Message, layout: Layout, group: int) -> Floats:
    """(count,) the change that a compressed broadcast stands for: single IEEE operations, the same on every machine."""
    values = spread(news.symbols, group, layout.count) if group else news.values()
    return values * layout.per_weight(news.scales)


def _group(down: str) -> int:
    """G of `1ofG`; 0 for everything else."""
    first, _, group = down.partition("of")
    return int(group) if first == "1" and group.isdecimal() and 2 <= int(group) <= MOST else 0


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
        algorithm: its broadcast is the new weights as floats, which everyone takes over.
        down: `float` (as it is), `float16`, `sign`, `ternary`, `1of8` (the loudest of every eight weights), or a number of levels.
    """
    if down == "float":
        return algorithm
    group = _group(down)
    return replace(
        algorithm,
        broadcast=partial(_broadcast, inner=algorithm.broadcast, code=_code(down), group=group),
        absorb=partial(add_change, group=group),
        selects=partial(_selects, inner=algorithm.selects, group=group),
    )


def add_change(public: Public, news: Message, *, group: int) -> Public:
    """The `absorb` of compressed broadcasts."""
    return public._replace(weights=public.weights + said(news, public.layout, group), real=news.real, scales=news.scales)


def _selects(
    public: Public, sender: int | None, *, inner: Callable[[Public, int | None], Selection | None], group: int
) -> Selection | None:
    """Uploads are about what they were about; a broadcast about all weights, or groups of them."""
    if sender is not None:
        return inner(public, sender)
    return Selection(groups(public.layout.count, group)) if group else None


def _broadcast(
    tally: Tally,
    public: Public,
    server: Server,
    *,
    inner: Callable[[Tally, Public, Server], Message | Sent],
    code: Code,
    group: int,
) -> Sent:
    """The server's memory: a row for what was not said yet, then the rows that the inner broadcast keeps."""
    count = public.layout.count
    rows = server.memory if server.memory.size else np.zeros((1, count), np.float32)
    found = inner(tally, public, server._replace(memory=rows[1:]))
    wanted, kept = (found.message, found.memory) if isinstance(found, Sent) else (found, rows[1:])
    if kept.size % count:
        raise AlgorithmError(f"with a compressed broadcast the server's memory must be rows of {count} numbers, not {kept.shape}")
    change = wanted.values() - public.weights + rows[0]
    news = code(change, public.layout)._replace(real=wanted.real)
    lost = change - said(news, public.layout, group)
    return Sent(news, memory=np.concatenate([lost[None], kept.reshape(-1, count)]).astype(np.float32))
