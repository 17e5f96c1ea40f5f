"""Batches of several tensors, and outputs of any shape: a user's task with a class for every token, padding ignored."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bifl
from bifl.cli.dispatch import main
from bifl.core.forward import Latent, real
from bifl.core.message import NOTHING, Message
from bifl.core.sides import ServerSide
from bifl.core.state import Server
from bifl.data.arrays import from_npz
from bifl.data.fingerprint import loaded
from bifl.data.inputs import read_further
from bifl.engine.loop import loop
from bifl.errors import ConfigError, DataError, Refused
from bifl.exchanges.exchange import BYTE_ALPHABET
from bifl.experiment.model import Model
from bifl.experiment.settings import Experiment, agreed
from bifl.experiment.setup import build
from bifl.nn.batch import judged, task_arguments, tensor_of
from bifl.nn.fast.stepwise import plan
from bifl.nn.network import Network, PlainNetwork
from bifl.runs.folder import read_records
from tests.support.federation import deploy, neighbours, same, simulated
from tests.support.grid import Clock, LocalGrid, Node

FILE = Path(__file__).parents[1] / "support" / "per_token.py"
WORDS, LENGTH, CLASSES = 12, 6, 3


def sentences(count: int = 240) -> dict[str, Any]:
    """A token's class is what its word and the sentence's first word come to, modulo 3; the last tokens are padding."""
    dice = np.random.default_rng(0)
    tokens = dice.integers(WORDS, size=(count, LENGTH)).astype(np.int32)
    mask = np.arange(LENGTH) < dice.integers(2, LENGTH + 1, size=(count, 1))
    labels = np.where(mask, tokens % CLASSES, -1).astype(np.int64)
    return {"inputs": np.where(mask, tokens, 0).astype(np.int32), "labels": labels, "mask": mask, "classes": np.arange(CLASSES)}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(FILE.parent)  # where a model looks for its file
    np.savez(tmp_path / "sentences.npz", **sentences())
    return {
        "dataset": {"name": "npz", "path": str(tmp_path / "sentences.npz"), "test_share": 0.2},
        "task": f"{FILE}:class_per_token", "model": f"{FILE}:token_tagger",
        "clients": 3, "rounds": 3, "workers": 1, "batch": 16, "holdout": 0.2, "lr": 0.02,
    }  # fmt: skip


def allowed(grid: LocalGrid, *files: Path) -> LocalGrid:
    """Nodes whose operators have read the files."""
    for node in grid.nodes.values():
        node.context.node_config |= {f"allow-{number}": str(file) for number, file in enumerate((FILE, *files))}
    return grid


@pytest.mark.parametrize("algorithm", ["fedavg", "biml"])
def test_a_class_per_token_is_the_same_everywhere(tmp_path: Path, clock: Clock, settings: dict[str, Any], algorithm: str) -> None:
    experiment = Experiment(**settings | {"algorithm": algorithm})
    alone = simulated(tmp_path / "one", experiment)
    same(alone, simulated(tmp_path / "two", experiment.changed({"workers": 2})))
    deploy(allowed(neighbours(tmp_path), tmp_path / "sentences.npz"), tmp_path / "deployed", experiment)
    same(alone, tmp_path / "deployed")
    assert (alone / "clients.jsonl").read_text() == (tmp_path / "deployed/clients.jsonl").read_text()
    *_, (_, public) = loop(experiment)
    model = Model.read(alone / "model", trust=True)
    assert model.message.real.tobytes() == public.real.tobytes()
    metrics, loss = model.metrics(build(experiment).data)
    last = read_records(alone)[-1]
    assert last.metrics == pytest.approx(metrics)
    assert loss == pytest.approx(last.loss, rel=1e-5)


def by_hand(model: Model, tokens: Any, mask: Any, labels: Any) -> tuple[float, float]:
    """Accuracy and loss of the tokens that count."""
    output, right = torch.from_numpy(model.predict(tokens, mask=mask)), torch.from_numpy(labels)
    there = right >= 0
    loss = nn.functional.cross_entropy(output[there], right[there])
    return float((output.argmax(-1) == right)[there].float().mean()), float(loss)


def test_metrics_are_of_tokens_that_count(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Accuracy and loss by hand, of the test samples together and of every client's own."""
    experiment = Experiment(**settings | {"algorithm": "fedavg"})
    folder, made = simulated(tmp_path / "run", experiment), build(experiment)
    model = Model.read(folder / "model", trust=True)
    data, last = made.data, read_records(folder)[-1]
    wanted = by_hand(model, data.test_inputs, data.test_further["mask"], data.test_labels)
    assert (last.accuracy, last.loss) == pytest.approx(wanted, 1e-5)
    rows = json.loads((folder / "clients.jsonl").read_text().splitlines()[-1])["clients"]
    for row, shard in zip(rows, made.shards, strict=True):
        wanted = by_hand(model, data.inputs[shard], data.further["mask"][shard], data.labels[shard])
        assert (row["accuracy"], row["loss"]) == pytest.approx(wanted, 1e-5)
        assert row["held"] == len(shard)


def test_commands_take_the_masks_of_the_samples_that_they_test(
    tmp_path: Path, settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A file without samples for tests is tested on whole, and a client's model on what the client holds out."""
    experiment = Experiment(**settings | {"algorithm": "fedavg"})
    folder, made = simulated(tmp_path / "run", experiment), build(experiment)
    data, shard, file = made.data, made.shards[1], tmp_path / "sentences.npz"
    assert main(["eval", str(folder / "model"), str(file), "--trust"]) == 0
    whole = sentences()
    accuracy, _ = by_hand(Model.read(folder / "model", trust=True), *(whole[name] for name in ("inputs", "mask", "labels")))
    assert f"accuracy {accuracy:.2%}" in capsys.readouterr().out
    assert main(["personalise", str(folder), "1", "--trust"]) == 0
    personal = Model.read(folder / "client-1.model", trust=True)
    accuracy, _ = by_hand(personal, data.inputs[shard], data.further["mask"][shard], data.labels[shard])
    assert f"accuracy {accuracy:.2%}, of the global network" in capsys.readouterr().out


@pytest.mark.floats
def test_it_is_learnt(settings: dict[str, Any]) -> None:
    """Three seeds gave 1.00."""
    records = list(bifl.simulate(Experiment(**settings | {"algorithm": "fedavg", "rounds": 8})))
    assert records[-1].accuracy > 0.9


def test_clients_bring_masks_to_a_server_without_data(tmp_path: Path, clock: Clock, settings: dict[str, Any]) -> None:
    arrays = sentences(60)
    for number in range(2):
        own: dict[str, Any] = {name: found[number::2] for name, found in arrays.items() if name != "classes"}
        np.savez(tmp_path / f"{number}.npz", **own)
    grid = LocalGrid({5 + n: Node(n, tmp_path / f"state-{n}", data=str(tmp_path / f"{n}.npz")) for n in range(2)})
    remote = {"name": "remote", "classes": 3, "shape": "6", "kind": "tokens", "further": "mask:flags:6", "labels": "6"}
    allowed(grid)
    experiment = Experiment(**settings | {"dataset": remote, "clients": 2, "algorithm": "fedavg", "rounds": 2})
    records = deploy(grid, tmp_path / "run", experiment, least=1, deadline=0.5)
    assert [record.clients for record in records] == [2, 2]
    assert 0 <= records[-1].accuracy <= 1
    np.savez(tmp_path / "0.npz", inputs=arrays["inputs"][::2], labels=arrays["labels"][::2])
    grid.nodes[5].context.node_config["state-dir"] = str(tmp_path / "new")
    deploy(grid, tmp_path / "again", experiment, least=1, deadline=0.5)
    assert "the run's are mask:flags:6" in (tmp_path / "again/events.jsonl").read_text()
    np.savez(tmp_path / "0.npz", inputs=arrays["inputs"][::2], mask=arrays["mask"][::2], labels=arrays["labels"][::2, :4])
    grid.nodes[5].context.node_config["state-dir"] = str(tmp_path / "newer")
    deploy(grid, tmp_path / "third", experiment, least=1, deadline=0.5)
    assert "its labels of a sample are (4,), the run's are (6,)" in (tmp_path / "third/events.jsonl").read_text()


def test_a_liar_counts_no_more_tokens_than_it_has(settings: dict[str, Any]) -> None:
    run = build(Experiment(**settings)).run
    assert run.evaluation is not None
    judge = replace(run.evaluation, share=0.2)

    def said(weight: float) -> Message:
        """A model, three samples, what is counted in them, the loss, how many are correct."""
        data = np.array([0, 3, weight, 2.5, 4], "<f8").tobytes()
        return Message.of(np.frombuffer(data, np.uint8), BYTE_ALPHABET, NOTHING, sender=0, weight=20, round=judge.ahead)

    server = ServerSide(Server())
    assert judge.open(said(11), run.fresh, server).sender == 0
    for weight in (3 * LENGTH + 1, -1, 10.5, 3):  # 3: fewer than are correct
        with pytest.raises(Refused, match="its evaluation makes no sense"):
            judge.open(said(weight), run.fresh, server)


def test_where_samples_are_counted_a_liar_counts_no_more_than_those(tmp_path: Path) -> None:
    """However many columns labels have."""
    dice = np.random.default_rng(0)
    inputs, labels = dice.normal(size=(60, 4)).astype(np.float32), dice.integers(2, size=(60, 5)).astype(np.uint8)
    np.savez(tmp_path / "columns.npz", inputs=inputs, labels=labels)
    data = {"name": "npz", "path": str(tmp_path / "columns.npz"), "test_share": 0.2}
    run = build(Experiment(dataset=data, task="multilabel", model={"name": "mlp", "inputs": 4}, clients=3, holdout=0.2)).run
    assert run.evaluation is not None
    for weight, refusal in ((3, nullcontext()), (15, pytest.raises(Refused, match="its evaluation makes no sense"))):
        rows = np.array([0, 3, weight, 2.5, 1, 1, 1, 1, 1], "<f8").tobytes()
        upload = Message.of(np.frombuffer(rows, np.uint8), BYTE_ALPHABET, NOTHING, sender=0, weight=20, round=run.evaluation.ahead)
        with refusal:
            run.evaluation.open(upload, run.fresh, ServerSide(Server()))


def test_a_task_says_how_many_it_may_count(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made = build(Experiment(**settings | {"algorithm": "fedavg", "rounds": 1}))
    assert made.run.evaluation is not None
    few = replace(made.run, evaluation=replace(made.run.evaluation, positions=1))
    with pytest.raises(ConfigError, match="the task's count finds more than 1 in one of its samples"):
        list(bifl.Simulation(made._replace(run=few)))


def test_what_a_network_needs_and_data_lack(tmp_path: Path, settings: dict[str, Any]) -> None:
    arrays = sentences()
    del arrays["mask"]
    np.savez(tmp_path / "sentences.npz", **arrays)
    with pytest.raises(ConfigError, match="it takes mask beside its input, and the data have no such array"):
        build(Experiment(**settings))


def test_only_arrays_that_are_taken_are_checked(tmp_path: Path, settings: dict[str, Any]) -> None:
    """And they alone are in the data's fingerprint."""
    experiment, arrays = Experiment(**settings), sentences()
    known = loaded(build(experiment).data)
    age = np.full(len(arrays["labels"]), np.nan, np.float32)
    np.savez(tmp_path / "sentences.npz", **arrays, age=age)
    assert loaded(build(experiment).data) == known
    np.savez(tmp_path / "sentences.npz", **arrays | {"mask": np.where(arrays["mask"], np.nan, 1).astype(np.float32)})
    with pytest.raises(DataError, match="the data's mask must be finite numbers"):
        build(experiment)


def test_an_output_of_another_shape_is_refused(settings: dict[str, Any]) -> None:
    data = build(Experiment(**settings)).data
    short = data._replace(labels=data.labels[:, :2], test_labels=data.test_labels[:, :2])
    with pytest.raises(ConfigError, match=r"it gives \(1, 6, 3\) for one sample instead of \(1, 2, 3\)"):
        build(Experiment(**settings), data=short)


def test_all_agree_on_the_shape_of_an_output(settings: dict[str, Any]) -> None:
    """Of tasks with an output per position; elsewhere the number of classes tells it."""
    experiment = Experiment(**settings)
    data = build(experiment).data
    assert "output=6,3" in agreed(experiment, data).splitlines()
    assert "output" not in agreed(Experiment(), data._replace(labels=data.labels[:, 0]))


def test_arrays_of_a_file_beside_the_inputs(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"inputs": np.zeros((4, 2), np.float32), "labels": np.arange(4), "mask": np.ones((4, 2), np.bool_)}
    np.savez(tmp_path / "a.npz", **arrays, names=np.array(list("abcd")), target=np.arange(4), other=np.zeros(3))
    assert from_npz(tmp_path / "a.npz").further.keys() == {"mask"}
    np.savez(tmp_path / "a.npz", **arrays, test_inputs=arrays["inputs"][:1], test_labels=arrays["labels"][:1])
    assert not from_npz(tmp_path / "a.npz").further, "the test inputs have no mask"
    np.savez(
        tmp_path / "a.npz",
        **arrays,
        test_inputs=arrays["inputs"][:1],
        test_labels=arrays["labels"][:1],
        test_mask=np.ones((1, 3), bool),
    )
    with pytest.raises(DataError, match=r"test_mask in .* are not like mask"):
        from_npz(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "text", ["mask", "mask:flags", "mask:bytes:3", "input:flags:3", "a:flags:0", "a:flags:99999999,9", "a:flags:1;" * 17]
)
def test_a_form_from_outside_is_checked(text: str) -> None:
    with pytest.raises(DataError, match="further inputs"):
        read_further(text)


def positions_of_signals() -> nn.Module:
    """(n, 2, 8) signals → (n, 3, 8): a class for every moment, in layers that the fast engine computes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(2, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 3, 1))


def test_the_fast_engine_gives_outputs_per_position() -> None:
    dice, found = torch.Generator().manual_seed(0), []
    batch = {"input": torch.randn(16, 2, 8, generator=dice), "target": torch.randint(3, (16, 8), generator=dice)}
    for kind in (Network, PlainNetwork):
        network = kind(positions_of_signals(), real)
        aux, reals = network.initial()
        network.write_moments(reals[network.layout.trained :])
        weights, trained = torch.from_numpy(aux).requires_grad_(), torch.from_numpy(reals[: network.layout.trained])
        network.module.train()
        loss = network.learn(Latent(weights, weights.detach()), trained, real, batch)
        assert weights.grad is not None
        network.show(aux, reals, real)
        found.append((torch.tensor(loss), weights.grad, network.scores(batch)))
    assert plan(positions_of_signals(), batch) is not None
    for fast, plain in zip(*found, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)


class Masked(nn.Module):
    """A norm and a mask that is not always given: what tracing would take down for good."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.scores = nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> SimpleNamespace:
        return SimpleNamespace(logits=self.scores(self.norm(x if mask is None else x * mask)))


def test_an_optional_argument_is_given_where_the_data_have_it_and_logits_are_the_output() -> None:
    x, mask = torch.randn(3, 4), torch.tensor([[1.0, 0, 0, 0]] * 3)
    network, plain = Network(Masked()), PlainNetwork(Masked())
    plain.module.load_state_dict(network.module.state_dict(), strict=False)
    network.show(*network.initial(), real)
    without, within = network.scores({"input": x}), network.scores({"input": x, "mask": mask})
    torch.testing.assert_close(network.scores({"input": x * mask}), within)
    assert not torch.allclose(without, within)
    with pytest.raises(TypeError, match="gives a str instead of a tensor"):
        tensor_of("text")


def test_a_loss_takes_arrays_by_name() -> None:
    def loss(output: Tensor, targets: Tensor, mask: Tensor, reduction: str = "mean") -> Tensor:
        return output

    assert task_arguments(loss) == ("mask",)
    assert task_arguments(nn.functional.cross_entropy) == ()


def test_a_loss_may_be_an_object_without_a_hash() -> None:
    class Loss:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, output: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
            return (output * mask).sum()

    batch = {"input": torch.ones(2), "target": torch.ones(2), "mask": torch.tensor([1.0, 0.0])}
    assert judged(Loss(), torch.full((2,), 3.0), batch) == 3
