"""A secure sum between real processes: `bifl server` and `bifl client --peers`, one of which is killed in the middle of a round."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bifl.experiment.settings import Experiment
from tests.deploy.test_flower import CLIENTS, Town, kill, town
from tests.secure.test_secure_runs import dying, nodes
from tests.support.commands import bifl, rounds
from tests.support.federation import deploy
from tests.support.grid import Clock

__all__ = ["town"]
pytestmark = [
    pytest.mark.deployment,
    pytest.mark.skipif(" " in sys.prefix, reason="Flower's SuperLink cannot run from a path with a blank"),
]
SECURE = [*CLIENTS, "rounds=2", "batchnorm=average", "secure_sum=true"]


def test_one_of_three_is_killed_after_its_masked_upload(town: Town, tmp_path: Path, clock: Clock) -> None:
    """Its ballot is in the sum of the first round, which is the simulator's; the second is the exact sum of the two others."""
    server = town.server(*SECURE, "--out", "run", "--keep-messages", "--deadline", "300")
    clients = [town.client(number, "--peers", town.folder / "keys/clients.pub") for number in range(3)]
    town.wait((town.run / "messages/round-00001/upload-00002").exists, server)
    kill(clients[2])
    said = town.finish(server)
    assert [(record["clients"], record["refused"]) for record in rounds(town.run)] == [(3, 0), (2, 0)]
    assert said.count("of client 2 failed: ") <= 1, "a client that was lost is waited for once"

    done = bifl("run", *SECURE, "--out", tmp_path / "simulated", "--keep-messages")
    assert done.returncode == 0, done.stderr
    first = "messages/round-00001/ballot_reveal"
    assert (town.run / first).read_bytes() == (tmp_path / "simulated" / first).read_bytes()

    experiment = Experiment(algorithm="biml", clients=3, workers=1, rounds=2, batchnorm="average", secure_sum=True)
    grid = nodes(tmp_path / "here", town.folder / "keys")
    grid.nodes[102].app = dying(grid.nodes[102], "keys")  # the same in this process: away from the second round on
    deploy(grid, tmp_path / "here/run", experiment, least=2)
    assert (town.run / "model").read_bytes() == (tmp_path / "here/run/model").read_bytes()
