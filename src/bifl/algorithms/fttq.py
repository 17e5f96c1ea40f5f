"""T-FedAvg with trained ternary quantisation, FTTQ (Xu et al., 2020; paper §5): 1.6 bit per weight both ways.

The first and the last layer, biases and batch-norm stay real (`forward.ternary` says so); each layer's factor w_q is its ϑ. They
all travel with the real parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
import numpy.typing as npt

from bifl.algorithm import FLOAT32, TERNARY, Algorithm, Client, Judge, Message, Shared, Tally, mean, register
from bifl.errors import ConfigError
from bifl.layout import Layout
from bifl.message import Floats, Symbols
from bifl.nn.forward import TERNARY_THRESHOLD, ternary

SERVER_THRESHOLD = 0.05  # Δ / max|θ| where the server quantises again
Reals = npt.NDArray[np.floating]


def trits(weights: Reals, threshold: Reals) -> Symbols:
    """I as symbols: 2 above the threshold, 0 below its negative, 1 between."""
    return np.asarray(1 + (weights > threshold) - (weights < -threshold), np.uint8)


def per_layer(values: Iterable[float], layout: Layout) -> Floats:
    """(layers,) → (count,)."""
    return np.repeat(np.asarray(list(values), np.float32), layout.sizes)


def parts(weights: Reals, layout: Layout) -> list[Reals]:
    """The weights of each layer."""
    return np.split(weights, np.cumsum(layout.sizes)[:-1])


def upload(client: Client, shared: Shared) -> Message:
    """I with Δ = 0.7·mean|θ|; w_q goes along with the real parameters."""
    deltas = (TERNARY_THRESHOLD * np.abs(part).mean() for part in parts(client.aux, shared.layout))
    return Message(trits(client.aux, per_layer(deltas, shared.layout)), TERNARY, client.real)


def aggregate(uploads: Iterable[Message], shared: Shared) -> Tally:
    """The weighted mean of w_q·I, every sender with its own w_q."""
    layers = len(shared.layout.layers)
    scaled = (u._replace(symbols=u.values() * per_layer(u.real[:layers], shared.layout), alphabet=FLOAT32) for u in uploads)
    return mean(scaled, shared)


def broadcast(tally: Tally, shared: Shared, judge: Judge | None, *, tolerance: float) -> Message:
    """The mean made ternary again, Δ = 0.05·max|θ|, w_q = the mean kept magnitude; the mean itself where that loses too much."""
    layout = shared.layout
    deltas = [SERVER_THRESHOLD * np.abs(part).max() for part in parts(tally.mean, layout)]
    kept = [np.abs(part)[np.abs(part) > delta] for part, delta in zip(parts(tally.mean, layout), deltas, strict=True)]
    factors = [float(part.mean()) if len(part) else 1.0 for part in kept]
    real = np.concatenate([np.asarray(factors, np.float32), tally.real[len(layout.layers) :]])
    small = Message(trits(tally.mean, per_layer(deltas, layout)), TERNARY, real)
    large = Message((tally.mean / per_layer(factors, layout)).astype(np.float32), FLOAT32, real)
    if judge is None or judge(small.values(), real) >= judge(large.values(), real) - tolerance:
        return small
    return large


def update(client: Client, shared: Shared, news: Message) -> Client:
    """aux ← w_q times the broadcast."""
    return client._replace(aux=shared.weights * per_layer(shared.real[: len(shared.layout.layers)], shared.layout))


@register
def fttq(tolerance: float = 0.03, validation: float = 0.02) -> Algorithm:
    """T-FedAvg: ternary weights both ways; floats down where that loses more than `tolerance` on held-out training images."""
    if not 0 <= tolerance <= 1:
        raise ConfigError(f"algorithm.tolerance must be an accuracy from 0 to 1, not {tolerance} (the paper uses 0.03)")
    if not 0 <= validation < 1:
        raise ConfigError(f"algorithm.validation must be a share of the training images, at least 0 and below 1, not {validation}")
    say = partial(broadcast, tolerance=tolerance)
    return Algorithm(upload, say, update, aggregate=aggregate, forward=ternary, keeps=(), validation=validation)
