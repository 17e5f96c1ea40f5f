"""The ServerApp: any experiment, with Flower's nodes for clients.

from bifl.deploy.server_app import federate
for record in federate(grid, bifl.Experiment(algorithm="biml", clients=3)):  # in an app of your own
    print(record.round, record.accuracy)
"""

from __future__ import annotations

import logging
import math
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from bifl.core.sums import LARGEST_WEIGHT
from bifl.data.fingerprint import loaded
from bifl.deploy.server.nodes import Deployment, call_nodes
from bifl.deploy.server.requests import Rules
from bifl.engine import running
from bifl.engine.round import Rounds, sampled
from bifl.errors import BiflError, ConfigError
from bifl.experiment.settings import Experiment, of_words
from bifl.experiment.setup import Setup, serve
from bifl.files import write_atomic, writing
from bifl.runs.events import FAILED, FINISHED, Tell, say, writer
from bifl.runs.folder import CONFIG, RunFolder, claim, ended_early, folder_name
from bifl.runs.record import Record
from bifl.secure.identities import ClientKeys

RUN = "run"  # in the run's folder: its name, by which clients know it
DEADLINE = 600.0  # seconds
log = logging.getLogger("flwr")


def rules(experiment: Experiment, min_clients: int = 0, deadline: float = DEADLINE, max_images: int = 0) -> Rules:
    """When a round ends: with `min_clients` ballots (0: half of those who vote) after `deadline` seconds.

    A client may declare `max_images`; 0 means a limit relative to what the others declare (`members`).
    """
    if not 0 <= min_clients <= experiment.clients:
        raise ConfigError(f"min-clients must be from 1 to clients={experiment.clients}, or 0 for half of them, not {min_clients}")
    if not 0 < deadline < math.inf:
        raise ConfigError(f"deadline must be a number of seconds greater than 0, not {deadline}")
    if not 0 <= max_images <= LARGEST_WEIGHT:
        raise ConfigError(f"max-images must be from 1 to {LARGEST_WEIGHT}, or 0 to go by what the others have, not {max_images}")
    voters = len(sampled(experiment, experiment.clients, 1))
    return Rules(min_clients or -(-voters // 2), float(deadline), max_images)


def federate(grid: Grid, experiment: Experiment, min_clients: int = 0, deadline: float = DEADLINE, max_images: int = 0) -> Rounds:
    """Run an experiment on the nodes of a grid, in any ServerApp: iterate over the result for one `Record` per round.

    For the other arguments see `rules`. Nodes are the clients that they say they are.
    """
    given = rules(experiment, min_clients, deadline, max_images)
    return Rounds(serve(experiment), partial(call_nodes, Deployment(grid, given, secrets.token_hex(8), say)))


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
    grid: Grid, run: RunFolder, given: Rules, setup: Setup | None = None, keys: Path | None = None,
    numbers: Callable[[], Mapping[int, int]] | None = None, tell: Tell | None = None,
) -> Iterator[Record]:  # fmt: skip
    """The rounds of a folder that are not there yet, each written down; what happens besides is told, by default to its events.

    By the clients' public `keys` what they sign is checked; without them that is left to the clients. `numbers` are which client
    each node is; without them the nodes are believed.
    """
    tell = tell or writer(run.path)
    name = run_name(run.path)
    signed = ClientKeys(keys, name).signed if keys is not None and run.experiment.secure_sum else None
    deployment = Deployment(grid, given, name, tell, run.path, numbers, signed)
    try:
        setup = setup or serve(run.experiment)
        run.settle(loaded(setup.data))
        yield from running.run(run, setup, partial(call_nodes, deployment))
    except BiflError as error:
        tell(str(error), FAILED)
        raise
    tell(ended_early(run.experiment, run.records()) or "the run is complete", FINISHED)


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """What `flwr run` starts."""
    config = context.run_config
    run, setup = open_folder(str(config["experiment"]), str(config["folder"]))
    run.keep_messages = bool(config["keep-messages"])
    given = rules(run.experiment, int(config["min-clients"]), float(config["deadline"]), int(config["max-images"]))
    for record in run_rounds(grid, run, given, setup):
        score = f"{record.measure} {record.score:.2%}" if record.evaluated else "not evaluated"
        log.info("round %d: %s, %d ballots, %d refused", record.round, score, record.clients, record.refused)
    log.info("the run is in %s", run.path.resolve())
