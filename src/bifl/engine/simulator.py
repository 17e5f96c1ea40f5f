"""The simulator: many clients on one machine, sending each other exactly the bytes that a deployment would.

>>> from bifl.experiment.settings import Experiment
>>> for record in simulate(Experiment(rounds=1, clients=2, workers=1)):
...     print(record.round, record.clients, record.up_bpp < 1)
1 2 True
"""

from __future__ import annotations

from pathlib import Path

from bifl.engine.pool import Pool
from bifl.engine.round import Rounds
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import World, build
from bifl.runs.mailbox import Mailbox


def simulate(experiment: Experiment) -> Simulation:
    """Run an experiment: iterate over the result for one `Record` per round."""
    return Simulation(build(experiment))


class Simulation(Rounds):
    """An experiment under way on this machine: an iterable of records; for arguments and attributes see `Rounds`."""

    def __init__(self, world: World, folder: Path | None = None, mailbox: Mailbox | None = None) -> None:
        super().__init__(world.experiment, world, folder, mailbox)

    def _clients(self) -> Pool:
        world = self.world._replace(public=self.public)
        return Pool(world, self.exchanges, self.world.public, self._steps, self._folder, self._trained, self._mailbox is not None)
