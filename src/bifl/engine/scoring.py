"""How well the global model does, added up from chunks of samples wherever they were evaluated."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from bifl.experiment.settings import Experiment
from bifl.tasks.task import Task


class Score(NamedTuple):
    """The global model on one chunk of the test samples, or of those that a client holds out."""

    client: int | None
    chunk: int
    images: int
    sums: tuple[float, ...]  # as the task sums up
    loss: float


class Evaluation(NamedTuple):
    """The global model on the test samples, or where there are none on all that clients hold out; and client by client."""

    metrics: dict[str, float]
    loss: float
    clients: dict[int, dict[str, Any]]  # of each that holds samples out: how many, its loss, its metrics

    @classmethod
    def of(cls, scores: list[Score], task: Task) -> Evaluation:
        """Add up; in one order, whoever computed what."""
        scores = sorted(scores, key=lambda score: (score.client is not None, score.client or 0, score.chunk))
        tests = [score for score in scores if score.client is None] or scores
        owners: dict[int, list[Score]] = {}
        for score in scores:
            if score.client is not None:
                owners.setdefault(score.client, []).append(score)
        clients = {number: _held(own, task) for number, own in owners.items()}
        if not tests:
            return cls(dict.fromkeys(task.metrics(np.zeros(task.length), 1), math.nan), math.nan, clients)
        return cls(*_added(tests, task), clients)


NOT_EVALUATED = Evaluation({}, math.nan, {})


def evaluated_in(experiment: Experiment, round: int) -> bool:
    """Whether the global model is evaluated in a round."""
    return round % experiment.evaluate_every == 0 or round == experiment.rounds


def _added(scores: list[Score], task: Task) -> tuple[dict[str, float], float]:
    samples = sum(score.images for score in scores)
    sums = np.zeros(task.length)
    for score in scores:
        sums = sums + np.array(score.sums)
    return task.metrics(sums, samples), sum(score.loss for score in scores) / samples


def _held(scores: list[Score], task: Task) -> dict[str, Any]:
    metrics, loss = _added(scores, task)
    return {"held": sum(score.images for score in scores), "loss": loss, **metrics}
