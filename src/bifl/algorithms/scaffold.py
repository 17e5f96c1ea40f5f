"""SCAFFOLD (Karimireddy et al., ICML 2020): steps are corrected by how a client's gradients differ from everybody's.

A client remembers its control c_i, the mean gradient of its last steps (option II of the paper). Everybody knows c, the mean of all
clients' controls, drawn or not: so every client counts once. A step follows gradient − c_i + c, for coded weights; real parameters
are averaged. Where an upload is lost in a deployment, c lacks from then on what that client's control has moved.

With `up=murmur` both vectors are said as murmur says an update, and a client's control moves by what it said of it, with the scale
nearest to what it wanted to say (EF21, Richtárik et al., 2021): nothing is lost for good, and c is still the mean of the controls.
"""

from __future__ import annotations

import numpy as np

from bifl import core
from bifl.algorithms.murmur import NEAREST, UNBIASED, compress_uploads
from bifl.core import FLOAT32, UPDATE, Client, Message, Public, Vector

CONTROL = "control"


def correction(client: Client, public: Public) -> core.Local:
    """c − c_i."""
    return core.Local(correction=public.vectors[CONTROL] - core.recall(client.memory, len(client.aux)))


def next_control(client: Client, upload: Message) -> core.Floats:
    """c_i after what was said of its move."""
    return core.recall(client.memory, len(client.aux)) + upload.vectors[CONTROL].values()


def upload(client: Client, public: Public) -> core.Sent:
    """The weights, and how the control moves, to the mean gradient: c_i ← c_i − c + (x − y) / (steps · rate)."""
    moves = np.zeros_like(client.aux)  # at a rate of 0 steps tell nothing of the gradient
    if length := client.steps * client.rate:
        moves = -public.vectors[CONTROL] - core.change(client, public) / np.float32(length)
    message = Message({UPDATE: Vector(client.aux, FLOAT32), CONTROL: Vector(moves, FLOAT32)}, client.real)
    return core.Sent(message, next_control(client, message))


def broadcast(tally: core.Tally, public: Public, server: core.Server) -> Message:
    """The mean of the weights; c moves by the share of the clients that were drawn."""
    moves = np.float32(tally.clients / public.clients) * tally.vectors[CONTROL].mean.astype(np.float32)
    return core.means(tally, public, server).with_vectors({CONTROL: Vector(public.vectors[CONTROL] + moves, FLOAT32)})


@core.register
def scaffold(up: str = "float", group: int = 0, down: str = "float") -> core.Algorithm:
    """SCAFFOLD: FedAvg whose clients correct their steps by how their gradients differ from everybody's. It needs optimizer=sgd.

    Take it where clients differ and are drawn often: each must remember a vector. up=murmur down=sign makes it a fraction of a bit.
    """
    core.require(up in ("float", "murmur"), "up", up, "float or murmur")
    algorithm = core.Algorithm(
        upload, broadcast, core.replace, selects=core.in_full(UPDATE, CONTROL), local=correction, forward=core.real,
        keeps=("memory",), plain_steps=True, mirrors=True,
    )  # fmt: skip
    if up == "murmur":
        algorithm = compress_uploads(algorithm, group, {UPDATE: UNBIASED, CONTROL: NEAREST}, next_control)
    return core.compress_broadcast(algorithm, down)
