"""The exchanges that a round is made of (`bifl.core.exchange`), one module each; `exchanges_of` lists those of an experiment."""

from __future__ import annotations

from functools import partial

from bifl.core.algorithm import Algorithms
from bifl.core.exchange import Exchange
from bifl.core.message import Floats
from bifl.core.state import Public
from bifl.data.inputs import TOKENS, Form
from bifl.exchanges.ballot import Ballot, all_of_it
from bifl.exchanges.batchnorm import Statistics, last_statistics
from bifl.exchanges.bounds import Bounds
from bifl.experiment.settings import PRECISIONS, Experiment
from bifl.experiment.setup import plan
from bifl.nn.network import Network
from bifl.training.measuring import noise_squares


def exchanges_of(experiment: Experiment, algorithm: Algorithms, network: Network, form: Form) -> tuple[Exchange, ...]:
    """What a round of the experiment consists of, in order.

    Args:
        experiment: its settings.
        algorithm: of the experiment.
        network: of the experiment.
        form: of an input.
    """

    def noise(public: Public) -> Floats:
        return noise_squares(network, public, algorithm.at(max(public.round, 1)).forward, form.shape, form.kind == TOKENS)

    bounds = Bounds(partial(plan, experiment), noise)
    precision, in_context = PRECISIONS[experiment.reals], experiment.in_context()
    recalibrates = _recalibrates(experiment, algorithm, network)
    # a judge must hear the statistics of training: it scores the broadcast before the others are there
    says = last_statistics if recalibrates and not algorithm.validation else all_of_it
    ballot = Ballot(algorithm, precision, in_context, not experiment.clients_sleep(), bounds.ballot, says)
    return (ballot, Statistics(precision, in_context, bounds.statistics)) if recalibrates else (ballot,)


def _recalibrates(experiment: Experiment, algorithm: Algorithms, network: Network) -> bool:
    """Whether statistics are exchanged: not without batch-norm, not with one client, not where those who voted go to sleep."""
    if experiment.batchnorm != "recalibrate" or not network.layout.moments or algorithm.at(1).central:
        return False
    return experiment.idle != "sleep" or experiment.participation == 1
