"""What becomes of the norm of the class scores, the last layer of many networks: the setting `scores`.

Its γ and β are one number a class, and where clients lack classes they do harm and tell which (docs/results/missing-classes.md,
docs/results/privacy.md). What is frozen is neither trained nor sent (`bifl.nn.network`).

>>> from bifl.nn.models import mnist_cnn
>>> [name for name, parameter in fixed(mnist_cnn(10), 10).named_parameters() if not parameter.requires_grad]
['norm4.weight', 'norm4.bias']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from bifl.errors import ConfigError
from bifl.nn.binarize import NORMS
from bifl.nn.models import model
from bifl.registry import short


def trained(module: nn.Module, outputs: int) -> nn.Module:
    """The module as it is."""
    return module


def fixed(module: nn.Module, outputs: int) -> nn.Module:
    """The module with γ and β of its scores frozen as they are initialised, which is usually at 1 and 0."""
    layers = [child for child in module.modules() if child._parameters]  # also those whose γ and β are None
    last = layers[-1] if layers else module
    if not isinstance(last, NORMS) or any(own.shape != (outputs,) for own in last.parameters()):
        raise ConfigError(f"ends in a layer {type(last).__name__}, not in a norm of its {outputs} scores")
    for parameter in last.parameters(recurse=False):
        parameter.requires_grad_(False)
    return module


SCORES: dict[str, Callable[[nn.Module, int], nn.Module]] = {"trained": trained, "fixed": fixed}


def make(name: str, parameters: Mapping[str, Any], outputs: int, scores: str) -> nn.Module:
    """The network called `name`, its scores as the setting `scores` says."""
    module = model.make(name, parameters, outputs)
    try:
        return SCORES[scores](module, outputs)
    except ConfigError as error:
        raise ConfigError(f"scores={scores} has nothing to do: model '{short(name)}' {error}; leave it out") from error
