"""What is measured in a network: how good it is, and what its batch-norm sees.

A model is evaluated in chunks of one size: sums of what its task counts, and of the loss, do not depend on who computes them.
Batch-norm sees the moments of its inputs, on a client's images or on noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bifl.core.forward import Forward
from bifl.core.message import Floats
from bifl.core.randomness import stream
from bifl.core.sides import Score
from bifl.core.state import Public
from bifl.data.inputs import FLAGS, FLOATS, TOKENS, Form
from bifl.errors import DataError
from bifl.nn.batch import INPUT, TARGET, Batch, Samples, among, judged, needed_arguments, network_arguments, tensor_of
from bifl.nn.compute import one_thread
from bifl.nn.misfit import REFUSALS, refusal
from bifl.nn.network import Network
from bifl.tasks.task import Task

CHUNK = 500  # samples per evaluation step
_TOGETHER = 1000  # samples that `predict_all` computes at a time
_NOISE = 64  # images

Index = npt.NDArray[np.int64]


def chunks(samples: int) -> range:
    """Numbers of the chunks that so many samples make."""
    return range(-(-samples // CHUNK))


@one_thread()
@torch.no_grad()
def evaluate(network: Network, task: Task, samples: Samples, index: Index, wanted: Iterable[int]) -> list[Score]:
    """Evaluate the model that the network shows on the samples `index`, of whose chunks those with the numbers `wanted`."""
    evaluated = []
    for chunk in wanted:
        part = torch.from_numpy(np.ascontiguousarray(index[chunk * CHUNK : (chunk + 1) * CHUNK]))
        batch = samples.batch(part)
        output, weight = network.scores(batch), task.count(batch[TARGET])
        sums = judged(task.sums, output, batch).double().reshape(-1).tolist()
        evaluated.append(Score(chunk, len(part), weight, tuple(sums), float(judged(task.loss, output, batch)) * weight))
    return evaluated


def evaluate_all(network: Network, task: Task, samples: Samples) -> tuple[dict[str, float], float]:
    """Metrics and mean loss on all of the samples."""
    size = len(samples.labels)
    return _add(evaluate(network, task, samples, np.arange(size), chunks(size)), task)


@torch.no_grad()
def predict_all(module: nn.Module, samples: Samples, name: str) -> npt.NDArray[np.float32]:
    """(n, …) what an ordinary module gives for all samples; errors call it `name`."""
    made = []
    if lacking := set(needed_arguments(module)).difference(samples.further):
        raise DataError(f"{name} takes {' and '.join(sorted(lacking))} beside its inputs: predict(inputs, {min(lacking)}=…)")
    for start in range(0, len(samples.inputs), _TOGETHER):
        batch = samples.batch(slice(start, start + _TOGETHER))
        try:
            made.append(tensor_of(module(batch[INPUT], **among(batch, network_arguments(module)))).numpy())
        except REFUSALS as error:
            raise DataError(f"{name} does not take these inputs: {refusal(module, batch[INPUT], error).reason}") from error
    return np.concatenate(made)


class Results(NamedTuple):
    """The global model on the test samples, or where there are none on all that clients hold out; and client by client."""

    metrics: dict[str, float]
    loss: float
    clients: dict[int, dict[str, Any]]  # of each that holds samples out: how many, its loss, its metrics

    @classmethod
    def of(cls, scores: Iterable[Score], task: Task) -> Results:
        """Add up; in one order, whoever computed what. Models of the clients' own have metrics that begin with their name."""
        scores = sorted(scores, key=lambda score: (score.client is not None, score.client or 0, score.chunk))
        shared = [score for score in scores if not score.model]
        metrics, loss = _add([score for score in shared if score.client is None] or shared, task)
        clients: dict[int, dict[str, Any]] = {}
        for number, few in _group(shared, "client").items():
            if number is not None:
                own_metrics, own_loss = _add(few, task)
                clients[number] = {"held": sum(score.samples for score in few), "loss": own_loss, **own_metrics}
        for name, own in _group([score for score in scores if score.model], "model").items():
            metrics |= _prefixed(name, _add(own, task)[0])
            for number, few in _group(own, "client").items():
                clients[number] |= _prefixed(name, _add(few, task)[0])
        return cls(metrics, loss, clients)


NOT_EVALUATED = Results({}, math.nan, {})


def _group(scores: Sequence[Score], field: str) -> dict[Any, list[Score]]:
    groups: dict[Any, list[Score]] = {}
    for score in scores:
        groups.setdefault(getattr(score, field), []).append(score)
    return groups


def _prefixed(name: str, metrics: dict[str, float]) -> dict[str, float]:
    return {f"{name}_{metric}": value for metric, value in metrics.items()}


def _add(scores: Iterable[Score], task: Task) -> tuple[dict[str, float], float]:
    """Metrics and mean loss of all chunks together."""
    total, sums, losses = 0, np.zeros(task.length), 0.0
    for score in scores:
        total, sums, losses = total + score.weight, sums + np.array(score.sums), losses + score.loss
    if not total:
        return dict.fromkeys(task.metrics(np.zeros(task.length), 1), math.nan), math.nan
    return task.metrics(sums, total), losses / total


@one_thread()
@torch.no_grad()
def image_moments(
    network: Network, public: Public, forward: Forward, samples: Samples, part: Tensor, number: int, most: int
) -> Floats:
    """(moments,) of the inputs of every batch-norm in the public model, on at most so many of a client's images."""
    network.show(public.weights, public.real, forward)
    network.train_norms()
    order = stream(public.seed, public.round, number, "statistics").permutation(len(part))
    return network.input_moments(samples.batch(part[torch.from_numpy(order[:most])]))


@one_thread()
@torch.no_grad()
def noise_squares(network: Network, public: Public, forward: Forward, form: Form) -> Floats:
    """(channels,) E[x²] of every batch-norm input where inputs are noise: random tokens that all embeddings know, or numbers.

    Half of the numbers' noise is the same all over an input. What a network takes beside inputs is as in `example`.
    """
    network.show(public.weights, public.real, forward)
    network.train_norms()
    dice = np.random.default_rng(0)
    beside, shape = example(form, _NOISE), form.shape
    if form.kind == TOKENS:
        sizes = [child.num_embeddings for child in network.module.modules() if isinstance(child, nn.Embedding | nn.EmbeddingBag)]
        noise = torch.from_numpy(dice.integers(min(sizes, default=1), size=(_NOISE, *shape)))
    else:
        numbers = (dice.standard_normal((_NOISE, *shape)) + dice.standard_normal((_NOISE, *[1] * len(shape)))) / np.sqrt(2)
        noise = torch.from_numpy(numbers.astype(np.float32))
        noise = noise.to(memory_format=torch.channels_last) if noise.dim() == 4 else noise
    batch = {name: tensor.to(network.device) for name, tensor in {**beside, INPUT: noise}.items()}
    return np.split(network.input_moments(batch), 2)[1]


def example(form: Form, count: int) -> Batch:
    """Samples to try a network out with: inputs are 0 or the largest token, what lies beside them 1, true or its largest token."""
    batch = {INPUT: torch.full((count, *form.shape), form.largest) if form.kind == TOKENS else torch.zeros(count, *form.shape)}
    for name, one in form.further.items():
        full: dict[str, bool | float] = {FLAGS: True, FLOATS: 1.0, TOKENS: one.largest}
        batch[name] = torch.full((count, *one.shape), full[one.kind])
    return batch
