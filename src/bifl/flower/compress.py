"""Only the one-bit uploads, for a Flower app with a network, training and strategy of its own.

A client sends, instead of its arrays, the signs of what training changed, dithered: noise as wide as 1.5 times the mean change of
each array makes the sign right on average, so that the mean over the clients estimates the mean change. Nothing is kept between
rounds.

    app = ClientApp(mods=[one_bit])                     # client: and train as before
    strategy = OneBit(fraction_train=1.0)               # server: FedAvg with one-bit uploads
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.app import Message as Letter
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from bifl import wire
from bifl.message import BINARY, NOTHING, Message

RECORD = "bifl-one-bit"
WIDTH = 1.5  # of the noise, in mean changes
Arrays = list[npt.NDArray[Any]]


def squeeze(start: Arrays, end: Arrays, seed: list[int]) -> bytes:
    """What training changed, as one message: a sign per number, a width per array; vectors (biases, batch-norm) as they are."""
    changes = [_flat(after) - _flat(before) for before, after in zip(start, end, strict=True) if after.ndim > 1]
    widths = np.array([WIDTH * np.abs(change).mean() for change in changes], np.float32)
    noise = np.random.default_rng(seed)
    signs = [change + noise.uniform(-width, width, change.size) > 0 for change, width in zip(changes, widths, strict=True)]
    real = [_flat(array) for array in end if array.ndim <= 1]
    symbols = np.concatenate([np.zeros(0, np.bool_), *signs]).astype(np.uint8)
    return wire.encode(Message(symbols, BINARY, np.concatenate([NOTHING, *real]).astype(np.float32), widths, sender=0))


def expand(start: Arrays, data: bytes) -> Arrays:
    """An estimate of the arrays after training; right on average where no change is larger than the noise.

    Raises:
        WireError: the message is damaged, or for other arrays.
    """
    coded, exact = [array for array in start if array.ndim > 1], [array for array in start if array.ndim <= 1]
    message = wire.decode(data, expect=sum(array.size for array in coded))
    if (len(message.scales), len(message.real)) != (len(coded), sum(array.size for array in exact)):
        raise wire.WireError(52, f"has {len(message.scales)} widths and {len(message.real)} real numbers: these are other arrays")
    signs, reals = iter(_split(message.values(), coded)), iter(_split(message.real, exact))
    widths = iter(message.scales)
    new = [array + next(widths) * next(signs) if array.ndim > 1 else next(reals) for array in start]
    return [after.astype(before.dtype) for before, after in zip(start, new, strict=True)]


def _flat(array: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.ravel(array).astype(np.float64)


def _split(flat: npt.NDArray[np.float32], like: Arrays) -> Arrays:
    parts = np.split(flat, np.cumsum([array.size for array in like])[:-1]) if like else []
    return [part.reshape(array.shape) for part, array in zip(parts, like, strict=True)]


def one_bit(message: Letter, context: Context, train: ClientAppCallable) -> Letter:
    """A mod for a ClientApp: its answers to training carry signs instead of arrays."""
    start = {name: record for name, record in message.content.items() if isinstance(record, ArrayRecord)}
    reply = train(message, context)
    if reply.has_error() or message.metadata.message_type != "train":
        return reply
    for name, record in list(reply.content.items()):
        if isinstance(record, ArrayRecord) and len(start) == 1:
            (before,) = start.values()
            seed = [int(context.node_id) % 2**63, int(context.run_id) % 2**63, hash_of(message.metadata.group_id)]
            del reply.content[name]
            reply.content[RECORD] = ConfigRecord({"upload": squeeze(_floats(before), _floats(record), seed)})
    return reply


def hash_of(text: str) -> int:
    """A number that differs from round to round."""
    return int.from_bytes(text.encode()[-8:], "little")


class OneBit(FedAvg):
    """Flower's FedAvg for clients with the mod `one_bit`: all of its arguments apply."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Letter]:
        """Remember what is sent: answers are changes to it."""
        self._sent = arrays.copy()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Letter]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Arrays again, then as ever; what cannot be read is left out."""
        return super().aggregate_train(server_round, list(self._expanded(replies)))

    def _expanded(self, replies: Iterable[Letter]) -> Iterator[Letter]:
        for reply in replies:
            record = None if reply.has_error() else reply.content.pop(RECORD, None)
            if isinstance(record, ConfigRecord):
                try:
                    arrays = expand(_floats(self._sent), bytes(record["upload"]))  # type: ignore[arg-type]
                except (wire.WireError, KeyError, TypeError):
                    continue
                reply.content[self.arrayrecord_key] = ArrayRecord(
                    {name: Array(array) for name, array in zip(self._sent, arrays, strict=True)}
                )
            yield reply


def _floats(record: ArrayRecord) -> Arrays:
    return [np.asarray(array.numpy()) for array in record.values()]
