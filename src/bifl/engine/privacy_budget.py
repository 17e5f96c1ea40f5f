"""What a run may tell of one client, where `privacy=` has it accounted: before a round, before its broadcast, after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bifl.core.exchange import Abandoned, Exchange
from bifl.core.state import Public, Server
from bifl.errors import RunError
from bifl.experiment.setup import Setup


class Overspent(Abandoned):
    """Nobody was told of a sum, because it costs more than was left."""


def affords_a_round(setup: Setup, exchanges: Sequence[Exchange], public: Public, server: Server) -> bool:
    """Whether the budget leaves room for another round, even if a secure sum is of no more clients than it must be.

    Its server cannot unlearn a sum. A trusted one can: see `refuse_to_overspend`.
    """
    spending = setup.algorithm.at(public.round + 1).spending
    fewest = max(exchange.quorum for exchange in exchanges) or public.voters
    return spending is None or spending.affords(server.summed, fewest, len(setup.parts), public.layout)


def refuse_to_overspend(setup: Setup, public: Public, server: Server) -> None:
    """Tell nobody of a sum that costs more than was left, because clients were missing.

    Raises:
        Overspent: it does.
    """
    spending = setup.algorithm.at(public.round + 1).spending
    if spending is not None and (spent := spending.over(server.summed, public.layout)):
        raise Overspent(
            f"round {public.round + 1}: not all clients are there, so its sum would cost more, ε = {spent:.3g} in all, than "
            f"privacy.budget={spending.budget:g} allows: nobody is told of it"
        )


def refuse_uncounted(setup: Setup, public: Public, server: Server, folder: Path) -> None:
    """Refuse a checkpoint that does not tell what its rounds have cost: the run would begin to count anew.

    Raises:
        RunError: it does not.
    """
    counted = sum(rounds for *_, rounds in server.summed)
    if setup.algorithm.at(1).spending is not None and counted != public.round:
        raise RunError(f"{folder} tells what {counted} of {public.round} rounds have cost: ε cannot be continued from it")
