"""Runs with the secure sum: the model of a run without it, in simulator, loop and deployment; clients are lost at any step."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message

from bifl import codec
from bifl.codec.format import state_digest
from bifl.core import Public
from bifl.deploy import protocol
from bifl.deploy.certificates import client_key, peers
from bifl.deploy.client_app import app
from bifl.engine.loop import loop
from bifl.engine.simulator import simulate
from bifl.errors import ConfigError, RunError
from bifl.exchanges import secure_sum
from bifl.experiment.model import Model
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from bifl.runs.record import Record
from tests.support.federation import deploy, named, neighbours, quick, simulated, told
from tests.support.grid import Clock, Handler, LocalGrid, Node, kind_of
from tests.support.workers import beside

STEPS = ("keys", "shares", "ballot", "ballot_agree", "ballot_reveal")


def ran(experiment: Experiment) -> tuple[Public, list[Record]]:
    rounds = beside(experiment)
    records = list(rounds)
    return rounds.public, records


def identical(one: Public, other: Public) -> None:
    for first, second in ((one.weights, other.weights), (one.real, other.real), (one.scales, other.scales)):
        assert first.tobytes() == second.tobytes()
    assert state_digest(one, ()) == state_digest(other, ()), "further public vectors too"


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "biml", "partition": {"name": "quantity"}},
        {"algorithm": "biml", "partition": {"name": "quantity"}, "weigh": "images"},
        {"algorithm": "fedavg", "partition": {"name": "quantity"}, "weigh": "images"},
        {"algorithm": {"name": "hybrid", "switch": 1}},
        {"algorithm": {"name": "murmur_dealt", "together": 2}, "clients": 5},
        {"algorithm": "sign_majority", "participation": 0.7, "clients": 5},
        {"algorithm": "scaffold", "optimizer": "sgd"},
    ],
    ids=str,
)
def test_the_model_is_the_same_with_and_without(small: Path, settings: dict[str, Any]) -> None:
    experiment = quick(small, rounds=2, batchnorm="average", **{"weigh": "equal"} | settings)
    *_, (_, plain) = loop(experiment)
    *_, (_, secure) = loop(experiment.changed({"secure_sum": True}))
    identical(plain, secure)


def test_two_workers_and_statistics(small: Path) -> None:
    """The weights are those without masks; the statistics are the mean of what each client bounds by itself."""
    experiment = quick(small, rounds=2, weigh="equal")
    plain, records = ran(experiment)
    one, masked = ran(experiment.changed({"secure_sum": True, "workers": 2}))
    *_, (_, two) = loop(experiment.changed({"secure_sum": True}))
    identical(one, two)
    assert plain.weights.tobytes() == one.weights.tobytes()
    trained = plain.layout.trained
    assert plain.real[:trained].tobytes() == one.real[:trained].tobytes()
    assert np.isfinite(one.real).all()
    assert not np.array_equal(one.real, plain.real)  # nobody bounds a client by the others
    assert masked[-1].up_bytes > records[-1].up_bytes
    assert abs(masked[-1].accuracy - records[-1].accuracy) < 0.2


def test_every_byte_is_counted(tmp_path: Path, small: Path) -> None:
    """Masked ballots take ⌈log2(total/unit + 1)⌉ bits a weight; keys, shares, signatures and what is revealed count too."""
    experiment = quick(small, rounds=1, batchnorm="average", secure_sum=True, clients=4)  # of a hundred images each
    folder = simulated(tmp_path / "run", experiment)
    record = Record.from_json((folder / "rounds.jsonl").read_text())
    messages = {path.name: path.stat().st_size for path in (folder / "messages/round-00001").iterdir()}
    uploads = {name: size for name, size in messages.items() if name.rpartition("-")[2].isdecimal()}
    assert record.up_bytes == sum(uploads.values())
    assert len(uploads) == 4 * len(STEPS)
    symbols, reals = (len(part) for part in (Model.read(folder / "model").message.update.symbols, build(experiment).public.real))
    header = codec.format.LAYOUT.size + codec.format.CHECKSUM.size
    shares, revealed = 3 * (2 * 16 + 16 + 2 * 16), 16 + 3 * 17
    numbers = -(-reals * 28 // 8) - (-reals * 35 // 8)  # ±4·2²⁴ and ±4·2³¹
    expected = [32 + 64 + 32 + 96, shares, -(-3 * symbols // 8) + numbers, 96, revealed]  # ⌈log2 5⌉ bits a weight
    assert sorted(uploads.values()) == sorted(4 * [header + size for size in expected])
    replies = 4 * 4 * (8 + 32 + 64 + 32 + 96)  # all keys, and more
    assert record.down_bytes > 4 * (record.broadcast_bytes + 1) + replies


@pytest.mark.parametrize(
    "algorithm",
    ["dither", "eden", "ef_sign", "fedbat", "fedmrn", "fttq", "murmur", "qsgd", "sparse_loco", "stc", "top_k", "vqsgd", "bnn"],
)
def test_algorithms_that_cannot_be_summed_are_refused(small: Path, algorithm: str) -> None:
    with pytest.raises(ConfigError, match=f"algorithm '{algorithm}' cannot be used with secure_sum=true: .*: take biml, "):
        simulate(quick(small, algorithm=algorithm, secure_sum=True))


@pytest.mark.parametrize("algorithm", named(secure_sum.INSTEAD))
def test_those_that_a_refusal_names_instead_are_summed(small: Path, algorithm: str) -> None:
    names = [exchange.name for exchange in build(quick(small, algorithm=algorithm, clients=8, secure_sum=True)).run.exchanges]
    assert names[: len(STEPS)] == list(STEPS)


@pytest.mark.parametrize(
    "settings", [{"clients": 1}, {"clients": 10, "participation": 0.1}, {"clients": 3, "colluders": 3}, {"colluders": 2}], ids=str
)
def test_too_few_to_hide_among(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="secure_sum=true with colluders"):
        Experiment(**{"clients": 3, "secure_sum": True} | settings)


def test_groups_too_small_to_hide_in_are_refused(small: Path) -> None:
    """Before anybody is asked: with two colluders in a group of three, the sum would tell the third one's ballot."""
    groups = {"algorithm": {"name": "murmur_dealt", "together": 3}, "clients": 9, "secure_sum": True}
    simulate(quick(small, **groups, colluders=1))
    with pytest.raises(ConfigError, match=r"deals the weights to groups of 3 clients here, and .* colluders=2 is of 4 or more"):
        simulate(quick(small, **groups, colluders=2))
    with pytest.raises(ConfigError, match="groups of 3 clients here"):
        simulate(quick(small, **groups | {"clients": 18}, participation=0.5, colluders=2))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"robust": "median"}, "robust= must see"), ({"attack": "flip"}, "does not go with attack=")],
)
def test_what_must_see_single_uploads_is_refused(small: Path, settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        simulate(quick(small, secure_sum=True, **settings))


# ---- between nodes ---------------------------------------------------------------------------------------------------


def nodes(folder: Path, keys: Path, count: int = 3) -> LocalGrid:
    return LocalGrid({
        100 + number: Node(number, folder / f"state-{number}", key=str(client_key(keys, number)), peers=str(peers(keys)))
        for number in range(count)
    })  # fmt: skip


def model(folder: Path) -> bytes:
    return (folder / "model").read_bytes()


@pytest.mark.usefixtures("clock")
def test_a_federation_ends_with_the_model_without_masks(tmp_path: Path, small: Path, keys: Path) -> None:
    """Where numbers of images differ, and one client takes many steps."""
    experiment = quick(small, rounds=2, batchnorm="average", partition="quantity", batch=8, weigh="equal")
    grid = nodes(tmp_path, keys)
    records = deploy(grid, tmp_path / "deployed", experiment.changed({"secure_sum": True}), most=400)
    assert not any(record.refused or record.missing for record in records)
    assert model(simulated(tmp_path / "plain", experiment)) == model(tmp_path / "deployed")
    assert grid.nodes[100].kinds[1:6] == list(STEPS)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "state-0").rglob("note-*")} == {0o600}


def dying(node: Node, step: str) -> Handler:
    """A client that is lost when it is asked for a step of the second round."""
    asked = itertools.count(1)

    def answer(message: Message, context: Context) -> Message | None:
        if kind_of(message) == step and next(asked) == 2:
            node.online = False
            return None
        return app(message, context)

    return answer


@pytest.mark.parametrize("step", STEPS)
def test_a_client_is_lost(tmp_path: Path, small: Path, keys: Path, clock: Clock, step: str) -> None:
    """After its keys, its shares, its upload: the round ends with the exact sum of the others, or with its own ballot too."""
    experiment = quick(small, rounds=2, batchnorm="average")
    counted = 3 if step in STEPS[3:] else 2
    plain, grid = neighbours(tmp_path / "plain"), nodes(tmp_path / "secure", keys)
    if counted == 2:  # the same without masks: it is lost when it is asked for its ballot
        plain.nodes[102].app = dying(plain.nodes[102], "ballot")
    grid.nodes[102].app = dying(grid.nodes[102], step)
    deploy(plain, tmp_path / "plain/run", experiment, least=2)
    records = deploy(grid, tmp_path / "secure/run", experiment.changed({"secure_sum": True}), least=2)
    assert [record.clients for record in records] == [3, counted]
    assert model(tmp_path / "plain/run") == model(tmp_path / "secure/run")


def forgetful(state: Path, step: str) -> Handler:
    """A client whose state directory is lost before the second round."""
    asked = itertools.count(1)

    def answer(message: Message, context: Context) -> Message:
        if kind_of(message) == step and next(asked) == 2:
            shutil.rmtree(state)
        return app(message, context)

    return answer


@pytest.mark.usefixtures("clock")
def test_a_newcomer_is_told_the_whole_state(tmp_path: Path, small: Path, keys: Path) -> None:
    experiment = quick(small, rounds=2, batchnorm="average")
    plain, grid = neighbours(tmp_path / "plain"), nodes(tmp_path / "secure", keys)
    for number in range(3):  # under masks all begin afresh, if one must
        plain.nodes[100 + number].app = forgetful(tmp_path / f"plain/state-{number}", "ballot")
    grid.nodes[102].app = forgetful(tmp_path / "secure/state-2", "keys")
    deploy(plain, tmp_path / "plain/run", experiment)
    records = deploy(grid, tmp_path / "secure/run", experiment.changed({"secure_sum": True}))
    assert [record.clients for record in records] == [3, 3]
    assert model(tmp_path / "plain/run") == model(tmp_path / "secure/run")


@pytest.mark.usefixtures("clock")
def test_too_many_are_lost(tmp_path: Path, small: Path, keys: Path) -> None:
    """One of three is left after the uploads: no sum is made of what it says."""
    grid = nodes(tmp_path, keys)
    for number in (101, 102):
        grid.nodes[number].app = failing("ballot_agree")
    with pytest.raises(RunError, match="1 clients have signed who is left, and the secure sum needs 2"):
        deploy(grid, tmp_path / "run", quick(small, rounds=1, secure_sum=True, batchnorm="average"), least=1)
    assert told(tmp_path / "run").count("round 1 is held again") == 4
    assert "ballot_reveal" not in grid.nodes[100].kinds
    assert not (tmp_path / "run/model").exists()


def failing(step: str) -> Handler:
    def answer(message: Message, context: Context) -> Message:
        if kind_of(message) == step:
            raise RuntimeError("lost")
        return app(message, context)

    return answer


@pytest.mark.usefixtures("clock")
def test_without_keys_a_client_does_not_take_part(tmp_path: Path, small: Path, keys: Path) -> None:
    grid = nodes(tmp_path, keys)
    for node in grid.nodes.values():
        del node.context.node_config["peers"]
    with pytest.raises(RunError, match="too few ballots"):
        deploy(grid, tmp_path / "run", quick(small, rounds=1, secure_sum=True))
    assert "start it with --key and --peers" in told(tmp_path / "run")


@pytest.mark.usefixtures("clock")
def test_a_server_that_forges_letters_is_refused(tmp_path: Path, small: Path, keys: Path) -> None:
    """Client 0 is told another list of survivors than the others: it reveals nothing, and the others go on without it."""
    grid = nodes(tmp_path, keys, 5)

    def lie(message: Message) -> None:
        record = message.content.get(protocol.RECORD)
        if kind_of(message) == "ballot_agree" and message.metadata.dst_node_id == 100 and isinstance(record, ConfigRecord):
            record["letter"] = bytes(record["letter"])[:-4]  # type: ignore[arg-type]

    grid.before_push = lie
    deploy(grid, tmp_path / "run", quick(small, rounds=1, secure_sum=True, clients=5, batchnorm="average"), most=10_000)
    assert "only 4 clients have signed" in told(tmp_path / "run") or "have signed the list" in told(tmp_path / "run")


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "does not hold the public key"), ("0 ssh-ed25519 AAAA", "cannot read"), ("x" * 50, "cannot read")],
)
def test_lists_of_keys(tmp_path: Path, keys: Path, text: str, why: str) -> None:
    from bifl.secure.identities import NodeKeys

    (tmp_path / "clients.pub").write_text(text)
    with pytest.raises(ConfigError, match=why):
        NodeKeys(client_key(keys, 0), tmp_path / "clients.pub")
    own = NodeKeys(client_key(keys, 0), peers(keys))
    assert own.signed(0, b"text", own.sign(0, b"text"))
    assert not own.signed(1, b"text", own.sign(0, b"text"))
    assert not own.signed(9, b"text", own.sign(0, b"text"))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("config", "settings", "why"),
    [({}, {"secure_sum": False}, "secure_sum=true only"), ({"least": 3}, {"secure_sum": True}, "wants 3 or more")],
)
def test_clients_with_a_list_of_keys_insist_on_masks(
    tmp_path: Path, small: Path, keys: Path, config: dict[str, Any], settings: dict[str, Any], why: str
) -> None:
    grid = nodes(tmp_path, keys)
    for node in grid.nodes.values():
        node.context.node_config.update(config)
    with pytest.raises(RunError, match=why):
        deploy(grid, tmp_path / "run", quick(small, rounds=1, **settings))
