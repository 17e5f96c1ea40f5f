"""The simulator: many clients on one machine, sending each other exactly the bytes that a deployment would.

>>> from bifl.experiment import Experiment
>>> for record in simulate(Experiment(rounds=1, clients=2, workers=1)):
...     print(record.round, record.clients, record.up_bpp < 1)
1 2 True
"""

from __future__ import annotations

from pathlib import Path

from bifl.experiment import Experiment
from bifl.runtime.mailbox import Mailbox
from bifl.runtime.pool import Pool
from bifl.runtime.rounds import Rounds
from bifl.runtime.world import build


def simulate(experiment: Experiment) -> Simulation:
    """Run an experiment: iterate over the result for one `Record` per round."""
    return Simulation(experiment)


class Simulation(Rounds):
    """An experiment under way on this machine: an iterable of records; for arguments and attributes see `Rounds`."""

    def __init__(self, experiment: Experiment, folder: Path | None = None, mailbox: Mailbox | None = None) -> None:
        super().__init__(experiment, build(experiment), folder, mailbox)

    def _clients(self) -> Pool:
        return Pool(self.world._replace(shared=self.shared), self._folder, self._trained)
