"""A user's own optimiser, schedule and augmentation: the same in every runtime, and refused in one sentence where they are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import bifl
from bifl.engine.loop import loop
from bifl.errors import ConfigError
from bifl.experiment.settings import Experiment, plan_of
from bifl.nn.optimizers import Optimizer, Trained, begin
from tests.support.workers import beside

SMALL: dict[str, Any] = {"clients": 3, "rounds": 2, "workers": 1, "model": {"name": "mlp", "hidden": 8}, "algorithm": "fedavg"}

OWN = '''
import torch
from bifl.nn.optimizers import Optimizer, optimizer
from bifl.training.local import Augment, augment
from bifl.training.rates import Rate, schedule

@optimizer
def rms(alpha: float = 0.9) -> Optimizer:
    """RMSprop."""
    return Optimizer(lambda trained: torch.optim.RMSprop(trained.vectors, trained.lr, alpha))

@schedule
def halving() -> Rate:
    """Half of it every round."""
    return lambda round, lr, lr_steps: lr[0] * 0.5 ** (round - 1)

@augment
def fainter(least: float = 0.5) -> Augment:
    """Weaker signals."""
    def faint(inputs, generator):
        return inputs * torch.from_numpy(generator.uniform(least, 1, (len(inputs), 1, 1, 1))).float()
    return faint

@optimizer
def no_optimizer():
    return torch.optim.SGD

@optimizer
def no_steps():
    return Optimizer(lambda trained: 3)

@schedule
def no_rate():
    return lambda round, lr, lr_steps: -1

@augment
def no_inputs():
    return lambda inputs, generator: inputs[:1]

@augment
def nothing_at_all():
    return None
'''


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own_training.py"
    path.write_text(OWN)
    return path


def test_a_users_own_training_is_the_same_in_every_runtime(own: Path) -> None:
    kinds = {"optimizer": f"{own}:rms", "schedule": f"{own}:halving", "augment": f"{own}:fainter"}
    experiment = Experiment(**SMALL | kinds | {"algorithm": {"name": "fedprox", "around": "biml"}, "clip": 1.0, "local_steps": 3})
    assert experiment.optimizer.parameters == {"alpha": 0.9}
    assert [plan_of(experiment)(round).lr for round in (1, 2, 3)] == [0.005, 0.0025, 0.00125]
    runs = [beside(experiment.changed({"workers": workers})) for workers in (1, 2)]
    for run in runs:
        list(run)
    *_, (_, public) = loop(experiment)
    assert {run.public.weights.tobytes() for run in runs} == {public.weights.tobytes()}


def test_a_users_own_optimiser_keeps_aux_within_its_limits() -> None:
    vectors = Trained([torch.ones(2).requires_grad_()], 5.0, [0.0], [1.0], [slice(None)])
    step = begin(Optimizer(lambda given: torch.optim.SGD(given.vectors, given.lr)), vectors)
    vectors.vectors[0].grad = torch.tensor([1.0, -1.0])
    step()
    assert vectors.vectors[0].tolist() == [-1, 1]
    assert vectors.vectors[0].grad is None


@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        ("optimizer", "no_optimizer", "must return a bifl.nn.optimizers.Optimizer"),
        ("optimizer", "no_steps", "its begin gave a int"),
        ("schedule", "no_rate", "gives lr -1 in round 1; it must return a function"),
        ("augment", "no_inputs", "must return a function"),
        ("augment", "nothing_at_all", "must return a function"),
    ],
)
def test_what_is_no_optimiser_schedule_or_augmentation_is_refused(own: Path, kind: str, name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"{kind}.*{reason}"):
        list(bifl.simulate(Experiment(**SMALL | {kind: f"{own}:{name}"})))
