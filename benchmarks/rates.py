"""What a bit buys: the error of one upload and the bias of many, for ways to send an update in a random rotation.

python benchmarks/rates.py      (no training; a minute)

An update of mnist_cnn's size, of three kinds: normal; heavy tails; one number in a hundred. Error: E‖read − update‖² / ‖update‖².
Bias: the same of the mean of many uploads, less what independent errors would leave.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from unittest import mock

import numpy as np

from bifl.algorithms.eden import eden
from bifl.algorithms.murmur import murmur
from bifl.core import Client, Floats, Layout, Message, Public, Sent, rotation
from bifl.core.layout import Tensor

COUNT, UPLOADS = 81_958, 40
LAYOUT = Layout(("all",), (Tensor("all.weight", (COUNT,), 0),), (), ())


def kinds() -> dict[str, Floats]:
    dice = np.random.default_rng(0)
    found = {
        "normal": dice.normal(size=COUNT),
        "heavy tails": dice.standard_t(3, size=COUNT),
        "1 in 100": dice.normal(size=COUNT) * (dice.random(COUNT) < 0.01),
    }
    return {name: (values / np.linalg.norm(values)).astype(np.float32) for name, values in found.items()}


Say = Callable[[Client, Public], Message | Sent]
Read = Callable[[Message, Public], Message]


def measured(update: Floats, say: Say, read: Read) -> tuple[float, float]:
    public = Public(0, 0, LAYOUT, np.zeros(COUNT, np.float32), np.ones(LAYOUT.reals, np.float32))
    client, total, errors = Client(update, update, public.real, 1), np.zeros(COUNT), []
    for number in range(UPLOADS):
        upload = Sent.of(say(client._replace(number=number), public)).message._replace(sender=number)
        told = read(upload, public).update.values()
        total += told
        errors.append(float(np.square(told - update).sum()))
    error = float(np.mean(errors))
    return error, float(np.square(total / UPLOADS - update).sum()) - error / UPLOADS


def main() -> None:
    ways: dict[str, tuple[float, Say, Read]] = {}
    for p in (1.0, 0.1):
        coded = eden(p=p)
        ways[f"signs of {p:.0%}"] = (p, coded.upload, coded.reads)
    for group in (8, 32, 128, 512):
        bits, coder = log2(2 * group) / group, murmur(group, down="float")
        ways[f"loudest of {group}"] = (bits, coder.upload, coder.reads)
    print("| | passes | bit a weight | error of an upload | bits × (error + 1) |", *(f"bias, {name} |" for name in kinds()))
    print("|---|---|---|---|---|" + "---|" * len(kinds()))
    for name, (bits, say, read) in ways.items():
        for passes in (1, 2):
            with mock.patch.object(rotation, "_PASSES", passes):
                found = [measured(update, say, read) for update in kinds().values()]
            error = found[0][0]
            biases = " | ".join(f"{bias:.3f}" for _, bias in found)
            print(f"| {name} | {passes} | {bits:.4f} | {error:.2f} | {bits * (error + 1):.2f} | {biases} |", flush=True)


if __name__ == "__main__":
    main()
