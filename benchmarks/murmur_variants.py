"""Variants of `murmur` that were tried; docs/research.md has what they gave. An algorithm's file as any user's:

bifl run mnist-iid rounds=20 algorithm=benchmarks/murmur_variants.py:murmur_step algorithm.beta=0.5
bifl run mnist-iid rounds=20 algorithm=benchmarks/murmur_variants.py:murmur_layers algorithm.power=0.5
bifl run mnist-iid rounds=20 algorithm=benchmarks/murmur_variants.py:murmur_rounds algorithm.early=256 algorithm.late=64
"""

from __future__ import annotations

from dataclasses import replace as with_other

import numpy as np

from bifl.algorithms.murmur import murmur
from bifl.algorithms.server_optimizers import momentum, stepping
from bifl.core import Algorithm, Client, Floats, Message, Public, Schedule, Sent, change, compress_broadcast, register

MOST = 1000.0  # times that a layer may be made louder than the loudest one


@register
def murmur_step(rate: float = 1.0, beta: float = 0.0) -> Algorithm:
    """The server takes a step of rate·v, v ← β·v + the mean change: FedAvgM before the broadcast is compressed."""
    return compress_broadcast(stepping(murmur(down="float"), momentum(rate, beta), 1), "sign")


def _stretch(public: Public, power: float) -> Floats:
    """(count,) how much louder each weight is made before the rotation: layers whose last change was small, by a power of it."""
    if public.news is None or not len(public.news.update.scales):
        return np.ones(public.layout.count, np.float32)
    loudest = max(float(public.news.update.scales.max()), 1e-30)
    ratios = loudest / np.maximum(public.news.update.scales, np.float32(loudest / MOST))
    return public.layout.per_weight(ratios ** np.float32(power))  # as an experiment: elsewhere both ends compute no powers


@register
def murmur_layers(power: float = 0.5) -> Algorithm:
    """Layers share the noise of the rotation by what they need: power=0 as `murmur`, power=1 as if all changed alike."""
    ours = murmur(down="float")

    def upload(client: Client, public: Public) -> Message | Sent:
        louder = public.weights + change(client, public) * _stretch(public, power)
        return ours.upload(client._replace(aux=louder.astype(np.float32)), public)

    def reads(message: Message, public: Public) -> Message:
        found = ours.reads(message, public)
        return found.with_update(symbols=public.weights + (found.update.values() - public.weights) / _stretch(public, power))

    return compress_broadcast(with_other(ours, upload=upload, reads=reads), "sign")


@register
def murmur_rounds(early: int = 256, late: int = 64, switch: int = 10) -> Schedule:
    """Another group from some round on."""
    return Schedule(murmur(early), murmur(late), switch)
