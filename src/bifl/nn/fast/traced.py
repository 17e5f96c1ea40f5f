"""Any network with its norms, and the activations after them, computed by our loops; all else stays PyTorch's and autograd's.

The module's forward is traced once (torch.fx) to see which activation follows which norm, whatever lies around them: residual
blocks, branches, functional calls. A forward that tracing cannot take down faithfully is called as it is.

>>> block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU())
>>> traced = trace(block)
>>> [type(traced.get_submodule(node.target)).__name__ for node in traced.graph.nodes if node.op == "call_module"]
['Conv2d', 'NormActivation']
"""

from __future__ import annotations

import operator
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from bifl.nn.batch import network_arguments
from bifl.nn.compute import PlainEngine, Slot
from bifl.nn.fast import batch_norm, kernels
from bifl.nn.fast.fused_norm import NormActivation, known

_ADDS = (operator.add, operator.iadd, torch.add, "add", "add_")
_CALLS: dict[Any, int] = dict.fromkeys((torch.relu, torch.relu_, nn.functional.relu, "relu", "relu_"), kernels.RELU)
_CALLS |= dict.fromkeys((torch.tanh, nn.functional.tanh, "tanh", "tanh_"), kernels.TANH)


class Traced:
    """Calls a module by way of its trace, one for each mode that it computes in.

    Args:
        module: what is computed. Its parameters may be exchanged between two calls.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self._children = module, list(module.modules())
        self._norms = any(map(known, self._children))
        self._traces: dict[tuple[bool, ...], nn.Module] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Traced, (self.module,)

    def __call__(self, x: Tensor, **further: Tensor) -> Any:
        """What the module makes of x, and of what else its forward takes."""
        if not self._norms or further:
            return self.module(x, **further)
        modes = tuple(child.training for child in self._children)  # a forward may ask for them
        if modes not in self._traces:
            self._traces[modes] = trace(self.module)
        return self._traces[modes](x)


class TracedEngine(PlainEngine):
    """The plain engine with a traced module."""

    def __init__(self, module: nn.Module, slots: Sequence[Slot], norms: Sequence[nn.Module]) -> None:
        super().__init__(module, slots, norms)
        self.compute = Traced(module)


def trace(module: nn.Module) -> nn.Module:
    """The module with fused norms; the module itself if a trace would not do the same in every call."""
    if network_arguments(module):
        return module  # what it does may depend on which of its arguments it gets
    opened = [child for child in module.modules() if child is module or not fx.Tracer().is_leaf_module(child, "")]
    if any(_holds_tensors(child) or hooked(child) for child in opened):
        return module  # a tensor would be taken down as a constant, and nobody would call the hooks
    before, dice = [dict(vars(child)) for child in opened], _dice()
    try:
        graph = fx.Tracer().trace(module)
    except Exception:  # whatever a foreign forward does that cannot be traced
        return module
    finally:
        drawn = _rewound(dice)
    if drawn or any(_changed(vars(child), old) for child, old in zip(opened, before, strict=True)):
        return module  # what it drew or counted would be the same in every call
    found = fx.GraphModule(module, graph)
    for number, node in enumerate(list(graph.nodes)):
        if node.op == "call_module" and known(found.get_submodule(node.target)) and len(node.args) == 1 and not node.kwargs:
            _fuse(found, node, f"bifl_norm{number}")
    found.recompile()
    return found


def hooked(layer: nn.Module) -> bool:
    """Whether somebody wants to be called when a layer computes."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)


def _fuse(traced: fx.GraphModule, norm: fx.Node, name: str) -> None:
    """Make one node of a norm, a shortcut that ends there (GroupNorm only) and the activation, if nothing else comes between."""
    layer, last, given = traced.get_submodule(str(norm.target)), norm, list(norm.args)
    ends = _only_user(norm)
    if type(layer) is nn.GroupNorm and ends is not None and ends.target in _ADDS and not ends.kwargs and len(ends.args) == 2:
        other = ends.args[1] if ends.args[0] is norm else ends.args[0]
        if isinstance(other, fx.Node) and other is not norm:
            last, given = ends, [*given, other]
    follower = _only_user(last)
    activation = kernels.NONE if follower is None else _activation(traced, follower)
    last = follower if follower is not None and activation else last
    traced.add_submodule(name, NormActivation(layer, activation))
    with traced.graph.inserting_after(last):
        fused = traced.graph.call_module(name, tuple(given))
    last.replace_all_uses_with(fused)
    while last is not norm:
        before = next(node for node in last.all_input_nodes if node is norm or norm in node.all_input_nodes)
        traced.graph.erase_node(last)
        last = before
    traced.graph.erase_node(norm)


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _activation(traced: fx.GraphModule, node: fx.Node) -> int:
    if node.op != "call_module":
        return _CALLS.get(node.target, kernels.NONE)
    layer = traced.get_submodule(str(node.target))
    return kernels.NONE if hooked(layer) else batch_norm.activation(layer)


def _holds_tensors(child: nn.Module) -> bool:
    """Whether a module has parameters or buffers of its own: a trained one is a plain attribute by now."""
    held = [*child._parameters.values(), *child._buffers.values(), *vars(child).values()]
    return any(isinstance(value, Tensor) for value in held)


def _changed(now: dict[str, Any], before: dict[str, Any]) -> bool:
    return now.keys() != before.keys() or any(now[name] is not value for name, value in before.items())


def _dice() -> tuple[Any, ...]:
    """The states of all that a forward may draw from."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002  (a foreign forward may)


def _rewound(dice: tuple[Any, ...]) -> bool:
    """Put the states back; whether there was need to."""
    torches, numpys, pythons = dice
    same = torch.equal(torch.get_rng_state(), torches) and random.getstate() == pythons
    same = same and all(np.array_equal(*pair) for pair in zip(np.random.get_state(), numpys, strict=True))  # noqa: NPY002
    torch.set_rng_state(torches)
    np.random.set_state(numpys)  # noqa: NPY002
    random.setstate(pythons)
    return not same
