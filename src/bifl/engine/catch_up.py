"""Who knows which public state, and the fewest bytes that bring a client up to date.

Every broadcast leads from one public state to the next, and every state has a name. The server keeps the last few steps: a client
that knows where one of them begins gets the steps since. Where clients sleep it keeps as many as are no longer than the model. For
anyone else there is the whole state in messages that can be read without a context: nobody ever downloads more than that.

The state before the first round is computed from the seed by everyone, but PyTorch rounds random numbers differently on different
processors. In a deployment states are named by their digests, which show it, and such a client is sent the server's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bifl import codec
from bifl.codec.context import NO_DIGEST
from bifl.codec.format import state_digest
from bifl.core.message import FLOAT32, UPDATE, Message, Vector
from bifl.core.state import Public
from bifl.exchanges.exchange import Exchange, completing, last_telling

if TYPE_CHECKING:
    from bifl.experiment.run import Run

_ROUNDS = 2  # whose steps are remembered at least
MOST_STEPS = 64
BEFORE, MODEL = "before", "model"  # messages that tell a whole state, beside the last one of every exchange


def digest(public: Public, in_context: bool) -> str:
    """16 letters that differ where the public state differs, as far as anyone will use it: `in_context` to code messages."""
    return state_digest(public, (public.news, public.before if in_context else None)).hex()[:16]


class Step(NamedTuple):
    """From one public state to the next."""

    start: str  # name of the state that it is a message to
    exchange: str  # whose broadcast it is
    round: int
    data: bytes


class Update(NamedTuple):
    """What a client is sent before it does anything else: steps, or, where those do not reach it, the whole state."""

    target: str  # name of the state that the client is to have then
    steps: tuple[Step, ...] = ()
    whole: Mapping[str, bytes] | None = None

    def size(self) -> int:
        """In bytes."""
        return _size(self.whole or {}) + sum(len(step.data) for step in self.steps)


def _size(messages: Mapping[str, bytes]) -> int:
    return sum(map(len, messages.values()))


class Journal:
    """The server's memory of the last steps; it counts the bytes to clients that had missed some.

    Args:
        run: what is run.
        public: the public state as it stands.
        steps: the last ones, if the run was continued.
        name_of: names a state, given the state and the exchange that led to it.
        told: clients for which the last broadcast was counted.

    Attributes:
        public: the state as it stands.
        name: of that state.
        steps: the last ones.
    """

    def __init__(
        self, run: Run, public: Public, steps: tuple[Step, ...], name_of: Callable[[Public, str], str], told: Collection[int] = ()
    ) -> None:
        self.steps = steps
        self._run, self._name_of, self._told, self._missed = run, name_of, told, 0
        self._least = _ROUNDS * sum(exchange.tells for exchange in run.exchanges)
        self._largest = 4 * ((1 + len(public.vectors)) * public.layout.count + public.layout.reals)
        self._sent = {step.exchange: step.data for step in steps}  # the last broadcast of every exchange
        self._stand_at(public, last_telling(run.exchanges).name)

    def _stand_at(self, public: Public, exchange: str) -> None:
        self.public, self.name = public, self._name_of(public, exchange)
        self._whole: Mapping[str, bytes] | None = None

    def add(self, exchange: str, data: bytes, after: Public, told: Collection[int]) -> None:
        """Another step, which leads to the state `after` and counts for those who are told of it."""
        self._sent[exchange], self._told = data, frozenset(told)
        self.steps = self._worth_keeping([*self.steps, Step(self.name, exchange, after.round, data)])
        self._stand_at(after, exchange)

    def _worth_keeping(self, steps: list[Step]) -> tuple[Step, ...]:
        """The last steps: those of two rounds, and of more where clients sleep, as long as the model itself is not shorter."""
        size = sum(len(step.data) for step in steps)
        while len(steps) > self._least and (self._run.idle_trains or size > self._largest or len(steps) > MOST_STEPS):
            size -= len(steps.pop(0).data)
        return tuple(steps)

    def send(self, number: int, known: str) -> Update:
        """What brings a client up to date that knows the state of this name.

        Its bytes count, but for the round's own messages, which count for every client that was told of them.
        """
        update, told = self.update(known), number in self._told
        regular = all(step.round == self.public.round for step in update.steps) and update.whole is None
        if not (regular and told):
            counted = [step.data for step in self.steps if step.round == self.public.round] if told else []
            self._missed += max(0, update.size() - sum(map(len, counted)))
        return update

    def settle(self) -> int:
        """The bytes since the last call to clients that had missed broadcasts."""
        missed, self._missed = self._missed, 0
        return missed

    def update(self, known: str) -> Update:
        """What brings a client up to date that knows the state of this name."""
        if known == self.name:
            return Update(self.name)
        starts = [step.start for step in self.steps]
        steps = tuple(self.steps[starts.index(known) :]) if known in starts else ()
        if steps and steps[0].round == self.public.round:
            return Update(self.name, steps)
        if self._whole is None:
            self._whole = whole(self.public, self._run.exchanges, self._run.fresh, self._run.in_context, self._sent)
        if steps and sum(len(step.data) for step in steps) <= _size(self._whole):
            return Update(self.name, steps)
        return Update(self.name, whole=self._whole)


def whole(
    public: Public, exchanges: Sequence[Exchange], fresh: Public, in_context: bool, sent: Mapping[str, bytes]
) -> dict[str, bytes]:
    """The public state in messages that need no context, exactly: the last broadcasts, and what they do not tell.

    A broadcast as it was `sent` will do, if that was without context.
    """
    ballot = completing(exchanges)
    if public.news is None:
        return _model(public)
    messages: dict[str, bytes] = {}
    if public.before is not None and in_context:  # both together are the context of the next messages
        messages[BEFORE] = codec.encode(public.before, ballot.plain(public, public.before.round))
    # the reader's own initial weights may be rounded differently: the messages must do without them
    blank = fresh._replace(weights=np.zeros_like(fresh.weights), real=np.zeros_like(fresh.real))
    for exchange in exchanges:
        message, data = exchange.repeat(public), sent.get(exchange.name, b"")
        if message is None:
            continue
        if not data or codec.read_header(data).context != NO_DIGEST or exchange is not ballot:
            data = codec.encode(message, exchange.plain(public, message.round))
        messages[exchange.name] = data
        if _same_model(restored(messages, exchanges, blank), public):
            return messages
    completed = {name: data for name, data in messages.items() if name in (BEFORE, ballot.name)}
    return completed | _model(public)  # not the last broadcast alone


def _same_model(one: Public, other: Public) -> bool:
    """Whether two states differ in no bit, given that their broadcasts are the same."""
    first, second = (
        [state.weights, state.real, state.scales, *(state.vectors[name] for name in sorted(one.vectors))] for state in (one, other)
    )
    return all(ours.tobytes() == theirs.tobytes() for ours, theirs in zip(first, second, strict=True))


def _model(public: Public) -> dict[str, bytes]:
    """The numbers themselves."""
    vectors = {name: Vector(values, FLOAT32) for name, values in public.vectors.items()}
    model = Message.of(public.weights, FLOAT32, public.real, public.scales, round=public.round).with_vectors(vectors)
    return {MODEL: codec.encode(model, codec.Context(public.layout, public.round))}


def restored(messages: Mapping[str, bytes], exchanges: Sequence[Exchange], fresh: Public) -> Public:
    """The public state from such messages; `fresh` is the one before the first round, as computed here.

    Raises:
        WireError: a message is not one, or for another model.
    """
    public = fresh
    if BEFORE in messages:
        public = public._replace(news=_read(messages[BEFORE], completing(exchanges), fresh))
    for exchange in exchanges:
        if exchange.name in messages:
            public = exchange.advance(public, _read(messages[exchange.name], exchange, fresh))
    if MODEL in messages:
        names = dict.fromkeys((UPDATE, *fresh.vectors))
        context = codec.Context(fresh.layout, codec.read_header(messages[MODEL]).round, selects=lambda sender: names)
        model = codec.decode(messages[MODEL], context)
        vectors = {name: model.vectors[name].values() for name in fresh.vectors}
        public = public._replace(
            weights=model.update.values(), real=model.real, scales=model.update.scales, round=model.round, vectors=vectors
        )
    return public


def _read(data: bytes, exchange: Exchange, fresh: Public) -> Message:
    return codec.decode(data, exchange.plain(fresh, codec.read_header(data).round))
