"""Between an nn.Module and the two flat vectors of `bifl.layout`.

>>> import torch
>>> from bifl.nn.models import mnist_cnn
>>> network = Network(mnist_cnn(10))
>>> network.layout.count, network.layout.parameters
(81958, 82246)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from bifl.layout import Layout
from bifl.layout import Tensor as Spec
from bifl.message import Floats
from bifl.nn.forward import Forward

CODED = (nn.Conv2d, nn.Linear)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class Network:
    """A module whose conv and linear weights are taken from a flat vector at every step.

    Attributes:
        module: computes with whatever `place` put there last.
        layout: names, shapes and order of the flat vectors.
        theta: (layers,) trainable ϑ.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        coded = [(name, child) for name, child in module.named_modules() if isinstance(child, CODED)]
        self._norms = [(name, child) for name, child in module.named_modules() if isinstance(child, NORMS)]
        specs, self._slots = [], []
        self._initial: list[Tensor] = []
        for layer, (name, child) in enumerate(coded):
            for attribute, parameter in list(child.named_parameters(recurse=False)):
                specs.append(Spec(f"{name}.{attribute}", tuple(parameter.shape), layer))
                self._slots.append((child, attribute))
                self._initial.append(parameter.detach().clone())
                delattr(child, attribute)  # from now on a plain attribute, set by `place`
                setattr(child, attribute, self._initial[-1])
        self.layout = Layout(
            layers=tuple(name for name, _ in coded),
            coded=tuple(specs),
            affine=tuple(Spec(name, tuple(p.shape)) for name, p in module.named_parameters()),
            moments=tuple(Spec(name, (child.num_features,)) for name, child in self._norms),
        )
        self.theta = torch.ones(len(coded), requires_grad=True)

    def initial_aux(self) -> Floats:
        """(count,) the module's own initialisation."""
        return np.concatenate([t.numpy().ravel() for t in self._initial])

    def trainable(self) -> list[Tensor]:
        """The real parameters: ϑ and batch-norm γ, β."""
        return [self.theta, *self.module.parameters()]

    def place(self, aux: Tensor, forward: Forward) -> None:
        """Let the layers compute with what `forward` makes of aux."""
        weights = torch.split_with_sizes(forward.weights(aux), [spec.size for spec in self.layout.coded])
        for (child, attribute), spec, part in zip(self._slots, self.layout.coded, weights, strict=True):
            tensor = part.view(spec.shape)
            setattr(child, attribute, tensor * self.theta[spec.layer] if forward.scaled else tensor)

    def read_real(self) -> Floats:
        """(reals,) ϑ, γ, β and the moments of the running statistics."""
        means = [child.running_mean for _, child in self._norms]
        squares = [child.running_var + child.running_mean**2 for _, child in self._norms]  # type: ignore[operator]
        with torch.no_grad():
            return torch.cat([t.reshape(-1) for t in (*self.trainable(), *means, *squares) if t is not None]).numpy()

    @torch.no_grad()
    def write_real(self, real: Floats) -> None:
        """The inverse of `read_real`."""
        parts = iter(torch.split_with_sizes(torch.from_numpy(real.copy()), list(self._real_sizes())))
        for parameter in self.trainable():
            parameter.copy_(next(parts).view_as(parameter))
        means = [next(parts) for _ in self._norms]
        for (_, child), average, square in zip(self._norms, means, parts, strict=True):
            assert child.running_mean is not None
            assert child.running_var is not None
            child.running_mean.copy_(average)
            child.running_var.copy_((square - average**2).clamp_(min=0))

    def _real_sizes(self) -> Iterator[int]:
        yield len(self.layout.layers)
        yield from (spec.size for spec in self.layout.affine)
        yield from (spec.size for spec in self.layout.moments * 2)

    def finish(self, weights: Floats, real: Floats, forward: Forward) -> None:
        """Make the module an ordinary one in evaluation mode: its parameters are what it computes with."""
        self.write_real(real)
        with torch.no_grad():
            self.place(torch.from_numpy(weights), forward)
        for child, attribute in self._slots:
            tensor = getattr(child, attribute)
            delattr(child, attribute)
            setattr(child, attribute, nn.Parameter(tensor.detach().clone()))
        self.module.eval()
