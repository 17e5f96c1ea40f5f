"""Sums that a minority of lying clients cannot steer, for any algorithm: `robust=credibility` (docs/robust.md).

>>> from bifl.robust import robust
>>> robust.names()
['none', 'median', 'trimmed_mean', 'bounded_step', 'credibility', 'krum', 'norm_clip']
"""

from bifl.robust import by_coordinate, credibility, whole_uploads
from bifl.robust.rule import BALLOTS, LEVELS, UPDATES, Rule, kind_of, protected, refuse_misfits, robust

__all__ = [
    "BALLOTS", "LEVELS", "UPDATES", "Rule", "by_coordinate", "credibility", "kind_of", "protected", "refuse_misfits", "robust",
    "whole_uploads",
]  # fmt: skip
