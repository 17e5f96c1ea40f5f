"""Runs a run folder: the rounds that it does not hold yet, then the model. Killed at any moment, it can be run again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from bifl.engine.round import CallClients, Rounds, refuse_small_budget
from bifl.engine.simulator import simulated_clients
from bifl.experiment.setup import Setup
from bifl.runs.folder import RunFolder, locked
from bifl.runs.record import Record


def check(setup: Setup) -> None:
    """Refuse a privacy budget below one round, before anything is written.

    Raises:
        ConfigError: in one sentence.
    """
    refuse_small_budget(setup.run)


def run(folder: RunFolder, setup: Setup, call_clients: CallClients = simulated_clients) -> Iterator[Record]:
    """Run the remaining rounds; each is written down before it is handed out.

    Args:
        folder: of the run.
        setup: what the folder's experiment stands for.
        call_clients: calls those who train.
    """
    with (
        locked(folder.path),
        closing(Rounds(setup, call_clients, folder.checkpoint, folder.mailbox(), folder.append_clients)) as rounds,
    ):
        folder.prepare(rounds.last)
        for record in rounds:
            folder.append(record)
            yield record
        folder.mend_records(rounds.last)
        if setup.run.trains:
            rounds.model().save(folder.model)
