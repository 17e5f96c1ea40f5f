"""How clients train: optimisers, schedules, FedProx, clipping, augmentation, local steps; and what a user's own may be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bifl.algorithms.fedprox import with_pull
from bifl.core.algorithm import register
from bifl.core.forward import PLAIN, Forward, Local, binary, real
from bifl.core.layout import Layout
from bifl.core.layout import Tensor as Part
from bifl.core.state import Client, Public
from bifl.engine.loop import loop
from bifl.errors import ConfigError
from bifl.experiment.settings import Experiment, plan_of
from bifl.nn.batch import Batch, Samples
from bifl.nn.network import Network
from bifl.nn.optimizers import Adam, Trained, adam, begin, optimizer, sgd
from bifl.training import local
from bifl.training.local import Plan, augment, augmented
from tests.support.workers import beside

SMALL: dict[str, Any] = {"clients": 3, "rounds": 2, "workers": 1, "model": {"name": "mlp", "hidden": 8}, "algorithm": "fedavg"}

TORCHS: dict[str, tuple[dict[str, float], Callable[[list[Tensor]], torch.optim.Optimizer]]] = {
    "sgd": ({}, lambda p: torch.optim.SGD(p, 0.1)),
    "sgd momentum": ({"momentum": 0.9, "weight_decay": 0.01}, lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01)),
    "adam": ({}, lambda p: torch.optim.Adam(p, 0.1)),
    "adam decay": ({"weight_decay": 0.01}, lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.01)),
    "adam betas": ({"beta1": 0.5, "beta2": 0.9, "eps": 1e-3}, lambda p: torch.optim.Adam(p, 0.1, (0.5, 0.9), 1e-3)),
    "adamw": ({"weight_decay": 0.1}, lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1)),
}


def vector(seed: int) -> Tensor:
    return torch.randn(20, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.parametrize("case", TORCHS)
def test_optimisers_equal_torchs(case: str) -> None:
    settings, theirs = TORCHS[case]
    ours, reference = vector(0), vector(0)
    trained = Trained([ours], 0.1, [0.0], [math.inf], [slice(None)])
    step, other = begin(optimizer.make(case.partition(" ")[0], settings), trained), theirs([reference])
    for seed in range(1, 30):
        ours.grad, reference.grad = vector(seed).detach().clone(), vector(seed).detach()
        step()
        other.step()
    assert ours.grad is None
    torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-6)


def test_the_scales_of_binary_layers_neither_decay_nor_follow_noise() -> None:
    theta = torch.ones(4).requires_grad_()
    floors = torch.tensor([1e-4, 1e-4, 0, 0])
    trained = Trained([theta], 0.1, [floors], [math.inf], [slice(2, None)])
    step = begin(optimizer.make("adamw", {"weight_decay": 1.0}), trained)
    theta.grad = torch.tensor([1e-9, 0, 1e-9, 0])
    step()
    moved = (1 - theta.detach()).tolist()
    assert moved[0] == pytest.approx(0, abs=1e-5)  # noise, far below the floor
    assert moved[1:] == pytest.approx([0, 0.1 + 0.1 * 1e-9 / (1e-9 + 1e-8), 0.1], abs=1e-6)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("optimizer=sgd optimizer.momentum=1", "optimizer.momentum must be at least 0 and below 1, not 1.0"),
        ("optimizer.beta2=1", "optimizer.beta2 must be at least 0 and below 1"),
        ("optimizer.eps=0", "optimizer.eps must be greater than 0"),
        ("optimizer.weight_decay=-1", "optimizer.weight_decay must be 0 or more"),
        ("optimizer.momentum=0.9", "unknown key 'optimizer.momentum'"),
        ("momentum=0.9", "unknown key 'momentum'"),
        ("schedule=cosine schedule.over=0", "schedule.over must be a number of rounds, 1 or more, not 0"),
        ("schedule=cosine schedule.end=2", "schedule.end must be a share"),
        ("schedule.warmup=-1", "schedule.warmup must be a number of rounds"),
        ("local_steps=5 local_epochs=2", "local_steps=5 and local_epochs=2 are both given"),
        ("local_steps=-1", "local_steps must be 0 or more"),
        ("proximal=0.1", "'proximal' is no setting any more: FedProx is an algorithm now, algorithm=fedprox algorithm.mu=0.01"),
        ("algorithm=fedprox algorithm.mu=-1", "algorithm.mu must be 0 or more"),
        ("algorithm=feddyn algorithm.alpha=0", "algorithm.alpha must be greater than 0"),
        ("clip=nan", "clip must be 0 or more"),
        ("augment=shift_flip augment.shift=-1", "augment.shift must be a number of pixels"),
        ("augment=noise augment.deviation=-1", "augment.deviation must be 0 or more"),
        ("augment=mirror", "unknown augment 'mirror'"),
        ("start=nowhere", "start must be a model file: 'nowhere' is none"),
    ],
)
def test_what_makes_no_sense_is_refused(words: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        Experiment.of("mnist5k-iid", words.split())


def rates(*words: str) -> list[float]:
    experiment = Experiment.of(None, ["lr=0.01,0.001", "lr_steps=3", *words])
    return [plan_of(experiment)(round).lr for round in range(1, 7)]


def test_schedules() -> None:
    assert rates() == [0.01] * 3 + [0.001] * 3
    assert rates("schedule.warmup=2") == [0.005, 0.01, 0.01] + [0.001] * 3
    halves = [0.01 * (1 + math.cos(math.pi * step / 4)) / 2 for step in range(5)]
    assert rates("schedule=cosine", "schedule.over=4") == pytest.approx([*halves, 0])
    assert rates("schedule=cosine", "schedule.over=6", "schedule.warmup=2", "schedule.end=0.5") == pytest.approx(
        [0.005, 0.01, *[0.01 * (0.5 + half / 0.02) for half in halves[:4]]]
    )
    longer = Experiment.of(None, ["schedule=cosine", "rounds=900"])  # more rounds, asked for when a run is continued
    assert plan_of(longer)(7).lr == plan_of(longer.changed({"rounds": 8}))(7).lr


# ---- local training ---------------------------------------------------------------------------------------------------


def linear(forward: Forward = real) -> Network:
    torch.manual_seed(0)
    return Network(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), forward)


def samples(count: int = 10) -> Samples:
    dice = np.random.default_rng(0)
    inputs = torch.from_numpy(dice.normal(size=(count, 6)).astype(np.float32))
    return Samples(inputs, torch.from_numpy(dice.integers(3, size=count)), 0.0, 1.0)


def trained(network: Network, how: Plan, added: Local = PLAIN) -> Client:
    weights, reals = network.initial()
    client = Client(weights, weights, reals, 10, 4)
    return local.train(client, network, real, samples(), torch.arange(10), how, local=added)[0]


def test_what_an_algorithm_adds_is_a_term_of_the_loss_and_clipping_is_torchs() -> None:
    """The twin has a pull towards the start, a correction ⟨c, w⟩ and another term in its loss, and lets PyTorch differentiate."""
    how = Plan(sgd(), 0.5, 10, 4, clip=0.2)
    network = linear()
    correction = np.random.default_rng(1).normal(0, 0.05, network.layout.count).astype(np.float32)
    added = Local(correction, pull=0.3, loss=lambda weights: 0.01 * weights.pow(4).sum())
    client = trained(network, how, added)
    torch.manual_seed(0)
    twin = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    start = [p.detach().clone() for p in twin.parameters()]
    descent, digits = torch.optim.SGD(twin.parameters(), 0.5), samples()
    clipped = []
    for _ in range(4):  # all ten are one batch, whose order does not matter
        descent.zero_grad()
        far = sum((p - s).square().sum() for p, s in zip(twin.parameters(), start, strict=True))
        weights = torch.cat([p.ravel() for p in twin.parameters()])
        more = 0.15 * far + torch.dot(torch.from_numpy(correction), weights) + 0.01 * weights.pow(4).sum()
        (nn.functional.cross_entropy(twin(digits.inputs), digits.labels) + more).backward()  # type: ignore[no-untyped-call]
        clipped.append(float(nn.utils.clip_grad_norm_(twin.parameters(), 0.2)) > 0.2)
        descent.step()
    assert any(clipped)
    wanted = torch.cat([p.detach().ravel() for p in twin.parameters()]).numpy()
    np.testing.assert_allclose(client.aux, wanted, atol=1e-5)
    assert (client.steps, client.rate) == (4, 0.5)


def test_a_pull_reaches_its_centre_in_weights_and_real_parameters() -> None:
    """A strong pull and a small rate: after many steps only the centre counts."""
    network = Network(nn.Sequential(nn.Flatten(), nn.Linear(6, 3), nn.BatchNorm1d(3)), real)
    layout = network.layout
    centre = np.full(layout.count, 0.25, np.float32), np.full(layout.reals, 0.75, np.float32)
    client = trained(network, Plan(sgd(), 0.01, 10, 1, steps=100), Local(pull=90.0, centre=centre))
    np.testing.assert_allclose(client.aux, centre[0], atol=0.02)
    np.testing.assert_allclose(client.real[len(layout.layers) : layout.trained], 0.75, atol=0.02)


def drawn(how: Plan, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    seen: list[list[int]] = []
    whole = Samples.batch

    def note(self: Samples, index: Any) -> Batch:
        seen.append(index.tolist())
        return whole(self, index)

    with monkeypatch.context() as patch:
        patch.setattr(Samples, "batch", note)
        trained(linear(), how)
    return seen


def test_steps_cross_the_ends_of_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten samples in batches of four: 4, 4, 2, and on into the next epoch."""
    epochs, steps = drawn(Plan(sgd(), 0.1, 4, 2), monkeypatch), drawn(Plan(sgd(), 0.1, 4, 1, steps=5), monkeypatch)
    assert [len(batch) for batch in epochs] == [4, 4, 2, 4, 4, 2]
    assert steps == epochs[:5]
    assert sorted(number for batch in steps[:3] for number in batch) == list(range(10))


def test_a_bound_on_what_clients_say_knows_steps_and_momentum() -> None:
    experiment = Experiment(optimizer={"name": "sgd", "momentum": 0.75}, local_steps=7)
    assert plan_of(experiment)(1).steps == 7
    assert plan_of(experiment)(1).optimizer.stride == 4


# ---- augmentation -----------------------------------------------------------------------------------------------------


def test_images_are_shifted_and_mirrored() -> None:
    image = torch.arange(40, dtype=torch.float32).view(1, 2, 4, 5).repeat(200, 1, 1, 1)
    moved = augmented(augment.make("shift_flip", {"shift": 1}), image, np.random.default_rng(0))
    assert moved.shape == image.shape
    one = image[0].numpy()
    wanted = set()
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            rows, columns = np.clip(np.arange(4) + down, 0, 3), np.clip(np.arange(5) + right, 0, 4)
            wanted |= {one[:, rows][:, :, columns].tobytes(), one[:, rows][:, :, columns[::-1]].tobytes()}
    assert {found.contiguous().numpy().tobytes() for found in moved} == wanted
    still = augmented(augment.make("shift_flip", {"shift": 0, "flip": False}), image, np.random.default_rng(0))
    assert torch.equal(still, image)


def test_augmentation_depends_on_the_seed_alone() -> None:
    settings = SMALL | {"augment": "noise", "algorithm": "biml"}
    runs = [beside(Experiment(**settings | {"workers": workers})) for workers in (1, 2)]
    for run in runs:
        list(run)
    *_, (_, public) = loop(Experiment(**settings))
    assert {run.public.weights.tobytes() for run in runs} == {public.weights.tobytes()}
    *_, (_, plain) = loop(Experiment(**settings | {"augment": "none"}))
    assert plain.weights.tobytes() != public.weights.tobytes()


@pytest.mark.parametrize("name", ["shift_flip", "noise"])
def test_tokens_are_not_augmented(name: str) -> None:
    with pytest.raises(ConfigError, match=f"augment={name} is for"):
        augmented(augment.make(name, {}), torch.zeros(2, 6, dtype=torch.int64), np.random.default_rng(0))


def test_adam_with_its_usual_constants_takes_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's training: ε of 1e-8 for weights and 1e-4 for ϑ, aux within ±1."""
    begun: list[Adam] = []

    def step(self: Adam) -> None:
        begun.append(self)

    monkeypatch.setattr(Adam, "step", step)
    network = linear(binary)
    weights, reals = network.initial()
    how = Plan(adam(), 0.005, 10, 1)
    local.train(Client(weights, weights, reals, 10), network, binary, samples(), torch.arange(10), how)
    (found,) = begun
    assert found.trained.limits == [1.0, math.inf]
    assert found.trained.floors[0] == 1e-8
    assert torch.equal(torch.as_tensor(found.trained.floors[1]), torch.tensor([1e-4]))


@pytest.mark.parametrize("around", ["scaffold", "feddyn"])
def test_fedprox_adds_its_pull_to_what_another_algorithm_adds(around: str) -> None:
    """Its correction stays, and pulls towards the same weights add up."""
    public = Public(0, 0, Layout(("l",), (Part("l.weight", (4,), 0),), (), ()), np.ones(4, np.float32), np.ones(1, np.float32))
    public = public._replace(vectors={"control": np.full(4, 2, np.float32)})
    client = Client(public.weights, public.weights, public.real, 1, memory=np.arange(4, dtype=np.float32))
    alone, both = (register.make(*chosen).at(1).local for chosen in ((around, {}), ("fedprox", {"mu": 0.5, "around": around})))
    assert alone is not None
    assert both is not None
    without, within = alone(client, public), both(client, public)
    assert without.correction is not None
    np.testing.assert_array_equal(within.correction, without.correction)
    assert within.pull == without.pull + 0.5


def test_fedprox_refuses_another_centre() -> None:
    def elsewhere(client: Client, public: Public) -> Local:
        return Local(pull=1.0, centre=(public.weights, public.real))

    inner = replace(register.make("fedavg", {}).at(1), local=elsewhere, name="steady")
    weights = np.ones(4, np.float32)
    public = Public(0, 0, Layout(("l",), (Part("l.weight", (4,), 0),), (), ()), weights, weights)
    with pytest.raises(ConfigError, match=r"algorithm 'steady' pulls towards weights of its own, .*: take it without fedprox"):
        with_pull(Client(weights, weights, weights, 1), public, mu=0.1, inner=inner)
