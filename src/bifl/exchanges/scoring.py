"""Clients evaluate the global model on what they hold out, and beside it the models that they keep for themselves.

They say their sums in double precision, chunk by chunk, so that the sum of all does not depend on who computed what. In training
this exchange is held after a round's, in some rounds, and its bytes are not the training's. The server's own test samples are
evaluated by whoever computes for the server: there nobody says anything to anybody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bifl.core.layout import Layout, Tensor
from bifl.core.message import Message, reals_only
from bifl.core.sides import Abandoned, ClientReply, ClientSide, Score, ServerSide
from bifl.core.state import Public
from bifl.core.sums import UploadList
from bifl.errors import ConfigError, Refused
from bifl.exchanges.exchange import ByteExchange, Exchange, Surroundings, bytes_in, exchange, message_of
from bifl.tasks.task import Task
from bifl.training.evaluation import CHUNK, Results

LARGEST_LOSS = 1e4  # of one sample
_FIXED = 4  # numbers of a row before the task's sums: which model, samples, what is counted in them, loss


@dataclass(frozen=True)
class Evaluation(ByteExchange):
    """Clients evaluate models on what they hold out."""

    task: Task  # it knows what sums can be
    share: float  # of its samples that a client holds out; 0 where none does
    others: tuple[Exchange, ...] = ()  # of which clients remember something: perhaps models of their own
    main: bool = False  # rounds consist of nothing else
    positions: int = 1  # the most that the task may count in one sample
    name: str = "evaluation"

    def layout(self, public: Public) -> Layout:
        """That of the broadcast: metrics and loss."""
        return Layout((), (), (Tensor("metrics", (self._metrics + 1,)),), ())

    @property
    def _metrics(self) -> int:
        return len(self.task.metrics(np.zeros(self.task.length), 1))

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """Evaluate the global model, and the client's own."""
        models = [(public.weights, public.real), *(other.own_model(side.client, public) for other in self.others)]
        rows = [
            (place, chunk.samples, chunk.weight, chunk.loss, *chunk.sums)
            for place, model in enumerate(models)
            if model is not None
            for chunk in side.evaluate(*model)
        ]
        if any(weight > self.positions * samples for _, samples, weight, *_ in rows):
            raise ConfigError(
                f"the task's count finds more than {self.positions} in one of its samples, and its most says there are no more: "
                "most=math.prod is for tasks that count positions"
            )
        return ClientReply(message_of(np.array(rows, "<f8").tobytes()), side.client)

    def open(self, upload: Message, public: Public, server: ServerSide | None = None) -> Message:
        """The upload, if such sums can be. A worker believes its own clients, whose model may have diverged."""
        if server is not None and (upload.round != public.round + self.ahead or len(upload.real) or not self._sensible(upload)):
            raise Refused("its evaluation makes no sense")
        return upload

    def _rows(self, upload: Message) -> npt.NDArray[np.float64]:
        return np.frombuffer(bytes_in(upload), "<f8").reshape(-1, _FIXED + self.task.length)

    def _sensible(self, upload: Message) -> bool:
        """Whether a client may say so, of the samples that it can hold out."""
        most, width = held_out(upload.weight, self.share), 8 * (_FIXED + self.task.length)
        if len(upload.update.symbols) % width or len(upload.update.symbols) > width * most * (1 + len(self.others)):
            return False
        rows = self._rows(upload)
        if not np.isfinite(rows).all() or not np.isin(rows[:, 0], range(1 + len(self.others))).all():
            return False
        counts = [rows[rows[:, 0] == place, 1].tolist() for place in range(1 + len(self.others))]
        if any(not _chunks(held) or sum(held) > most or held not in ([], counts[0]) for held in counts):
            return False
        weights = rows[:, 2]
        if not np.all((weights == np.floor(weights)) & (weights >= 0) & (weights <= self.positions * rows[:, 1])):
            return False
        return all(self.task.sensible(row[_FIXED:], int(row[2])) and 0 <= row[3] <= LARGEST_LOSS * row[2] for row in rows)

    def total(self, public: Public) -> UploadList:
        """What each says: there are rows of single clients."""
        return UploadList()

    def scores(self, total: UploadList) -> list[Score]:
        """What clients have said."""
        names, scores = ["", *(other.name for other in self.others)], []
        for upload in total.in_order():
            for chunk, (place, samples, weight, loss, *sums) in enumerate(self._rows(upload).tolist()):
                sender = upload.sender or 0
                scores.append(Score(chunk, int(samples), int(weight), tuple(sums), loss, sender, names[int(place)]))
        return scores

    def answer(self, total: UploadList, public: Public, server: ServerSide) -> tuple[ServerSide, Message]:
        """Metrics and loss over all samples that clients hold out."""
        scores = self.scores(total)
        if not scores:
            raise Abandoned("no client holds samples out to evaluate on: set holdout=0.2, for example")
        results = Results.of(scores, self.task)
        shared = [*list(results.metrics.values())[: self._metrics], results.loss]
        return server.reporting({**results.metrics, "loss": results.loss}, results.clients), reals_only(
            np.array(shared, np.float32)
        )


def _chunks(held: list[float]) -> bool:
    """Whether samples are evaluated as everyone does: in chunks that are full, but for the last."""
    whole = all(count == int(count) for count in held)
    return whole and all(count == CHUNK for count in held[:-1]) and all(1 <= count <= CHUNK for count in held[-1:])


def held_out(samples: int, share: float) -> int:
    """How many samples a client can hold out that trains on so many, where it holds a share of all out (`experiment.setup.cut`)."""
    return math.floor((share * samples + 1) / (1 - share)) + 1  # one more: shares are floats


@exchange
def evaluation(run: Surroundings) -> Evaluation:
    """How well the model does on what clients hold out, client by client, without training."""
    if not run.tells_results:
        raise ConfigError("with secure_sum=true or privacy= no client tells results on what it holds out")
    if not run.share:
        raise ConfigError("exchange=evaluation needs samples that clients hold out: set holdout=0.2, for example")
    return Evaluation(run.task, run.share, main=True, positions=run.positions)
