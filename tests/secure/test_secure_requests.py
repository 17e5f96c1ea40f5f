"""What a server that lies asks of single clients in a run with the secure sum: nothing of one client leaves it without masks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.app import Message as Post

from bifl import __version__
from bifl.core.forward import PLAIN, Local
from bifl.core.message import FLOAT32, NOTHING
from bifl.core.message import Message as Said
from bifl.core.sides import ClientReply
from bifl.core.state import Client
from bifl.deploy import protocol
from bifl.engine.loop import loop
from bifl.engine.simulator import simulate
from bifl.engine.worker import LocalSide
from bifl.errors import ConfigError, Refused, RunError
from bifl.exchanges.exchange import take_part
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from tests.secure.test_secure_runs import nodes
from tests.support.federation import deploy, quick
from tests.support.grid import kind_of
from tests.support.liar import Liar

pytestmark = pytest.mark.usefixtures("clock")


def test_one_that_is_to_upload_nothing_says_nothing(tmp_path: Path, small: Path, keys: Path) -> None:
    """In every exchange of a round, after the greeting alone: before, statistics were told as they are, and losses of any model."""
    liar = Liar(tmp_path, quick(small, model="mlp", secure_sum=True), keys)
    assert {"ballot", "statistics"} < {exchange.name for exchange in liar.exchanges}
    for exchange in liar.exchanges:
        said = liar.exchange(exchange.name)
        said.pop("failed", None)
        assert said == {"version": __version__, "number": 0}, exchange.name
    assert "asks for no upload" in liar.exchange("statistics")["failed"]
    assert not list((tmp_path / "state-0").rglob("note-*"))  # and has begun nothing
    assert "failed" not in liar.exchange("ballot")


class _Talks:
    """An exchange with a mistake: it always has something to say."""

    name, trains, ahead = "talks", True, 1

    def say(self, side: Any, public: Any, *, uploads: bool) -> ClientReply:
        return ClientReply(Said.of(NOTHING, FLOAT32, NOTHING), side.client, loss=0.5)


def test_a_message_that_was_not_asked_for_is_not_sent() -> None:
    class Side:
        client = Client(NOTHING, NOTHING, NOTHING, weight=5, number=2)

    talks: Any = _Talks()
    side: Any = Side()
    public: Any = SimpleNamespace(round=3)
    message = take_part(talks, side, public, uploads=True, tells_results=False).message
    assert message is not None
    assert (message.round, message.sender, message.weight) == (4, 2, 5), "which are filled in"
    assert take_part(talks, side, public, uploads=False, tells_results=False) == ClientReply(None, side.client)
    assert take_part(talks, side, public, uploads=False, tells_results=True).loss == 0.5, "of an exchange that tells it anyway"
    talks.trains = False
    with pytest.raises(Refused, match="asks for no upload"):
        take_part(talks, side, public, uploads=False, tells_results=False)


def test_statistics_and_masks_say_nothing_by_themselves(small: Path) -> None:
    """Without the guard around them: each is asked directly."""
    for secure in (False, True):
        experiment = quick(small, model="mlp", secure_sum=secure)
        setup = build(experiment)
        statistics = next(exchange for exchange in setup.run.exchanges if exchange.name == "statistics")

        class Side:
            client, private_reply, notes, identity = None, b"", dict[str, bytes](), None

            def measure(self) -> np.ndarray[Any, Any]:
                raise AssertionError("nobody needs it")

        side: Any = Side()
        assert statistics.say(side, setup.public, uploads=False).message is None


def test_a_client_tells_no_loss_of_any_model(tmp_path: Path, small: Path, keys: Path) -> None:
    """Nor that its training diverged: with a model of the server's choice each would tell what its images are."""
    liar = Liar(tmp_path, quick(small, model="mlp", algorithm="fedavg", batchnorm="average", secure_sum=True), keys)
    for factor in (1.0, 1e9):
        update = liar.told(lambda public, by=factor: public._replace(weights=public.weights * np.float32(by)))  # type: ignore[misc]
        assert liar.exchange("ballot", update) == {"version": __version__, "number": 0}


def test_a_client_tells_no_results_on_what_it_holds_out(tmp_path: Path, small: Path, keys: Path) -> None:
    liar = Liar(tmp_path, quick(small, model="mlp", secure_sum=True), keys)
    said = liar.exchange("evaluation", uploads=True)
    assert "asks for the exchange 'evaluation', which this run does not have" in said.pop("failed")
    assert said == {"version": __version__, "number": 0}


def test_holding_out_is_refused(tmp_path: Path, small: Path) -> None:
    with pytest.raises(ConfigError, match="set holdout=0"):
        Experiment(secure_sum=True, clients=3, holdout=0.2)
    with np.load(small) as arrays:
        np.savez(tmp_path / "bare.npz", images=arrays["images"], labels=arrays["labels"])
    bare = quick(tmp_path / "bare.npz", secure_sum=True)
    with pytest.raises(ConfigError, match="the server needs test images of its own"):
        build(bare)


def test_a_training_that_diverges_is_no_change(small: Path) -> None:
    """Everyone uploads, and what is summed is the model as it was."""
    settings = {"model": "mlp", "algorithm": "fedavg", "batchnorm": "average", "lr": 1e30, "optimizer": "sgd"}
    experiment = quick(small, rounds=2, secure_sum=True, **settings)
    simulation = simulate(experiment)
    records = list(simulation)
    assert [record.clients for record in records] == [3, 3]
    assert all(np.isnan(record.train_loss) for record in records)
    np.testing.assert_allclose(simulation.public.weights, build(experiment).public.weights, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["fedavg", "biml"])
def test_a_later_training_that_diverges_is_no_change_either(small: Path, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What clients would have without it is what the last news made of them, not the weights that the run began with."""
    experiment = quick(small, rounds=2, model="mlp", algorithm=algorithm, batchnorm="average", secure_sum=True, workers=1)
    honest = LocalSide.train

    def train(side: LocalSide, client: Client, local: Local = PLAIN) -> tuple[Client, float]:
        trained, loss = honest(side, client, local)
        return (trained, np.nan) if trained.number == 0 or side._public.round else (trained, loss)

    monkeypatch.setattr(LocalSide, "train", train)
    simulation, states = simulate(experiment), [public for _, public in loop(experiment)]
    list(simulation)
    assert simulation.public.weights.tobytes() == states[1].weights.tobytes()
    if algorithm == "fedavg":
        assert not np.allclose(states[0].weights, build(experiment).public.weights, atol=1e-4)
        np.testing.assert_allclose(states[1].weights, states[0].weights, atol=1e-6)


def test_a_client_holds_nothing_out_for_a_server_that_lies(tmp_path: Path, small: Path, keys: Path) -> None:
    """All others could be left with two images each, so that one outweighs them and its votes are those of the sum."""
    grid = nodes(tmp_path, keys)

    def lie(message: Post) -> None:
        if kind_of(message) == protocol.HELLO:
            record = message.content[protocol.RECORD]
            assert isinstance(record, ConfigRecord)
            record["share"] = 0.9

    grid.before_push = lie
    with pytest.raises(RunError, match=r"asks clients to hold out 0\.9 of their images, and in such a run nobody does"):
        deploy(grid, tmp_path / "run", quick(small, model="mlp", secure_sum=True), keys=keys)


def test_statistics_that_overflow_are_sent(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a network of the server's choice: whether a client's do would tell what its images are."""

    def measured(side: LocalSide) -> np.ndarray[Any, Any]:
        layout = build(experiment).public.layout
        half = (layout.reals - layout.trained) // 2
        return np.concatenate([np.resize(np.array([np.nan, 1.0], np.float32), half), np.full(half, np.inf, np.float32)])

    experiment = quick(small, rounds=1, model="mlp", secure_sum=True)
    monkeypatch.setattr(LocalSide, "measure", measured)
    ((_, public),) = loop(experiment)
    assert np.isfinite(public.real).all()


def test_another_model_is_refused_whatever_it_would_change(tmp_path: Path, small: Path, keys: Path) -> None:
    """Under the same masks: before, one that led to the same upload was answered, which told that it did."""
    liar = Liar(tmp_path, quick(small, model="mlp", batchnorm="average", secure_sum=True), keys, "ballot_agree")
    upload = liar.exchange("ballot", liar.told(), uploads=True)["upload"]
    other = liar.told(lambda public: public._replace(weights=-public.weights))  # from which nobody starts in the first round
    said = liar.exchange("ballot", other, uploads=True)
    assert "another upload in the same secure sum" in said["failed"]
    assert "upload" not in said
    assert liar.exchange("ballot", liar.told(), uploads=True)["upload"] == upload
