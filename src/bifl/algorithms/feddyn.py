"""FedDyn (Acar et al., ICLR 2021): clients' losses are corrected until what all of them want is what each of them wants.

A client keeps h, the sum of all its changes so far. Its loss is L(w) + α·⟨h, w⟩ + α/2·‖w − public weights‖², so that at a fixed
point its own gradient is −α·h. The server broadcasts the mean of what clients upload plus the mean h of all clients, those included
that were not drawn: so every client counts once. Where an upload is lost in a deployment, the server's mean lacks from then on what
that client has added to h. The pull is of the coded weights and the trained real parameters, the correction of the coded weights
alone; real parameters are averaged.
"""

from __future__ import annotations

from math import inf

import numpy as np

from bifl import core
from bifl.core import FLOAT32, Algorithm, Client, Local, Message, Public, Sent, Server, Tally


def upload(client: Client, public: Public) -> Sent:
    """The weights; the client adds how far they moved to h."""
    return Sent(Message.of(client.aux, FLOAT32, client.real), memory=core.change(client, public) + core.recall(client.memory, 1))


def broadcast(tally: Tally, public: Public, server: Server) -> Sent:
    """The mean of the weights plus h, the mean of all clients' h: a client that was not drawn has kept its own."""
    mean = tally.update.mean.astype(np.float32)
    h = core.recall(server.memory, 1).reshape(-1) + np.float32(tally.clients / public.clients) * (mean - public.weights)
    return Sent(Message.of(mean + h, FLOAT32, tally.real), memory=h[None])


@core.register
def feddyn(alpha: float = 0.01, forward: str = "real", down: str = "float") -> Algorithm:
    """FedAvg whose clients correct their losses by what they have learnt so far; α is how strongly.

    Take it where clients differ much and are drawn often: each must remember a vector of its own.
    """
    core.require(0 < alpha < inf, "alpha", alpha, "greater than 0")

    def correction(client: Client, public: Public) -> Local:
        """The gradient of what FedDyn adds to a client's loss."""
        return Local(correction=np.float32(alpha) * client.memory if client.memory.size else None, pull=alpha)

    algorithm = Algorithm(
        upload, broadcast, core.replace, local=correction, forward=core.forward_of(forward),
        keeps=("memory",), mirrors=True,
    )  # fmt: skip
    return core.compress_broadcast(algorithm, down)
