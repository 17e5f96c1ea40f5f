"""Differential privacy of clients, accounted: `privacy=poisson_binomial` (docs/privacy.md).

>>> from bifl.privacy import privacy
>>> privacy.names()
['none', 'gaussian', 'poisson_binomial']
"""

from bifl.privacy import gaussian, poisson_binomial
from bifl.privacy.dice import secret_dice, simulated_dice
from bifl.privacy.mechanism import Crowd, Mechanism, Private, check_private, privacy, refuse_unprivate

__all__ = [
    "Crowd", "Mechanism", "Private", "check_private", "gaussian", "poisson_binomial", "privacy", "refuse_unprivate", "secret_dice",
    "simulated_dice",
]  # fmt: skip
