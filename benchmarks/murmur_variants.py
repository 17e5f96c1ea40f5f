"""Variants of `murmur` that were tried; docs/research.md has what they gave. An algorithm's file as any user's:

bifl run mnist-iid rounds=20 algorithm=benchmarks/murmur_variants.py:murmur_step algorithm.beta=0.5
bifl run mnist-iid rounds=20 algorithm=benchmarks/murmur_variants.py:murmur_layers algorithm.power=0.5
bifl run mnist-iid rounds=20 algorithm=benchmarks/murmur_variants.py:murmur_rounds algorithm.early=256 algorithm.late=64
"""

from __future__ import annotations

from dataclasses import replace as with_other
from functools import partial

import numpy as np

from bifl.algorithms import murmur as ours
from bifl.algorithms.server_optimizers import stepping
from bifl.core import Algorithm, Client, Floats, Message, Public, Schedule, change, compressed, real, register
from bifl.core import means as means_of
from bifl.core import replace as take

GROUP = 0  # chosen by the number of voters


def _murmur(group: int = GROUP) -> Algorithm:
    return Algorithm(
        partial(ours.upload, group=group), means_of, take,
        reads=partial(ours.reads, group=group), selects=partial(ours.selects, group=group), forward=real, keeps=(),
    )  # fmt: skip


@register
def murmur_step(rate: float = 1.0, beta: float = 0.0) -> Algorithm:
    """The server takes a step of rate·v, v ← β·v + the mean change: FedAvgM before the broadcast is compressed."""

    def rule(rows: Floats, mean: Floats) -> tuple[Floats, Floats]:
        speed = np.float32(beta) * rows + mean
        return speed, np.float32(rate) * speed[0]

    return compressed(stepping(_murmur(), rule, 1), "sign")


def _stretch(public: Public, power: float) -> Floats:
    """(count,) how much louder each weight is made before the rotation: layers whose last change was small, by a power of it."""
    if public.news is None or not len(public.news.scales):
        return np.ones(public.layout.count, np.float32)
    scales = np.maximum(np.asarray(public.news.scales, np.float32), np.float32(1e-30))
    return public.layout.per_weight((scales.max() / scales) ** np.float32(power))


@register
def murmur_layers(power: float = 0.5) -> Algorithm:
    """Layers share the noise of the rotation by what they need: power=0 as `murmur`, power=1 as if all changed alike."""

    def upload(client: Client, public: Public) -> Message:
        louder = public.weights + change(client, public) * _stretch(public, power)
        return ours.upload(client._replace(aux=louder.astype(np.float32)), public, GROUP)

    def reads(message: Message, public: Public) -> Message:
        found = ours.reads(message, public, GROUP)
        return found._replace(symbols=public.weights + (found.values() - public.weights) / _stretch(public, power))

    return compressed(with_other(_murmur(), upload=upload, reads=reads), "sign")


@register
def murmur_rounds(early: int = 256, late: int = 64, switch: int = 10) -> Schedule:
    """Another group from some round on."""
    return Schedule(compressed(_murmur(early), "sign"), compressed(_murmur(late), "sign"), switch)
