"""Between an nn.Module and the two flat vectors of `bifl.core.layout`.

A module computes with numbers that differ by who may change them: training (parameters, each with a `Slot` in the vectors), nobody
(`Constants`), or the module itself (buffers). A `Network` is all of that.

>>> from bifl.nn.models import mnist_cnn
>>> network = Network(mnist_cnn(10))
>>> network.layout.count, network.layout.parameters
(81958, 82246)
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bifl.core.forward import Forward, Latent, binary
from bifl.core.layout import Layout
from bifl.core.layout import Tensor as Spec
from bifl.core.message import Floats
from bifl.nn.batch import INPUT, Batch, among, needed_arguments, network_arguments, tensor_of
from bifl.nn.binarize import layers_of
from bifl.nn.compute import Engine, Loss, Slot, put
from bifl.nn.misfit import REFUSALS, Misfit, refusal


class Constants:
    """What is neither trained nor sent: frozen parameters, and buffers that are no statistics of a norm.

    Both ends of a run have them from the network's own initialisation. A module may change its buffers as it trains; `reset` undoes
    that, so that no client's training depends on who trained before.
    """

    def __init__(self, module: nn.Module, norms: Iterable[nn.Module]) -> None:
        statistics = {id(norm._buffers[name]) for norm in norms for name in ("running_mean", "running_var")}
        self._buffers: list[tuple[nn.Module, str, Tensor]] = []  # with their initial values
        self._saved: list[Tensor] = []  # frozen parameters, and the initial values of buffers that PyTorch would save
        for child in module.modules():
            self._saved += [p.data for p in child._parameters.values() if p is not None and not p.requires_grad]
            for name, buffer in child._buffers.items():
                if buffer is not None and id(buffer) not in statistics:
                    self._buffers.append((child, name, buffer.detach().clone()))
                    saved = name not in child._non_persistent_buffers_set and buffer.is_floating_point()
                    self._saved += [self._buffers[-1][2]] if saved else []

    @torch.no_grad()
    def reset(self) -> None:
        """Give all buffers their initial values."""
        for child, name, initial in self._buffers:
            now = child._buffers[name]
            if now is None or now.shape != initial.shape or now.dtype != initial.dtype:
                child._buffers[name] = initial.clone()
            else:
                now.copy_(initial)

    def size(self) -> int:
        """How many numbers there are to save."""
        return sum(tensor.numel() for tensor in self._saved)

    def read(self) -> Floats:
        """(size,) what a saved model needs beside the vectors."""
        parts = [tensor.detach().float().cpu().numpy().ravel() for tensor in self._saved]
        return np.concatenate([np.zeros(0, np.float32), *parts])

    @torch.no_grad()
    def write(self, values: Floats) -> None:
        """The inverse of `read`."""
        parts = torch.split_with_sizes(torch.from_numpy(values), [tensor.numel() for tensor in self._saved])
        for tensor, part in zip(self._saved, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))
        self.reset()


TRACKING_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)

CROSS_ENTROPY: Loss = nn.functional.cross_entropy


class Network:
    """A module whose trainable parameters lie in two flat vectors, computed by an `Engine`.

    Its convolutions and linear layers are coded, or those that `binarize` chose, or with a real forward all layers but norms; the
    forward says which of their tensors. A parameter that several layers share lies there once; if one of them codes it, all compute
    with the coded one. Frozen parameters (`requires_grad=False`) are in neither vector: they keep their initial values and are
    never sent.
    """

    def __init__(self, module: nn.Module, forward: Forward = binary) -> None:
        self.module = module  # its parameters are whatever `place` or an engine put there last
        self.device = torch.device("cpu")  # where it computes; the flat vectors come from and go to the processor's memory
        found = layers_of(module, forward.all_layers)
        norms = [
            (name, child)
            for name, child in module.named_modules()
            if isinstance(child, TRACKING_NORMS) and child.track_running_stats
        ]
        self._norms = [child for _, child in norms]
        layers, placed = list[str](), set[nn.Parameter]()
        coded, affine = list[tuple[Spec, nn.Parameter]](), list[tuple[Spec, nn.Parameter]]()
        for number, (name, child, chosen) in enumerate(found):
            own = [each for each in _trained(child, placed) if chosen and forward.codes(number, len(found), each[0])]
            layers += [name] if own else []
            coded += [(Spec(f"{name}.{each}", tuple(one.shape), len(layers) - 1), one) for each, one in own]
            placed.update(one for _, one in own)
        for name, child in module.named_modules():
            own = _trained(child, placed)
            affine += [(Spec(f"{name}.{each}", tuple(one.shape)), one) for each, one in own]
            placed.update(one for _, one in own)
        moments = [Spec(name, (child.num_features,)) for name, child in norms]
        self.layout = Layout(tuple(layers), tuple(spec for spec, _ in coded), tuple(spec for spec, _ in affine), tuple(moments))
        self.constants = Constants(module, self._norms)
        coded_slots, aux = _in_vector(0, torch.zeros(0), coded)
        affine_slots, trained = _in_vector(1, torch.ones(len(layers)), affine)  # ϑ comes first
        self._slots, self._initial = coded_slots + affine_slots, (aux, trained)

    @cached_property
    def engine(self) -> Engine:
        """What computes the module."""
        from bifl.nn.fast.stepwise import StepEngine  # late: numba takes a second, and not all who import us compute

        return StepEngine(self.module, self._slots, self._norms)

    def learn(self, latent: Latent, trained: Tensor, forward: Forward, batch: Batch, loss: Loss = CROSS_ENTROPY) -> float:
        """The mean loss in training, with what `place` would put there; its gradients go to latent.aux and `trained`."""
        layers = len(self.layout.layers)
        with torch.set_grad_enabled(not forward.straight):
            flat = forward.weights(
                latent._replace(scales=trained[:layers], sizes=self.layout.sizes, fan_in=self.layout.fan_in, training=True)
            )
        signs, real = flat.detach(), trained.detach()
        theta = real[:layers].tolist() if forward.scaled else []
        weights = self._scaled(signs, theta) if theta else signs
        for_weights, for_real = torch.empty_like(signs), torch.zeros_like(real)
        found = self.engine.learn(batch, (weights, real), (for_weights, for_real), loss)
        self._unscale(signs, theta, for_weights, for_real)
        if forward.straight:
            latent.aux.grad = for_weights
        elif flat.requires_grad:
            flat.backward(for_weights)  # type: ignore[no-untyped-call]
        trained.grad = for_real if trained.grad is None else trained.grad + for_real
        return found

    def _scaled(self, signs: Tensor, theta: list[float]) -> Tensor:
        weights = torch.empty_like(signs)
        library, one, out = _native(signs, weights)
        for factor, part in zip(theta, self._parts, strict=True):
            library.multiply(one[part], factor, out=out[part])
        return weights

    def _unscale(self, signs: Tensor, theta: list[float], for_weights: Tensor, for_real: Tensor) -> None:
        """From the gradient w.r.t. weights times ϑ, if there is one, to those w.r.t. the weights, in place, and w.r.t. ϑ."""
        library, one, gradient, found = _native(signs, for_weights, for_real)
        for number, (factor, part) in enumerate(zip(theta, self._parts, strict=False)):
            found[number] = library.dot(gradient[part], one[part])
            library.multiply(gradient[part], factor, out=gradient[part])

    @cached_property
    def _parts(self) -> list[slice]:  # of the flat weights, layer by layer
        return [slice(*ends) for ends in pairwise(accumulate(self.layout.sizes, initial=0))]

    def scores(self, batch: Batch) -> Tensor:
        """(n, …) the output of the model that was shown."""
        return self.engine.scores(batch)

    def move(self, device: torch.device) -> None:
        """Compute there from now on."""
        self.module.to(device)
        self.device = device

    def initial(self) -> tuple[Floats, Floats]:
        """(count,) aux and (reals,) real vector of the module's own initialisation, ϑ = 1."""
        aux, trained = self._initial
        return aux.numpy(), np.concatenate([trained.numpy(), self.read_moments()])

    @torch.no_grad()
    def place(self, latent: Latent, trained: Tensor, forward: Forward) -> None:
        """Let the module compute with what `forward` makes of aux, and with the trained part of the real vector."""
        theta = trained[: len(self.layout.layers)]
        flat = forward.weights(latent._replace(scales=theta, sizes=self.layout.sizes, fan_in=self.layout.fan_in))
        weights = self._scaled(flat, theta.tolist()) if forward.scaled else flat
        put((slot.parameter, slot.of((weights, trained.detach()))) for slot in self._slots)

    def read_moments(self) -> Floats:
        """(moments,) E[x] of every norm's input, then E[x²] of every one, from the running statistics."""
        pairs = [(norm.running_mean, norm.running_var) for norm in self._norms]
        means = [mean for mean, _ in pairs if mean is not None]
        squares = [variance + mean**2 for mean, variance in pairs if mean is not None and variance is not None]
        return torch.cat([*means, *squares]).cpu().numpy() if pairs else np.zeros(0, np.float32)

    def input_moments(self, batch: Batch) -> Floats:
        """(moments,) E[x] and E[x²] of every norm's input, as `read_moments` orders them, in the network as it is."""
        found = self.engine.moments(batch)
        if len(found) < len(self._norms) or not found:
            return self.read_moments()  # a norm that the module does not use: there is nothing to measure
        means, squares = zip(*(found[norm] for norm in self._norms), strict=True)
        return np.concatenate([*means, *squares]).astype(np.float32)

    def train_norms(self) -> None:
        """Let every norm that keeps statistics normalise as in training, and nothing else behave as in training."""
        self.module.eval()
        for norm in self._norms:
            norm.train()

    def write_moments(self, moments: Floats) -> None:
        """The inverse of `read_moments`; all other buffers get their initial values."""
        self.constants.reset()
        means, squares = moments.reshape(2, -1)
        variances = np.maximum(squares - means**2, 0)
        sizes = [spec.size for spec in self.layout.moments]
        parts = [torch.split_with_sizes(torch.from_numpy(vector), sizes) for vector in (means, variances)]
        for norm, mean, variance in zip(self._norms, *parts, strict=True):
            if norm.running_mean is not None and norm.running_var is not None:
                norm.running_mean.copy_(mean)
                norm.running_var.copy_(variance)

    @torch.no_grad()
    def show(self, weights: Floats, real: Floats, forward: Forward) -> None:
        """Make the module the given model, in evaluation mode."""
        self.write_moments(real[self.layout.trained :])
        aux = torch.from_numpy(weights).to(self.device)
        trained = torch.from_numpy(real[: self.layout.trained]).to(self.device)
        self.place(Latent(aux, aux, progress=1, key=0), trained, forward)
        self.module.eval()

    @torch.no_grad()
    def misfit(self, batch: Batch, wanted: tuple[int, ...]) -> Misfit | None:
        """Why the module does not give an output of the wanted shape for a batch of one sample; None if it does."""
        if lacking := [name for name in needed_arguments(self.module) if name not in batch]:
            return Misfit(f"it takes {' and '.join(lacking)} beside its input, and the data have no such array")
        self.show(*self.initial(), binary)
        try:
            made = self.module(batch[INPUT], **among(batch, network_arguments(self.module)))
        except REFUSALS as error:
            return refusal(self.module, batch[INPUT], error)
        try:
            shape = tuple(tensor_of(made).shape)
        except TypeError as error:
            return Misfit(str(error))
        return None if shape == (1, *wanted) else Misfit(f"it gives {shape} for one sample instead of {(1, *wanted)}")

    def laid_out(self, layout: Layout) -> tuple[Floats, Floats]:
        """What the module computes with, ϑ included, as the two vectors of another layout of the same network."""
        # by all names, as another layout may name a tied one after another layer
        found = {
            f"{name}.{attribute}": parameter.detach().cpu().numpy().ravel()
            for name, child in self.module.named_modules()
            for attribute, parameter in child._parameters.items()
            if parameter is not None
        }
        weights = [found[spec.name] for spec in layout.coded]
        real = [np.ones(len(layout.layers), np.float32), *(found[spec.name] for spec in layout.affine), self.read_moments()]
        return np.concatenate(weights or [real[0][:0]]), np.concatenate(real)

    def ordinary(self) -> nn.Module:
        """The module with parameters of its own memory, which no vector shares."""
        put((slot.parameter, slot.parameter.detach().clone()) for slot in self._slots)
        return self.module


class PlainNetwork(Network):
    """The twin that calls the module itself, in PyTorch's own layers: slower, and what tests hold the fast one to."""

    @cached_property
    def engine(self) -> Engine:
        """PyTorch's."""
        return Engine(self.module, self._slots, self._norms)


def _trained(layer: nn.Module, placed: set[nn.Parameter]) -> list[tuple[str, nn.Parameter]]:
    """A layer's own trainable parameters by name, but for those that have a place already: tied ones are used by several layers."""
    own = [(name, parameter) for name, parameter in layer._parameters.items() if parameter is not None and parameter.requires_grad]
    return [(name, parameter) for name, parameter in own if parameter not in placed]


def _in_vector(vector: int, first: Tensor, pairs: Iterable[tuple[Spec, nn.Parameter]]) -> tuple[list[Slot], Tensor]:
    """Where parameters lie in a vector, one behind the other after its first numbers; and the vector with their values."""
    slots, values, start = list[Slot](), [first], len(first)
    for spec, parameter in pairs:
        slots.append(Slot(parameter, vector, slice(start, start + spec.size), spec.shape))
        values.append(parameter.detach().ravel())
        start += spec.size
    return slots, torch.cat(values)


def _native(*vectors: Tensor) -> tuple[Any, ...]:
    """The library that works on vectors where they are, and the vectors as it takes them: numpy's calls are the cheaper ones."""
    return (np, *(vector.numpy() for vector in vectors)) if vectors[0].device.type == "cpu" else (torch, *vectors)
