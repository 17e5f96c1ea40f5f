"""What a network costs on a device, layer by layer: flash, RAM, additions and multiplications; for `bifl summary` and `inspect`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from bifl.core.forward import Forward
from bifl.errors import ConfigError
from bifl.export.c_arrays import pack
from bifl.export.c_model import Code, generate
from bifl.export.c_stages import Normalisation
from bifl.export.graph import Unsupported, trace
from bifl.export.stages import Stage
from bifl.files import size
from bifl.nn.network import Network
from bifl.show.wrapped_table import NAME, Column, WrappedTable

COMMON = ((1, 28, 28), (3, 84, 84), (9, 128), (3, 32, 32))  # shapes of inputs to try where nobody says one
PIXELS = Normalisation("uint8_t", 255.0, (0.0,), (1.0,))


class Cost(NamedTuple):
    """A row: layers that are computed together, and what they take."""

    layers: str
    flash: int  # bytes
    ram: int  # bytes of working memory while they run
    additions: int
    multiplications: int


def costs(code: Code) -> list[Cost]:
    """A row per stage of generated C."""
    rows = []
    for number, (stage, function) in enumerate(zip(code.stages, code.functions, strict=True)):
        alive = [code.memory.values[old] for old in stage.sources] + [code.memory.values[number], code.memory.scratch[number]]
        additions, multiplications = _counted(stage)
        flash = sum(array.values.nbytes for array in function.arrays)
        ram = 4 * sum(length for _, length in set(alive))
        rows.append(Cost(" + ".join(stage.layers), flash, ram, additions, multiplications))
    return rows


def _counted(stage: Stage) -> tuple[int, int]:
    """Additions and multiplications: a binary weight takes one of the former, a norm both for each value that it scales."""
    if stage.dot is None or stage.scale is None:
        return (stage.shape.size, 0) if stage.kind == "add" else (0, 0)
    products, values = stage.dot.weight.size * stage.pixels, stage.pixels * len(stage.scale)
    values = stage.shape.size if stage.scaled_after else values
    kind = pack(stage, "").kind
    planes = 2 if kind == "ternary" else 1
    return planes * products + values, (products if kind == "real" else 0) + values


def table(code: Code) -> WrappedTable:
    """What a person sees."""
    rows = costs(code)
    columns = [
        Column("layers", NAME, "all"), Column("flash", footer=size(code.flash)), Column("RAM", footer=size(code.ram)),
        Column("additions", footer=f"{sum(row.additions for row in rows):,}"),
        Column("multiplications", footer=f"{sum(row.multiplications for row in rows):,}"),
    ]  # fmt: skip
    texts = [[row.layers, size(row.flash), size(row.ram), f"{row.additions:,}", f"{row.multiplications:,}"] for row in rows]
    return WrappedTable(columns, texts, "as C on a device")


def untrained(network: Network, forward: Forward, shape: tuple[int, ...] | None) -> Code | str:
    """The C of a network as `forward` would leave it, or why there is none."""
    aux, reals = network.initial()
    if forward.alphabet.size:
        aux = forward.alphabet.values(np.random.default_rng(0).integers(0, forward.alphabet.size, len(aux)))
    network.show(aux, reals, forward)
    module = network.ordinary().eval()
    found = shape or next((each for each in COMMON if _takes(module, each)), None)
    if found is None or not _takes(module, found):
        return "say what one input looks like, as in input=1x28x28, to see what the network costs on a device"
    try:
        return generate(trace(module, found), PIXELS)
    except Unsupported as error:
        return f"no C for a device: {error}"


def input_shape(text: str | None) -> tuple[int, ...] | None:
    """Sizes such as 1x28x28.

    Raises:
        ConfigError: they are something else.
    """
    if text is None:
        return None
    words = text.replace("×", "x").split("x")
    if not all(word.isdecimal() and 0 < len(word) < 6 and int(word) for word in words) or len(words) > 4:
        raise ConfigError(f"input must be sizes such as 1x28x28, not '{text}'")
    return tuple(map(int, words))


@torch.no_grad()
def _takes(module: nn.Module, shape: tuple[int, ...]) -> bool:
    try:
        module(torch.zeros(1, *shape))
    except (RuntimeError, ValueError, IndexError):
        return False
    return True
