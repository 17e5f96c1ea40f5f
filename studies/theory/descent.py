"""Both theorems of paper §6 as walks: one learner (Theorem 1), and M noisy voters (Theorem 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bifl.core import rules
from studies.theory.lemmas import Bools, Step, judged_from, norm
from studies.theory.quadratics import Array, Quadratic

NOISE = 4.0  # deviation of a client's gradient, in β: twice what a wrong weight pulls with
RATE = 0.02  # η in 1/β
STEADY = 10  # rounds in a row that K must stay small


class Walk(NamedTuple):
    """What happened along W̄ ← clip(W̄ − η∇F(Sign(W̄)), −1, 1), from time 0 to T."""

    distance: Array  # (T + 1, …) ‖W̄ − W*‖²
    differ: Array  # (T + 1, …) K
    phi: Array  # (T + 1, …)


def walk(quadratic: Quadratic, aux: Array, eta: Array, steps: int, form: Step) -> Walk:
    """Clipping, which the training step has, only brings W̄ nearer to W*; Lemma 2.2 needs it."""
    seen: list[tuple[Array, Array, Array]] = []
    for _ in range(steps + 1):
        here = judged_from(quadratic, aux)
        seen.append((norm(aux - quadratic.best) ** 2, here.differ, form(quadratic, here)))
        aux = _clip(aux - eta[..., None] * here.gradient)
    return Walk(*(np.stack(parts) for parts in zip(*seen, strict=True)))


def _clip(aux: Array) -> Array:
    return np.asarray(np.clip(aux, -1, 1), np.float64)


def floor(quadratic: Quadratic) -> Array:
    """(β − ξ)N/β: the elements that may differ in the end, says Theorem 1."""
    return np.asarray((1 - quadratic.xi / quadratic.beta) * quadratic.best.shape[-1], np.float64)


def least_decay(quadratic: Quadratic, eta: Array) -> Array:
    """ρ with ‖W̄ − W*‖² falling by 1 − ρ or more in every step at which φ ≥ 2η and K ≥ 1.

    Lemma 3.2 takes off 4(φ − η)ηβξK ≥ 4η²βξK, and ‖W̄ − W*‖² ≤ N + 3K.
    """
    return np.asarray(4 * eta**2 * quadratic.beta * quadratic.xi / (quadratic.best.shape[-1] + 3), np.float64)


# ---- Theorem 2 -------------------------------------------------------------------------------------------------------

Exchange = Callable[[Array, Array, Array], Array]  # (W̄ before, −η·gradients, W̄ after, all (Q, M, N)) → W̄ of every client


def summed(before: Array, moves: Array, after: Array) -> Array:
    """The server adds up what M clients found: M times the step."""
    return _clip(before + moves.sum(axis=1, keepdims=True))


def averaged(before: Array, moves: Array, after: Array) -> Array:
    """The server averages the moves."""
    return _clip(before + moves.mean(axis=1, keepdims=True))


def voted(before: Array, moves: Array, after: Array) -> Array:
    """BiML: signs up, vote counts down, ML-PU on each client's own W̄."""
    voters = after.shape[1]
    positive = np.sum(after > 0, axis=1, keepdims=True)
    agree = np.where(after > 0, positive, voters - positive)
    return _clip(rules.table(voters, 1, 1, True)[agree] * after)


def rounds_needed(
    random: np.random.Generator, quadratic: Quadratic, voters: int, exchange: Exchange, noise: float = NOISE, limit: int = 400
) -> Array:
    """(Q,) T_0: the first round from which the majority's K stays below the floor plus one for a while; nan if that never comes.

    Every client's gradient is the true one at its own signs plus Gaussian noise, so the updates are unbiased.
    All start opposite to W*, half-way sure of it.
    """
    count, _, size = quadratic.best.shape
    aux = np.broadcast_to(-0.5 * quadratic.best, (count, voters, size))
    small = np.zeros((limit, count), np.bool_)
    for now in range(limit):
        gradient = quadratic.gradient(np.where(aux > 0, 1.0, -1.0))
        gradient += noise * quadratic.beta[..., None] * random.normal(size=aux.shape)
        moves = -RATE / quadratic.beta[..., None] * gradient
        aux = exchange(aux, moves, _clip(aux + moves))
        small[now] = _majority_differs(quadratic, aux) < floor(quadratic)[:, 0] + 1
        if now >= STEADY and small[now - STEADY + 1 : now + 1].all():
            break
    return _first_steady(small)


def _majority_differs(quadratic: Quadratic, aux: Array) -> Array:
    ballots = np.where(aux > 0, 1.0, -1.0).mean(axis=1)
    wrong = np.where(ballots > 0, 1.0, -1.0) != quadratic.best[:, 0]
    return np.asarray(wrong.sum(axis=1), np.float64)


def _first_steady(small: Bools) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(small, STEADY, axis=0).all(axis=-1)
    return np.asarray(np.where(windows.any(axis=0), windows.argmax(axis=0) + 1.0, np.nan), np.float64)
