"""The ServerApp: any experiment, with Flower's nodes for clients.

from bifl.deploy.server_app import federate
for record in federate(grid, bifl.Experiment(algorithm="biml", clients=3)):  # in an app of your own
    print(record.round, record.accuracy)
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import shlex
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from bifl.core.sums import LARGEST_WEIGHT
from bifl.data.fingerprint import loaded
from bifl.data.inputs import further_text
from bifl.deploy.members import Declared, Numbers
from bifl.deploy.nodes import Nodes, Register
from bifl.deploy.operator_choices import words_for_clients
from bifl.deploy.protocol import Terms
from bifl.deploy.requests import Rules
from bifl.engine import running
from bifl.engine.round import Progress, Rounds, sampled
from bifl.errors import BiflError, ConfigError, RunError
from bifl.experiment.run import share_of
from bifl.experiment.settings import Experiment, of_words
from bifl.experiment.setup import Setup, serve
from bifl.files import write_atomic, writing
from bifl.runs.events import FAILED, FINISHED, Tell, say, writer
from bifl.runs.folder import CONFIG, RunFolder, claim, ended_early, folder_name, locked
from bifl.runs.record import Record
from bifl.secure.identities import ClientKeys

RUN = "run"  # in the run's folder: its name, by which clients know it
_GONE = 60  # seconds that a killed server may take
log = logging.getLogger("flwr")


DEADLINE = 600.0  # seconds


def rules(experiment: Experiment, min_clients: int = 0, deadline: float = DEADLINE, max_images: int = 0) -> Rules:
    """When a round ends, and how much one client may count for.

    Args:
        experiment: what is run.
        min_clients: ballots that a round needs; 0 means half of those who vote.
        deadline: seconds that are waited for more.
        max_images: that one client may declare; 0 means a limit relative to what the others declare (`members`).

    Raises:
        ConfigError: one of them makes no sense.
    """
    if not 0 <= min_clients <= experiment.clients:
        raise ConfigError(f"min-clients must be from 1 to clients={experiment.clients}, or 0 for half of them, not {min_clients}")
    if not 0 < deadline < math.inf:
        raise ConfigError(f"deadline must be a number of seconds greater than 0, not {deadline}")
    if not 0 <= max_images <= LARGEST_WEIGHT:
        raise ConfigError(f"max-images must be from 1 to {LARGEST_WEIGHT}, or 0 to go by what the others have, not {max_images}")
    voters = len(sampled(experiment, experiment.clients, 1))
    return Rules(min_clients or -(-voters // 2), float(deadline), max_images)


class Office(NamedTuple):
    """What a deployment needs besides the experiment.

    Attributes:
        grid: Flower's.
        rules: when a round ends.
        run: names the run, also after a restart of the server.
        register: what is known of the clients.
        tell: takes a sentence for a person.
    """

    grid: Grid
    rules: Rules
    run: str
    register: Register
    tell: Tell


@contextmanager
def called_nodes(office: Office, progress: Progress) -> Iterator[Nodes]:
    """Flower's nodes, for `Rounds`; if the rounds end well they have the last word."""
    setup, (grid, rules, run, register, tell) = progress.setup, office
    data, experiment = setup.data, setup.run.experiment
    share = share_of(experiment, data)
    form, words = data.form, words_for_clients(experiment)
    labels = data.labels.shape[1:] if len(data.labels) or data.labels.ndim > 1 else None
    further = further_text(form.further)
    terms = Terms(words, data.classes, form.shape, data.mean, data.std, share, form.kind, further, labels)
    now = setup._replace(public=progress.state.public)
    nodes = Nodes(grid, now, setup.public, progress.state.steps, run, terms, rules, register, tell)
    yield nodes
    nodes.finish()


def federate(grid: Grid, experiment: Experiment, min_clients: int = 0, deadline: float = DEADLINE, max_images: int = 0) -> Rounds:
    """Run an experiment on the nodes of a grid, in any ServerApp: iterate over the result for one `Record` per round.

    For the other arguments see `rules`. Nodes are the clients that they say they are.
    """
    given = rules(experiment, min_clients, deadline, max_images)
    office = Office(grid, given, secrets.token_hex(8), Register(Declared(), Numbers()), say)
    return Rounds(serve(experiment), partial(called_nodes, office))


def run_name(folder: Path) -> str:
    """The name by which clients know the run in a folder: made once."""
    path = folder / RUN
    if not path.is_file():
        with writing(folder):
            write_atomic(path, secrets.token_hex(8))
    return path.read_text()


def open_folder(experiment: str, folder: str) -> tuple[RunFolder, Setup | None]:
    """The run to begin, with what its experiment stands for; or the one to continue, if the folder holds one."""
    if folder and (Path(folder) / CONFIG).is_file():
        run = RunFolder.resume(Path(folder), trust=True)  # who starts the server was asked before it wrote or resumed this folder
        return run, None
    chosen = of_words(shlex.split(experiment))
    setup = serve(chosen)
    running.check(setup)  # before anything is written
    return RunFolder.start(Path(folder) if folder else claim(Path("runs"), folder_name(chosen)), chosen), setup


def run_rounds(
    grid: Grid, run: RunFolder, given: Rules, numbers: Path | None = None, setup: Setup | None = None, keys: Path | None = None
) -> Iterator[Record]:
    """The rounds of a folder that are not there yet, each written down; what happens besides goes to its events.

    Args:
        grid: Flower's.
        run: the run.
        given: when a round ends.
        numbers: a file that tells which client a node is; none believes the nodes.
        setup: what the run's experiment stands for, if it was built before.
        keys: the folder of the clients' public keys, by which what they sign is checked; none leaves that to the clients.
    """
    tell = writer(run.path)
    _wait_for_lock(run.path, tell)
    name = run_name(run.path)
    signed = ClientKeys(keys, name).signed if keys is not None and run.experiment.secure_sum else None
    office = Office(grid, given, name, Register(Declared(run.path), Numbers(numbers), signed), tell)
    try:
        setup = setup or serve(run.experiment)
        run.settle(loaded(setup.data))
        yield from running.run(run, setup, partial(called_nodes, office))
    except BiflError as error:
        tell(str(error), FAILED)
        raise
    tell(ended_early(run.experiment, run.records()) or "the run is complete", FINISHED)


def _wait_for_lock(folder: Path, tell: Tell) -> None:
    """A server that was killed may take a moment to be gone altogether."""
    for second in range(_GONE):
        try:
            with locked(folder):
                return
        except RunError:
            if not second:
                tell("waiting for the process of the last server to end")
            time.sleep(1)


def end_with_parent() -> None:
    """End when Flower's process that started us has ended: Flower's own way out waits for a server that is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)  # at any moment: every file is replaced atomically

    threading.Thread(target=watch, daemon=True).start()


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """What `flwr run` starts."""
    end_with_parent()
    config = context.run_config
    run, setup = open_folder(str(config["experiment"]), str(config["folder"]))
    run.keep_messages = bool(config["keep-messages"])
    given = rules(run.experiment, int(config["min-clients"]), float(config["deadline"]), int(config["max-images"]))
    numbers, keys = (Path(str(config[name])) if config[name] else None for name in ("numbers", "keys"))
    for record in run_rounds(grid, run, given, numbers, setup, keys):
        score = f"{record.measure} {record.score:.2%}" if record.evaluated else "not evaluated"
        log.info("round %d: %s, %d ballots, %d refused", record.round, score, record.clients, record.refused)
    log.info("the run is in %s", run.path.resolve())
