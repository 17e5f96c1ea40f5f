"""The simulator: many clients on one machine, sending each other exactly the bytes that a deployment would.

>>> from bifl.experiment.settings import Experiment
>>> for record in simulate(Experiment(algorithm="biml", rounds=1, clients=2, workers=1)):
...     print(record.round, record.clients, record.up_bpp < 1)
1 2 True
"""

from __future__ import annotations

from pathlib import Path

from bifl.data.own_data import checked
from bifl.engine.own_model import from_checkpoint, own_model
from bifl.engine.pool import Pool
from bifl.engine.round import Rounds
from bifl.errors import ConfigError
from bifl.experiment.model import Model
from bifl.experiment.objects import Data, Net, dataset_of, model_name
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import Setup, build
from bifl.files import writing
from bifl.runs.mailbox import Mailbox


def simulate(
    experiment: Experiment, *, model: Net | None = None, data: Data | None = None, folder: str | Path | None = None
) -> Simulation:
    """Run an experiment: iterate over the result for one `Record` per round.

    Args:
        experiment: what to run.
        model: a network instead of the one that the experiment names: an nn.Module, which is copied, never trained itself, and
            whose weights are those that the run begins with; or a function classes → nn.Module.
        data: samples instead of the dataset that the experiment names: arrays (inputs, labels), or more of them by the names that
            an .npz file has, or a `bifl.data.datasets.Dataset`.
        folder: where what is needed to go on is kept after every round, and taken from if it is there.
    """
    if model is not None:
        experiment = experiment.changed({"model": model_name(model)})
    given = None
    if data is not None:
        given = checked(dataset_of(data), "given_data")
        experiment = experiment.changed({"dataset": "given_data"})
    path = None if folder is None else Path(folder)
    if path is not None:
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
    return Simulation(build(experiment, data=given), path)


class Simulation(Rounds):
    """An experiment under way on this machine: an iterable of records; for arguments and attributes see `Rounds`."""

    def __init__(self, setup: Setup, folder: Path | None = None, mailbox: Mailbox | None = None) -> None:
        super().__init__(setup, folder, mailbox)

    def client_model(self, number: int) -> Model:
        """A client's own network, after training once more on its own images: see `bifl.engine.own_model`."""
        if not 0 <= number < self.setup.run.clients:
            raise ConfigError(f"client {number} is none of 0 to {self.setup.run.clients - 1}")
        voted, setup = number in self._counted, self.setup._replace(public=self.public)
        if self._folder is None and isinstance(self._working, Pool):
            client = self._working.trained(number, voted)
        else:
            client = from_checkpoint(setup, number, voted, self._folder, self._trained)
        return own_model(setup, self.public, client)

    def _clients(self) -> Pool:
        setup = self.setup._replace(public=self.public)
        kept = self._mailbox is not None
        return Pool(setup, self.setup.public, self._steps, self._folder, self._trained, kept, self._last_evaluated())

    def _last_evaluated(self) -> int:
        """The last round that was evaluated, as far as the last record tells."""
        if self.last is None:
            return 0
        round = self.last.round
        return round if self.last.evaluated else round - round % self.experiment.evaluate_every
