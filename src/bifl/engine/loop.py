"""The simulator's readable twin: one process, one list of clients, no bookkeeping. Tests hold the two to the same bytes.

>>> from bifl.experiment.settings import Experiment
>>> news, public = next(loop(Experiment(rounds=1, clients=2, algorithm="up_down")))
>>> public.round, news.symbols.shape
(1, (81958,))
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bifl import codec
from bifl.core.algorithm import weight_of
from bifl.core.exchange import Abandoned, turn
from bifl.core.message import Message
from bifl.core.state import Client, Public, Server, remembered
from bifl.engine.client_side import Belongings, LocalSide, arrived, client_tools
from bifl.exchanges import exchanges_of, simulated_identity
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build, judge, sampled
from bifl.nn.network import Network
from bifl.training.samples import Samples


def loop(experiment: Experiment, kind: type[Network] = Network) -> Iterator[tuple[Message, Public]]:
    """Each round's broadcast and the public state after it; with `kind=PlainNetwork` in PyTorch's own layers throughout."""
    setup = build(experiment, kind)
    public, server = setup.public, Server()
    samples = Samples.of(setup.data.images, setup.data.labels, setup.data)
    tools = client_tools(experiment, setup.algorithm, setup.network, samples, setup.task.loss, setup.parts)
    exchanges = exchanges_of(experiment, setup.algorithm, setup.network, setup.data)
    weights = [weight_of(setup.algorithm, len(part)) for part in setup.parts]
    fresh = [Client(public.weights, public.weights, public.real, weight, number) for number, weight in enumerate(weights)]
    clients = list(fresh)
    notes: list[dict[str, bytes]] = [{} for _ in clients]
    identity = simulated_identity(experiment)
    voters: list[int] = []
    for round in range(1, experiment.rounds + 1):
        counted, voters = voters, sampled(experiment, len(clients), round)
        server = server._replace(judge=judge(setup, round), there=len(clients))
        heard: list[Message] = []
        uploading, letters = voters, dict[int, bytes]()
        for exchange in exchanges:
            total, known = exchange.total(public), exchange.context(public)
            spelled = exchange.uploads_in(known)
            for number in sorted({*uploading, *exchange.listeners(uploading, range(len(clients)))}):
                part, own = torch.from_numpy(setup.parts[number]), Belongings(letters.get(number, b""), notes[number], identity)
                client = arrived(experiment, clients[number], setup.public.weights, public)
                side = LocalSide(tools, part, public, client._replace(voted=number in counted), own)
                reply = turn(exchange, side, public, uploads=number in uploading)
                if reply.client is not side.client:  # it has trained
                    clients[number] = remembered(reply.client, setup.algorithm.at(round).keeps, fresh[number])
                if reply.message is not None:
                    upload = codec.decode(codec.encode(reply.message, spelled), spelled)
                    total.add(exchange.opened(upload, public))
            try:
                server, news = exchange.answer(total, public, server)
            except Abandoned:
                if public.round < round:
                    raise
                break  # the round is complete: what was public must do
            if not isinstance(news, Message):
                letters = dict(news)
                uploading = [number for number in uploading if number in letters]
                continue
            heard.append(codec.decode(codec.encode(news, known), known))
            public, letters = exchange.advance(public, heard[-1]), {}  # a letter answers one exchange
        yield heard[0], public
