"""A network layer by layer: what is binary, what stays real, what it weighs, and what it costs on a device.

>>> from bifl.nn.network import Network
>>> from bifl.core.forward import binary
>>> from bifl.nn.models import mnist_cnn
>>> layers = summarise(Network(mnist_cnn(10)), binary)
>>> layers[0].name, layers[0].weights, layers[0].parameters, layers[0].bits, layers[0].bytes
('conv1', 'binary', 144, '1', 22.0)
>>> verdict(layers)
'82,242 parameters in 12.5 kB, 26.3 times smaller than the 330 kB of float32 (ϑ and running statistics included)'
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from bifl.codec.symbols import bits_per_symbol
from bifl.core.forward import Forward
from bifl.core.message import TERNARY
from bifl.errors import DataError
from bifl.experiment.model import Model
from bifl.export.c_model import Code, code_of, generate
from bifl.export.raw import Normalisation
from bifl.export.weights import Unsupported
from bifl.files import size
from bifl.nn.network import Network
from bifl.show.tables import NAME, NUMBER, TEXT, Column, Table

COMMON = ((1, 28, 28), (3, 84, 84), (9, 128), (3, 32, 32))  # shapes of inputs to try where nobody says one
PIXELS = Normalisation("uint8_t", 255.0, (0.0,), (1.0,))
FLOAT_BITS = 32  # of a real number on the wire that is not batch-norm's


class Layer(NamedTuple):
    """A row of the summary."""

    name: str
    kind: str
    shape: str  # of its weight and of its bias
    weights: str  # what they are made of
    parameters: int  # trainable, without ϑ
    bits: str  # of one of them
    bytes: float  # packed as in a model file; ϑ and running statistics included
    float_bytes: int  # the same at 32 bit each


def summarise(network: Network, forward: Forward) -> list[Layer]:
    """A row per layer that has parameters or running statistics, in the order of the network."""
    layout, rows = network.layout, []
    width = 8 / 5 if forward.alphabet == TERNARY else float(bits_per_symbol(forward.alphabet))  # bits of a packed symbol
    for name, child in network.module.named_modules():
        coded = [spec for spec in layout.coded if spec.owner == name]
        affine = [spec for spec in layout.affine if spec.owner == name]
        moments = sum(2 * spec.size for spec in layout.moments if spec.name == name)
        if not (coded or affine or moments):
            continue
        symbols, reals = sum(spec.size for spec in coded), sum(spec.size for spec in affine)
        others = reals + moments + (name in layout.layers)
        kinds = {forward.alphabet.name if width < 32 else "real": width} if coded else {}
        kinds |= {"real": 32.0} if affine else {}
        shape = " + ".join("×".join(map(str, spec.shape)) for spec in coded + affine)
        bits = " + ".join(f"{kind:g}" for kind in kinds.values())
        packed, unpacked = symbols * width / 8 + 4 * others, 4 * (symbols + others)
        rows.append(Layer(name, type(child).__name__, shape, " + ".join(kinds), symbols + reals, bits, packed, unpacked))
    return rows


def table(title: str, layers: list[Layer]) -> Table:
    """What a person sees."""
    columns = [
        Column("layer", NAME, "all"), Column("kind", TEXT), Column("shape", TEXT), Column("weights", TEXT),
        Column("parameters", footer=f"{sum(layer.parameters for layer in layers):,}"), Column("bits"),
        Column("memory", footer=size(sum(layer.bytes for layer in layers))),
    ]  # fmt: skip
    return Table(columns, [[*layer[:4], f"{layer.parameters:,}", layer.bits, size(layer.bytes)] for layer in layers], title)


def verdict(layers: list[Layer]) -> str:
    """What it comes to."""
    packed, floats = sum(layer.bytes for layer in layers), sum(layer.float_bytes for layer in layers)
    less = f"{floats / packed:.3g} times smaller than the {size(floats)} of float32" if packed < floats else "all of it float32"
    return f"{sum(layer.parameters for layer in layers):,} parameters in {size(packed)}, {less} (ϑ and running statistics included)"


def price_of_reals(network: Network) -> str | None:
    """What the weights of layers kept real cost in every message; None if there are none.

    Batch-norm's numbers are not among them: they are short (`codec.reals`), and differ from round to round.
    """
    layout = network.layout
    norms = {spec.name for spec in layout.moments}
    kept = [spec for spec in layout.affine if spec.owner not in norms]
    if not kept:
        return None
    count, changed = sum(spec.size for spec in kept), sum(spec.size for spec in layout.kept)

    def cost(bits: float) -> str:  # of a parameter, with so many bits of a change
        return f"{(FLOAT_BITS * (count - changed) + bits * changed) / layout.parameters:.3g}"

    shorter = f"; {cost(8)} with reals=byte, {cost(1)} up and {cost(8)} down with reals=sign" if changed else ""
    owners = ", ".join(dict.fromkeys(spec.owner or "the network" for spec in kept))
    return (
        f"{count:,} of {layout.parameters:,} trained numbers stay real ({owners}): as float32 they cost {cost(FLOAT_BITS)} bits"
        f" per parameter of the network in every upload and every broadcast, whatever the algorithm makes of the others{shorter}"
    )


def _device_table(code: Code) -> Table:
    """What a network costs as C."""
    *rows, whole = [
        [row.layers, size(row.flash), size(row.ram), f"{row.additions:,}", f"{row.multiplications:,}"]
        for row in (*code.costs, code.cost)
    ]
    headings = ("layers", "flash", "RAM", "additions", "multiplications")
    columns = [Column(*each) for each in zip(headings, (NAME, *[NUMBER] * 4), whole, strict=True)]
    return Table(columns, rows, "as C on a device")


def trained(model: Model, path: Path) -> Table | str:
    """What a model costs on a device, or why that is not known."""
    if not model.shape:
        return "the file does not say what one input looks like, so what it costs on a device is not known"
    try:
        return _device_table(code_of(model, model.module().eval(), model.shape, path))
    except DataError as error:
        return str(error)


def untrained(network: Network, forward: Forward, shape: tuple[int, ...] | None) -> Table | str:
    """What a network as `forward` would leave it costs on a device, or why that is not known."""
    aux, reals = network.initial()
    if forward.alphabet.size:
        aux = forward.alphabet.values(np.random.default_rng(0).integers(0, forward.alphabet.size, len(aux)))
    network.show(aux, reals, forward)
    module = network.ordinary().eval()
    wanted = next((each for each in ((shape,) if shape else COMMON) if _takes(module, each)), None)
    if wanted is None:
        return "say what one input looks like, as in input=1x28x28, to see what the network costs on a device"
    try:
        return _device_table(generate(module, wanted, PIXELS))
    except Unsupported as error:
        return f"no C for a device: {error}"


@torch.no_grad()
def _takes(module: nn.Module, shape: tuple[int, ...]) -> bool:
    try:
        module(torch.zeros(1, *shape))
    except (RuntimeError, ValueError, IndexError):
        return False
    return True
