"""How good a model is: correct answers and summed loss, in chunks of one size, so that sums do not depend on who computes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bifl.nn.network import Network
from bifl.training.samples import Samples
from bifl.training.threads import one_thread

CHUNK = 500  # images per evaluation step

Index = npt.NDArray[np.int64]


def chunks(images: int) -> range:
    """Numbers of the chunks that so many images make."""
    return range(-(-images // CHUNK))


@one_thread()
@torch.no_grad()
def evaluate(network: Network, samples: Samples, index: Index, wanted: Iterable[int]) -> list[tuple[int, int, int, float]]:
    """Evaluate the model that the network shows.

    Args:
        network: with the model.
        samples: images and labels.
        index: those of them that are evaluated.
        wanted: numbers of the chunks of `index` to evaluate.

    Returns:
        Of each chunk its number, how many images it has, how many answers were correct, and the summed loss.
    """
    return list(_evaluated(network, samples, index, wanted))


def _evaluated(network: Network, samples: Samples, index: Index, wanted: Iterable[int]) -> Iterator[tuple[int, int, int, float]]:
    for chunk in wanted:
        part = torch.from_numpy(np.ascontiguousarray(index[chunk * CHUNK : (chunk + 1) * CHUNK]))
        images, labels = samples.batch(part)
        scores = network.scores(images)
        loss = nn.functional.cross_entropy(scores, labels, reduction="sum")
        yield chunk, len(part), int((scores.argmax(1) == labels).sum()), float(loss)


def evaluate_all(network: Network, samples: Samples) -> tuple[int, float]:
    """Correct answers and summed loss on all of the samples."""
    found = evaluate(network, samples, np.arange(len(samples.labels)), chunks(len(samples.labels)))
    return sum(correct for _, _, correct, _ in found), sum(loss for *_, loss in found)
