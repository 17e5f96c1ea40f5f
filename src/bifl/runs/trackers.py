"""The numbers of rounds.jsonl, live, where people already look: `track=tensorboard`, `track=mlflow`.

A log follows rounds.jsonl and nothing else: opened at any time, after a kill or long after the run, it is brought up to date, every
round once. Whatever becomes of it, the training goes on.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from bifl.errors import ConfigError
from bifl.experiment import config_file
from bifl.files import write_atomic
from bifl.registry import nearest
from bifl.runs.folder import RunFolder
from bifl.runs.record import Record

EXPERIMENT = "bifl"  # what MLflow files runs under
EVENTS, MLFLOW_RUN = "tensorboard", "mlflow.json"  # in a run's folder


class Tracker(Protocol):
    """Somewhere to log to."""

    logged: set[int]  # rounds that it has from before

    def log(self, round: int, numbers: Mapping[str, float], when: float) -> None:
        """Log numbers of a round that ended at a time."""

    def close(self, complete: bool) -> None:
        """The run is over, or was stopped."""


class TensorBoard:
    """Event files in the run's own folder, so that `tensorboard --logdir runs` shows them all.

    They are written anew whenever a run goes on, which takes milliseconds: a kill may have lost what was not yet flushed.
    """

    def __init__(self, run: RunFolder) -> None:
        from tensorboardX import SummaryWriter

        self.logged = set[int]()
        folder = run.path / EVENTS
        if folder.exists():
            shutil.rmtree(folder)
        self._writer = SummaryWriter(str(folder), purge_step=1)  # a TensorBoard that is watching forgets what it has read
        self._writer.add_text("config", "".join(f"    {line}\n" for line in config_file.to_toml(run.experiment).splitlines()))

    def log(self, round: int, numbers: Mapping[str, float], when: float) -> None:
        """One scalar a number."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round, walltime=when)
        self._writer.flush()

    def close(self, complete: bool) -> None:
        """Flush."""
        self._writer.close()


class MLflow:
    """A run in MLflow's store, `MLFLOW_TRACKING_URI` or MLflow's own default. Which one it is, mlflow.json remembers."""

    def __init__(self, run: RunFolder) -> None:
        from mlflow import MlflowClient, get_tracking_uri

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        note = run.path / MLFLOW_RUN
        self.logged: set[int] = set()
        if note.exists():
            known = json.loads(note.read_text())
            self._client, self._run = MlflowClient(known["uri"]), known["run"]
            self._client.update_run(self._run, status="RUNNING")
            self.logged = {metric.step for metric in self._client.get_metric_history(self._run, "train_loss")}
        else:
            self._client = MlflowClient(get_tracking_uri())
            self._run = self._begin(run)
            write_atomic(note, json.dumps({"uri": get_tracking_uri(), "run": self._run}) + "\n")

    def _begin(self, run: RunFolder) -> str:
        from mlflow.entities import Param

        shelf = self._client.get_experiment_by_name(EXPERIMENT)
        home = shelf.experiment_id if shelf else self._client.create_experiment(EXPERIMENT)
        begun: str = self._client.create_run(home, run_name=run.path.resolve().name).info.run_id
        self._client.log_batch(begun, params=[Param(key, str(value)) for key, value in run.experiment.flat().items()])
        return begun

    def log(self, round: int, numbers: Mapping[str, float], when: float) -> None:
        """One metric a number."""
        from mlflow.entities import Metric

        metrics = [Metric(name, float(value), int(1000 * when), round) for name, value in numbers.items()]
        self._client.log_batch(self._run, metrics)

    def close(self, complete: bool) -> None:
        """Tell how it ended."""
        self._client.set_terminated(self._run, "FINISHED" if complete else "KILLED")


class Kind(NamedTuple):
    """What `track=` can be."""

    start: Callable[[RunFolder], Tracker]
    package: str


KINDS = {"tensorboard": Kind(TensorBoard, "tensorboardX"), "mlflow": Kind(MLflow, "mlflow")}


def checked(kind: str) -> str:
    """The name of a tracker, if there is one of that name and its package is installed."""
    if kind not in KINDS:
        raise ConfigError(f"track cannot be '{kind}'{nearest(kind, KINDS)}")
    package = KINDS[kind].package
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"track={kind} needs the package {package}, which is not installed: pip install 'bifl[{kind}]'")
    return kind


def followed(rounds: Iterable[Record], run: RunFolder, kind: str | None) -> Iterator[Record]:
    """Hand the rounds of a run on as they come, and log them, those of the past too where they are missing."""
    if kind is None:
        yield from rounds
        return
    log = _Log(run, kind)
    try:
        for record in rounds:
            log.update(record)
            yield record
        log.update()
    finally:
        log.close()


class _Log:
    """A tracker that begins with the first news, when nobody else can be writing into the folder, and that may fail."""

    def __init__(self, run: RunFolder, kind: str) -> None:
        self._run, self._kind = run, kind
        self._tracker: Tracker | None = None
        self._done, self._failed = 0, False
        self._known: Collection[str] = ()  # the numbers of that round that are logged

    def update(self, record: Record | None = None) -> None:
        """Log a round that is complete; what rounds.jsonl has and the log has not, where this is not the next one.

        In the end that may be an evaluation of the last round, which is looked at once more.
        """
        follows = record is not None and record.round == self._done + 1
        self._attempt(lambda: self._log([record] if follows and record else self._run.records()[max(self._done - 1, 0) :]))

    def close(self) -> None:
        """The end, for now."""
        if tracker := self._tracker:
            self._attempt(lambda: tracker.close(self._run.ending() is not None))

    def _log(self, records: list[Record]) -> None:
        self._tracker = tracker = self._tracker or KINDS[self._kind].start(self._run)
        when = time.time() - sum(record.seconds for record in records)
        for record in records:
            when += record.seconds
            numbers = record.numbers()
            known = self._known if record.round == self._done else ()
            new = {name: value for name, value in numbers.items() if name not in known}
            if new and record.round not in tracker.logged:
                tracker.log(record.round, new, when)
            self._done, self._known = record.round, numbers.keys()

    def _attempt(self, deed: Callable[[], None]) -> None:
        """Do it; whatever a tracker's trouble is, a disk or a server, it is told once and no reason to lose a training."""
        try:
            if not self._failed:
                deed()
        except Exception as error:
            self._failed = True
            reason = str(error).partition("\n")[0] or type(error).__name__
            print(f"bifl: track={self._kind} failed, the run goes on without it ({reason})", file=sys.stderr)
