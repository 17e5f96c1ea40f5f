"""What a run may tell of one client, where `privacy=` has it accounted: before a round, before its broadcast, after a restart."""

from __future__ import annotations

from pathlib import Path

from bifl.core.sides import Abandoned
from bifl.core.state import Public, Server
from bifl.errors import RunError
from bifl.experiment.run import Run


class Overspent(Abandoned):
    """Nobody was told of a sum, because it costs more than was left."""


def affords_a_round(run: Run, public: Public, server: Server) -> bool:
    """Whether the budget leaves room for another round, even if a secure sum is of no more clients than it must be.

    Its server cannot unlearn a sum. A trusted one can: see `refuse_to_overspend`.
    """
    fewest = max(exchange.quorum for exchange in run.exchanges) or public.voters
    private = run.privacy
    return private is None or private.spending.affords(private.summed(server), fewest, run.clients, public.layout)


def refuse_to_overspend(run: Run, public: Public, server: Server) -> None:
    """Tell nobody of a sum that costs more than was left, because clients were missing.

    Raises:
        Overspent: it does.
    """
    if run.privacy is None:
        return
    spending = run.privacy.spending
    if spent := spending.over(run.privacy.summed(server), public.layout):
        raise Overspent(
            f"round {public.round + 1}: not all clients are there, so its sum would cost more, ε = {spent:.3g} in all, than "
            f"privacy.budget={spending.budget:g} allows: nobody is told of it"
        )


def refuse_uncounted(run: Run, public: Public, server: Server, folder: Path) -> None:
    """Refuse a checkpoint that does not tell what its rounds have cost: the run would begin to count anew.

    Raises:
        RunError: it does not.
    """
    if run.privacy is None:
        return
    counted = sum(rounds for *_, rounds in run.privacy.summed(server))
    if counted != public.round:
        raise RunError(f"{folder} tells what {counted} of {public.round} rounds have cost: ε cannot be continued from it")
