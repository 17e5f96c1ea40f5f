"""Sums that a minority of lying clients cannot steer, for any algorithm: `robust=credibility` (docs/robust.md).

>>> from bifl.robust import robust
>>> robust.names()
['none', 'median', 'trimmed_mean', 'bounded_step', 'krum', 'norm_clip', 'credibility']
"""

from bifl.robust import averages, credibility
from bifl.robust.rule import BALLOTS, LEVELS, UPDATES, RobustSum, Rule, kind_of, refuse_misfits, refuse_sum, robust, trust_of

__all__ = [
    "BALLOTS", "LEVELS", "UPDATES", "RobustSum", "Rule", "averages", "credibility", "kind_of", "refuse_misfits", "refuse_sum",
    "robust", "trust_of",
]  # fmt: skip
