"""How clients train in a round."""

from __future__ import annotations

from typing import NamedTuple


class Plan(NamedTuple):
    """How to train in this round."""

    optimizer: str
    lr: float
    batch: int
    epochs: int
    seed: int = 0  # of the experiment: with the round it gives every client's random streams
    round: int = 1


def learning_rate(round: int, lr: tuple[float, ...], steps: tuple[int, ...]) -> float:
    """The learning rate of a round: the next one after each of the rounds `steps`."""
    return lr[sum(round > step for step in steps)] if len(lr) > 1 else lr[0]
