"""How a network computes: in one thread, by an `Engine`; the one here leaves everything to PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

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
    """Where to compute, by the setting `device`: with `auto` on a GPU if there is one."""
    if chosen == "cpu" or (chosen == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("device=cuda needs a GPU that PyTorch can use, and there is none: use device=auto")
    return torch.device("cuda")


Loss = Callable[..., Tensor]  # (output, targets) → the mean loss, differentiable; what else it needs of a batch by name
Raw = tuple[Floats, Floats]  # (c,) E[x] and E[x²] of a norm's input
Vectors = tuple[Tensor, Tensor]  # flat weights and trained reals
Values = TypeVar("Values", Tensor, Floats)


class Slot(NamedTuple):
    """A trained parameter, and where its values lie in the two flat vectors; a tied one has one slot."""

    parameter: nn.Parameter
    vector: int
    part: slice
    shape: tuple[int, ...]

    def of(self, vectors: Sequence[Values]) -> Values:
        """Its values, of the vectors' memory."""
        return vectors[self.vector][self.part].reshape(self.shape)


class Engine:
    """PyTorch's own layers and autograd: any module, any device, any precision.

    The readable twin of the faster one in `fast.stepwise`; only rounding differs.
    """

    def __init__(self, module: nn.Module, slots: Sequence[Slot], norms: Sequence[nn.Module]) -> None:
        self.module, self.slots, self.norms = module, slots, norms
        self._arguments = network_arguments(module)

    def learn(self, batch: Batch, values: Vectors, gradients: Vectors, loss: Loss) -> float:
        """The mean loss of a batch, in training mode, with these values of all parameters; writes their gradients."""
        put((slot.parameter, slot.of(values)) for slot in self.slots)
        found = judged(loss, self._output(batch), batch)
        parameters = [slot.parameter for slot in self.slots]
        write(torch.autograd.grad(found, parameters, allow_unused=True), [slot.of(gradients) for slot in self.slots])
        return found.item()

    @torch.no_grad()
    def scores(self, batch: Batch) -> Tensor:
        """(n, …) the module's output with what its parameters are."""
        return self._output(batch)

    @torch.no_grad()
    def moments(self, batch: Batch) -> dict[nn.Module, Raw]:
        """E[x] and E[x²] of the input of every norm that keeps statistics, with what the parameters are."""
        with overheard(self.norms) as found:
            self._output(batch)
        return found

    def _output(self, batch: Batch) -> Tensor:
        return tensor_of(self.module(batch[INPUT], **among(batch, self._arguments)))


def put(values: Iterable[tuple[nn.Parameter, Tensor]]) -> None:
    """Let parameters be these tensors, in their memory."""
    for parameter, value in values:
        parameter.data = value


def write(found: Iterable[Tensor | None], gradients: Iterable[Tensor]) -> None:
    """Copy gradients to where they are wanted; those of what the module did not use are zero."""
    for gradient, out in zip(found, gradients, strict=True):
        if gradient is None:
            out.zero_()
        else:
            out.copy_(gradient.to_dense())  # embeddings may give sparse ones


@contextmanager
def watched(layers: Iterable[nn.Module], note: Callable[[nn.Module, tuple[Tensor, ...]], None]) -> Iterator[None]:
    """Tell `note` of every call of these layers, and what they are given."""
    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


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

    with watched(norms, note):
        yield found
