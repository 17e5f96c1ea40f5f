"""Server optimisers (Hsu et al., 2019; Reddi et al., 2021): the mean change of a round is a gradient, the server takes a step.

`stepping` gives one to any algorithm whose broadcast is the new weights as floats. The server's memory: the optimiser's rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from math import inf

import numpy as np

from bifl import core
from bifl.core import WEIGHTS, Algorithm, Floats, Public, Sent, Server, Tally

Rule = Callable[[Floats, Floats], tuple[Floats, Floats]]  # (rows, mean change) → (new rows, step)


def stepping(algorithm: Algorithm, rule: Rule, rows: int) -> Algorithm:
    """The algorithm with a server optimiser that remembers so many rows of all weights, before those that its broadcast keeps."""

    def broadcast(tally: Tally, public: Public, server: Server) -> Sent:
        before, wanted, kept = core.behind_rows(algorithm.broadcast, rows, tally, public, server)
        moved, step = rule(before, wanted.update.values() - public.weights)
        remembered = np.concatenate([moved, kept]).astype(np.float32)
        return Sent(wanted.with_update(symbols=public.weights + step.astype(np.float32)), remembered)

    return dataclasses.replace(algorithm, broadcast=broadcast)


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        core.require(0 < value < inf, name, value, "above 0")


def _require_shares(**values: float) -> None:
    for name, value in values.items():
        core.require(0 <= value < 1, name, value, "from 0 to below 1")


def _made(rule: Rule, rows: int, forward: str, down: str) -> Algorithm:
    averaging = Algorithm(core.floats, core.means, core.replace, forward=core.forward_of(forward), keeps=(), uploads=WEIGHTS)
    return core.compress_broadcast(stepping(averaging, rule, rows), down)


def momentum(rate: float, beta: float) -> Rule:
    """v ← β·v + Δ, a step of η·v: one row."""
    _require_positive(rate=rate)
    _require_shares(beta=beta)

    def rule(rows: Floats, change: Floats) -> tuple[Floats, Floats]:
        speed = np.float32(beta) * rows + change
        return speed, np.float32(rate) * speed[0]

    return rule


@core.register
def fedavgm(rate: float = 1.0, beta: float = 0.9, forward: str = "real", down: str = "float") -> Algorithm:
    """FedAvg with momentum at the server: v ← β·v + Δ, a step of η·v.

    Take it to compare with: murmur_momentum has momentum too, at a tenth of a bit.
    """
    return _made(momentum(rate, beta), 1, forward, down)


@core.register
def fedadam(rate: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3, down: str = "float") -> Algorithm:
    """FedAvg with Adam at the server: m ← β₁·m + (1−β₁)·Δ, v ← β₂·v + (1−β₂)·Δ², a step of η·m/(√v + τ).

    Take it for an adaptive step at the server; `rate` must be tuned.
    """
    _require_positive(rate=rate, tau=tau)
    _require_shares(beta1=beta1, beta2=beta2)

    def rule(rows: Floats, change: Floats) -> tuple[Floats, Floats]:
        first, second = rows + np.array([[1 - beta1], [1 - beta2]], np.float32) * (np.stack([change, change**2]) - rows)
        return np.stack([first, second]), np.float32(rate) * first / (np.sqrt(second) + np.float32(tau))

    return _made(rule, 2, "real", down)
