"""The simulator's readable twin: one process, one list of clients, no bookkeeping. Tests hold the two to the same bytes.

>>> from bifl.experiment.settings import Experiment
>>> news, public = next(loop(Experiment(rounds=1, clients=2, algorithm="up_down")))
>>> public.round, news.update.symbols.shape
(1, (81958,))
"""

from __future__ import annotations

from collections.abc import Iterator

from bifl import codec
from bifl.core.message import Message
from bifl.core.sides import Abandoned, ServerSide
from bifl.core.state import Public, Server
from bifl.engine.round import judge, sampled
from bifl.engine.worker import ClientTools, LocalSide
from bifl.exchanges.exchange import Intake, make_answer, take_part
from bifl.experiment.run import simulated_identity
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from bifl.nn.batch import Samples
from bifl.nn.network import Network


def loop(experiment: Experiment, kind: type[Network] = Network) -> Iterator[tuple[Message, Public]]:
    """Each round's broadcast and the public state after it; with `kind=PlainNetwork` in PyTorch's own layers throughout."""
    setup = build(experiment, kind)
    run, public, server = setup.run, setup.public, Server()
    tools = ClientTools(run, Samples.training(setup.data), setup.parts, setup.shards, simulated_identity(experiment))
    clients = [tools.first(number) for number in range(len(setup.parts))]
    notes: list[dict[str, bytes]] = [{} for _ in clients]
    voters: list[int] = []
    for round in range(1, experiment.rounds + 1):
        counted, voters = voters, sampled(experiment.seed, run.clients, run.fresh.voters, round)
        side = ServerSide(server._replace(judge=judge(setup, round)), present=run.clients)
        broadcasts: list[Message] = []
        uploading, private_replies = voters, dict[int, bytes]()
        for exchange in run.exchanges:
            context = exchange.context(public)
            intake, spelled = Intake(exchange, public, context, side), exchange.uploads_in(context)
            uploaders = uploading if exchange.uploads else []
            for number in sorted({*uploaders, *exchange.listeners(uploading, range(len(clients)))}):
                local = LocalSide(
                    tools, clients[number], public,
                    voted=number in counted, private_reply=private_replies.get(number, b""), notes=notes[number],
                )  # fmt: skip
                reply = take_part(exchange, local, public, uploads=number in uploaders, tells_results=run.tells_results)
                if reply.client is not local.client:  # it has trained
                    clients[number] = run.remembered(reply.client, round, tools.first(number))
                if reply.message is not None:
                    intake.take(codec.encode(reply.message, spelled))
            if not exchange.uploads:
                continue
            try:
                side, answer = make_answer(exchange, intake.total, public, side)
            except Abandoned:
                if public.round < round:
                    raise
                break  # the round is complete: what was public must do
            if not isinstance(answer, Message):
                private_replies = dict(answer)
                uploading = [number for number in uploading if number in private_replies]
                continue
            broadcasts.append(codec.decode(codec.encode(answer, context), context))
            public, private_replies = exchange.advance(public, broadcasts[-1]), {}  # only one exchange hears them
        server = side.server
        yield broadcasts[0], public
