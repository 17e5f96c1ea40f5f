"""The paper's algorithms (Yang, Zhang and Yang, 2021, §2): its table, one function a row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

from bifl.core import VOTES, WEIGHTS, Algorithm, Client, Schedule, Update, real, register, require, rules
from bifl.core.rules import blend, blend_signs, floats, majority, means, ml_pu, replace, rounded_votes, signs, votes


@register
def baseline() -> Algorithm:
    """Centralised training of the real network: one client holds all data, nothing is sent.

    Take it to see what the real network could learn if all data were in one place.
    """
    return Algorithm(upload=floats, broadcast=means, update=replace, forward=real, keeps=(), central=True)


@register
def bnn() -> Algorithm:
    """Centralised training of the binary network.

    Take it to see what the binary network could learn if all data were in one place.
    """
    return Algorithm(upload=floats, broadcast=means, update=replace, keeps=(), central=True)


@register
def fedavg() -> Algorithm:
    """FedAvg: real weights up, their mean down.

    Take it as the yardstick that everybody knows, and with privacy=.
    """
    return Algorithm(upload=floats, broadcast=means, update=replace, forward=real, keeps=(), uploads=WEIGHTS)


@register
def full() -> Algorithm:
    """BiFL-Full: a binary network whose auxiliary weights are averaged at 32 bit.

    Take it as the upper bound of the algorithms that send signs of a binary network.
    """
    return Algorithm(upload=floats, broadcast=means, update=replace, keeps=(), uploads=WEIGHTS)


@register
def up_only(beta: float = 0.3) -> Algorithm:
    """BiFL-Bi-UpOnly: 1-bit ballots up, vote counts down, blended into aux.

    Take it to see what the maximum-likelihood update of biml gains.
    """
    return Algorithm(upload=signs, broadcast=votes, update=blend_by(blend, beta), keeps=("aux",), broadcasts=VOTES)


@register
def up_only_literal(beta: float = 0.3) -> Algorithm:
    """BiFL-Bi-UpOnly as the text prints it: the sign of the vote is blended.

    Take it to see what the text gives, taken at its word.
    """
    return Algorithm(upload=signs, broadcast=votes, update=blend_by(blend_signs, beta), keeps=("aux",), broadcasts=VOTES)


@register
def up_down(beta: float = 0.3) -> Algorithm:
    """BiFL-Bi-UpDown: 1-bit ballots up, the majority (1 bit) down, blended into aux.

    Take it for a binary network with the fewest bits both ways, if accuracy may suffer.
    """
    return Algorithm(upload=signs, broadcast=majority, update=blend_by(blend, beta), keeps=("aux",))


@register
def biml(alpha: float = 1.25) -> Algorithm:
    """BiFL-BiML: 1-bit ballots up, vote counts down, maximum-likelihood update.

    Take it for the paper's results, and for a binary network under secure_sum=true. murmur with forward=binary trains better
    binary networks with fewer bits.
    """
    return Algorithm(upload=signs, broadcast=votes, update=maximum_likelihood(alpha), keeps=("aux",), broadcasts=VOTES)


@register
def biml_fit(alpha: float = 1.25) -> Algorithm:
    """BiFL-BiML with the paper's three-constant fit instead of the exact maximum.

    Take it to see what the fit makes of it.
    """
    update = maximum_likelihood(alpha, rules.fitted_ratio)
    return Algorithm(upload=signs, broadcast=votes, update=update, keeps=("aux",), broadcasts=VOTES)


@register
def biml_levels(alpha: float = 1.25, levels: int = 17) -> Algorithm:
    """BiFL-BiML whose vote counts are rounded to `levels` levels: fewer bits down, whatever the clients' sizes.

    Take it instead of biml where the broadcast is too long.
    """
    require(3 <= levels <= 2**20, "levels", levels, f"from 3 to {2**20}")
    say = partial(rounded_votes, levels=levels)
    return Algorithm(upload=signs, broadcast=say, update=maximum_likelihood(alpha), keeps=("aux",), broadcasts=VOTES)


@register
def hybrid(switch: int = 40, alpha: float = 1.25) -> Schedule:
    """BiFL-BiML up to round `switch`, then FedAvg, each client starting from its own aux.

    Take it for the paper's figure: a network that is binary at first and real in the end.
    """
    require(switch >= 1, "switch", switch, "a round, 1 or later")
    return Schedule(biml(alpha), fedavg(), switch)


def maximum_likelihood(alpha: float, ratio: rules.Ratio = rules.exact_ratio) -> Update:
    """ML-PU with this α."""
    require(0 < alpha < inf, "alpha", alpha, "greater than 0", " (the paper uses 1.25 to 2)")
    return partial(ml_pu, alpha=alpha, ratio=ratio)


def blend_by(rule: Callable[..., Client], beta: float) -> Update:
    """A rule that blends, with this β."""
    require(0 < beta <= 1, "beta", beta, "in (0, 1]", " (the paper uses 0.3)")
    return partial(rule, beta=beta)
