"""Who knows which public state, and the fewest bytes that bring a client up to date.

Every broadcast leads from one public state to the next, and every state has a name. The server keeps the last few steps: a client
that knows where one of them begins gets the steps since. Where clients sleep it keeps as many as are no longer than the model. For
anyone else there is the whole state in messages that can be read without a context: nobody ever downloads more than that.

The state before the first round is computed from the seed by everyone, but PyTorch rounds random numbers differently on different
processors. In a deployment states are named by their digests, which show it, and such a client is sent the server's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bifl import codec
from bifl.codec.context import NO_DIGEST
from bifl.codec.state_digest import state_digest
from bifl.core.message import FLOAT32, UPDATE, Floats, Message, Vector
from bifl.core.state import Public
from bifl.exchanges.exchange import Exchange, completing, last_telling

_ROUNDS = 2  # whose steps are remembered at least
MOST_STEPS = 64
BEFORE, MODEL = "before", "model"  # messages that tell a whole state, beside the last one of every exchange


def digest(public: Public, in_context: bool) -> str:
    """16 letters that differ where the public state differs, as far as anyone will use it.

    Args:
        public: the state.
        in_context: whether the broadcast before the last is used, to code messages.
    """
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


def _size(said: Mapping[str, bytes]) -> int:
    return sum(map(len, said.values()))


class Journal:
    """The server's memory of the last steps.

    Args:
        exchanges: of a round.
        fresh: the public state before the first round.
        public: the public state as it stands.
        steps: the last ones, if the run was continued.
        in_context: whether messages are coded in what both ends know.
        sleepers: whether clients miss broadcasts as a rule.
        name: of a state, given the state and the exchange that led to it.

    Attributes:
        name: of the state as it stands.
        steps: the last ones.
    """

    def __init__(
        self, exchanges: Sequence[Exchange], fresh: Public, public: Public, steps: tuple[Step, ...], in_context: bool,
        sleepers: bool, name: Callable[[Public, str], str],
    ) -> None:  # fmt: skip
        self._exchanges, self._telling = exchanges, sum(exchange.tells for exchange in exchanges)
        self._fresh, self._in_context, self._named = fresh, in_context, name
        self.steps = steps
        self._sleepers, self._largest = sleepers, 4 * ((1 + len(public.vectors)) * public.layout.count + public.layout.reals)
        self._sent = {step.exchange: step.data for step in steps}  # the last broadcast of every exchange
        self._at(public, last_telling(exchanges).name)

    def _at(self, public: Public, exchange: str) -> None:
        self.public, self.name = public, self._named(public, exchange)
        self._whole: Mapping[str, bytes] | None = None

    def add(self, exchange: str, data: bytes, after: Public) -> None:
        """Another step, which leads to the state `after`."""
        self._sent[exchange] = data
        self.steps = self._worth_keeping([*self.steps, Step(self.name, exchange, after.round, data)])
        self._at(after, exchange)

    def _worth_keeping(self, steps: list[Step]) -> tuple[Step, ...]:
        """The last steps: those of two rounds, and of more where clients sleep, as long as the model itself is not shorter."""
        least, size = _ROUNDS * self._telling, sum(len(step.data) for step in steps)
        while len(steps) > least and (not self._sleepers or size > self._largest or len(steps) > MOST_STEPS):
            size -= len(steps.pop(0).data)
        return tuple(steps)

    def extra(self, update: Update, told: bool) -> int:
        """Bytes of an update on top of the round's own messages, which count for every client that was `told` of them."""
        own = [step.data for step in self.steps if step.round == self.public.round] if told else []
        regular = all(step.round == self.public.round for step in update.steps) and update.whole is None
        return 0 if regular and told else max(0, update.size() - sum(map(len, own)))

    def update(self, known: str) -> Update:
        """What brings a client up to date that knows the state of this name."""
        if known == self.name:
            return Update(self.name)
        starts = [step.start for step in self.steps]
        steps = tuple(self.steps[starts.index(known) :]) if known in starts else ()
        if steps and steps[0].round == self.public.round:
            return Update(self.name, steps)
        if self._whole is None:
            self._whole = whole(self.public, self._exchanges, self._fresh, self._in_context, self._sent)
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
    said: dict[str, bytes] = {}
    if public.before is not None and in_context:  # both together are the context of the next messages
        said[BEFORE] = codec.encode(public.before, ballot.plain(public, public.before.round))
    # the reader's own initial weights may be rounded differently: the messages must do without them
    blank = fresh._replace(weights=np.zeros_like(fresh.weights), real=np.zeros_like(fresh.real))
    for exchange in exchanges:
        message, data = exchange.repeat(public), sent.get(exchange.name, b"")
        if message is None:
            continue
        if not data or codec.read_header(data).context != NO_DIGEST or exchange is not ballot:
            data = codec.encode(message, exchange.plain(public, message.round))
        said[exchange.name] = data
        if _same_model(restored(said, exchanges, blank), public):
            return said
    return {name: data for name, data in said.items() if name in (BEFORE, ballot.name)} | _model(
        public
    )  # not the last broadcast alone


def _same_model(one: Public, other: Public) -> bool:
    """Whether two states differ in no bit, given that their broadcasts are the same."""
    first, second = ([state.weights, state.real, state.scales, *_further(state)] for state in (one, other))
    return all(ours.tobytes() == theirs.tobytes() for ours, theirs in zip(first, second, strict=True))


def _further(public: Public) -> list[Floats]:
    return [vector for _, vector in sorted(public.vectors.items())]


def _model(public: Public) -> dict[str, bytes]:
    """The numbers themselves."""
    vectors = {name: Vector(values, FLOAT32) for name, values in public.vectors.items()}
    model = Message.of(public.weights, FLOAT32, public.real, public.scales, round=public.round).with_vectors(vectors)
    return {MODEL: codec.encode(model, codec.Context(public.layout, public.round))}


def restored(said: Mapping[str, bytes], exchanges: Sequence[Exchange], fresh: Public) -> Public:
    """The public state from such messages.

    Args:
        said: the messages.
        exchanges: of a round.
        fresh: the public state before the first round, as computed here.

    Raises:
        WireError: a message is not one, or for another model.
    """
    public = fresh
    if BEFORE in said:
        public = public._replace(news=_read(said[BEFORE], completing(exchanges), fresh))
    for exchange in exchanges:
        if exchange.name in said:
            public = exchange.advance(public, _read(said[exchange.name], exchange, fresh))
    if MODEL in said:
        names = dict.fromkeys((UPDATE, *fresh.vectors))
        context = codec.Context(fresh.layout, codec.read_header(said[MODEL]).round, selects=lambda sender: names)
        model = codec.decode(said[MODEL], context)
        vectors = {name: model.vectors[name].values() for name in fresh.vectors}
        public = public._replace(
            weights=model.update.values(), real=model.real, scales=model.update.scales, round=model.round, vectors=vectors
        )
    return public


def _read(data: bytes, exchange: Exchange, fresh: Public) -> Message:
    return codec.decode(data, exchange.plain(fresh, codec.read_header(data).round))
