"""What a run is: one record, made once of the settings, and handed down to whoever takes part."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from bifl.codec import EXACT, SHORT
from bifl.core.algorithm import Algorithms, first_vectors, refuse_further_vectors
from bifl.core.forward import Forward
from bifl.core.message import Floats
from bifl.core.sides import Identity
from bifl.core.state import Client, Public, remembered
from bifl.core.weighing import Weighing
from bifl.data.inputs import TOKENS, Dataset
from bifl.errors import ConfigError
from bifl.exchanges.ballot import Ballot, upload_form
from bifl.exchanges.batchnorm import Statistics
from bifl.exchanges.bounds import Bounds
from bifl.exchanges.evaluation import Evaluation
from bifl.exchanges.exchange import Exchange, Summable
from bifl.experiment.composition import Composition, compose, plain_algorithm
from bifl.experiment.identity import agreed
from bifl.experiment.settings import Experiment
from bifl.nn import scores
from bifl.nn.network import Network
from bifl.privacy import Private, secret_dice
from bifl.privacy.dice import Dice
from bifl.robust import RobustSum, refuse_misfits
from bifl.tasks import Task, task
from bifl.training.augmenting import augment
from bifl.training.measuring import noise_squares
from bifl.training.plan import Plan
from bifl.training.rates import rate_of, schedule

PRECISIONS = {"short": SHORT, "float32": EXACT}  # by the words of the setting `reals`
HOLDOUT = 0.2  # where there are no test images to evaluate on


@dataclass(frozen=True)
class Run:
    """What a run is.

    Attributes:
        experiment: the settings that it was made of.
        algorithm: what clients upload and the server broadcasts; of liars, where some lie.
        weighing: what a client counts for.
        robust: a sum that liars cannot steer; None takes the algorithm's own.
        privacy: how clients hide in the sum, and what that has cost; None where they do not.
        task: what is learnt.
        network: that is trained.
        evaluation: how well models do on what clients hold out; None where nobody may know, or nobody asks.
        clients: how many there are.
        fresh: the public state before the first round: the network's own initialisation.
        ballot: how clients train and upload, whether under masks or not.
        exchanges: what a round consists of, in order.
        clients_sleep: whether clients that do not upload have nothing to do, and miss what the others hear; or remember nothing.
        in_context: whether messages are coded in what both ends know: not where clients miss what the others hear.
        plan: round → how clients train in it.
    """

    experiment: Experiment
    algorithm: Algorithms
    weighing: Weighing
    robust: RobustSum | None
    privacy: Private | None
    task: Task
    network: Network
    clients: int
    fresh: Public
    ballot: Ballot
    exchanges: tuple[Exchange, ...]
    evaluation: Evaluation | None
    plan: Callable[[int], Plan]
    clients_sleep: bool
    in_context: bool

    @property
    def asked(self) -> tuple[Exchange, ...]:
        """All that a client may be asked to take part in."""
        return self.exchanges if self.evaluation is None else (*self.exchanges, self.evaluation)

    @cached_property
    def remembering(self) -> frozenset[str]:
        """Names of the exchanges of which clients keep something."""
        return frozenset(exchange.name for exchange in self.exchanges if exchange.remembers)

    def remembered(self, client: Client, round: int, fresh: Client) -> Client:
        """What a client must know of a round; `fresh` if that is nothing."""
        return remembered(client, self.algorithm.at(round).keeps, self.remembering, fresh)

    @property
    def warm(self) -> bool:
        """Whether it starts with the weights of a model."""
        return bool(self.experiment.start)


def make_run(experiment: Experiment, network: Network, data: Dataset, dice: Dice = secret_dice) -> Run:
    """The run that settings stand for.

    Args:
        experiment: the settings.
        network: of the experiment.
        data: what one input looks like, and how it is normalised; its samples do not matter.
        dice: draw private noise; those of a simulation can be repeated, so that nothing is private there.

    Raises:
        ConfigError: the settings do not go together.
    """
    composed = compose(experiment, dice)
    clients = 1 if composed.algorithm.central else experiment.clients
    voters = voters_of(experiment, clients)
    fresh = Public(experiment.seed, 0, network.layout, *network.initial(), voters=voters, clients=clients)
    fresh = fresh._replace(vectors=first_vectors(composed.algorithm, fresh))
    if composed.robust is not None:
        refuse_further_vectors(composed.algorithm, fresh, "robust=")
        uploads = [upload_form(part, fresh) for part in composed.algorithm.parts]
        refuse_misfits(composed.robust, composed.algorithm, uploads, fresh)
    if composed.privacy is not None:
        refuse_further_vectors(composed.algorithm, fresh, "privacy=")
    plan = plan_of(experiment)
    _refuse_other_steps(composed.algorithm, plan)
    ballot, *others = plain = _exchanges(experiment, composed, network, data, plan)
    exchanges = _under_masks(experiment, composed, plain, data, fresh) if experiment.secure_sum else (ballot, *others)
    evaluation = Evaluation(task_of(experiment), share_of(experiment, data)) if experiment.tells_results() else None
    return Run(
        experiment, *composed, task_of(experiment), network, clients, fresh, ballot, exchanges, evaluation, plan,
        clients_sleep=not ballot.idle_trains, in_context=ballot.in_context,
    )  # fmt: skip


def share_of(experiment: Experiment, data: Dataset) -> float:
    """Which part of its images a client holds out: what was asked for, and a fifth where there are no test images."""
    return experiment.holdout or (0.0 if len(data.test_labels) else HOLDOUT)


def _refuse_other_steps(algorithms: Algorithms, plan: Callable[[int], Plan]) -> None:
    """Refuse an optimiser whose steps are not plain gradient descent, where an algorithm needs them.

    Raises:
        ConfigError: it is so.
    """
    for algorithm in algorithms.parts:
        if algorithm.plain_steps and not plan(1).made().plain:
            raise ConfigError(
                f"algorithm '{algorithm.name}' needs steps of plain gradient descent: set optimizer=sgd, without momentum and "
                "weight_decay, and a learning rate for it, such as lr=0.1"
            )


def task_of(experiment: Experiment) -> Task:
    """What the experiment's networks learn."""
    return task.make(experiment.task.name, experiment.task.parameters)


def plan_of(experiment: Experiment) -> Callable[[int], Plan]:
    """Round → how clients train in it."""
    chosen, rates = experiment.optimizer, experiment.schedule
    make_rate = schedule.make(rates.name, rates.parameters)
    change = augment.make(experiment.augment.name, experiment.augment.parameters)

    def plan(round: int) -> Plan:
        lr = rate_of(rates.name, make_rate, round, experiment.lr, experiment.lr_steps)
        return Plan(
            chosen.name, lr, experiment.batch, experiment.local_epochs, experiment.seed, round, chosen.parameters,
            experiment.local_steps, experiment.clip, change,
        )  # fmt: skip

    return plan


def make_network(experiment: Experiment, classes: int, kind: type[Network] = Network, forward: Forward | None = None) -> Network:
    """The experiment's network with the initialisation that its seed gives; with another forward than its algorithm's, if given."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        module = scores.make(experiment.model.name, experiment.model.parameters, classes, experiment.scores)
        return kind(module, forward or plain_algorithm(experiment).at(1).forward)


def voters_of(experiment: Experiment, clients: int) -> int:
    """How many clients are drawn to upload in a round: ⌈λM⌉."""
    return max(1, math.ceil(experiment.participation * clients - 1e-9))  # 0.07·100 is 7, not 7.000000000000001


def simulated_identity(experiment: Experiment) -> Identity | None:
    """What the clients of a simulation sign with, where they do."""
    if not experiment.secure_sum:
        return None
    from bifl.secure.identities import SimulatedKeys

    return SimulatedKeys(experiment.seed)


# ---- what a round consists of ------------------------------------------------------------------------------------------


def _exchanges(
    experiment: Experiment, composed: Composition, network: Network, data: Dataset, plan: Callable[[int], Plan]
) -> tuple[Ballot, *tuple[Statistics, ...]]:
    """The ballot, and what follows it."""
    algorithm, weighing, robust, privacy = composed
    form = data.form

    def noise(public: Public) -> Floats:
        return noise_squares(network, public, algorithm.at(max(public.round, 1)).forward, form.shape, form.kind == TOKENS)

    bounds, precision = Bounds(plan, noise), PRECISIONS[experiment.reals]
    sleep = experiment.participation < 1 and (experiment.idle == "sleep" or not algorithm.keeps)
    in_context = experiment.wire == "context" and not sleep
    recalibrates = _recalibrates(experiment, algorithm, network)
    ballot = Ballot(
        algorithm,
        bounds,
        precision,
        in_context,
        idle_trains=not sleep,
        # a judge must hear the statistics of training: it scores the broadcast before the others are there
        repeats_statistics=recalibrates and not algorithm.validation,
        tells_loss=experiment.tells_results(),
        weighing=weighing,
        robust=robust,
        privacy=privacy,
    )
    return (ballot, Statistics(bounds, precision, in_context, weighing)) if recalibrates else (ballot,)


def _under_masks(
    experiment: Experiment, composed: Composition, plain: Sequence[Summable], data: Dataset, fresh: Public
) -> tuple[Exchange, ...]:
    """The same with a secure sum of each.

    Raises:
        ConfigError: the algorithm's uploads cannot be added up.
    """
    from bifl.exchanges.secure_sum import secured
    from bifl.exchanges.summable import check_groups, check_summable

    ballot, algorithm = plain[0], composed.algorithm
    check_summable(ballot, algorithm, fresh)
    check_groups(ballot, algorithm.at(1).name, fresh, experiment.clients, 2 + experiment.colluders)
    return secured(plain, fresh.voters, experiment.colluders, agreed(experiment, data), composed.weighing)


def _recalibrates(experiment: Experiment, algorithm: Algorithms, network: Network) -> bool:
    """Whether statistics are exchanged: not without batch-norm, not with one client, not where those who voted go to sleep."""
    if experiment.batchnorm != "recalibrate" or not network.layout.moments or algorithm.central:
        return False
    return experiment.idle != "sleep" or experiment.participation == 1
