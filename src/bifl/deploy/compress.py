"""Only the one-bit uploads, for a Flower app with a network, training and strategy of its own.

A client sends, instead of its arrays, the signs of what training changed, dithered: noise as wide as 1.5 times the mean change of
each array makes the sign right on average, so that the mean over the clients estimates the mean change. Nothing is kept between
rounds.

    app = ClientApp(mods=[one_bit])                     # client: and train as before
    strategy = OneBit(fraction_train=1.0)               # server: FedAvg with one-bit uploads
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from bifl import codec
from bifl.core.message import BINARY, NOTHING, Message
from bifl.core.randomness import dithered_signs
from bifl.core.sums import all_below
from bifl.deploy.server.members import over
from bifl.errors import BiflError, DataError, quoted
from bifl.runs.events import say

RECORD, METRICS = "bifl-one-bit", "metrics"
WIDTH = 1.5  # of the noise, in mean changes
_LARGEST = 1e15  # metrics beyond this are nothing that is measured
Arrays = list[npt.NDArray[Any]]
Records = dict[str, ArrayRecord]


def squeeze(start: Arrays, end: Arrays, seed: list[int]) -> bytes:
    """What training changed, as one message: a sign per number, a width per array; vectors (biases, batch-norm) as they are."""
    changes = [_flat(after) - _flat(before) for before, after in zip(start, end, strict=True) if after.ndim > 1]
    widths = np.array([WIDTH * np.abs(change).mean() for change in changes], np.float32)
    dice = np.random.default_rng(seed)
    signs = [dithered_signs(change, width, dice) for change, width in zip(changes, widths, strict=True)]
    real = [_flat(array) for array in end if array.ndim <= 1]
    symbols = np.concatenate([np.zeros(0, np.uint8), *signs])
    return codec.encode(Message.of(symbols, BINARY, np.concatenate([NOTHING, *real]).astype(np.float32), widths, sender=0))


def expand(start: Arrays, data: bytes) -> Arrays:
    """An estimate of the arrays after training; right on average where no change is larger than the noise."""
    coded, exact = [array for array in start if array.ndim > 1], [array for array in start if array.ndim <= 1]
    message = codec.decode(data, expect=sum(array.size for array in coded))
    if message.update.alphabet != BINARY:
        raise codec.field_error("alphabet", f"is spelled in {message.update.alphabet.name}, one-bit uploads are binary")
    if (len(message.update.scales), len(message.real)) != (len(coded), sum(array.size for array in exact)):
        raise codec.field_error(
            "reals", f"has {len(message.update.scales)} widths and {len(message.real)} real numbers: these are other arrays"
        )
    codec.refuse_infinite(message.update.scales, message.real)
    signs, reals = iter(_split(message.update.values(), coded)), iter(_split(message.real, exact))
    widths = iter(message.update.scales)
    new = [array + next(widths) * next(signs) if array.ndim > 1 else next(reals) for array in start]
    with np.errstate(over="ignore"):  # found in the next line
        arrays = [after.astype(before.dtype) for before, after in zip(start, new, strict=True)]
    codec.refuse_infinite(*arrays)
    return arrays


def _flat(array: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.ravel(array).astype(np.float64)


def _split(flat: npt.NDArray[np.float32], like: Arrays) -> Arrays:
    parts = np.split(flat, np.cumsum([array.size for array in like])[:-1]) if like else []
    return [part.reshape(array.shape) for part, array in zip(parts, like, strict=True)]


def one_bit(message: FlowerMessage, context: Context, train: ClientAppCallable) -> FlowerMessage:
    """A mod for a ClientApp: its answers to training carry signs instead of arrays."""
    start = {name: record for name, record in message.content.items() if isinstance(record, ArrayRecord)}
    reply = train(message, context)
    if reply.has_error() or message.metadata.message_type != "train":
        return reply
    for name, record in list(reply.content.items()):
        if isinstance(record, ArrayRecord) and len(start) == 1:
            (before,) = start.values()
            round = int.from_bytes(message.metadata.group_id.encode()[-8:], "little")  # a number that differs from round to round
            seed = [int(context.node_id) % 2**63, int(context.run_id) % 2**63, round]
            del reply.content[name]
            reply.content[RECORD] = ConfigRecord({"upload": squeeze(_floats(before), _floats(record), seed)})
    return reply


class OneBit(FedAvg):
    """Flower's FedAvg for clients with the mod `one_bit`: all of its arguments apply.

    A reply is averaged, or left out and named in Flower's log; none of them ends the training. How many examples a client has it
    says itself: one that says far more than the others, or more than `max_examples`, is left out (`bifl.deploy.server.members`).
    """

    def __init__(self, *arguments: Any, max_examples: int = 0, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.max_examples = max_examples  # that one client may count for; 0 goes by the others of the round
        self._sent = ArrayRecord()

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[FlowerMessage]:
        """Remember what is sent: answers are changes to it."""
        self._sent = arrays.copy()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[FlowerMessage]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Arrays again, then as ever; what cannot be averaged is left out."""
        return super().aggregate_train(server_round, self._countable(server_round, replies, self._arrays))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[FlowerMessage]) -> MetricRecord | None:
        """As ever; what cannot be averaged is left out."""
        return super().aggregate_evaluate(server_round, self._countable(server_round, replies, lambda content: {}))

    def _countable(
        self, round: int, replies: Iterable[FlowerMessage], read: Callable[[RecordDict], Records]
    ) -> list[FlowerMessage]:
        """The replies that can be averaged with each other, each with what `read` makes of it and one record of metrics."""
        usable: list[tuple[FlowerMessage, Records, dict[str, Any]]] = []
        for reply in replies:
            try:
                if reply.has_error():
                    raise DataError(f"it failed: {quoted(reply.error.reason or '')}")
                usable.append((reply, read(reply.content), _metrics(reply.content, self.weighted_by_key)))
            except Exception as error:  # whatever it is, this reply caused it, and the others need not suffer
                kind = "" if isinstance(error, BiflError) else f"{type(error).__name__}: "
                _leave_out(round, reply, kind + quoted(str(error), 300))
        examples = {place: metrics[self.weighted_by_key] for place, (_, _, metrics) in enumerate(usable)}
        heavy = over(examples, self.max_examples)
        forms = Counter(form for _, _, metrics in usable for form in _forms(metrics))
        public = {form for form, count in forms.items() if 2 * count > len(usable)}  # only what most have can be averaged
        names = {name for name, _ in public}
        countable = []
        for place, (reply, arrays, metrics) in enumerate(usable):
            if place in heavy:
                most = f"one client may count for {heavy[place]:g}; if the number is right, raise max_examples"
                _leave_out(round, reply, f"it says that it has {examples[place]:g} examples, and {most}")
            elif public - _forms(metrics):
                _leave_out(round, reply, "it lacks metrics that most others have")
            else:
                shared = MetricRecord({name: metrics[name] for name in metrics if name in names})
                reply.content = RecordDict({**arrays, METRICS: shared})
                countable.append(reply)
        return countable

    def _arrays(self, content: RecordDict) -> Records:
        record = content.get(RECORD)
        upload = record.get("upload") if isinstance(record, ConfigRecord) else None
        if type(upload) is not bytes:
            raise DataError("it holds no one-bit upload: does its ClientApp have the mod one_bit?")
        arrays = expand(_floats(self._sent), upload)
        named = {name: Array(array) for name, array in zip(self._sent, arrays, strict=True)}
        return {self.arrayrecord_key: ArrayRecord(named)}


def _metrics(content: RecordDict, weight: str) -> dict[str, Any]:
    records = list(content.metric_records.values())
    if len(records) != 1:
        raise DataError(f"it holds {len(records)} records of metrics, not one")
    metrics: dict[str, Any] = dict(records[0])
    for value in metrics.values():
        numbers = value if type(value) is list else [value]
        if not all(type(number) in (int, float) for number in numbers) or not all_below(_LARGEST, numbers):
            raise DataError("a metric is not finite or far too large")
    if type(metrics.get(weight)) not in (int, float) or metrics[weight] <= 0:
        raise DataError(f"its {weight} is no number greater than 0")
    return metrics


def _forms(metrics: Mapping[str, Any]) -> set[tuple[str, int]]:
    """Names and lengths; −1 of a number."""
    return {(name, len(value) if isinstance(value, list) else -1) for name, value in metrics.items()}


def _leave_out(round: int, reply: FlowerMessage, reason: str) -> None:
    say(f"round {round}: node {reply.metadata.src_node_id} left out: {reason}")


def _floats(record: ArrayRecord) -> Arrays:
    return [np.asarray(array.numpy()) for array in record.values()]
