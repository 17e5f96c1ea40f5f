"""The ServerApp: any experiment, with Flower's nodes for clients.

from bifl.deploy.server_app import federate
for record in federate(grid, bifl.Experiment(algorithm="biml", clients=3)):  # in an app of your own
    print(record.round, record.accuracy)
"""

from __future__ import annotations

import logging
import secrets
import shlex
from functools import partial
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from bifl.deploy.server.nodes import Deployment, call_nodes, run_rounds
from bifl.deploy.server.requests import DEFAULTS, Rules
from bifl.engine.round import Rounds
from bifl.experiment.settings import Experiment, of_words
from bifl.experiment.setup import Setup, serve
from bifl.runs.events import say
from bifl.runs.folder import CONFIG, RunFolder, claim, folder_name

log = logging.getLogger("flwr")


def federate(
    grid: Grid, experiment: Experiment, min_clients: int = 0, deadline: float = DEFAULTS.deadline, max_images: int = 0
) -> Rounds:
    """Run an experiment on the nodes of a grid, in any ServerApp: iterate over the result for one `Record` per round.

    The other arguments are `Rules`. Nodes are the clients that they say they are.
    """
    rules = Rules(min_clients, deadline, max_images)
    return Rounds(serve(experiment), partial(call_nodes, Deployment(grid, rules, secrets.token_hex(8), say)))


def open_folder(experiment: str, folder: str) -> tuple[RunFolder, Setup | None]:
    """The run to begin, with what its experiment stands for; or the one to continue, if the folder holds one."""
    if folder and (Path(folder) / CONFIG).is_file():
        run = RunFolder.resume(Path(folder), trust=True)  # who starts the server was asked before it wrote or resumed this folder
        return run, None
    chosen = of_words(shlex.split(experiment))
    setup = serve(chosen)  # or a refusal, before anything is written
    return RunFolder.start(Path(folder) if folder else claim(Path("runs"), folder_name(chosen)), chosen), setup


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """What `flwr run` starts."""
    config = context.run_config
    run, setup = open_folder(str(config["experiment"]), str(config["folder"]))
    run.keep_messages = bool(config["keep-messages"])
    rules = Rules(int(config["min-clients"]), float(config["deadline"]), int(config["max-images"]))
    for record in run_rounds(grid, run, rules, setup):
        score = f"{record.measure} {record.score:.2%}" if record.evaluated else "not evaluated"
        log.info("round %d: %s, %d ballots, %d refused", record.round, score, record.clients, record.refused)
    log.info("the run is in %s", run.path.resolve())
