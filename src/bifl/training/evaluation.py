"""How good a model is: what its task sums up, and the loss, in chunks of one size: sums do not depend on who computes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bifl.core.sides import Evaluated
from bifl.errors import DataError
from bifl.nn.batch import INPUT, TARGET, among, judged, needed_arguments, network_arguments, tensor_of
from bifl.nn.misfit import REFUSALS, refusal
from bifl.nn.network import Network
from bifl.tasks.task import Task
from bifl.training.samples import Samples
from bifl.training.threads import one_thread

CHUNK = 500  # samples per evaluation step
_TOGETHER = 1000  # samples that `predict_all` computes at a time

Index = npt.NDArray[np.int64]


def chunks(samples: int) -> range:
    """Numbers of the chunks that so many samples make."""
    return range(-(-samples // CHUNK))


@one_thread()
@torch.no_grad()
def evaluate(network: Network, task: Task, samples: Samples, index: Index, wanted: Iterable[int]) -> list[Evaluated]:
    """Evaluate the model that the network shows.

    Args:
        network: with the model.
        task: what it has learnt.
        samples: inputs and labels.
        index: those of them that are evaluated.
        wanted: numbers of the chunks of `index` to evaluate.
    """
    return list(_evaluated(network, task, samples, index, wanted))


def _evaluated(network: Network, task: Task, samples: Samples, index: Index, wanted: Iterable[int]) -> Iterator[Evaluated]:
    for chunk in wanted:
        part = torch.from_numpy(np.ascontiguousarray(index[chunk * CHUNK : (chunk + 1) * CHUNK]))
        batch = samples.batch(part)
        output, weight = network.scores(batch), task.count(batch[TARGET])
        sums = judged(task.sums, output, batch).double().reshape(-1).tolist()
        yield Evaluated(chunk, len(part), weight, tuple(sums), float(judged(task.loss, output, batch)) * weight)


def evaluate_all(network: Network, task: Task, samples: Samples) -> tuple[dict[str, float], float]:
    """Metrics and mean loss on all of the samples."""
    size = len(samples.labels)
    found = evaluate(network, task, samples, np.arange(size), chunks(size))
    return added([(one.weight, one.sums, one.loss) for one in found], task)


@torch.no_grad()
def predict_all(module: nn.Module, samples: Samples, name: str) -> npt.NDArray[np.float32]:
    """(n, …) what an ordinary module gives for all samples; errors call it `name`.

    Raises:
        DataError: it takes others.
    """
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


def added(parts: Iterable[tuple[int, Sequence[float], float]], task: Task) -> tuple[dict[str, float], float]:
    """Metrics and mean loss of parts, each with what was counted in it, its sums and its loss."""
    total, sums, losses = 0, np.zeros(task.length), 0.0
    for count, one, loss in parts:
        total, sums, losses = total + count, sums + np.array(one), losses + loss
    if not total:
        return dict.fromkeys(task.metrics(np.zeros(task.length), 1), math.nan), math.nan
    return task.metrics(sums, total), losses / total
