"""Between an nn.Module and the two flat vectors of `bifl.layout`.

>>> from bifl.nn.models import mnist_cnn
>>> network = Network(mnist_cnn(10))
>>> network.layout.count, network.layout.parameters
(81958, 82246)
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bifl.layout import Layout
from bifl.layout import Tensor as Spec
from bifl.message import Floats
from bifl.nn.binarize import layers_of
from bifl.nn.forward import Forward, Latent, binary
from bifl.nn.fused import NormPoolActivate, stages

if TYPE_CHECKING:
    from bifl.nn.chain import Chain, Parameters

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class Network:
    """A module that computes with parts of two flat vectors: `place` puts them there, autograd finds its way back.

    Args:
        module: taken over; its convolutions and linear layers are coded, or those that `binarize` chose.
        forward: says which of their tensors are.

    Attributes:
        module: computes with whatever `place` put there last; `learn` need not put anything there.
        layout: names, shapes and order of the flat vectors.
        device: where the module computes; the flat vectors come from and go to the processor's memory.
    """

    def __init__(self, module: nn.Module, forward: Forward = binary) -> None:
        self.module = module
        self.device = torch.device("cpu")
        found = layers_of(module)
        self._stages = stages(module)
        norms = [(name, child) for name, child in module.named_modules() if isinstance(child, NORMS) and child.track_running_stats]
        self._norms = [child for _, child in norms]
        layers: list[str] = []
        coded, self._coded, aux = [], [], []
        for number, (name, child, chosen) in enumerate(found):
            attributes = [a for a, _ in child.named_parameters(recurse=False) if chosen and forward.codes(number, len(found), a)]
            layers += [name] if attributes else []
            for attribute, parameter in _release(child, attributes):
                coded.append(Spec(f"{name}.{attribute}", tuple(parameter.shape), len(layers) - 1))
                self._coded.append((child, attribute))
                aux.append(parameter.ravel())
        affine, self._affine, real = [], [], [torch.ones(len(layers))]
        for name, child in module.named_modules():
            for attribute, parameter in _release(child, [attribute for attribute, _ in child.named_parameters(recurse=False)]):
                affine.append(Spec(f"{name}.{attribute}", tuple(parameter.shape)))
                self._affine.append((child, attribute))
                real.append(parameter.ravel())
        moments = [Spec(name, (child.num_features,)) for name, child in norms]
        self.layout = Layout(tuple(layers), tuple(coded), tuple(affine), tuple(moments))
        self._initial = (torch.cat(aux) if aux else torch.zeros(0), torch.cat(real))

    def __call__(self, images: Tensor) -> Tensor:
        """What the module makes of the images, on faster loops where they are known (see `fused`)."""
        for stage in self._stages:
            images = stage(images)
        return images

    def learn(self, latent: Latent, trained: Tensor, forward: Forward, images: Tensor, labels: Tensor) -> float:
        """Mean cross-entropy in training, with what `place` would put there; its gradients go to latent.aux and `trained`."""
        if (chain := self._chain_for(images, training=True)) is not None:
            return self._learn_by(chain, latent, trained, forward, images, labels)
        self.place(latent, trained, forward)
        loss = nn.functional.cross_entropy(self(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def _learn_by(
        self, chain: Chain, latent: Latent, trained: Tensor, forward: Forward, images: Tensor, labels: Tensor
    ) -> float:  # fmt: skip
        """Without autograd, but for what `forward` makes of aux."""
        layers = len(self.layout.layers)
        with torch.set_grad_enabled(not forward.straight):
            flat = forward.weights(latent._replace(scales=trained[:layers], sizes=self.layout.sizes))
        signs, real = flat.detach().numpy(), trained.detach().numpy()
        weights, for_weights, for_real = signs, np.empty_like(signs), np.zeros_like(real)
        parts = self._parts if forward.scaled else []
        if forward.scaled:
            weights = np.empty_like(signs)
        for part, theta in zip(parts, real[:layers], strict=False):
            np.multiply(signs[part], theta, out=weights[part])
        loss = chain.learn(images, labels, self._at(weights, real), self._at(for_weights, for_real))
        for number, part in enumerate(parts):
            for_real[number] = np.dot(for_weights[part], signs[part])
            for_weights[part] *= real[number]
        if forward.straight:
            latent.aux.grad = torch.from_numpy(for_weights)
        elif flat.requires_grad:
            flat.backward(torch.from_numpy(for_weights))  # type: ignore[no-untyped-call]
        found = torch.from_numpy(for_real)
        trained.grad = found if trained.grad is None else trained.grad + found
        return loss

    def _at(self, *vectors: Floats) -> Parameters:
        """Finds layers' parameters in the flat weights and the real vector."""

        def of(layer: nn.Module, attribute: str) -> Floats:
            vector, part, shape = self._slots[layer, attribute]
            return vectors[vector][part].reshape(shape)

        return of

    def scores(self, images: Tensor) -> Tensor:
        """(n, classes) of the model that was shown, as fast as there is a way."""
        if (chain := self._chain_for(images, training=False)) is not None:
            return torch.from_numpy(chain.scores(images, _placed))
        result: Tensor = self.module(images)
        return result

    def _chain_for(self, images: Tensor, *, training: bool) -> Chain | None:
        """The chain, if it can take these images, with all batch-norms in training (of more than one image) or all not."""
        if self._chain is None or self.device.type != "cpu" or any(norm.training != training for norm in self._norms):
            return None
        return self._chain if self._chain.fits(images) and (len(images) > 1 or not training) else None

    @cached_property
    def _chain(self) -> Chain | None:
        from bifl.nn.chain import chain  # late: numba takes a second, and not all who import us compute

        return chain(self.module)

    @cached_property
    def _parts(self) -> list[slice]:
        """Of the flat weights, layer by layer."""
        ends = np.cumsum(self.layout.sizes).tolist()
        return [slice(end - size, end) for end, size in zip(ends, self.layout.sizes, strict=True)]

    @cached_property
    def _slots(self) -> dict[tuple[nn.Module, str], tuple[int, slice, tuple[int, ...]]]:
        """Where a layer's parameter lies: in the flat weights (0) or the real vector (1), which part, and its shape."""
        found, vectors = {}, ((0, self._coded, self.layout.coded), (len(self.layout.layers), self._affine, self.layout.affine))
        for vector, (offset, names, specs) in enumerate(vectors):
            ends = np.cumsum([offset, *(spec.size for spec in specs)])
            for name, spec, start, end in zip(names, specs, ends, ends[1:], strict=False):
                found[name] = (vector, slice(int(start), int(end)), spec.shape)
        return found

    def move(self, device: torch.device) -> None:
        """Compute there from now on."""
        self.module.to(device)
        self.device = device

    def initial(self) -> tuple[Floats, Floats]:
        """(count,) aux and (reals,) real vector of the module's own initialisation, ϑ = 1."""
        aux, trained = self._initial
        return aux.numpy(), np.concatenate([trained.numpy(), self.read_moments()])

    def place(self, latent: Latent, trained: Tensor, forward: Forward) -> None:
        """Let the module compute with what `forward` makes of aux, and with the trained part of the real vector."""
        specs = self.layout
        theta, *affine = torch.split_with_sizes(trained, [len(specs.layers), *(spec.size for spec in specs.affine)])
        flat = forward.weights(latent._replace(scales=theta, sizes=specs.sizes))
        scale = theta if forward.scaled else None
        spread = _Spread.apply(flat, scale, specs.coded)  # type: ignore[no-untyped-call]
        # into __dict__, past nn.Module's bookkeeping: these are no parameters any more (see _release), and it takes its time
        for (child, attribute), weights in zip(self._coded, spread, strict=True):
            child.__dict__[attribute] = weights
        for (child, attribute), spec, part in zip(self._affine, specs.affine, affine, strict=True):
            child.__dict__[attribute] = part.view(spec.shape)

    def read_moments(self) -> Floats:
        """(moments,) E[x] of every batch-norm input, then E[x²] of every one, from the running statistics."""
        pairs = [(norm.running_mean, norm.running_var) for norm in self._norms]
        means = [mean for mean, _ in pairs if mean is not None]
        squares = [variance + mean**2 for mean, variance in pairs if mean is not None and variance is not None]
        return torch.cat([*means, *squares]).cpu().numpy() if pairs else np.zeros(0, np.float32)

    def input_moments(self, images: Tensor) -> Floats:
        """(moments,) E[x] and E[x²] of every batch-norm input, as `read_moments` orders them, in the network as it is."""
        if (chain := self._chain_for(images, training=True)) is not None:
            found = {norm: moments.raw() for norm, moments in chain.moments(images, _placed).items()}
        else:
            found = self._overheard(images)
        if len(found) < len(self._norms) or not found:
            return self.read_moments()  # a batch-norm that the module does not use: there is nothing to measure
        means, squares = zip(*(found[norm] for norm in self._norms), strict=True)
        return np.concatenate([*means, *squares]).astype(np.float32)

    def _overheard(self, images: Tensor) -> dict[nn.Module, tuple[Floats, Floats]]:
        """E[x] and E[x²] of every batch-norm's input as the network computes."""
        found: dict[nn.Module, tuple[Floats, Floats]] = {}

        def note(norm: nn.Module, given: tuple[Tensor, ...]) -> None:
            flat = given[0].transpose(0, 1).flatten(1).double()  # (channels, all else)
            found[norm] = (flat.mean(1).cpu().numpy(), flat.square().mean(1).cpu().numpy())

        joined = [stage for stage in self._stages if isinstance(stage, NormPoolActivate)]
        for stage in joined:
            stage.moments = None
        hooks = [norm.register_forward_pre_hook(note) for norm in self._norms]
        self(images)
        for hook in hooks:
            hook.remove()
        for stage in joined:
            if stage.moments is not None:
                found[stage.norm] = stage.moments.raw()
        return found

    def train_norms(self) -> None:
        """Let every batch-norm normalise by its own batch, and nothing else behave as in training."""
        self.module.eval()
        for norm in self._norms:
            norm.train()

    def write_moments(self, moments: Floats) -> None:
        """The inverse of `read_moments`."""
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
    def misfit(self, image: tuple[int, ...], classes: int) -> str | None:
        """Why the module cannot tell that many classes of (channels, height, width) images apart; None if it can."""
        self.show(*self.initial(), binary)
        try:
            scores = self.module(torch.zeros(1, *image))
        except (RuntimeError, ValueError, IndexError) as error:
            return str(error).partition("\n")[0]
        shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        return None if shape == (1, classes) else f"it gives {shape} for one image instead of {(1, classes)}"

    def laid_out(self, layout: Layout) -> tuple[Floats, Floats]:
        """What the module computes with, ϑ included, as the two vectors of another layout of the same network."""
        slots = zip([*self.layout.coded, *self.layout.affine], [*self._coded, *self._affine], strict=True)
        found = {spec.name: getattr(*slot).detach().cpu().numpy().ravel() for spec, slot in slots}
        weights = [found[spec.name] for spec in layout.coded]
        real = [np.ones(len(layout.layers), np.float32), *(found[spec.name] for spec in layout.affine), self.read_moments()]
        return np.concatenate(weights or [real[0][:0]]), np.concatenate(real)

    def ordinary(self) -> nn.Module:
        """The module as anyone expects one: what it computes with becomes its parameters."""
        for child, attribute in self._coded + self._affine:
            tensor: Tensor = getattr(child, attribute)
            delattr(child, attribute)
            setattr(child, attribute, nn.Parameter(tensor.detach().clone()))
        return self.module


class PlainNetwork(Network):
    """The twin that calls the module itself, in PyTorch's own layers: slower, and what tests hold the fast one to."""

    _chain = None

    def __call__(self, images: Tensor) -> Tensor:
        """What the module makes of the images."""
        result: Tensor = self.module(images)
        return result


def _placed(layer: nn.Module, attribute: str) -> Floats:
    """What `place` put there."""
    found: Floats = layer.__dict__[attribute].numpy()
    return found


class _Spread(torch.autograd.Function):
    """Flat weights → tensors in their shapes, each times its layer's ϑ if there is one. Autograd's way takes twice the passes."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, theta: Tensor | None, specs: tuple[Spec, ...]) -> tuple[Tensor, ...]:
        ctx.specs = specs
        ctx.save_for_backward(*([] if theta is None else [weights, theta]))
        parts = torch.split_with_sizes(weights.detach(), [spec.size for spec in specs])
        if theta is not None:
            factors = theta.tolist()
            parts = tuple(part * factors[spec.layer] for part, spec in zip(parts, specs, strict=True))
        return tuple(part.view(spec.shape) for part, spec in zip(parts, specs, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        flat = [gradient.reshape(-1) for gradient in gradients]
        if not ctx.saved_tensors:
            return torch.cat(flat), None, None
        weights, theta = ctx.saved_tensors
        for_weights, for_theta, factors = torch.empty_like(weights), [0.0] * len(theta), theta.tolist()
        sizes = [spec.size for spec in ctx.specs]
        parts = [torch.split_with_sizes(vector, sizes) for vector in (weights, for_weights)]
        for gradient, spec, own, out in zip(flat, ctx.specs, *parts, strict=True):
            torch.mul(gradient, factors[spec.layer], out=out)
            for_theta[spec.layer] += torch.dot(gradient, own).item()
        return for_weights, theta.new_tensor(for_theta), None


def _release(module: nn.Module, attributes: list[str]) -> list[tuple[str, Tensor]]:
    """Turn some of a module's own parameters into plain attributes, which `place` may set; their names and initial values."""
    released = []
    for attribute in attributes:
        tensor = getattr(module, attribute).detach().clone()
        delattr(module, attribute)
        setattr(module, attribute, tensor)
        released.append((attribute, tensor))
    return released
