"""The public state between server and clients: who knows what, and the fewest bytes that bring a client up to date.

Every broadcast and every exchange of statistics leads from one public state to the next. A digest names each. The server keeps the
last few steps: a client that knows where one of them begins gets the steps since. For anyone else there is the whole state in
messages that can be read without a context.

The state before the first round is computed from the seed by everyone, but PyTorch rounds random numbers differently on different
processors. The digest shows it, and such a client is sent the server's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bifl import wire
from bifl.algorithm import BINARY, FLOAT32, Algorithm, Message, Schedule, Shared, absorb
from bifl.experiment import Experiment
from bifl.layout import Layout
from bifl.runtime import calibration
from bifl.wire.context import NO_DIGEST

BROADCAST, STATISTICS = "broadcast", "statistics"
_STEPS = 4  # that are remembered: two rounds
_NEWS, _BEFORE, _STATISTICS, _MODEL = WHOLE = ("news", "before", "statistics", "model")  # messages that tell a whole state
_NO_SYMBOLS = np.zeros(0, np.uint8)


def digest(shared: Shared, experiment: Experiment) -> str:
    """16 letters that differ where the public state differs, as far as anyone will use it."""
    state = hashlib.sha256(f"{shared.layout.fingerprint} {shared.seed} {shared.round}".encode())
    for vector in (shared.weights, shared.real, shared.scales):
        state.update(np.ascontiguousarray(vector, "<f4").tobytes())
    for message in (shared.news, shared.before if experiment.in_context() else None):
        state.update(b"-" if message is None else wire.encode(message))
    return state.hexdigest()[:16]


class Step(NamedTuple):
    """From one public state to the next."""

    start: str  # digest of the state that it is a message to
    kind: str  # BROADCAST or STATISTICS
    round: int
    data: bytes


class Update(NamedTuple):
    """What a client is sent before it does anything else: steps, or, where those do not reach it, the whole state."""

    target: str  # digest of the state that the client is to have then
    steps: tuple[Step, ...] = ()
    whole: Mapping[str, bytes] | None = None

    def size(self) -> int:
        """In bytes."""
        return _size(self.whole or {}) + sum(len(step.data) for step in self.steps)


def _size(said: Mapping[str, bytes]) -> int:
    return sum(map(len, said.values()))


class Journal:
    """The server's memory of the last steps."""

    def __init__(self, experiment: Experiment, algorithm: Algorithm | Schedule, fresh: Shared, shared: Shared) -> None:
        self._experiment, self._algorithm, self._fresh = experiment, algorithm, fresh
        self._steps: list[Step] = []
        self._sent = b""  # the last broadcast
        self._at(shared)

    def _at(self, shared: Shared) -> None:
        self.shared, self.digest = shared, digest(shared, self._experiment)
        self._whole: Mapping[str, bytes] | None = None

    def add(self, kind: str, data: bytes, after: Shared) -> None:
        """Another step, which leads to the state `after`."""
        self._sent = data if kind == BROADCAST else self._sent
        self._steps = [*self._steps, Step(self.digest, kind, after.round, data)][-_STEPS:]
        self._at(after)

    def extra(self, update: Update, told: bool) -> int:
        """Bytes of an update on top of the round's own messages, which count for every client that was `told` of them."""
        own = [step.data for step in self._steps if step.round == self.shared.round] if told else []
        regular = all(step.round == self.shared.round for step in update.steps) and update.whole is None
        return 0 if regular and told else max(0, update.size() - sum(map(len, own)))

    def update(self, known: str) -> Update:
        """What brings a client up to date that knows the state of this digest."""
        if known == self.digest:
            return Update(self.digest)
        starts = [step.start for step in self._steps]
        steps = tuple(self._steps[starts.index(known) :]) if known in starts else ()
        if steps and steps[0].round == self.shared.round:
            return Update(self.digest, steps)
        if self._whole is None:
            self._whole = whole(self.shared, self._experiment, self._algorithm, self._fresh, self._sent)
        if steps and sum(len(step.data) for step in steps) <= _size(self._whole):
            return Update(self.digest, steps)
        return Update(self.digest, whole=self._whole)


def whole(
    shared: Shared, experiment: Experiment, algorithm: Algorithm | Schedule, fresh: Shared, sent: bytes = b""
) -> dict[str, bytes]:
    """The public state in messages that need no context, exactly: the last broadcasts, and what they do not tell.

    The last broadcast as it was `sent` will do, if that was without context.
    """
    model = Message(shared.weights, FLOAT32, shared.real, shared.scales, round=shared.round)
    all_of_it = {_MODEL: wire.encode(model, wire.Context(shared.layout, shared.round))}
    if shared.news is None:
        return all_of_it
    if not sent or wire.read_header(sent).context != NO_DIGEST:
        sent = wire.encode(shared.news, wire.Context(shared.layout, shared.round))
    said = {_NEWS: sent}
    if shared.before is not None and experiment.in_context():  # both together are the context of the next messages
        said[_BEFORE] = wire.encode(shared.before, wire.Context(shared.layout, shared.before.round))
    moments = Message(_NO_SYMBOLS, BINARY, shared.real[shared.layout.trained :], round=shared.round)
    statistics = {_STATISTICS: wire.encode(moments, wire.Context(shared.layout.statistics, shared.round))}
    target = digest(shared, experiment)
    # the reader's own initial weights may be rounded differently: the messages must do without them
    blank = fresh._replace(weights=np.zeros_like(fresh.weights), real=np.zeros_like(fresh.real))
    for more in ({}, statistics):
        if digest(restored(said | more, algorithm, blank), experiment) == target:
            return said | more
    return said | all_of_it  # an algorithm whose model is more than its last broadcast


def restored(said: Mapping[str, bytes], algorithm: Algorithm | Schedule, fresh: Shared) -> Shared:
    """The public state from such messages.

    Args:
        said: the messages.
        algorithm: of the experiment.
        fresh: the public state before the first round, as computed here.

    Raises:
        WireError: a message is not one, or for another model.
    """
    read = {name: _read(name, data, fresh.layout) for name, data in said.items()}
    shared = fresh
    if _NEWS in read:
        shared = absorb(algorithm, fresh._replace(news=read.get(_BEFORE)), read[_NEWS])
    if _STATISTICS in read:
        shared = calibration.settled(shared, read[_STATISTICS])
    if _MODEL in read:
        model = read[_MODEL]
        shared = shared._replace(weights=model.symbols, real=model.real, scales=model.scales)
    return shared


def _read(name: str, data: bytes, layout: Layout) -> Message:
    return wire.decode(data, wire.Context(layout.statistics if name == _STATISTICS else layout, wire.read_header(data).round))
