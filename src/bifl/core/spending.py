"""What is told of one client by the sums that it is in, where that is accounted (`bifl.privacy`).

>>> once_more(once_more((), 100), 100)
((100, 2),)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bifl.core.layout import Layout
from bifl.errors import ConfigError

Summed = tuple[tuple[int, int], ...]  # (how many clients were in a sum, in how many rounds), rising


def once_more(summed: Summed, clients: int) -> Summed:
    """The same after another round, whose sum was of so many clients."""
    known = dict(summed)
    return tuple(sorted((known | {clients: known.get(clients, 0) + 1}).items()))


@dataclass(frozen=True)
class Spending:
    """What an algorithm's sums cost.

    Attributes:
        epsilon: ε of all sums so far, given the layout of the model.
        budget: the largest ε that may be spent; 0 means any.
    """

    epsilon: Callable[[Summed, Layout], float]
    budget: float = 0.0

    def affords(self, summed: Summed, clients: int, layout: Layout) -> bool:
        """Whether a further sum, of so many clients, stays within the budget.

        Raises:
            ConfigError: not even the first does.
        """
        then = self.epsilon(once_more(summed, clients), layout) if self.budget else 0.0
        if not summed and then > self.budget:
            raise ConfigError(
                f"privacy.budget={self.budget:g} is less than one round of {clients} clients costs, ε = {then:.3g}: more clients, "
                "more noise or a smaller model cost less"
            )
        return then <= self.budget
