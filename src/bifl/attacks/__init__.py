"""Clients that lie, to see what a rule withstands: `attack=flip attack.share=0.3` (docs/robust.md).

>>> from bifl.attacks import attack
>>> attack.names()
['none', 'flip', 'collude', 'random', 'scaled', 'labels', 'reals', 'statistics']
"""

from bifl.attacks import lies
from bifl.attacks.attack import Attack, Labels, Liar, attack, attacked, liars

__all__ = ["Attack", "Labels", "Liar", "attack", "attacked", "liars", "lies"]
