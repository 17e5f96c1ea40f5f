"""T-FedAvg with trained ternary quantisation, FTTQ (Xu et al., 2020; paper §5): 1.6 bit per weight both ways.

The first and the last layer, biases and batch-norm stay real (`forward.ternary` says so); each layer's factor w_q is its ϑ. They
all travel with the real parameters.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bifl import core
from bifl.core import FLOAT32, TERNARY, Algorithm, Client, Message, Public, Server, Tally
from bifl.core.message import TERNARY_THRESHOLD, Symbols

SERVER_THRESHOLD = 0.05  # Δ / max|θ| where the server quantises again
Reals = npt.NDArray[np.floating]


def trits(weights: Reals, threshold: Reals) -> Symbols:
    """I as symbols: 2 above the threshold, 0 below its negative, 1 between."""
    return np.asarray(1 + (weights > threshold) - (weights < -threshold), np.uint8)


def upload(client: Client, public: Public) -> Message:
    """I with Δ = 0.7·mean|θ|; w_q goes along with the real parameters."""
    deltas = public.layout.per_layer(client.aux, lambda part: TERNARY_THRESHOLD * core.mean_magnitude(part))
    return Message.of(trits(client.aux, public.layout.per_weight(deltas)), TERNARY, client.real)


def reads(upload: Message, public: Public) -> Message:
    """w_q·I: every sender has its own w_q."""
    factors = public.layout.per_weight(upload.real[: len(public.layout.layers)])
    return upload.with_update(symbols=upload.update.values() * factors, alphabet=FLOAT32)


def update(client: Client, public: Public, news: Message) -> Client:
    """aux ← w_q times the broadcast."""
    return client._replace(aux=public.weights * public.layout.per_weight(public.real[: len(public.layout.layers)]))


@core.register
def fttq(tolerance: float = 0.03, validation: float = 0.02) -> Algorithm:
    """T-FedAvg: ternary weights both ways; floats down where that loses more than `tolerance` on held-out training images.

    Take it for a ternary network, and as the method that the paper compares with.
    """
    core.require(0 <= tolerance <= 1, "tolerance", tolerance, "an accuracy from 0 to 1", " (the paper uses 0.03)")
    core.require(0 <= validation < 1, "validation", validation, "a share of the training images, at least 0 and below 1")

    def broadcast(tally: Tally, public: Public, server: Server) -> Message:
        """The mean made ternary again, Δ = 0.05·max|θ|, w_q = the mean kept magnitude; the mean where that loses too much."""
        layout, mean = public.layout, tally.update.mean
        deltas = [SERVER_THRESHOLD * np.abs(part).max() for part in layout.layer_parts(mean)]
        kept = [np.abs(part)[np.abs(part) > delta] for part, delta in zip(layout.layer_parts(mean), deltas, strict=True)]
        factors = [float(part.mean()) if len(part) else 1.0 for part in kept]
        real = np.concatenate([np.asarray(factors, np.float32), tally.real[len(layout.layers) :]])
        small = Message.of(trits(mean, layout.per_weight(deltas)), TERNARY, real)
        large = Message.of((mean / layout.per_weight(factors)).astype(np.float32), FLOAT32, real)
        judge = server.judge
        if judge is None or judge(small.update.values(), real) >= judge(large.update.values(), real) - tolerance:
            return small
        return large

    return Algorithm(upload, broadcast, update, reads=reads, forward=core.ternary, keeps=(), validation=validation)
