"""How far one client may pull what is averaged: its real numbers are taken only within bounds around the public ones.

A ballot moves a vote count by one, but batch-norm, ϑ and the layers kept real are averaged, and a mean follows its largest liar.
Each upload is bounded on its own, before it is added, by what is public alone: sums stay sums.

- Trained numbers start from the public ones, and an optimiser moves them by about the learning rate a step: they may differ by
  `REACH` · lr · steps, and by what the wire rounds.
- The mean of a batch-norm's input may move by a share of its deviation: `FOLLOW` times what the layer's means moved in the last
  round, from `LEAST_SHIFT` to `LARGEST_SHIFT`. Liars cannot keep this open: two of ten that alternate move the mean by 0.4 of what
  they may, so that in the next round they may less.
- Its variance may be `GROWTH` times the last one. It may be as small as it likes, which pulls the mean of many little.
- The last variance of a channel counts as at least `QUIET` of its layer's: it may wake up.
- The first statistics have no predecessors: there the moments of noise in the same network, times `UNKNOWN`, are the limit.

The constants were chosen by experiment: docs/security.md says what they cost, and what liars can still do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from bifl.algorithm import Message, Shared
from bifl.layout import Layout
from bifl.message import Floats
from bifl.runtime.world import World, plan
from bifl.train import one_thread

REACH = 2.0
LEAST_SHIFT, LARGEST_SHIFT = 0.1, 0.5
FOLLOW = 2.0
GROWTH = 1.5
QUIET = 0.1
UNKNOWN = 256.0
_ROUNDING = 2.0**-6  # of uploads on the wire; relative, above 1
_ALIVE = 1e-5  # batch-norm's own ε: variances below it are none
_NOISE = 64  # images

Numbers = npt.NDArray[np.float64]


class Bounds:
    """Bounds the uploads of one run, for its server."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._first: Floats | None = None

    def ballot(self, upload: Message, shared: Shared) -> Message:
        """What a client uploads after training."""
        trained = shared.layout.trained
        known = shared.real[:trained]
        how = plan(self._world.experiment, shared.round + 1)
        reach = REACH * how.lr * how.epochs * -(-upload.weight // how.batch) + _ROUNDING * np.maximum(1, np.abs(known))
        bounded = np.clip(upload.real[:trained], known - reach, known + reach)
        return upload._replace(real=_joined(bounded, self._moments(upload.real[trained:], shared, first=shared.round == 0)))

    def statistics(self, upload: Message, shared: Shared) -> Message:
        """What a client measures of the network that was broadcast."""
        return upload._replace(real=self._moments(upload.real, shared, first=shared.round == 1))

    def _moments(self, said: Floats, shared: Shared, *, first: bool) -> Floats:
        if not len(said):
            return said
        if first:
            self._first = self._of_noise(shared) if self._first is None else self._first
            return within_square(said, UNKNOWN * self._first)
        trained = shared.layout.trained
        before = None if shared.before is None else shared.before.real[trained:]
        return within(said, shared.real[trained:], before, shared.layout)

    @one_thread()
    @torch.no_grad()
    def _of_noise(self, shared: Shared) -> Floats:
        """(channels,) E[x²] of every batch-norm input where images are noise, half of it the same all over an image."""
        network, shape = self._world.network, self._world.data.images.shape[1:]
        network.show(shared.weights, shared.real, self._world.algorithm.at(max(shared.round, 1)).forward)
        network.train_norms()
        dice = np.random.default_rng(0)
        images = (dice.standard_normal((_NOISE, *shape)) + dice.standard_normal((_NOISE, *[1] * len(shape)))) / np.sqrt(2)
        noise = torch.from_numpy(images.astype(np.float32)).to(network.device, memory_format=torch.channels_last)
        _, squares = np.split(network.input_moments(noise), 2)
        return squares


def within(said: Floats, known: Floats, before: Floats | None, layout: Layout) -> Floats:
    """(moments,) E[x] and E[x²] as near to what was said as the bounds around the known ones allow.

    Args:
        said: by a client.
        known: the public ones.
        before: the public ones a round earlier, if there were any.
        layout: says which channels are one layer's.
    """
    mean, variance = _central(known)
    variance = np.maximum(variance, _ALIVE)
    sizes = [norm.size for norm in layout.moments]

    def layer_mean(values: Numbers) -> Numbers:
        means: Numbers = np.add.reduceat(values, np.cumsum([0, *sizes[:-1]])) / sizes
        return np.repeat(means, sizes)

    share = np.full(len(mean), LARGEST_SHIFT)
    if before is not None:
        moved = np.minimum((mean - _central(before)[0]) ** 2 / variance, 1)
        share = np.clip(FOLLOW * np.sqrt(layer_mean(moved)), LEAST_SHIFT, LARGEST_SHIFT)
    level = np.maximum(variance, QUIET * layer_mean(variance))
    shift = share * np.sqrt(level)
    return _clipped(said, mean - shift, mean + shift, GROWTH * level)


def within_square(said: Floats, largest: Floats) -> Floats:
    """(moments,) the same where nothing is known but how large E[x²] may be."""
    root = np.sqrt(largest.astype(np.float64))
    return _clipped(said, -root, root, root**2)


def _clipped(said: Floats, least: Numbers, most: Numbers, spread: Numbers) -> Floats:
    """Moments with means from `least` to `most` and variances up to `spread`; those that fit stay as they are."""
    mean, variance = _central(said)
    new_mean, new_variance = np.clip(mean, least, most), np.clip(variance, 0, spread)
    fits = (new_mean == mean) & (new_variance == variance)
    return np.where(np.tile(fits, 2), said, _joined(new_mean, new_variance + new_mean**2))


def _central(moments: Floats) -> tuple[Numbers, Numbers]:
    """Mean and variance of E[x] and E[x²]."""
    first, second = moments.astype(np.float64).reshape(2, -1)
    return first, second - first**2


def _joined(*parts: npt.NDArray[np.floating]) -> Floats:
    return np.concatenate(parts).astype(np.float32)
