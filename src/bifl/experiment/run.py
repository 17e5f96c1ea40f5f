"""What a run is: one record, made once of the settings, and handed down to whoever takes part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from bifl.codec import BYTE, EXACT, SHORT, SIGN
from bifl.core.algorithm import first_vectors, refuse_further_vectors
from bifl.core.forward import Forward
from bifl.core.sides import Identity
from bifl.core.state import Client, Public, Server, forget_but_for
from bifl.core.sums import Weighing
from bifl.data.inputs import Dataset
from bifl.errors import ConfigError
from bifl.exchanges.ballot import Ballot, ballot, upload_form
from bifl.exchanges.bounds import Bounds
from bifl.exchanges.exchange import Exchange, Summable, Surroundings, exchange
from bifl.exchanges.scoring import Evaluation
from bifl.experiment.settings import Experiment, agreed, compose, plain_algorithm, plan_of
from bifl.nn import scores
from bifl.nn.network import Network
from bifl.privacy import secret_dice
from bifl.privacy.dice import Dice
from bifl.registry import short
from bifl.robust import refuse_misfits
from bifl.tasks import task
from bifl.training.local import Plan

PRECISIONS = {"short": SHORT, "byte": BYTE, "sign": SIGN, "float32": EXACT}  # by the words of the setting `reals`
HOLDOUT = 0.2  # where there are no test images to evaluate on


@dataclass(frozen=True, kw_only=True)
class Run(Surroundings):
    """What a run is: what exchanges are made of, and the exchanges.

    Attributes:
        experiment: the settings that it was made of.
        network: that is trained.
        plan: round → how clients train in it.
        clients: how many there are.
        fresh: the public state before the first round: the network's own initialisation.
        exchanges: what a round consists of, in order.
        evaluation: how well models do on what clients hold out; None where nobody may know, or nobody asks.
    """

    experiment: Experiment
    network: Network
    plan: Callable[[int], Plan]
    clients: int
    fresh: Public
    exchanges: tuple[Exchange, ...] = ()
    evaluation: Evaluation | None = None

    @cached_property
    def ballot(self) -> Ballot:
        """How clients train and upload, whether under masks or not."""
        return ballot(self)

    @property
    def trains(self) -> bool:
        """Whether clients train in it."""
        return any(one.trains for one in self.exchanges)

    @property
    def computes(self) -> bool:
        """Whether networks compute with clients' inputs in it."""
        return any(one.computes for one in self.exchanges)

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
        return forget_but_for(client, self.algorithm.at(round).keeps, self.remembering, fresh)

    @property
    def fewest(self) -> int:
        """Of how many clients a round's sum may be: of a secure sum the fewest, as its server cannot unlearn it; others it can."""
        return max(exchange.quorum for exchange in self.exchanges) or self.fresh.voters

    def affords_a_round(self, public: Public, server: Server) -> bool:
        """Whether the budget of privacy leaves room for another round."""
        private = self.privacy
        return private is None or private.affords(private.summed(server), self.fewest, self.clients, public.layout)

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
    """
    composed = compose(experiment, dice)
    algorithm, goal, plan = composed.algorithm, experiment.task.made(task), plan_of(experiment)
    clients = 1 if algorithm.central else experiment.clients
    fresh = Public(experiment.seed, 0, network.layout, *network.initial(), voters=experiment.voters(clients), clients=clients)
    # clients that do not upload have nothing to do, and miss what the others hear; or remember nothing
    sleep = experiment.participation < 1 and (experiment.idle == "sleep" or not algorithm.keeps)
    run = Run(
        **composed._asdict(),
        task=goal,
        form=data.form,
        classes=data.classes,
        bounds=Bounds(plan, network, algorithm, data.form),
        precision=PRECISIONS[experiment.reals],
        in_context=experiment.wire == "context" and not sleep,
        idle_trains=not sleep,
        recalibrates=_recalibrates(experiment, network, central=algorithm.central),
        tells_results=experiment.tells_results(),
        share=share_of(experiment, data),
        positions=goal.most(data.labels.shape[1:]),
        experiment=experiment,
        network=network,
        plan=plan,
        clients=clients,
        fresh=fresh._replace(vectors=first_vectors(algorithm, fresh)),
    )
    _refuse_misfits(run)
    plain = _exchanges(run)
    evaluation = None
    if plain[0].trains and run.tells_results:
        others = tuple(one for one in plain if one.remembers)
        evaluation = Evaluation(run.task, run.share, others=others, positions=run.positions)
    exchanges = _under_masks(run, plain, agreed(experiment, data)) if experiment.secure_sum else plain
    return replace(run, exchanges=exchanges, evaluation=evaluation)


def _refuse_misfits(run: Run) -> None:
    """Refuse an algorithm that cannot be used with this robust sum, this privacy or this optimiser."""
    if run.robust is not None:
        refuse_further_vectors(run.algorithm, run.fresh, "robust=")
        uploads = [upload_form(part, run.fresh) for part in run.algorithm.parts]
        refuse_misfits(run.robust, run.algorithm, uploads, run.fresh)
    if run.privacy is not None:
        refuse_further_vectors(run.algorithm, run.fresh, "privacy=")
    for algorithm in run.algorithm.parts:
        if algorithm.plain_steps and not run.plan(1).optimizer.plain:
            raise ConfigError(
                f"algorithm '{algorithm.name}' needs steps of plain gradient descent: set optimizer=sgd, without momentum and "
                "weight_decay, and a learning rate for it, such as lr=0.1"
            )


def share_of(experiment: Experiment, data: Dataset) -> float:
    """Which part of its images a client holds out: what was asked for, and a fifth where there are no others to evaluate on."""
    needed = experiment.tells_results() and not len(data.test_labels)
    return experiment.holdout or (HOLDOUT if needed else 0.0)


def make_network(experiment: Experiment, classes: int, kind: type[Network] = Network, forward: Forward | None = None) -> Network:
    """The experiment's network with the initialisation that its seed gives; with another forward than its algorithm's, if given."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        module = scores.make(experiment.model.name, experiment.model.parameters, classes, experiment.scores)
        return kind(module, forward or plain_algorithm(experiment).at(1).forward)


def simulated_identity(experiment: Experiment) -> Identity | None:
    """What the clients of a simulation sign with, where they do."""
    if not experiment.secure_sum:
        return None
    from bifl.secure.identities import SimulatedKeys

    return SimulatedKeys(experiment.seed)


# ---- what a round consists of ------------------------------------------------------------------------------------------


def _exchanges(run: Run) -> tuple[Exchange, ...]:
    """What rounds are held for, and what follows training."""
    chosen = run.experiment.exchange
    main = chosen.made(exchange, run)
    if not main.main:
        raise ConfigError(f"exchange '{short(chosen.name)}' goes with training, and no round is held for it alone")
    if not main.trains:
        if run.privacy is not None or run.robust is not None:
            raise ConfigError(f"privacy= and robust= are of training, and exchange={short(chosen.name)} is none: leave them out")
        return (main,)
    follow: list[tuple[str, Mapping[str, Any]]] = [("statistics", {})] if run.recalibrates else []
    exchanges = (main, *(exchange.make(name, given, run) for name, given in (*follow, *run.algorithm.exchanges)))
    _refuse_misplaced(exchanges, short(run.experiment.algorithm.name), private=run.privacy is not None)
    return exchanges


def _refuse_misplaced(exchanges: Sequence[Exchange], algorithm: str, *, private: bool) -> None:
    """Refuse exchanges that cannot follow training, or not twice, or not where what clients upload is accounted for."""
    names = [one.name for one in exchanges]
    for one in exchanges[1:]:
        if one.main:
            raise ConfigError(
                f"algorithm '{algorithm}' names the exchange '{one.name}' to follow training, and rounds are held for that "
                "one: give it main=False"
            )
        if names.count(one.name) > 1:
            raise ConfigError(f"algorithm '{algorithm}' names the exchange '{one.name}' twice: give one of the two another name")
        if private and one.uploads:
            raise ConfigError(
                f"privacy= accounts for one upload a round, and in the exchange '{one.name}' of algorithm '{algorithm}' clients "
                "upload more: take another algorithm, or privacy=none"
            )


def _under_masks(run: Run, plain: Sequence[Exchange], agreement: str) -> tuple[Exchange, ...]:
    """The same with a secure sum of each in which clients upload something; `agreement` is what all clients must have in common."""
    from bifl.exchanges.secure_sum import check_groups, check_summable, secure_exchanges

    experiment, main, weighing = run.experiment, plain[0], Weighing.ONCE
    if not main.trains and experiment.rounds > 1:
        raise ConfigError(
            f"exchange={short(experiment.exchange.name)} with secure_sum=true is for one round, as sums of different clients tell "
            f"what single ones say: set rounds=1, not {experiment.rounds}"
        )
    sums = [one for one in plain if isinstance(one, Summable)]
    if alone := [one.name for one in plain if one.uploads and one not in sums]:
        raise ConfigError(f"exchange '{alone[0]}' cannot be used with secure_sum=true: the server must see single uploads")
    if main.trains:
        check_summable(sums[0], run.algorithm, run.fresh)
        check_groups(sums[0], run.algorithm.at(1).name, run.fresh, 2 + experiment.colluders)
        weighing = run.weighing
    masked = secure_exchanges(sums, run.fresh.voters, experiment.colluders, agreement, weighing)
    return (*masked, *(one for one in plain if not one.uploads))


def _recalibrates(experiment: Experiment, network: Network, *, central: bool) -> bool:
    """Whether statistics are exchanged: not without batch-norm, not with one client, not where those who voted go to sleep."""
    if experiment.batchnorm != "recalibrate" or not network.layout.moments or central:
        return False
    return experiment.idle != "sleep" or experiment.participation == 1
