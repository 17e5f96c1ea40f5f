"""Runs a run folder: the rounds that it does not hold yet, then the model. Killed at any moment, it can be run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from bifl.core.state import Server
from bifl.engine.privacy_budget import affords_a_round
from bifl.engine.round import Rounds
from bifl.engine.simulator import Simulation
from bifl.exchanges import exchanges_of
from bifl.experiment.setup import Setup
from bifl.runs.folder import RunFolder, locked
from bifl.runs.mailbox import Mailbox
from bifl.runs.record import Record

Begin = Callable[[Setup, Path, Mailbox | None], Rounds]


def check(setup: Setup) -> None:
    """Refuse what cannot be run, before anything is written: uploads that cannot be summed unread, a budget below one round.

    Raises:
        ConfigError: in one sentence.
    """
    exchanges = exchanges_of(setup.experiment, setup.algorithm, setup.network, setup.data)
    affords_a_round(setup, exchanges, setup.public, Server())


def run(folder: RunFolder, setup: Setup, begin: Begin = Simulation) -> Iterator[Record]:
    """Run the remaining rounds; each is written down before it is handed out.

    Args:
        folder: of the run.
        setup: what the folder's experiment stands for.
        begin: what runs the rounds, from `setup`, the folder for checkpoints and the mailbox.
    """
    with locked(folder.path), closing(begin(setup, folder.checkpoint, folder.mailbox())) as rounds:
        folder.prepare(rounds.last)
        rounds.note_clients = folder.append_clients
        for record in rounds:
            folder.append(record)
            yield record
        rounds.model().save(folder.model)
