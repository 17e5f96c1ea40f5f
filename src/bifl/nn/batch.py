"""A batch: tensors by name, and which of them a network and a task's functions take.

A network's first argument is `input`; what else its forward names, such as `mask` or `attention_mask`, it gets where the data have
it. A function of a task, (output, targets), may ask for more in the same way, by parameters without a default.

>>> import torch
>>> def loss(output, targets, mask, weight=None): ...
>>> task_arguments(loss)
('mask',)
>>> tensor_of(torch.ones(2, 3)).shape
torch.Size([2, 3])
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

INPUT, TARGET = "input", "target"
Batch = Mapping[str, Tensor]  # `input`, `target`, and whatever else the data have for every sample
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _after(function: Callable[..., Any], first: int) -> list[inspect.Parameter]:
    """The parameters after the first ones, as far as they can be given by name."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin function tells nothing
        return []
    return [parameter for parameter in parameters[first:] if parameter.kind in _NAMED and parameter.name != TARGET]


def network_arguments(module: nn.Module) -> tuple[str, ...]:
    """What a module's forward takes beside its first argument."""
    return tuple(parameter.name for parameter in _after(module.forward, 1))


def needed_arguments(module: nn.Module) -> tuple[str, ...]:
    """Those of them that have no default."""
    return tuple(parameter.name for parameter in _after(module.forward, 1) if parameter.default is inspect.Parameter.empty)


def task_arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    """What a function of a task takes beside (output, targets). Those with a default are its own, such as `reduction`."""
    return tuple(parameter.name for parameter in _after(function, 2) if parameter.default is inspect.Parameter.empty)


def among(batch: Batch, names: Iterable[str]) -> dict[str, Tensor]:
    """Those of these tensors that the batch has."""
    return {name: batch[name] for name in names if name in batch}


def judged(function: Callable[..., Tensor], output: Tensor, batch: Batch) -> Tensor:
    """What a task's function makes of an output and the targets."""
    names = task_arguments(function) if batch.keys() > {INPUT, TARGET} else ()
    return function(output, batch[TARGET], **among(batch, names))


def tensor_of(made: Any) -> Tensor:
    """The tensor that a module returned, or the `logits` of the object that modules of Hugging Face return."""
    if isinstance(made, Tensor):
        return made
    logits = getattr(made, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise TypeError(f"it gives a {type(made).__name__} instead of a tensor, or of an object that has one as logits")
