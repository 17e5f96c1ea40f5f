"""Any nn.Module as a binary network: its convolutions and linear layers compute with ±1 (paper §1), the others stay as they are.

>>> from torch import nn
>>> network = binarize(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), keep=("2",))
>>> network[0].weight.unique().tolist()
[-1.0, 1.0]
>>> [(name, coded) for name, _, coded in layers_of(network)]
[('0', True), ('2', False)]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from bifl.core.straight_through import straight_through_sign
from bifl.errors import ConfigError
from bifl.registry import nearest

LAYERS = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear,
)  # fmt: skip
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class Binary(nn.Module):
    """ϑ·Sign(aux), shared by the weight and the bias of a layer; the gradient passes the sign unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, aux: Tensor) -> Tensor:
        """The weights that the layer computes with."""
        return self.scale * straight_through_sign(aux)


def binarize(module: nn.Module, keep: Sequence[str] = ()) -> nn.Module:
    """Make a network binary, in place: its convolutions (transposed ones too) and linear layers but those named in `keep`.

    It computes with ±1 at once, and an experiment (`model=`) sends those layers as symbols; layers kept real are averaged. Names
    are dotted, as `named_modules` gives them; a name that is not that of such a layer, and a network of which none is left, are
    refused.
    """
    layers = {name: child for name, child in module.named_modules() if isinstance(child, LAYERS)}
    for name in keep:
        if name not in layers:
            raise ConfigError(f"binarize: keep names '{name}', no convolution or linear layer{nearest(name, layers)}")
    if len(set(keep)) == len(layers):
        raise ConfigError("binarize: no convolution or linear layer is left to be binary")
    for name, child in layers.items():
        if name not in keep and not parametrize.is_parametrized(child):
            binary = Binary()
            for attribute, _ in list(child.named_parameters(recurse=False)):
                parametrize.register_parametrization(child, attribute, binary)
    return module


def layers_of(module: nn.Module, everything: bool = False) -> list[tuple[str, nn.Module, bool]]:
    """The layers that may be coded by name, and whether they are: those of `binarize` if it was used, else all.

    With `everything` embeddings, recurrent layers, attention and whatever else has weights are coded too; norms never are.
    Auxiliary weights are ordinary parameters again afterwards; frozen ones are the ±1 that the layer computes with.
    """
    layers: list[tuple[str, nn.Module]] = [(name, child) for name, child in module.named_modules() if isinstance(child, LAYERS)]
    chosen = [child for _, child in layers if parametrize.is_parametrized(child)]
    for child in chosen:
        for attribute, held in list(child.parametrizations.items()):  # type: ignore[operator, union-attr]
            parametrize.remove_parametrizations(child, attribute, leave_parametrized=not held.original.requires_grad)
    if everything:
        return [(name, child, True) for name, child in module.named_modules() if not isinstance(child, NORMS)]
    return [(name, child, not chosen or child in chosen) for name, child in layers]
