"""How a network computes: in one thread, by an `Engine`; here the seam, and the engine that leaves everything to PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from bifl.core.message import Floats
from bifl.errors import ConfigError
from bifl.nn.batch import INPUT, Batch, among, judged, network_arguments, tensor_of


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums must not depend on how many threads share them; and one process per core is faster than threads in one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def device_of(chosen: str) -> torch.device:
    """Where to compute, by the setting `device`: with `auto` on a GPU if there is one.

    Raises:
        ConfigError: a GPU is asked for, and there is none.
    """
    if chosen == "cpu" or (chosen == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("device=cuda needs a GPU that PyTorch can use, and there is none: use device=auto")
    return torch.device("cuda")


Place = tuple[nn.Module, str]  # a layer and the name of its parameter
Loss = Callable[..., Tensor]  # (output, targets) → the mean loss, differentiable; what else it needs of a batch by name
Raw = tuple[Floats, Floats]  # (c,) E[x] and E[x²] of a norm's input


class Slot(NamedTuple):
    """A parameter by all the places that compute with it: tied ones have several."""

    places: tuple[Place, ...]

    def put(self, value: Tensor) -> None:
        """Let all places compute with this tensor."""
        for layer, attribute in self.places:
            # into __dict__, past nn.Module's bookkeeping, which takes its time: these are no parameters any more
            layer.__dict__[attribute] = value

    def get(self) -> Tensor:
        """What they compute with."""
        tensor: Tensor = getattr(*self.places[0])
        return tensor


class Cut(NamedTuple):
    """Where a slot's values lie: in the flat weights or the real vector, which part, and its shape."""

    vector: int
    part: slice
    shape: tuple[int, ...]


class Flat(NamedTuple):
    """The two flat vectors, to be read or written slot by slot."""

    vectors: tuple[Tensor, Tensor]  # flat weights and trained reals
    cuts: Sequence[Cut]  # of every slot

    def tensors(self) -> list[Tensor]:
        """Of every slot, of the same memory."""
        return [self.vectors[cut.vector][cut.part].view(cut.shape) for cut in self.cuts]

    def arrays(self) -> list[Floats]:
        """The same, on a CPU."""
        arrays = [vector.numpy() for vector in self.vectors]
        return [arrays[vector][part].reshape(shape) for vector, part, shape in self.cuts]


class Engine(Protocol):
    """Computes a module, whose parameters are given by slot. On a CPU `fast.stepwise` has a faster one; only rounding differs."""

    def learn(self, batch: Batch, values: Flat, gradients: Flat, loss: Loss) -> float:
        """The mean loss of a batch, in training mode, with these values of all slots; writes their gradients."""

    def scores(self, batch: Batch) -> Tensor:
        """(n, …) the module's output with what the slots hold."""

    def moments(self, batch: Batch) -> dict[nn.Module, Raw]:
        """E[x] and E[x²] of the input of every norm that keeps statistics, with what the slots hold."""


class PlainEngine:
    """PyTorch's own layers and autograd: any module, any device, any precision. The readable twin of the fast engine."""

    def __init__(self, module: nn.Module, slots: Sequence[Slot], norms: Sequence[nn.Module]) -> None:
        self.module, self.slots, self.norms = module, slots, norms
        self._arguments = network_arguments(module)

    def learn(self, batch: Batch, values: Flat, gradients: Flat, loss: Loss) -> float:
        """As `Engine` says."""
        leaves = placed(self.slots, values.tensors())
        found = judged(loss, self.scores(batch), batch)
        write(torch.autograd.grad(found, leaves, allow_unused=True), gradients.tensors())
        return found.item()

    def scores(self, batch: Batch) -> Tensor:
        """As `Engine` says."""
        return tensor_of(self.module(batch[INPUT], **among(batch, self._arguments)))

    def moments(self, batch: Batch) -> dict[nn.Module, Raw]:
        """As `Engine` says."""
        with overheard(self.norms) as found:
            self.module(batch[INPUT], **among(batch, self._arguments))
        return found


def placed(slots: Iterable[Slot], values: Iterable[Tensor]) -> list[Tensor]:
    """Put values into slots, as tensors whose gradients autograd can be asked for."""
    leaves = []
    for slot, value in zip(slots, values, strict=True):
        leaves.append(value.detach().requires_grad_())
        slot.put(leaves[-1])
    return leaves


def write(found: Iterable[Tensor | None], gradients: Iterable[Tensor]) -> None:
    """Copy gradients to where they are wanted; those of what the module did not use are zero."""
    for gradient, out in zip(found, gradients, strict=True):
        if gradient is None:
            out.zero_()
        else:
            out.copy_(gradient.to_dense())  # embeddings may give sparse ones


@contextmanager
def overheard(norms: Iterable[nn.Module]) -> Iterator[dict[nn.Module, Raw]]:
    """Collect E[x] and E[x²] of the norms' inputs while a module computes."""
    found: dict[nn.Module, Raw] = {}

    def note(norm: nn.Module, given: tuple[Tensor, ...]) -> None:
        x = given[0].double()
        mean = x.transpose(0, 1).flatten(1).mean(1)
        if isinstance(norm, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d):  # it keeps the mean of images' variances
            square = x.flatten(2).var(2, correction=0).mean(0) + mean**2
        else:
            square = x.transpose(0, 1).flatten(1).square().mean(1)
        found[norm] = (mean.cpu().numpy(), square.cpu().numpy())

    hooks = [norm.register_forward_pre_hook(note) for norm in norms]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
