"""All that a client has to tell after training, as one vector of bounded length: what a mechanism makes private.

It holds the change of the weights and of the trained reals (batch-norm's γ and β, ϑ, layers kept real), shortened to a length, and
batch-norm's statistics of training: how far each mean and each mean square moved, in units of what is public of them, within ±1.
The statistics have a fixed share of the length, so the whole is never longer than `clip`, whatever a client holds. Numbers that are
not finite, of a training that diverged, count as no change: even a refusal to send would tell something.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bifl.core.layout import Layout
from bifl.core.message import Floats
from bifl.core.rules import change
from bifl.core.state import Client, Public

STATISTICS = 0.25  # the statistics' share of the squared length
_ALIVE = 1e-5  # variances count as at least this: batch-norm's own ε
_LEFT = 0.1  # the share of a variance that is left in a round, however noisy its sum is

Numbers = npt.NDArray[np.float64]


def numbers(layout: Layout) -> int:
    """How long the vector is."""
    return layout.count + layout.reals


def vector(client: Client, public: Public, clip: float) -> Floats:
    """(numbers,) what training changed, no longer than `clip`."""
    trained, moments = public.layout.trained, public.layout.reals - public.layout.trained
    changes = np.concatenate([change(client, public), (client.real - public.real)[:trained]])
    weights = shortened(changes, clip * np.sqrt(1 - STATISTICS if moments else 1))
    moved = _finite(_moved(client.real[trained:].astype(np.float64), public)).clip(-1, 1) * _unit(clip, moments)
    return shortened(np.concatenate([weights, moved]), clip)


def applied(by: Floats, public: Public, clip: float) -> tuple[Floats, Floats]:
    """The public weights and reals, moved by the mean of such vectors, noise and all."""
    count, trained = public.layout.count, public.layout.trained
    weights, reals, moved = np.split(by, [count, count + trained])
    moments = _moments(moved.astype(np.float64) / _unit(clip, len(moved)), public)
    return public.weights + weights, np.concatenate([public.real[:trained] + reals, moments]).astype(np.float32)


def shortened(values: npt.NDArray[np.floating], most: float) -> Floats:
    """The vector, shortened to a length if it is longer; zeros, if it is not finite."""
    exact = values.astype(np.float64)
    length = np.sqrt(np.square(exact).sum())
    if not np.isfinite(length):
        return np.zeros(len(values), np.float32)
    return (exact if length <= most else exact * (most / length)).astype(np.float32)


def _finite(values: Numbers) -> Numbers:
    return np.where(np.isfinite(values), values, 0.0)


def _unit(clip: float, moments: int) -> float:
    """What 1 is worth among the statistics."""
    return float(clip * np.sqrt(STATISTICS / max(moments, 1)))


def _known(public: Public) -> tuple[Numbers, Numbers]:
    """The public mean and variance of every batch-norm input."""
    mean, square = public.real[public.layout.trained :].astype(np.float64).reshape(2, -1)
    return mean, np.maximum(square - mean**2, _ALIVE)


def _moved(moments: Numbers, public: Public) -> Numbers:
    """How far means moved, in public deviations; and mean squares around the public means, as shares of the public variances.

    Both are linear in the moments: their mean over clients is that of all data pooled.
    """
    (mean, square), (centre, variance) = moments.reshape(2, -1), _known(public)
    return np.concatenate([(mean - centre) / np.sqrt(variance), (square - 2 * centre * mean + centre**2) / variance - 1])


def _moments(moved: Numbers, public: Public) -> Numbers:
    """The moments after such a move."""
    (mean, square), (centre, variance) = moved.reshape(2, -1), _known(public)
    spread = variance * np.maximum(1 + square - mean**2, _LEFT)
    new = centre + mean * np.sqrt(variance)
    return np.concatenate([new, spread + new**2])
