"""Runs with `privacy=`: what is sent, what is recorded, how they end; in simulator, loop and deployment."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context
from flwr.app import Message as Post

from bifl import codec
from bifl.core.exchange import Abandoned
from bifl.core.message import BINARY, FLOAT32
from bifl.core.rotation import rotated_length
from bifl.data.arrays import Dataset, from_npz
from bifl.data.datasets import dataset
from bifl.deploy import protocol
from bifl.deploy.certificates import client_key, make_keys, peers
from bifl.deploy.client_app import _score, app, operator_of
from bifl.deploy.client_state import Home
from bifl.deploy.permits import permitted
from bifl.deploy.protocol import Refusal
from bifl.deploy.server_app import run_name
from bifl.engine.loop import loop
from bifl.engine.simulator import Simulation, simulate
from bifl.errors import ConfigError, RunError
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build, serve
from bifl.privacy.whole_update import numbers
from bifl.report.collect import read
from bifl.report.remarks import remarks
from bifl.report.summary import settings as grouped
from bifl.runs.budget import ended_early
from tests.commands import Run, rounds
from tests.federation import deploy, neighbours, quick, simulated, told
from tests.grid import Clock, Handler, LocalGrid, Node, kind_of

BITS: dict[str, Any] = {"privacy": {"name": "poisson_binomial", "theta": 0.2}}
NOISE: dict[str, Any] = {"privacy": "gaussian"}


def private(small: Path, **settings: Any) -> Experiment:
    """A small network, so that rounds are quick."""
    usual = {"algorithm": "fedavg", "batchnorm": "average", "model": {"name": "mlp", "hidden": 4}, "rounds": 2}
    return quick(small, **usual | settings)


# ---- in simulations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [BITS, NOISE, BITS | {"algorithm": "fedavgm", "participation": 0.7, "clients": 4}], ids=str)
def test_simulator_loop_and_secure_sum_agree(small: Path, how: dict[str, Any]) -> None:
    experiment = private(small, **how)
    simulation = simulate(experiment)
    records = list(simulation)
    for changes in ({}, {"secure_sum": True}):
        *_, (_, public) = loop(experiment.changed(changes))
        assert public.weights.tobytes() == simulation.public.weights.tobytes()
        assert public.real.tobytes() == simulation.public.real.tobytes()
    first, second = (record.epsilon for record in records)
    assert first is not None
    assert second is not None
    assert 0 < first < second
    assert np.isnan(records[0].train_loss)


@pytest.mark.parametrize(("how", "alphabet"), [(BITS, BINARY), (NOISE, FLOAT32)])
def test_nothing_is_sent_that_is_not_accounted(tmp_path: Path, small: Path, how: dict[str, Any], alphabet: object) -> None:
    """A message holds the bounded update, as bits or clipped; its weight is 1, its reals are the public ones."""
    experiment = private(small, rounds=1, partition="quantity", reals="float32", **how)
    setup = build(experiment)
    assert len({len(part) for part in setup.parts}) > 1
    folder = simulated(tmp_path / "run", experiment)
    length = numbers(setup.public.layout)
    ballot = Simulation(setup).exchanges[0]
    for path in sorted((folder / "messages/round-00001").glob("ballot-0*")):
        message = codec.decode(path.read_bytes(), ballot.context(setup.public))
        assert message.weight == 1
        assert message.real.tobytes() == setup.public.real.tobytes()
        assert not len(message.scales)
        assert message.alphabet == alphabet
        assert len(message.symbols) == (rotated_length(length) if alphabet == BINARY else length)
        if alphabet == FLOAT32:
            assert np.linalg.norm(message.symbols) <= 1 + 1e-6
    rows = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    assert {(row["images"], row["train_loss"]) for row in rows[0].get("clients", rows)} == {(1, None)}


def test_a_training_that_diverges_is_not_told(small: Path) -> None:
    """It counts as no change: the round goes on, and the model stays finite."""
    simulation = simulate(private(small, rounds=1, lr=1e30, optimizer="sgd", **NOISE))
    (record,) = simulation
    assert record.clients == 3
    assert np.isfinite(simulation.public.weights).all()


@pytest.mark.parametrize("how", [BITS, NOISE])
def test_a_run_that_goes_on_has_spent_what_it_had(tmp_path: Path, small: Path, how: dict[str, Any]) -> None:
    experiment = private(small, rounds=3, **how)
    whole = [record.epsilon for record in simulate(experiment)]
    begun = simulate(experiment, folder=tmp_path)
    assert next(iter(begun)).epsilon == whole[0]
    begun.close()
    assert [record.epsilon for record in simulate(experiment, folder=tmp_path)] == whole[1:]


def test_a_budget_ends_the_run(tmp_path: Path, small: Path, here: Run) -> None:
    costs = [record.epsilon for record in simulate(private(small, rounds=3, **NOISE))]
    budget = (costs[1] + costs[2]) / 2  # type: ignore[operator]
    words = ["dataset=npz", f"dataset.path={small}", "algorithm=fedavg", "batchnorm=average", "model=mlp", "model.hidden=4"]
    words += ["clients=3", "rounds=9", "workers=1", "batch=32", "privacy=gaussian", f"privacy.budget={budget}"]
    done = here("run", *words, "--out", tmp_path / "run")
    assert done.returncode == 0
    assert len(rounds(tmp_path / "run")) == 2
    assert (tmp_path / "run/model").is_file()
    assert "the run ends after round 2 of 9: ε = " in done.stdout
    assert "ε = " in done.stdout.split("privacy")[1]
    again = here("run", "--resume", tmp_path / "run")
    assert (again.returncode, len(rounds(tmp_path / "run"))) == (0, 2)
    (setting,) = grouped(read([tmp_path / "run"]).results)
    assert any(f"ε = {costs[1]:.3g} for δ = 1e-05 after 2 rounds" in remark for remark in remarks(setting.series))


def test_a_comparison(tmp_path: Path, small: Path, here: Run) -> None:
    words = ["dataset=npz", f"dataset.path={small}", "batchnorm=average", "model=mlp", "model.hidden=4", "clients=3", "rounds=1"]
    done = here("compare", "algorithms=fedavg,fedavgm", *words, "workers=1", "privacy=gaussian", "--out", tmp_path / "both")
    assert done.returncode == 0, done.stderr
    spent = [rounds(path.parent)[0]["epsilon"] for path in (tmp_path / "both").glob("*/rounds.jsonl")]
    assert len(spent) == 2
    assert spent[0] == spent[1] > 0


def test_a_budget_that_allows_nothing(small: Path) -> None:
    with pytest.raises(ConfigError, match=r"privacy.budget=0.1 is less than one round of 3 clients costs, ε = "):
        list(simulate(private(small, privacy={"name": "gaussian", "budget": 0.1})))


def test_a_run_without_a_budget_did_not_end_early(small: Path) -> None:
    experiment = private(small, rounds=9, **NOISE)
    assert ended_early(experiment, [next(iter(simulate(experiment)))]) is None


def test_data_without_test_images_is_refused(small: Path) -> None:
    def no_tests() -> Dataset:
        data = from_npz(small)
        return data._replace(test_images=data.test_images[:0], test_labels=data.test_labels[:0])

    dataset(no_tests)
    with pytest.raises(ConfigError, match="the server needs test images of its own"):
        build(private(small, **NOISE).changed({"dataset": "no_tests"}))


OWN = '''
import numpy as np
from bifl.core import FLOAT32
from bifl.privacy import Mechanism, privacy
from bifl.privacy.accounting import ORDERS

@privacy
def all_of_it(delta: float = 1e-5) -> Mechanism:
    """Hides nothing, and says so."""
    return Mechanism(
        clip=1.0, delta=delta, says=lambda update, public, words: update, alphabet=FLOAT32,
        hears=lambda mean, clients, public, words: mean, divergences=lambda summed, crowd, count: np.full(len(ORDERS), 1000.0),
    )
'''


def test_a_mechanism_of_one_s_own(tmp_path: Path, small: Path) -> None:
    """One file, in two worker processes too."""
    (tmp_path / "mine.py").write_text(OWN)
    for workers in (1, 2):
        (record,) = simulate(private(small, rounds=1, privacy=f"{tmp_path}/mine.py:all_of_it", workers=workers))
        assert record.epsilon == pytest.approx(1000, rel=0.2)


# ---- in deployments --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder, ["localhost"], 3)
    return folder


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


def dying(node: Node) -> Handler:
    """A client that is lost in the second round."""
    asked = itertools.count(1)

    def answer(message: Post, context: Context) -> Post | None:
        if kind_of(message) == "ballot" and next(asked) == 2:
            node.online = False
            return None
        return app(message, context)

    return answer


def test_fewer_clients_cost_more(tmp_path: Path, small: Path, keys: Path, clock: Clock) -> None:
    """What is accounted is how many really were summed."""
    experiment = private(small, rounds=2, secure_sum=True, **BITS)
    grid = nodes(tmp_path, keys)
    grid.nodes[102].app = dying(grid.nodes[102])
    records = deploy(grid, tmp_path / "run", experiment, least=2)
    assert [record.clients for record in records] == [3, 2]
    spending, layout = serve(experiment).algorithm.at(1).spending, serve(experiment).public.layout
    assert spending is not None
    assert records[-1].epsilon == spending.epsilon(((2, 2, 1), (3, 3, 1)), layout)
    assert records[-1].epsilon > spending.epsilon(((3, 3, 2),), layout)


def test_a_budget_holds_if_clients_are_lost(tmp_path: Path, small: Path, keys: Path, clock: Clock) -> None:
    """A secure sum of two of three clients costs more, and what the server has learnt it cannot unlearn."""
    experiment = private(small, secure_sum=True, **BITS)
    spending, layout = serve(experiment).algorithm.at(1).spending, serve(experiment).public.layout
    assert spending is not None
    all_there, two_of_three = (spending.epsilon(((clients, 3, 1),), layout) for clients in (3, 2))
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
    spending, layout = serve(experiment).algorithm.at(1).spending, serve(experiment).public.layout
    assert spending is not None
    among = 5 - lost if record.clients == 2 else record.clients
    assert record.epsilon == spending.epsilon(((record.clients, among, 1),), layout)
    assert record.delta == 1e-5


@pytest.mark.usefixtures("clock")
def test_a_trusted_server_tells_nobody_of_a_sum_beyond_the_budget(tmp_path: Path, small: Path) -> None:
    """With all five there two who are drawn hide among the others; if one of them is lost, it would cost more than there is."""
    experiment = private(small, rounds=1, clients=5, participation=0.4, privacy={"name": "gaussian", "noise": 4.0})
    spending, layout = serve(experiment).algorithm.at(1).spending, serve(experiment).public.layout
    assert spending is not None
    hidden, shown = (spending.epsilon((sums,), layout) for sums in ((2, 5, 1), (1, 1, 1)))
    assert hidden < shown
    grid, asked = neighbours(tmp_path, 5), itertools.count()

    def first_is_lost(node: Node) -> Handler:
        def answer(message: Post, context: Context) -> Post | None:
            if kind_of(message) == "ballot" and next(asked) == 0:
                node.online = False
                return None
            return app(message, context)

        return answer

    for node in grid.nodes.values():
        node.app = first_is_lost(node)
    with pytest.raises(Abandoned, match=r"round 1: .* than privacy.budget=\S+ allows: nobody is told of it"):
        deploy(grid, tmp_path / "run", experiment.changed({"privacy.budget": (hidden + shown) / 2}), least=1)
    assert not list((tmp_path / "run/messages").rglob("*broadcast*"))


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


def test_a_checkpoint_that_does_not_tell_what_was_spent_is_refused(tmp_path: Path, small: Path) -> None:
    """It would begin to count anew."""
    experiment = private(small, rounds=2, **NOISE)
    begun = simulate(experiment, folder=tmp_path)
    next(iter(begun))
    begun.close()
    path = tmp_path / "server.npz"
    with np.load(path) as found:
        arrays = {name: found[name] for name in found.files if name != "summed"}
    np.savez(path, **arrays)
    with pytest.raises(RunError, match="tells what 0 of 1 rounds have cost"):
        simulate(experiment, folder=tmp_path)


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
    home = Home(tmp_path / "state-0", run_name(tmp_path / "run"), operator_of(grid.nodes[100].context, None), print)
    opened = home.open(1)
    assert opened is not None
    with pytest.raises(Refusal, match="does not account"):
        _score(opened[0])
