"""`batchnorm=recalibrate`: batch-norm's statistics for the network that was broadcast (paper §2).

The statistics of the clients' training describe their own networks, which are far from the sign of their mean. After every
broadcast the clients that voted therefore measure the inputs of every batch-norm in the *global* network, on 2·batch of their own
images, each layer normalised as in training: by what was just measured before it. They upload these moments; the server pools them
exactly and broadcasts the result. (Layers normalised by the last pooled statistics would need several passes for the same.) The
messages are ordinary ones, for a model that is nothing but statistics, and count like all others. Ballots then repeat the last
statistics, at one bit each. Training does not depend on any of this: batch-norm trains on its own batches.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from bifl import wire
from bifl.algorithm import BINARY, NOTHING, Algorithm, Message, Schedule, Shared, key
from bifl.experiment import PRECISIONS, Experiment
from bifl.message import Floats
from bifl.nn.flat import Network
from bifl.tally import mean
from bifl.train import Samples, one_thread

_NO_SYMBOLS = np.zeros(0, np.uint8)


def wanted(experiment: Experiment, algorithms: Algorithm | Schedule, shared: Shared) -> bool:
    """Whether there is an exchange of statistics after every broadcast.

    Not without batch-norm, not where one client is all there is, and not where those who voted go to sleep.
    """
    if experiment.batchnorm != "recalibrate" or not shared.layout.moments or algorithms.at(max(shared.round, 1)).central:
        return False
    return experiment.idle != "sleep" or experiment.participation == 1


def context(experiment: Experiment, shared: Shared) -> wire.Context:
    """What both ends know of the statistics to come: the last ones."""
    layout = shared.layout.statistics
    known = Shared(shared.seed, shared.round, layout, NOTHING, shared.real[shared.layout.trained :])
    return wire.Context(layout, shared.round, PRECISIONS[experiment.reals], known if experiment.in_context() else None)


@one_thread()
@torch.no_grad()
def measured(
    shared: Shared,
    algorithms: Algorithm | Schedule,
    network: Network,
    samples: Samples,
    part: Tensor,
    number: int,
    batch: int,
) -> Message:
    """What client `number` uploads: moments of the global network on some of its images."""
    network.show(shared.weights, shared.real, algorithms.at(shared.round).forward)
    network.train_norms()
    order = np.random.default_rng([key(shared.seed, shared.round, number), 1]).permutation(len(part))
    moments = network.input_moments(samples.batch(part[torch.from_numpy(order[: 2 * batch])])[0])
    return Message(_NO_SYMBOLS, BINARY, moments, sender=number, weight=len(part), round=shared.round)


def discreet(real: Floats, shared: Shared, experiment: Experiment, algorithms: Algorithm | Schedule) -> Floats:
    """A real vector without the statistics of training, which nobody wants to hear before an exchange; a judge does."""
    if not wanted(experiment, algorithms, shared) or algorithms.validation:
        return real
    trained = shared.layout.trained
    return np.concatenate([real[:trained], shared.real[trained:]])


def pooled(uploads: Iterable[Message], round: int) -> Message:
    """What the server broadcasts; the uploads are added one by one."""
    return Message(_NO_SYMBOLS, BINARY, mean(uploads).real, round=round)


def settled(shared: Shared, news: Message) -> Shared:
    """The public state with the new statistics."""
    return shared._replace(real=np.concatenate([shared.real[: shared.layout.trained], news.real]))
