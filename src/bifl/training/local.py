"""Local training (paper §4): the plan of a round, its augmentation, and one client's steps.

The gradient of the loss w.r.t. the binary weights is applied to aux (straight-through), then aux is clipped to [−1, 1]. The
optimiser is fresh every round, as in the paper. What a client's inputs become before each step is drawn from a stream of the
client and round; how to write an augmentation of your own, docs/training.md tells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise, repeat
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bifl.core.forward import PLAIN, Forward, Latent, Local
from bifl.core.randomness import forward_key, stream, stream_seed
from bifl.core.state import Client
from bifl.errors import ConfigError
from bifl.nn.batch import INPUT, TARGET, Samples
from bifl.nn.compute import Loss, one_thread
from bifl.nn.network import CROSS_ENTROPY, Network
from bifl.nn.optimizers import Optimizer, Trained, begin
from bifl.registry import Registry
from bifl.tasks.task import Count

# ---- augmentations ------------------------------------------------------------------------------------------------------

# (inputs as the network takes them: normalised, or tokens; random numbers) → as many of the same shape and type
Augment = Callable[[Tensor, np.random.Generator], Tensor]
augment: Registry[Augment] = Registry("augment")
SIGNATURE = "a function (inputs, generator) → inputs of the same shape and type"


def as_they_are(inputs: Tensor, generator: np.random.Generator) -> Tensor:
    """The inputs."""
    return inputs


@augment
def none() -> Augment:
    """Inputs as they are."""
    return as_they_are


@augment
def shift_flip(shift: int = 2, flip: bool = True) -> Augment:
    """Images moved by up to `shift` pixels, borders repeated, and half of them mirrored if `flip`: not for digits and letters."""
    if not 0 <= shift <= 1000:
        raise ConfigError(f"augment.shift must be a number of pixels from 0 to 1000, not {shift}")

    def moved(images: Tensor, generator: np.random.Generator) -> Tensor:
        if images.dim() != 4 or not images.is_floating_point():
            raise ConfigError(f"augment=shift_flip is for images, (n, channels, height, width), not {tuple(images.shape)}")
        count, _, height, width = images.shape
        by = generator.integers(-shift, shift + 1, (2, count, 1))
        rows = np.clip(np.arange(height) + by[0], 0, height - 1)
        columns = np.clip(np.arange(width) + by[1], 0, width - 1)
        mirrored = generator.random((count, 1)) < (0.5 if flip else 0.0)
        columns = np.where(mirrored, columns[:, ::-1], columns)
        places = (np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :])
        numbers, lines, dots = (torch.from_numpy(place).to(images.device) for place in places)
        return images[numbers, :, lines, dots].permute(0, 3, 1, 2)

    return moved


@augment
def noise(deviation: float = 0.05) -> Augment:
    """Gaussian noise on floats and pixels, in units of their own deviation: for sensors."""
    if not 0 <= deviation < math.inf:
        raise ConfigError(f"augment.deviation must be 0 or more, not {deviation}")

    def shaken(inputs: Tensor, generator: np.random.Generator) -> Tensor:
        if not inputs.is_floating_point():
            raise ConfigError("augment=noise is for floats and pixels, not for tokens")
        drawn = generator.standard_normal(tuple(inputs.shape), np.float32) * np.float32(deviation)
        return inputs + torch.from_numpy(drawn).to(inputs.device)

    return shaken


# ---- a plan -------------------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """How to train in this round."""

    optimizer: Optimizer
    lr: float
    batch: int
    epochs: int
    seed: int = 0  # of the experiment: with the round it gives every client's random streams
    round: int = 1
    steps: int = 0  # instead of epochs; 0 means epochs
    clip: float = 0.0  # the largest norm of a step's gradient; 0 means any
    augment: Augment = as_they_are


def at_rates(plan: Plan, rate: Callable[[int], float]) -> Callable[[int], Plan]:
    """Round → how to train in it: by the same plan, at the round's rate."""
    return lambda round: plan._replace(lr=rate(round), round=round)


# ---- a client's steps ---------------------------------------------------------------------------------------------------

# Where batch-norm follows a layer, its ϑ has no effect and its gradient is rounding noise (about 1e-7), of which Adam with the
# usual ε makes full steps: ϑ then walks at random and may cross zero, where the network collapses. True gradients are 1e-3 and up.
THETA_EPSILON = 1e-4


def batches(index: Tensor, size: int, generator: np.random.Generator) -> Iterator[Tensor]:
    """An epoch in random order. Batch-norm cannot train on one image, so a lone last one joins the batch before."""
    order = index[torch.from_numpy(generator.permutation(len(index)))]
    for start, end in pairwise([*_starts(len(order), size), len(order)]):
        yield order[start:end]


def _starts(count: int, size: int) -> list[int]:
    starts = list(range(0, count, size))
    return starts[:-1] if len(starts) > 1 and count - starts[-1] == 1 else starts


def _drawn(index: Tensor, plan: Plan, generator: np.random.Generator) -> Iterator[Tensor]:
    """The batches of a round: whole epochs, or so many steps, of which the last epoch may be cut short."""
    epochs = (batches(index, plan.batch, generator) for _ in repeat(None))
    return islice(chain.from_iterable(epochs), _steps(index, plan))


def _steps(index: Tensor, plan: Plan) -> int:
    return plan.steps or plan.epochs * len(_starts(len(index), plan.batch))


@one_thread()
@torch.random.fork_rng(devices=[])
def train(
    client: Client, network: Network, forward: Forward, samples: Samples, index: Tensor, plan: Plan, loss: Loss = CROSS_ENTROPY,
    local: Local = PLAIN, count: Count = len,
) -> tuple[Client, float]:  # fmt: skip
    """The client with `aux` and `real` trained on its own samples; the mean loss (NaN: it diverged), without what `local` adds."""
    network.write_moments(client.real[network.layout.trained :])
    network.module.train()
    vectors = _vectors(client, network, forward, plan.lr)
    aux, real = vectors.vectors
    apply = begin(plan.optimizer, vectors)
    # for layers that draw, such as dropout; torch.manual_seed would also note a traceback for each kind of GPU that is not there
    drawn = stream_seed(plan.seed, plan.round, client.number, "layers")
    torch.default_generator.manual_seed(drawn)
    if network.device.type == "cuda":
        torch.cuda.manual_seed(drawn)
    key = forward_key(plan.seed, plan.round, client.number)
    orders, changes = (stream(plan.seed, plan.round, client.number, name) for name in ("batches", "augment"))
    start = torch.from_numpy(client.start).to(network.device)
    add, steps = _adding(local, vectors.vectors, network), _steps(index, plan)
    total, seen = 0.0, 0
    for step, chosen in enumerate(_drawn(index, plan, orders)):
        batch = samples.batch(chosen)
        batch = {**batch, INPUT: augmented(plan.augment, batch[INPUT], changes)}
        latent = Latent(aux, start, step / steps, key, step=step, training=True)
        weight = count(batch[TARGET])
        total += network.learn(latent, real, forward, batch, loss) * weight
        add()
        if plan.clip:
            _shorten(vectors.vectors, plan.clip)
        apply()
        seen += weight
    new_real = np.concatenate([real.detach().cpu().numpy(), network.read_moments()])
    trained = client._replace(aux=aux.detach().cpu().numpy(), real=new_real, steps=steps, rate=plan.lr)
    return trained, total / max(seen, 1)


def augmented(change: Augment, inputs: Tensor, generator: np.random.Generator) -> Tensor:
    """The inputs of a step after augmentation, laid out as networks like them."""
    changed = change(inputs, generator)
    if changed is inputs:  # nothing to lay out anew
        return inputs
    if not isinstance(changed, Tensor) or changed.shape != inputs.shape or changed.dtype != inputs.dtype:
        what = f"{changed.dtype} {tuple(changed.shape)}" if isinstance(changed, Tensor) else f"a {type(changed).__name__}"
        raise ConfigError(f"augment must return {SIGNATURE}: {inputs.dtype} {tuple(inputs.shape)} became {what}")
    return changed.to(memory_format=torch.channels_last) if changed.dim() == 4 else changed


def _vectors(client: Client, network: Network, forward: Forward, lr: float) -> Trained:
    """What is trained: copies of aux and of the trained real parameters, where the network computes."""
    layers, trained = len(network.layout.layers), network.layout.trained
    aux = torch.from_numpy(client.aux).to(network.device, copy=True).requires_grad_()
    real = torch.from_numpy(client.real[:trained]).to(network.device, copy=True).requires_grad_()
    floors = torch.zeros_like(real, requires_grad=False)
    floors[:layers] = THETA_EPSILON
    limits = [1.0 if forward.clip else math.inf, math.inf]
    return Trained([aux, real], lr, [0.0, floors], limits, [slice(None), slice(layers, None)])


def _adding(local: Local, vectors: Sequence[Tensor], network: Network) -> Callable[[], None]:
    """What is done after a step's gradients are there, so that they are those of the loss and of what `local` adds."""
    device, (aux, _) = network.device, vectors
    correction = None if local.correction is None else torch.from_numpy(local.correction).to(device)
    centre = [vector.detach().clone() for vector in vectors] if local.pull else []
    if local.pull and local.centre is not None:
        weights, real = local.centre
        centre = [torch.from_numpy(part).to(device) for part in (weights, real[: network.layout.trained])]

    @torch.no_grad()
    def add() -> None:
        if correction is not None and aux.grad is not None:
            aux.grad.add_(correction)
        for vector, middle in zip(vectors, centre, strict=False):  # the gradient of µ/2·‖w − centre‖², where there is one
            if vector.grad is not None:
                vector.grad.add_(vector - middle, alpha=local.pull)
        if local.loss is not None and aux.grad is not None:
            aux.grad.add_(_gradient(local.loss, aux))

    return add


@torch.enable_grad()
def _gradient(loss: Callable[[Tensor], Tensor], aux: Tensor) -> Tensor:
    """Of a term of the loss, w.r.t. the coded weights."""
    weights = aux.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(weights), [weights])
    return gradient


@torch.no_grad()
def _shorten(vectors: Iterable[Tensor], most: float) -> None:
    """Scale the whole gradient to a norm of at most `most`, as torch.nn.utils.clip_grad_norm_ does."""
    gradients = [vector.grad for vector in vectors if vector.grad is not None]
    norm = math.sqrt(sum(float(torch.linalg.vector_norm(gradient)) ** 2 for gradient in gradients))
    if norm > most:
        for gradient in gradients:
            gradient.mul_(most / norm)
