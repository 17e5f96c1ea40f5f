"""SCAFFOLD (Karimireddy et al., ICML 2020): steps are corrected by how a client's gradients differ from everybody's.

A client remembers its control c_i, the mean gradient of the last steps it took (option II of the paper), and everybody knows the
server's, c: a step follows gradient − c_i + c. Clients upload how their weights and their controls moved; c is the mean of all
clients' controls, those included that were not drawn: so every client counts once. Where an upload is lost in a deployment, c
lacks from then on what that client's control has moved. The correction is of the coded weights; real parameters are averaged.

With `up=murmur` both vectors are said as murmur says an update, and a client's control moves by what it said of it, with the scale
nearest to what it wanted to say (EF21, Richtárik et al., 2021): nothing is lost for good, and c is still the mean of the controls.
"""

from __future__ import annotations

from dataclasses import replace as with_other
from functools import partial

import numpy as np

from bifl.algorithms import murmur
from bifl.core import (
    FLOAT32,
    UPDATE,
    Algorithm,
    Client,
    Floats,
    Local,
    Message,
    Public,
    Selections,
    Sent,
    Server,
    Tally,
    Vector,
    change,
    changed,
    compressed,
    means,
    real,
    register,
    replace,
)  # fmt: skip
from bifl.errors import ConfigError

CONTROL = "control"
ROTATIONS = {UPDATE: "rotation", CONTROL: "rotation of the control"}


def selects(public: Public, sender: int | None) -> Selections:
    """Two vectors both ways, each about all weights."""
    return {UPDATE: None, CONTROL: None}


def remembered(client: Client) -> Floats:
    """c_i, which is 0 at first."""
    return client.memory if client.memory.size else np.zeros_like(client.aux)


def corrected(client: Client, public: Public) -> Local:
    """c − c_i."""
    return Local(correction=public.vectors[CONTROL] - remembered(client))


def upload(client: Client, public: Public) -> Sent:
    """The weights, and how the control moves, to the mean gradient: c_i ← c_i − c + (x − y) / (steps · rate)."""
    length = client.steps * client.rate
    moves = np.zeros_like(client.aux)  # at a rate of 0 steps tell nothing of the gradient
    if length:
        moves = -public.vectors[CONTROL] - change(client, public) / np.float32(length)
    vectors = {UPDATE: Vector(client.aux, FLOAT32), CONTROL: Vector(moves, FLOAT32)}
    return Sent(Message(vectors, client.real), memory=remembered(client) + moves)


def broadcast(tally: Tally, public: Public, server: Server) -> Message:
    """The mean of the weights; c moves by the share of the clients that were drawn."""
    moves = np.float32(tally.clients / public.clients) * tally.vectors[CONTROL].mean.astype(np.float32)
    return means(tally, public, server).with_vectors({CONTROL: Vector(public.vectors[CONTROL] + moves, FLOAT32)})


# ---- the same at a fraction of a bit ---------------------------------------------------------------------------------------


def selects_groups(public: Public, sender: int | None, group: int) -> Selections:
    """Both vectors of an upload are about groups of rotated coordinates."""
    return dict.fromkeys((UPDATE, CONTROL), murmur.selects(public, sender, group)[UPDATE])


def upload_loudest(client: Client, public: Public, group: int) -> Sent:
    """The loudest of every group of both; of the control with the scale that comes nearest to it, by which c_i moves."""
    size, count = murmur.group_of(public, group), public.layout.count
    moves = upload(client, public).message.vectors[CONTROL].symbols
    update, control = (
        murmur.coded(values, size, public.stream(client.number, ROTATIONS[name]))
        for name, values in ((UPDATE, change(client, public)), (CONTROL, moves))
    )
    squares = np.square(moves, dtype=np.float64).sum()
    nearest = squares / max(float(control.scales[0]) * len(control.symbols), 1e-30)
    control = control._replace(scales=np.array([nearest], np.float32))
    said = murmur.decoded(control, size, count, public.stream(client.number, ROTATIONS[CONTROL]))
    return Sent(Message({UPDATE: update, CONTROL: control}, client.real), memory=remembered(client) + said)


def reads_loudest(upload: Message, public: Public, group: int) -> Message:
    """The weights and the moves of the control that an upload stands for."""
    size, count = murmur.group_of(public, group), public.layout.count
    by = {
        name: murmur.decoded(vector, size, count, public.stream(upload.sender or 0, ROTATIONS[name]))
        for name, vector in upload.vectors.items()
    }
    return changed(upload, public, by[UPDATE]).with_vectors({CONTROL: Vector(by[CONTROL], FLOAT32)})


@register
def scaffold(up: str = "float", group: int = 0, down: str = "float") -> Algorithm:
    """SCAFFOLD: FedAvg whose clients correct their steps by how their gradients differ from everybody's. It needs optimizer=sgd.

    Take it where clients differ and are drawn often: each must remember a vector of its own. up=murmur down=sign says both of its
    vectors at a fraction of a bit.
    """
    plain = Algorithm(
        upload,
        broadcast,
        replace,
        selects=selects,
        local=corrected,
        forward=real,
        keeps=("memory",),
        plain_steps=True,
        mirrors=True,
    )
    if up == "float":
        return compressed(plain, down)
    if up != "murmur":
        raise ConfigError(f"algorithm.up must be float or murmur, not '{up}'")
    murmur.check_group(group)
    said = with_other(
        plain,
        upload=partial(upload_loudest, group=group),
        reads=partial(reads_loudest, group=group),
        selects=partial(selects_groups, group=group),
    )
    return compressed(said, down)
