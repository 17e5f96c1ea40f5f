"""Sums that a minority of lying clients cannot steer, for any algorithm: `robust=credibility` (docs/robust.md).

>>> from bifl.robust import robust
>>> robust.names()
['none', 'median', 'trimmed_mean', 'bounded_step', 'credibility', 'krum', 'norm_clip']
"""

from bifl.robust import by_coordinate, credibility, whole_uploads
from bifl.robust.rule import BALLOTS, LEVELS, UPDATES, RobustSum, Rule, kind_of, refuse_misfits, refuse_sum, robust, trust_of

__all__ = [
    "BALLOTS", "LEVELS", "UPDATES", "RobustSum", "Rule", "by_coordinate", "credibility", "kind_of", "refuse_misfits", "refuse_sum",
    "robust", "trust_of", "whole_uploads",
]  # fmt: skip
