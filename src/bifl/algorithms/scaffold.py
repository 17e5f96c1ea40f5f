"""SCAFFOLD (Karimireddy et al., ICML 2020): steps are corrected by how a client's gradients differ from everybody's.

A client remembers its control c_i, the mean gradient of the last steps it took (option II of the paper), and everybody knows the
server's, c: a step follows gradient − c_i + c. Clients upload how their weights and their controls moved; c is the mean of all
clients' controls, those included that were not drawn: so every client counts once. Where an upload is lost in a deployment, c
lacks from then on what that client's control has moved. The correction is of the coded weights; real parameters are averaged.

With `up=murmur` both vectors are said as murmur says an update, and a client's control moves by what it said of it, with the scale
nearest to what it wanted to say (EF21, Richtárik et al., 2021): nothing is lost for good, and c is still the mean of the controls.
"""

from __future__ import annotations

import numpy as np

from bifl import core
from bifl.algorithms.murmur import CODES, compress_uploads, nearest
from bifl.core import FLOAT32, UPDATE, Client, Message, Public, Vector
from bifl.errors import ConfigError

CONTROL = "control"


def selects(public: Public, sender: int | None) -> core.Selections:
    """Two vectors both ways, each about all weights."""
    return {UPDATE: None, CONTROL: None}


def control(client: Client) -> core.Floats:
    """c_i, which is 0 at first."""
    return client.memory if client.memory.size else np.zeros_like(client.aux)


def correction(client: Client, public: Public) -> core.Local:
    """c − c_i."""
    return core.Local(correction=public.vectors[CONTROL] - control(client))


def next_control(client: Client, upload: Message) -> core.Floats:
    """c_i after what was said of its move."""
    return control(client) + upload.vectors[CONTROL].values()


def upload(client: Client, public: Public) -> core.Sent:
    """The weights, and how the control moves, to the mean gradient: c_i ← c_i − c + (x − y) / (steps · rate)."""
    length = client.steps * client.rate
    moves = np.zeros_like(client.aux)  # at a rate of 0 steps tell nothing of the gradient
    if length:
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

    Take it where clients differ and are drawn often: each must remember a vector of its own. up=murmur down=sign says both of its
    vectors at a fraction of a bit.
    """
    algorithm = core.Algorithm(
        upload, broadcast, core.replace, selects=selects, local=correction, forward=core.real, keeps=("memory",), plain_steps=True,
        mirrors=True,
    )  # fmt: skip
    if up == "murmur":
        algorithm = compress_uploads(algorithm, group, {**CODES, CONTROL: nearest}, next_control)
    elif up != "float":
        raise ConfigError(f"algorithm.up must be float or murmur, not '{up}'")
    return core.compressed(algorithm, down)
