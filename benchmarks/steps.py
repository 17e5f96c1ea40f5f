"""How long does one training step take, of 64 samples, on one thread? bifl's networks beside the tuned PyTorch loop of `plain.py`.

    python benchmarks/steps.py [network …]      (puts its table into benchmarks/results.md)

Seconds of the processor, the best of many steps that take turns: the figure for a machine that is busy with other things too, where
the rounds of `speed.py` say little. Adam's step is in it, messages and sums are not.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable

import torch
from plain import BATCH, CASES, LR, Case, floats
from speed import written
from torch import nn

from bifl.core.forward import Latent, real
from bifl.nn.network import Network
from bifl.nn.optimizers import Adam, Trained
from bifl.processes import KEEPS_MEMORY

SECONDS = 4  # for each network
TITLE = "One step"


def plain(case: Case) -> Callable[[], object]:
    """A step of PyTorch, as in `plain.epoch`."""
    module, (inputs, labels) = case.module(), floats(case)
    batch, right = inputs[:BATCH], labels[:BATCH]
    optimizer = torch.optim.Adam(module.parameters(), lr=LR, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(batch), right).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def ours(case: Case) -> Callable[[], object]:
    """A step of bifl, as in `training.local.train`."""
    network, (inputs, labels) = Network(case.module().to(memory_format=torch.contiguous_format), real), floats(case)  # type: ignore[call-overload]
    aux, rest = (torch.from_numpy(vector.copy()) for vector in network.initial())
    aux, trained = aux.requires_grad_(), rest[: network.layout.trained].requires_grad_()
    optimizer = Adam(Trained([aux, trained], LR, [1e-8] * 2, [math.inf] * 2, [slice(None)] * 2))
    network.module.train()
    latent = Latent(aux, aux.detach().clone(), 0.0, 1, training=True)

    def step() -> None:
        network.learn(latent, trained, real, {"input": inputs[:BATCH], "target": labels[:BATCH]})
        optimizer.step()

    return step


def best(steps: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of the processor by name."""
    found = dict.fromkeys(steps, float("inf"))
    until = time.monotonic() + SECONDS
    for step in steps.values():
        step()
    while time.monotonic() < until:
        for name, step in steps.items():
            began = time.thread_time()
            step()
            found[name] = min(found[name], time.thread_time() - began)
    return found


def main() -> None:
    if not KEEPS_MEMORY.items() <= os.environ.items():  # malloc reads them when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEPS_MEMORY)
    torch.set_num_threads(1)
    lines = [f"## {TITLE}, one thread", "", "`python benchmarks/steps.py`: milliseconds of the processor, the best of many.", ""]
    lines += ["| network | bifl | plain PyTorch | ratio |", "|---|---|---|---|"]
    for name in sys.argv[1:] or CASES:
        case = CASES[name]._replace(clients=1)
        found = best({"bifl": ours(case), "plain": plain(case)})
        lines.append(f"| {name} | {1e3 * found['bifl']:.2f} | {1e3 * found['plain']:.2f} | {found['plain'] / found['bifl']:.2f} |")
        print(lines[-1], flush=True)
    if len(sys.argv) == 1:
        written(TITLE, lines)


if __name__ == "__main__":
    main()
