"""Several workers in this process: what they do together is tested without waiting for processes to start."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import bifl
from bifl.data.inputs import Dataset
from bifl.engine.backends.transfer import dumps, loads
from bifl.engine.round import Rounds
from bifl.engine.simulator import simulated_clients
from bifl.engine.worker import Call, Job, Worker, Workers
from bifl.experiment.settings import Experiment


class SideBySide(Workers):
    """Workers that share nothing: each has its own copy of the run, and of everything that is said."""

    def __init__(self, jobs: Sequence[Job], data: Dataset) -> None:
        self._workers = [Worker(loads(dumps(job, job.run, data)), data) for job in jobs]

    def ask(self, calls: Mapping[int, Call[Any]]) -> Iterator[Any]:
        """The last worker answers first: nothing may depend on the order."""
        for rank in sorted(calls, reverse=True):
            for result in pickle.loads(pickle.dumps(calls[rank]))(self._workers[rank]):
                yield pickle.loads(pickle.dumps(result))


@contextmanager
def side_by_side(jobs: Sequence[Job], data: Dataset) -> Iterator[Workers]:
    """A backend. A single worker is as it always is."""
    yield SideBySide(jobs, data) if len(jobs) > 1 else Worker(jobs[0], data)


call_clients = partial(simulated_clients, start=side_by_side)


def beside(experiment: Experiment, **objects: Any) -> Rounds:
    """What `bifl.simulate` makes of these, with its workers in this process."""
    return bifl.simulate(experiment, backend=side_by_side, **objects)
