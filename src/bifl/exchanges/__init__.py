"""The exchanges that a round is made of (`bifl.core.exchange`), one module each; `exchanges_of` lists those of an experiment."""

from __future__ import annotations

from functools import partial

from bifl.core.algorithm import Algorithms, upload_form
from bifl.core.exchange import Exchange, Identity
from bifl.core.message import Floats
from bifl.core.state import Public
from bifl.core.sums import Tally
from bifl.data.inputs import TOKENS, Dataset
from bifl.exchanges.ballot import Ballot, all_of_it
from bifl.exchanges.batchnorm import Statistics, last_statistics
from bifl.exchanges.bounds import Bounds
from bifl.experiment.identity import agreed
from bifl.experiment.settings import PRECISIONS, Experiment
from bifl.experiment.setup import first_public, plan
from bifl.nn.network import Network
from bifl.training.measuring import noise_squares


def exchanges_of(experiment: Experiment, algorithm: Algorithms, network: Network, data: Dataset) -> tuple[Exchange, ...]:
    """What a round of the experiment consists of, in order.

    Args:
        experiment: its settings.
        algorithm: of the experiment.
        network: of the experiment.
        data: what one input looks like, and how it is normalised.
    """
    form = data.form

    def noise(public: Public) -> Floats:
        return noise_squares(network, public, algorithm.at(max(public.round, 1)).forward, form.shape, form.kind == TOKENS)

    bounds = Bounds(partial(plan, experiment), noise)
    precision, in_context = PRECISIONS[experiment.reals], experiment.in_context()
    recalibrates = _recalibrates(experiment, algorithm, network)
    # a judge must hear the statistics of training: it scores the broadcast before the others are there
    says = last_statistics if recalibrates and not algorithm.validation else all_of_it
    listening = not experiment.clients_sleep()
    ballot = Ballot(algorithm, precision, in_context, listening, bounds.ballot, says, experiment.tells_results())
    statistics = Statistics(precision, in_context, bounds.statistics, algorithm.at(1).equal) if recalibrates else None
    if experiment.secure_sum:
        return _under_masks(experiment, algorithm, network, data, bounds, ballot, statistics)
    return (ballot,) if statistics is None else (ballot, statistics)


def _under_masks(
    experiment: Experiment,
    algorithm: Algorithms,
    network: Network,
    data: Dataset,
    bounds: Bounds,
    ballot: Ballot,
    statistics: Statistics | None,
) -> tuple[Exchange, ...]:
    """The same with a secure sum of each.

    Raises:
        ConfigError: the algorithm's uploads cannot be added up.
    """
    from bifl.exchanges.secure_sum import secured
    from bifl.exchanges.summed import Summed, check_groups, check_summable

    def plausible_ballot(said: Tally, public: Public, largest: int) -> bool:
        form = partial(upload_form, algorithm, public)
        return bounds.plausible_ballot(said.real, public, largest) and bounds.plausible_scales(said.scales, public, largest, form)

    def plausible_statistics(said: Tally, public: Public, largest: int) -> bool:
        return bounds.plausible_statistics(said.real, public, largest)

    public = first_public(experiment, network, experiment.clients)
    parts = {ballot.name: Summed(ballot, algorithm, ballot.opened, plausible_ballot, ballot.answer, 1)}
    check_summable(parts[ballot.name], public)
    check_groups(parts[ballot.name], public, experiment.clients, 2 + experiment.colluders)
    if statistics is not None:
        pooled = statistics.pooled
        parts[statistics.name] = Summed(statistics, None, bounds.measured, plausible_statistics, pooled, 0)
    return secured(parts, public.voters, experiment.colluders, agreed(experiment, data), equal=algorithm.at(1).equal)


def simulated_identity(experiment: Experiment) -> Identity | None:
    """What the clients of a simulation sign with, where they do."""
    if not experiment.secure_sum:
        return None
    from bifl.secure.identities import SimulatedKeys

    return SimulatedKeys(experiment.seed)


def _recalibrates(experiment: Experiment, algorithm: Algorithms, network: Network) -> bool:
    """Whether statistics are exchanged: not without batch-norm, not with one client, not where those who voted go to sleep."""
    if experiment.batchnorm != "recalibrate" or not network.layout.moments or algorithm.at(1).central:
        return False
    return experiment.idle != "sleep" or experiment.participation == 1
