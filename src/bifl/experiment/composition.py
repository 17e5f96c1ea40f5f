"""What an experiment's settings make of its algorithm: who counts for what, with which sum, in which privacy, and who lies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from bifl.attacks import attack, attacked, liars
from bifl.core.algorithm import Algorithms, register, with_name
from bifl.core.sums import Weighing
from bifl.errors import ConfigError
from bifl.privacy import Crowd, Private, check_private, privacy, refuse_unprivate
from bifl.privacy.dice import Dice
from bifl.registry import short
from bifl.robust import RobustSum, refuse_sum, robust

if TYPE_CHECKING:
    from bifl.experiment.settings import Experiment


class Composition(NamedTuple):
    """An algorithm, and what the settings put around it."""

    algorithm: Algorithms
    weighing: Weighing
    robust: RobustSum | None
    privacy: Private | None


def compose(experiment: Experiment, dice: Dice) -> Composition:
    """The parts that an experiment names; `dice` draw private noise.

    Raises:
        ConfigError: one refuses its parameters, or they do not go together.
    """
    algorithm = plain_algorithm(experiment)
    rule = robust.make(experiment.robust.name, experiment.robust.parameters)
    if rule is not None:
        refuse_sum(algorithm)
    private = _private(experiment, algorithm, dice)
    if private is not None:
        # the same noise must not be told of two updates that differ by what a server made the client remember
        algorithm = algorithm.map(lambda part: replace(part, keeps=()))
    lies = attack.make(experiment.attack.name, experiment.attack.parameters)
    if lies is not None:
        algorithm = attacked(algorithm, lies, liars(experiment.seed, experiment.clients, lies.share))
    protected = None if rule is None else RobustSum(short(experiment.robust.name), rule)
    return Composition(algorithm, _weighing(experiment, algorithm), protected, private)


def plain_algorithm(experiment: Experiment) -> Algorithms:
    """The algorithm alone, as its author wrote it."""
    return with_name(register.make(experiment.algorithm.name, experiment.algorithm.parameters), short(experiment.algorithm.name))


def _private(experiment: Experiment, algorithm: Algorithms, dice: Dice) -> Private | None:
    how = privacy.make(experiment.privacy.name, experiment.privacy.parameters)
    if how is None:
        return None
    check_private(experiment.batchnorm, experiment.holdout, experiment.attack.name)
    refuse_unprivate(algorithm, how, experiment.clients)
    if experiment.robust.name != "none":
        raise ConfigError("privacy= accounts for a plain sum, which robust= replaces: choose one of the two")
    return Private(how, Crowd(experiment.clients, hidden=not experiment.secure_sum, colluders=experiment.colluders), dice)


def _weighing(experiment: Experiment, algorithms: Algorithms) -> Weighing:
    """What a client counts for.

    With `auto` it counts once where the server keeps the mean of what clients remember (`Algorithm.mirrors`), and under a secure
    sum: all know each other's number of samples, and of ballots the numbers of those who voted for a weight often add up to its
    sum in one way only. Floats are no better: after one step of Adam they are ballots too.
    """
    if experiment.privacy.name != "none":
        if experiment.weigh == "images":
            raise ConfigError("with privacy= every client counts once, and its number of images is not told: leave weigh= out")
        return Weighing.UNTOLD
    mirrors = [part.name for part in algorithms.parts if part.mirrors]
    if mirrors and experiment.weigh == "images":
        raise ConfigError(
            f"the server of algorithm '{mirrors[0]}' keeps the mean of what clients remember, in which every client counts once: "
            "leave weigh= out"
        )
    once = experiment.weigh == "equal" or (experiment.weigh == "auto" and (experiment.secure_sum or mirrors))
    return Weighing.ONCE if once else Weighing.SAMPLES
