"""FedProx (Li et al., 2020): local steps are pulled back towards the weights that the round began with."""

from __future__ import annotations

from dataclasses import replace

from bifl.core import Client, Local, Public, register
from bifl.core.algorithm import Algorithms
from bifl.errors import ConfigError


@register
def fedprox(mu: float = 0.01, around: str = "fedavg") -> Algorithms:
    """FedAvg with µ/2·‖w − w at the start of the round‖² in every client's loss; around=murmur adds it to another algorithm.

    Take it where clients differ and train for long. Where clients keep private weights (around=biml), those are what pulls.
    """
    if not 0 <= mu < float("inf"):
        raise ConfigError(f"algorithm.mu must be 0 or more, not {mu}")

    def local(client: Client, public: Public) -> Local:
        return Local(pull=mu)

    return register.make(around, {}).map(lambda part: replace(part, local=local))
