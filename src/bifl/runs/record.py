"""One line of rounds.jsonl: what a round achieved and what it cost."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from enum import StrEnum
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

import numpy as np

from bifl.core import Message, Public, Votes
from bifl.files import parse_json

SURENESS_BINS = 10
LARGEST = 2**63  # of whole numbers: larger ones are not what a round counts


class Ending(StrEnum):
    """Why no round follows a run's last one."""

    ROUNDS = "rounds"  # it has all that it was to have
    BUDGET = "budget"  # another one could cost more than `privacy.budget` leaves


class Record(NamedTuple):
    """A round. Bytes are those of the serialised messages, everything included."""

    round: int
    accuracy: float  # of the global model on the test samples, 0 … 1; NaN where the task has none, or in a round without evaluation
    loss: float  # of the global model on the test samples; NaN in a round without evaluation
    train_loss: float  # mean over the clients' own training, weighted by their images; NaN where `privacy=` has none told
    clients: int  # how many uploaded
    up_bytes: int  # sum over the uploading clients
    down_bytes: int  # sum over the receiving clients: the broadcast, one byte "your ballot was counted", private replies
    broadcast_bytes: int  # one copy
    up_bpp: float  # bits per parameter and uploading client
    down_bpp: float  # bits per parameter and receiving client
    flips: float  # share of the global model's signs that changed since the last round
    seconds: float
    up_ideal_bpp: float | None = None  # up_bpp if symbols took their empirical conditional entropy; None where none were coded
    down_ideal_bpp: float | None = None
    clients_mean: float | None = None  # the task's first metric on what each client holds out: mean over the clients,
    clients_p10: float | None = None  # the level that nine in ten clients reach,
    clients_worst: float | None = None  # and the worst client's
    refused: int = 0  # uploads that could not be counted: damaged, of another round or model, late, or a second one
    missing: int = 0  # clients that were asked and did not answer in time, or with an error
    catch_up_bytes: int = 0  # sent on top of the broadcasts to clients that had missed some; part of down_bytes
    layer_flips: dict[str, float] | None = None  # flips of each coded layer; None in records of earlier versions
    sureness: list[float] | None = None  # share of weights by |W̃|, in tenths from 0 (split) to 1 (unanimous); None without votes
    metrics: dict[str, float] | None = None  # of the task, its main one first; None without evaluation and in old records
    epsilon: float | None = None  # ε spent so far, of one client's data (docs/privacy.md); None where none is accounted
    delta: float | None = None  # δ of this ε
    report: dict[str, float] | None = None  # what an exchange reports that is held instead of training
    validated: int | None = None  # validation samples that accuracy, loss and metrics are of; None where they are of test samples
    ending: Ending | None = None  # why the run ended with this round before it had all rounds; it may have been continued

    @property
    def evaluated(self) -> bool:
        """Whether the global model was evaluated in this round (`evaluate_every`)."""
        return self.metrics is not None or not math.isnan(self.loss)

    @property
    def measure(self) -> str:
        """The name of the task's first metric, which tables and pictures show."""
        return next(iter(self.metrics)) if self.metrics else "accuracy"

    @property
    def named(self) -> str:
        """The same for people, who must not take what was measured on validation samples for a result on test samples."""
        return self.measure if self.validated is None else f"validation {self.measure}"

    @property
    def score(self) -> float:
        """That metric on what the model is evaluated on: higher is better, 1 is perfect. NaN in a round without evaluation."""
        return self.metrics[self.measure] if self.metrics else self.accuracy

    def to_json(self) -> str:
        """One line, without the newline."""
        return json.dumps(self.fields())

    def fields(self) -> dict[str, Any]:
        """The numbers by name; what a round without evaluation does not know is None."""
        fields = self._asdict() if self.evaluated else self._asdict() | dict.fromkeys(_EVALUATED)
        return {name: value for name, value in fields.items() if value is not None or name not in _SELDOM}

    def numbers(self) -> dict[str, float]:
        """Every number by name; nothing of an evaluation that there was not, and `validation_accuracy` where it is no test's."""
        flat = {name: value for name, value in self.fields().items() if isinstance(value, (int, float)) and name not in _NO_NUMBERS}
        flat |= {name: value for name, value in (self.metrics or {}).items() if name not in self._fields}
        if self.validated is not None:
            of_samples = {"accuracy", "loss", *(self.metrics or {})}
            flat = {f"validation_{name}" if name in of_samples else name: value for name, value in flat.items()}
        flat |= {f"flips/{layer}": share for layer, share in (self.layer_flips or {}).items()}
        return flat | {f"sureness/{place / SURENESS_BINS}": share for place, share in enumerate(self.sureness or ())}

    @classmethod
    def from_json(cls, line: str) -> Record:
        """Read such a line; keys of later versions are passed over."""
        values: dict[str, Any] = parse_json(line)
        known = {name: values[name] for name in cls._fields if name in values or name not in cls._field_defaults}
        if all(known.get(name) is None for name in _EVALUATED):
            known |= dict.fromkeys(_EVALUATED, math.nan) | {"metrics": None}
        for name, value in known.items():
            if not _fits(value, _KINDS[name]):
                raise ValueError(f"{name} is {value!r:.40}")
        ending = None if known.get("ending") is None else Ending(known["ending"])
        return cls(**known | {"ending": ending})


_KINDS = get_type_hints(Record)
_EVALUATED = ("accuracy", "loss", "metrics")  # what only an evaluation tells
_NO_NUMBERS = ("round", "validated")  # what a round is called, and what is the same in all
_SELDOM = ("report", "validated", "ending")  # what most records do not have


def tested(records: Sequence[Record]) -> list[Record]:
    """Those rounds of a run that were evaluated; all if none was."""
    return [record for record in records if record.evaluated] or list(records)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value from JSON is of the kind that a field of `Record` is annotated with."""
    if value is None:
        return NoneType in get_args(kind)
    if isinstance(value, dict):
        return kind == dict[str, float] | None and all(_fits(number, float) for number in value.values())
    if isinstance(value, list):
        return kind == list[float] | None and all(_fits(number, float) for number in value)
    if isinstance(value, str):
        return kind == Ending | None and value in set(Ending)
    whole = type(value) is int and abs(value) < LARGEST
    return whole if kind in (int, int | None) else (whole or type(value) is float) and kind in (float, float | None)


class Traffic(NamedTuple):
    """The bytes of a round, as sent."""

    uploads: int
    up_bytes: int
    receivers: int
    broadcast_bytes: int
    up_ideal: float | None = None  # bytes, if the coder were ideal
    broadcast_ideal: float | None = None
    catch_up: int = 0  # to those who had missed broadcasts
    private_replies: int = 0  # to single clients

    def plus(self, up_bytes: int, broadcast_bytes: int) -> Traffic:
        """With an exchange of real numbers on top."""
        up_ideal = None if self.up_ideal is None else self.up_ideal + up_bytes
        down_ideal = None if self.broadcast_ideal is None else self.broadcast_ideal + broadcast_bytes
        up, down = self.up_bytes + up_bytes, self.broadcast_bytes + broadcast_bytes
        return self._replace(up_bytes=up, broadcast_bytes=down, up_ideal=up_ideal, broadcast_ideal=down_ideal)

    def fields(self, parameters: int) -> dict[str, Any]:
        """The record's fields about bytes. `parameters` is what "bits per parameter" divides by."""
        receivers = max(self.receivers, 1)  # in a deployment all may have gone by now
        to_single_clients = self.catch_up + self.private_replies
        down_bytes = receivers * (self.broadcast_bytes + 1) + to_single_clients if self.broadcast_bytes else 0
        return {
            "clients": self.uploads,
            "up_bytes": self.up_bytes,
            "down_bytes": down_bytes,
            "broadcast_bytes": self.broadcast_bytes,
            "up_bpp": 8 * self.up_bytes / (self.uploads * parameters),
            "down_bpp": 8 * down_bytes / (receivers * parameters),
            "up_ideal_bpp": None if self.up_ideal is None else 8 * self.up_ideal / (self.uploads * parameters),
            "down_ideal_bpp": None if self.broadcast_ideal is None else 8 * (self.broadcast_ideal + 1) / parameters,
            "catch_up_bytes": self.catch_up,
        }


def spread(accuracies: list[float]) -> dict[str, Any]:
    """The record's fields about clients."""
    if not accuracies:
        return {}
    low, mean = float(np.percentile(accuracies, 10)), float(np.mean(accuracies))
    return {"clients_mean": mean, "clients_p10": low, "clients_worst": min(accuracies)}


def flips(before: Public, after: Public) -> tuple[float, dict[str, float]]:
    """The share of signs that differ, and that of each coded layer, in four digits: a line of rounds.jsonl stays short."""
    changed = (before.weights > 0) != (after.weights > 0)
    layers = zip(after.layout.layers, after.layout.layer_parts(changed), strict=True)
    return float(np.mean(changed)), {name: float(f"{part.mean():.4g}") for name, part in layers}


def sureness(news: Message) -> list[float] | None:
    """How sure the clients are: a histogram of |W̃| over the weights, where the broadcast tells the votes."""
    if not isinstance(news.update.alphabet, Votes):
        return None
    total = news.update.alphabet.total
    margins = np.abs(
        2 * news.update.symbols.astype(np.int64) - total
    )  # |W̃|·total, an integer: no platform rounds it into another bin
    bins = np.minimum(SURENESS_BINS * margins // total, SURENESS_BINS - 1)
    shares = np.bincount(bins, minlength=SURENESS_BINS) / len(bins)
    return [round(float(share), 4) for share in shares]
