"""Rounds of FedAvg in Flower's simulation runtime (Ray, two actors of one thread), for `speed.py`, which runs it as a process.

Each line on the standard input lets one round go; its seconds are the answer. Needs flwr[simulation]: pip install -e '.[bench]'
"""

from __future__ import annotations

import sys
import time
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from plain import CASES, epoch

CASE, ROUNDS = CASES[sys.argv[1]] if len(sys.argv) > 1 else CASES["mnist_cnn"], int(sys.argv[2]) if len(sys.argv) > 2 else 1


def client_app(model: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        case = CASES[model]
        module = case.module()
        module.load_state_dict(cast(ArrayRecord, message.content["arrays"]).to_torch_state_dict())
        epoch(case, module, int(context.node_config["partition-id"]))
        metrics = MetricRecord({"num-examples": case.images})
        return Message(RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=message)

    return app


def server_app() -> ServerApp:
    app = ServerApp()
    began = 0.0

    def wait(round: int, arrays: ArrayRecord) -> MetricRecord:
        """Called after every round, and before the first."""
        nonlocal began
        if round:
            print(f"seconds {time.perf_counter() - began}", flush=True)
        if round < ROUNDS:
            sys.stdin.readline()
        began = time.perf_counter()
        return MetricRecord({})

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < CASE.clients:  # else FedAvg would sample the few that have come so far
            time.sleep(0.1)
        everyone: dict[str, Any] = {"min_train_nodes": CASE.clients, "min_available_nodes": CASE.clients}
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_evaluate_nodes=0, **everyone)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(CASE.module().state_dict()), num_rounds=ROUNDS, evaluate_fn=wait)

    return app


if __name__ == "__main__":
    resources: Any = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": 2, "include_dashboard": False},
    }
    run_simulation(server_app(), client_app(CASE.model), num_supernodes=CASE.clients, backend_config=resources)
