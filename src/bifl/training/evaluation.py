"""How good a model is: what its task sums up, and the loss, in chunks of one size: sums do not depend on who computes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import torch

from bifl.core.sides import Evaluated
from bifl.nn.network import Network
from bifl.tasks.task import Task
from bifl.training.samples import Samples
from bifl.training.threads import one_thread

CHUNK = 500  # samples per evaluation step

Index = npt.NDArray[np.int64]


def chunks(images: int) -> range:
    """Numbers of the chunks that so many samples make."""
    return range(-(-images // CHUNK))


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
        inputs, targets = samples.batch(part)
        scores = network.scores(inputs)
        sums = task.sums(scores, targets).double().reshape(-1).tolist()
        yield Evaluated(chunk, len(part), tuple(sums), float(task.loss(scores, targets)) * len(part))


def evaluate_all(network: Network, task: Task, samples: Samples) -> tuple[dict[str, float], float]:
    """Metrics and mean loss on all of the samples."""
    count = len(samples.labels)
    found = evaluate(network, task, samples, np.arange(count), chunks(count))
    return task.metrics(np.sum([one.sums for one in found], 0), count), sum(one.loss for one in found) / count
