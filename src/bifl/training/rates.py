"""Learning-rate schedules: a rate for every round. They go by the round's number alone, so a run that is continued has the same.

A schedule of your own, for `schedule=my.py:mine`, is a function in a Python file:

    @schedule
    def mine(decay: float = 0.98) -> Rate:
        "The first rate, a little less every round."
        return lambda round, lr, lr_steps: lr[0] * decay ** (round - 1)

>>> [round(cosine(over=4)(number, (0.01,), ()), 4) for number in range(1, 7)]
[0.01, 0.0085, 0.005, 0.0015, 0.0, 0.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable

from bifl.errors import ConfigError
from bifl.registry import Registry

Rate = Callable[[int, tuple[float, ...], tuple[int, ...]], float]  # (round, lr, lr_steps) → the round's learning rate
schedule: Registry[Rate] = Registry("schedule")
SIGNATURE = "a function (round, lr, lr_steps) → the round's learning rate"


def learning_rate(round: int, lr: tuple[float, ...], steps: tuple[int, ...]) -> float:
    """The next of the rates after each of the rounds `steps`."""
    return lr[sum(round > step for step in steps)] if len(lr) > 1 else lr[0]


@schedule
def steps(warmup: int = 0) -> Rate:
    """The next lr after each of lr_steps; in the first `warmup` rounds it rises to the first."""
    _whole("warmup", warmup, 0)
    return lambda round, lr, lr_steps: learning_rate(round, lr, lr_steps) * _risen(round, warmup)


@schedule
def cosine(over: int = 100, end: float = 0.0, warmup: int = 0) -> Rate:
    """From the first lr to `end` times it along half a cosine, `over` so many rounds; in the first `warmup` it rises."""
    _whole("warmup", warmup, 0)
    _whole("over", over, warmup + 1)
    if not 0 <= end <= 1:
        raise ConfigError(f"schedule.end must be a share of lr, from 0 to 1, not {end}")

    def rate(round: int, lr: tuple[float, ...], lr_steps: tuple[int, ...]) -> float:
        passed = min(1.0, max(0.0, (round - 1 - warmup) / (over - warmup)))
        return lr[0] * _risen(round, warmup) * (end + (1 - end) * (1 + math.cos(math.pi * passed)) / 2)

    return rate


def rate_of(name: str, made: object, round: int, lr: tuple[float, ...], lr_steps: tuple[int, ...]) -> float:
    """A round's learning rate by what a schedule's factory returned."""
    if not callable(made):
        raise ConfigError(f"schedule '{name}' must return {SIGNATURE}, not a {type(made).__name__}")
    rate = made(round, lr, lr_steps)
    if not isinstance(rate, int | float) or not 0 <= rate < math.inf:
        raise ConfigError(f"schedule '{name}' gives lr {rate!r:.40} in round {round}; it must return {SIGNATURE}, 0 or more")
    return float(rate)


def _risen(round: int, warmup: int) -> float:
    return min(1.0, round / warmup) if warmup else 1.0


def _whole(name: str, value: int, least: int) -> None:
    if not least <= value <= 10**9:
        raise ConfigError(f"schedule.{name} must be a number of rounds, {least} or more, not {value}")
