"""What is told of one client by the sums that it is in: from Rényi divergences to ε, by Google's `dp-accounting`.

Neighbours are two federations in which one client holds other data ("replace one"): nothing else differs, not even who takes part.

>>> rounds = 10 * gaussian_divergences(2.0)
>>> round(epsilon(rounds, delta=1e-5), 2)
8.09
>>> once_more(once_more((), 100, 400), 100, 400)
((100, 400, 2),)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from bifl.errors import ConfigError

Numbers = npt.NDArray[np.float64]

ORDERS = (
    *(1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0, 2.25, 2.5, 2.75, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0),
    *(10.0, 12.0, 14.0, 16.0, 20.0, 24.0, 28.0, 32.0, 40.0, 48.0, 64.0, 96.0, 128.0, 256.0, 512.0),
)  # α of all divergences that are accounted


def epsilon(divergences: Numbers, delta: float) -> float:
    """The smallest ε that all orders together give, for a δ; `divergences` are (orders,) of everything that was told."""
    if not divergences.any():
        return 0.0
    return float(_library().rdp.compute_epsilon(ORDERS, divergences, delta)[0])


@lru_cache(maxsize=64)
def gaussian_divergences(multiplier: float, drawn: int = 1, among: int = 1) -> Numbers:
    """(orders,) of one sum with Gaussian noise of `drawn` clients, of whom nobody knows who they are `among` all.

    `multiplier` is the noise's deviation over the furthest that one client can move the sum.
    """
    event = _library().GaussianDpEvent(multiplier)
    divergences = _divergences(event)
    if drawn < among:  # the library's bound for samples of nearly all is above that of all, which holds for them too
        divergences = np.minimum(divergences, _divergences(_library().SampledWithoutReplacementDpEvent(among, drawn, event)))
    divergences.flags.writeable = False
    return divergences


def _divergences(event: Any) -> Numbers:
    """(orders,) of an event of the library's."""
    library = _library()
    accountant = library.rdp.RdpAccountant(ORDERS, library.NeighboringRelation.REPLACE_ONE)
    return np.array(accountant.compose(event).rdp, np.float64)


def _library() -> Any:
    """`dp_accounting`, which takes a second to import: not before a private run needs it."""
    try:
        import dp_accounting
    except ImportError as error:
        raise ConfigError("privacy= needs dp-accounting: pip install 'bifl[privacy]'") from error
    return dp_accounting


# ---- what a run has spent --------------------------------------------------------------------------------------------------

Summed = tuple[tuple[int, int, int], ...]  # (how many clients were in a sum, among how many, in how many rounds), rising


def once_more(summed: Summed, clients: int, among: int) -> Summed:
    """The same after another round, with so many clients in its sum, among so many, for all that others know."""
    rounds_of = {(own, others): rounds for own, others, rounds in summed}
    rounds_of[clients, among] = rounds_of.get((clients, among), 0) + 1
    return tuple(sorted((*pair, rounds) for pair, rounds in rounds_of.items()))
