"""FedProx (Li et al., 2020): local steps are pulled back towards the weights that the round began with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf

from bifl import core
from bifl.core import Algorithm, Client, Local, Public
from bifl.core.algorithm import Algorithms, with_name
from bifl.core.forward import PLAIN
from bifl.errors import ConfigError


def with_pull(client: Client, public: Public, mu: float, inner: Algorithm) -> Local:
    """What the inner algorithm adds to a client's steps, and the pull."""
    added = PLAIN if inner.local is None else inner.local(client, public)
    if added.centre is not None:
        raise ConfigError(
            f"algorithm '{inner.name}' pulls towards weights of its own, and fedprox towards those that the round began with: "
            "take it without fedprox"
        )
    return added._replace(pull=added.pull + mu)


@core.register
def fedprox(mu: float = 0.01, around: str = "fedavg") -> Algorithms:
    """FedAvg with µ/2·‖w − w at the start of the round‖² in every client's loss; around=murmur adds it to another algorithm.

    Take it where clients differ and train for long. Where clients keep private weights (around=biml), those are what pulls.
    """
    core.require(0 <= mu < inf, "mu", mu, "0 or more")
    inner = with_name(core.register.make(around, {}), around)
    return inner.map(lambda part: replace(part, local=partial(with_pull, mu=mu, inner=part)))
