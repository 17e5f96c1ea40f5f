"""What is told of one client by the sums that it is in, where that is accounted (`bifl.privacy`).

>>> once_more(once_more((), 100, 400), 100, 400)
((100, 400, 2),)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bifl.core.layout import Layout
from bifl.errors import ConfigError

Summed = tuple[tuple[int, int, int], ...]  # (how many clients were in a sum, among how many, in how many rounds), rising


def once_more(summed: Summed, clients: int, among: int) -> Summed:
    """The same after another round.

    Args:
        summed: the rounds before it.
        clients: how many were in its sum.
        among: how many could have been in it, for all that others know.
    """
    known = {(own, others): rounds for own, others, rounds in summed}
    known[clients, among] = known.get((clients, among), 0) + 1
    return tuple(sorted((*pair, rounds) for pair, rounds in known.items()))


@dataclass(frozen=True)
class Spending:
    """What an algorithm's sums cost.

    Attributes:
        epsilon: ε of all sums so far, given the layout of the model.
        delta: δ, for which ε is accounted.
        budget: the largest ε that may be spent; 0 means any.
    """

    epsilon: Callable[[Summed, Layout], float]
    delta: float
    budget: float = 0.0

    def over(self, summed: Summed, layout: Layout) -> float:
        """ε of such sums if that is above the budget, else 0."""
        spent = self.epsilon(summed, layout) if self.budget else 0.0
        return spent if spent > self.budget else 0.0

    def affords(self, summed: Summed, clients: int, among: int, layout: Layout) -> bool:
        """Whether a further sum, of so many clients among so many, stays within the budget.

        Raises:
            ConfigError: not even the first does.
        """
        then = self.over(once_more(summed, clients, among), layout)
        if then and not summed:
            raise ConfigError(
                f"privacy.budget={self.budget:g} is less than one round of {clients} clients costs, ε = {then:.3g}: more clients, "
                "more noise or a smaller model cost less"
            )
        return not then
