"""Local training (paper §4): one client, one round. The optimiser is fresh every round, as in the paper.

The gradient of the loss w.r.t. the binary weights is applied to aux (straight-through), then aux is clipped to [−1, 1].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from bifl.core.forward import Forward, Latent
from bifl.core.randomness import stream, stream_seed
from bifl.core.state import Client
from bifl.nn.compute import Loss
from bifl.nn.network import CROSS_ENTROPY, Network
from bifl.nn.optimizers import OPTIMIZERS
from bifl.training.plan import Plan
from bifl.training.samples import Samples
from bifl.training.threads import one_thread

EPSILON = 1e-8
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


@one_thread()
@torch.random.fork_rng(devices=[])
def train(
    client: Client, network: Network, forward: Forward, samples: Samples, index: Tensor, plan: Plan, loss: Loss = CROSS_ENTROPY
) -> tuple[Client, float]:
    """Train aux and the real parameters on the client's own images.

    Returns:
        The client with new `aux` and `real`, and the mean loss over the images it trained on (NaN if it diverged).
    """
    trained = network.layout.trained
    network.write_moments(client.real[trained:])
    network.module.train()
    aux = torch.from_numpy(client.aux).to(network.device, copy=True).requires_grad_()
    real = torch.from_numpy(client.real[:trained]).to(network.device, copy=True).requires_grad_()
    floors = torch.full_like(real, EPSILON, requires_grad=False)
    floors[: len(network.layout.layers)] = THETA_EPSILON
    optimizer = OPTIMIZERS[plan.optimizer]([aux, real], plan.lr, [EPSILON, floors], [1.0 if forward.clip else math.inf, math.inf])
    # for layers that draw, such as dropout; torch.manual_seed would also note a traceback for each kind of GPU that is not there
    drawn = stream_seed(plan.seed, plan.round, client.number, "layers")
    torch.default_generator.manual_seed(drawn)
    if network.device.type == "cuda":
        torch.cuda.manual_seed(drawn)
    key = stream_seed(plan.seed, plan.round, client.number, "forward")
    generator = stream(plan.seed, plan.round, client.number, "batches")
    start = torch.from_numpy(client.start).to(network.device)
    steps = plan.epochs * len(_starts(len(index), plan.batch))
    total, seen, step = 0.0, 0, 0
    for _ in range(plan.epochs):
        for chosen in batches(index, plan.batch, generator):
            images, labels = samples.batch(chosen)
            latent = Latent(aux, start, step / steps, key, step=step, training=True)
            total += network.learn(latent, real, forward, images, labels, loss) * len(labels)
            optimizer.step()
            seen += len(labels)
            step += 1
    new_real = np.concatenate([real.detach().cpu().numpy(), network.read_moments()])
    return client._replace(aux=aux.detach().cpu().numpy(), real=new_real), total / seen
