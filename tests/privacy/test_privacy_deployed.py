"""Deployments with `privacy=`: whose noise it is, who hides whom, what is spent if clients are lost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context
from flwr.app import Message as Post

from bifl.core.layout import Layout
from bifl.core.sides import Abandoned
from bifl.deploy import protocol
from bifl.deploy.certificates import client_key, peers
from bifl.deploy.client.client_state import ClientState
from bifl.deploy.client.operator_choices import permitted
from bifl.deploy.client_app import app, operator_of
from bifl.deploy.protocol import Refusal
from bifl.deploy.server.nodes import run_name
from bifl.errors import ConfigError
from bifl.experiment.model import Model
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import serve
from bifl.privacy import Private
from bifl.runs.events import FINISHED
from bifl.runs.folder import RunFolder
from bifl.runs.record import Ending
from tests.privacy.test_privacy_runs import BITS, NOISE, private
from tests.support.commands import rounds
from tests.support.federation import deploy, neighbours, simulated, told
from tests.support.grid import Clock, Handler, LocalGrid, Node, kind_of


def nodes(folder: Path, keys: Path) -> LocalGrid:
    return LocalGrid({
        100 + number: Node(number, folder / f"state-{number}", key=str(client_key(keys, number)), peers=str(peers(keys)))
        for number in range(3)
    })  # fmt: skip


def listening(said: list[tuple[str, dict[str, Any]]]) -> Handler:
    """A client whose answers are noted."""

    def answer(message: Post, context: Context) -> Post:
        reply = app(message, context)
        record = reply.content[protocol.RECORD]
        assert isinstance(record, ConfigRecord)
        said.append((kind_of(message), dict(record)))
        return reply

    return answer


def costs(experiment: Experiment) -> tuple[Private, Layout]:
    """What a deployed run accounts with, and of which model."""
    run = serve(experiment).run
    assert run.privacy is not None
    return run.privacy, run.fresh.layout


@pytest.mark.usefixtures("clock")
def test_deployed_bits_are_of_no_public_stream(tmp_path: Path, small: Path, keys: Path) -> None:
    """The same seed, twice: other bits, so another model each time; and neither is the simulator's. ε is the same."""
    experiment = private(small, rounds=1, secure_sum=True, **BITS)
    plain = simulated(tmp_path / "simulated", experiment)
    models = [(plain / "model").read_bytes()]
    for name in ("one", "two"):
        (record,) = deploy(nodes(tmp_path / name, keys), tmp_path / name / "run", experiment)
        models.append((tmp_path / name / "run/model").read_bytes())
        assert record.epsilon == rounds(plain)[0]["epsilon"]
    assert len(set(models)) == 3


@pytest.mark.usefixtures("clock")
def test_deployed_noise_is_the_server_s_own(tmp_path: Path, small: Path) -> None:
    """A trusted server's noise, and whom it draws, are not of the seed that all clients know; clients tell nothing else."""
    experiment = private(small, rounds=1, partition="quantity", **NOISE)
    grid, said = neighbours(tmp_path), list[tuple[str, dict[str, Any]]]()
    for node in grid.nodes.values():
        node.app = listening(said)
    deploy(grid, tmp_path / "run", experiment)
    assert (tmp_path / "run/model").read_bytes() != (simulated(tmp_path / "simulated", experiment) / "model").read_bytes()
    answers = dict(said)
    assert set(answers["ballot"]) == {"version", "number", "upload"}
    assert {fields["images"] for kind, fields in said if "images" in fields} == {1}
    assert len({len(fields["upload"]) for kind, fields in said if kind == "ballot"}) == 1  # sizes tell nothing either
    assert {serve(experiment).draw, serve(experiment).draw, experiment.seed} != {experiment.seed}


def dying(node: Node, asked: Iterator[int], last: int) -> Handler:
    """A client that is lost when it is asked for this one of the ballots that are counted."""

    def answer(message: Post, context: Context) -> Post | None:
        if kind_of(message) == "ballot" and next(asked) == last:
            node.online = False
            return None
        return app(message, context)

    return answer


def test_fewer_clients_cost_more(tmp_path: Path, small: Path, keys: Path, clock: Clock) -> None:
    """What is accounted is how many really were summed."""
    experiment = private(small, rounds=2, secure_sum=True, **BITS)
    grid = nodes(tmp_path, keys)
    grid.nodes[102].app = dying(grid.nodes[102], itertools.count(1), 2)  # in the second round
    records = deploy(grid, tmp_path / "run", experiment, least=2)
    assert [record.clients for record in records] == [3, 2]
    accounts, layout = costs(experiment)
    assert records[-1].epsilon == accounts.epsilon(((2, 2, 1), (3, 3, 1)), layout)
    assert records[-1].epsilon > accounts.epsilon(((3, 3, 2),), layout)


def test_a_budget_holds_if_clients_are_lost(tmp_path: Path, small: Path, keys: Path, clock: Clock) -> None:
    """A secure sum of two of three clients costs more, and what the server has learnt it cannot unlearn."""
    experiment = private(small, secure_sum=True, **BITS)
    accounts, layout = costs(experiment)
    all_there, two_of_three = (accounts.epsilon(((clients, 3, 1),), layout) for clients in (3, 2))
    assert all_there < two_of_three
    budget = {"privacy.budget": (all_there + two_of_three) / 2}
    with pytest.raises(ConfigError, match="is less than one round of 2 clients costs"):
        deploy(nodes(tmp_path, keys), tmp_path / "run", experiment.changed(budget))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("lost", [0, 1])
def test_absent_clients_hide_nobody(tmp_path: Path, small: Path, lost: int) -> None:
    """Two of five are drawn in secret. Of who is not there everyone may know that it was not, and if one does not answer, more."""
    experiment = private(small, rounds=1, clients=5, participation=0.4, **NOISE)
    grid = neighbours(tmp_path, 5)
    for number in range(lost):
        grid.nodes[100 + number].online = False
    (record,) = deploy(grid, tmp_path / "run", experiment, least=1)
    accounts, layout = costs(experiment)
    among = 5 - lost if record.clients == 2 else record.clients
    assert record.epsilon == accounts.epsilon(((record.clients, among, 1),), layout)
    assert record.delta == 1e-5


@pytest.mark.usefixtures("clock")
def test_a_trusted_server_tells_nobody_of_a_sum_beyond_the_budget(tmp_path: Path, small: Path) -> None:
    """With all five there two who are drawn hide among the others; if one of them is lost, it would cost more than there is."""
    experiment = private(small, rounds=1, clients=5, participation=0.4, privacy={"name": "gaussian", "noise": 4.0})
    accounts, layout = costs(experiment)
    hidden, shown = (accounts.epsilon((sums,), layout) for sums in ((2, 5, 1), (1, 1, 1)))
    assert hidden < shown
    grid, asked = neighbours(tmp_path, 5), itertools.count()
    for node in grid.nodes.values():
        node.app = dying(node, asked, 0)  # whoever is asked first
    with pytest.raises(Abandoned, match=r"round 1: .* than privacy.budget=\S+ allows: nobody is told of it"):
        deploy(grid, tmp_path / "run", experiment.changed({"privacy.budget": (hidden + shown) / 2}), least=1)
    assert not list((tmp_path / "run/messages").rglob("*broadcast*"))


def test_clients_hear_that_the_budget_ended_the_run(tmp_path: Path, small: Path) -> None:
    experiment = private(small, rounds=3, **NOISE)
    accounts, layout = costs(experiment)
    budget = sum(accounts.epsilon(((3, 3, count),), layout) for count in (1, 2)) / 2
    grid = neighbours(tmp_path)
    (record,) = deploy(grid, tmp_path / "run", experiment.changed({"privacy.budget": budget, "evaluate_every": 2}))
    assert (record.evaluated, record.ending) == (True, Ending.BUDGET)
    assert all("the run is finished after 1 rounds" in node.heard[-1] for node in grid.nodes.values())
    assert "the run ends after round 1 of 3" in told(tmp_path / "run", FINISHED)


@pytest.mark.usefixtures("clock")
def test_a_run_ends_with_its_model_where_a_lost_client_would_cost_too_much(tmp_path: Path, small: Path) -> None:
    """That the round before was the last nobody knew when it was held: it is evaluated afterwards."""
    noise = {"name": "gaussian", "noise": 4.0}
    experiment = private(small, rounds=2, clients=5, participation=0.4, privacy=noise, evaluate_every=2)
    accounts, layout = costs(experiment)
    hidden, shown = accounts.epsilon(((2, 5, 2),), layout), accounts.epsilon(((1, 1, 1), (2, 5, 1)), layout)
    grid, asked = neighbours(tmp_path, 5), itertools.count()
    for node in grid.nodes.values():
        node.app = dying(node, asked, 2)  # whoever is asked first in the second round
    (record,) = deploy(grid, tmp_path / "run", experiment.changed({"privacy.budget": (hidden + shown) / 2}), least=1)
    assert (record.round, record.clients, record.evaluated) == (1, 2, False)
    (line,) = rounds(tmp_path / "run")
    assert line["loss"] > 0
    assert line["train_loss"] is None or np.isnan(line["train_loss"])
    run = RunFolder.resume(tmp_path / "run", trust=True)
    assert run.ending() is Ending.BUDGET
    assert [node.kinds[-1] for node in grid.nodes.values()].count(protocol.HEAR) == 4  # it is over, for all but the lost one
    assert Model.read(tmp_path / "run/model").message.round == 1
    assert "nobody is told of it; round 2 is held again" in told(tmp_path / "run")


@pytest.mark.usefixtures("clock")
def test_nobody_counts_twice(tmp_path: Path, small: Path) -> None:
    """A client that declares more images than one is not let in."""
    grid = neighbours(tmp_path)

    def many(message: Post, context: Context) -> Post:
        reply = app(message, context)
        if kind_of(message) == protocol.HELLO:
            record = reply.content[protocol.RECORD]
            assert isinstance(record, ConfigRecord)
            record["images"] = 400
        return reply

    grid.nodes[102].app = many
    (record,) = deploy(grid, tmp_path / "run", private(small, rounds=1, **NOISE), least=2)
    assert record.clients == 2
    assert "it would count for 400 images, and with privacy= every client counts for 1" in told(tmp_path / "run")


def test_bits_without_a_secure_sum_are_not_deployed(small: Path) -> None:
    experiment = private(small, **BITS)
    with pytest.raises(ConfigError, match=r"privacy=poisson_binomial hides clients in sums, .*: set secure_sum=true"):
        serve(experiment)
    with pytest.raises(Refusal, match="set secure_sum=true"):
        permitted("algorithm=fedavg batchnorm=average privacy=poisson_binomial", (), own_data=False)


@pytest.mark.usefixtures("clock")
def test_a_client_tells_no_results_on_what_it_holds_out(tmp_path: Path, small: Path) -> None:
    """Even if a server asks."""
    grid = neighbours(tmp_path)
    deploy(grid, tmp_path / "run", private(small, rounds=1, **NOISE))
    state = ClientState(tmp_path / "state-0", run_name(tmp_path / "run"), operator_of(grid.nodes[100].context.node_config), print)
    worker = state.open(1)
    assert worker is not None
    assert "evaluation" not in worker.exchanges
