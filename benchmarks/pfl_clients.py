"""Rounds of FedAvg in pfl-research, for `speed.py`, which runs two such processes with the environment that torchrun gives them.

Each line on the standard input lets one round go; the first process answers with its seconds. Needs pfl: pip install -e '.[bench]'
Clients take their images in order, pfl does not shuffle; batch-norm's statistics stay where they are, pfl does not average them.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from plain import BATCH, CASES, LR, Case, floats
from torch import Tensor, nn


class Scored(nn.Module):
    """The network with the loss and metrics that pfl asks for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, inputs: Tensor, labels: Tensor, eval: bool = False) -> Tensor:
        """Of a batch; the names are pfl's."""
        self.train(not eval)
        return nn.functional.cross_entropy(self.inner(inputs), labels)

    def metrics(self, inputs: Tensor, labels: Tensor, eval: bool = True) -> dict[str, Any]:
        """Nothing that would take time."""
        return {"loss": Weighted(0.0, len(labels))}


class Paced(TrainingProcessCallback):  # type: ignore[misc]
    """Lets one round go at a time."""

    def __init__(self) -> None:
        self._began = 0.0

    def on_train_begin(self, *, model: Any) -> Any:
        """The first round waits."""
        sys.stdin.readline()
        self._began = time.perf_counter()
        return super().on_train_begin(model=model)

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> tuple[bool, Any]:
        """Tell the time; the next round waits."""
        if os.environ["RANK"] == "0":
            print(f"seconds {time.perf_counter() - self._began}", flush=True)
        sys.stdin.readline()
        self._began = time.perf_counter()
        ends, metrics = super().after_central_iteration(aggregate_metrics, model, central_iteration=central_iteration)
        return bool(ends), metrics


def users(case: Case) -> FederatedDataset:
    """Every client in every round."""
    inputs, labels = floats(case)

    def of(client: int) -> Dataset:
        own = slice(client * case.images, (client + 1) * case.images)
        return Dataset(raw_data=[inputs[own], labels[own]], user_id=str(client))

    turns = iter(lambda: 0, 1)
    numbers = (number for _ in turns for number in range(case.clients))
    return FederatedDataset(of, lambda: next(numbers))


def main() -> None:
    torch.set_num_threads(1)
    set_framework_module(pytorch_ops)
    case, rounds = CASES[sys.argv[1]], int(sys.argv[2])
    torch.manual_seed(0)
    module = Scored(case.module())
    model = PyTorchModel(
        module,
        local_optimizer_create=lambda parameters, lr: torch.optim.Adam(parameters, lr=lr, fused=True),
        central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(rounds, evaluation_frequency=10**6, train_cohort_size=case.clients, val_cohort_size=0),
        backend=SimulatedBackend(users(case), users(case)),
        model=model,
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH),
        model_eval_params=NNEvalHyperParams(local_batch_size=BATCH),
        callbacks=[Paced()],
    )


if __name__ == "__main__":
    main()
