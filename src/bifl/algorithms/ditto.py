"""Ditto (Li et al., ICML 2021): beside the shared model every client keeps one of its own, pulled towards the shared one.

The shared model is trained as without: by FedAvg, or by whatever `around` names. Own models never leave their clients
(`bifl.exchanges.personal`); how they do on what clients hold out stands beside the shared model's results, as personal_accuracy.
The authors train both in one visit, with the broadcast of the round before; here the own model follows the ballot, and is pulled
towards the broadcast that the round ends with.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from bifl import core
from bifl.core.algorithm import Algorithms


@core.register
def ditto(pull: float = 0.1, around: str = "fedavg") -> Algorithms:
    """A personal model beside the shared one, pulled towards it by λ = pull; around=murmur shares by another algorithm.

    Take it where clients differ so much that one model does not fit all; with holdout=0.2 both are evaluated.
    """
    core.require(0 <= pull < inf, "pull", pull, "0 or more")
    personal = ("personal", {"pull": pull})
    return core.register.make(around, {}).map(lambda part: replace(part, exchanges=(*part.exchanges, personal)))
