"""The idea of the project: an algorithm is a record of a few small pure functions.

What a client **uploads**, what the server **broadcasts**, what everyone **absorbs** (the public state) and what a client
**updates** in private. Where it runs (simulator, readable loop, deployment) makes no difference to it.

>>> import bifl.algorithms
>>> from bifl.core import register
>>> register.parameters("biml")
{'alpha': 1.25}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from bifl.core.forward import FORWARDS, PLAIN, Forward, Local, binary
from bifl.core.message import LONGEST_NAME, MOST_VECTORS, UPDATE, Alphabet, Floats, Message, Selections, Vector, is_name
from bifl.core.state import Client, Public, Sent, Server
from bifl.core.sums import Tally
from bifl.errors import AlgorithmError, ConfigError
from bifl.registry import Registry

WEIGHTS = "weights"  # what an upload may be declared to be
VOTES = "votes"  # what a broadcast may be declared to be


def take_over(public: Public, news: Message) -> Public:
    """The usual `absorb`: the broadcast is the model, and all further public vectors."""
    others = {name: vector.values() for name, vector in news.vectors.items() if name != UPDATE}
    return public._replace(
        weights=news.update.values(), real=news.real, scales=news.update.scales, vectors={**public.vectors, **others}
    )


def as_it_is(upload: Message, public: Public) -> Message:
    """The usual `reads`: the symbols are the numbers that they stand for."""
    return upload


Upload = Callable[[Client, Public], Message | Sent]
Broadcast = Callable[[Tally, Public, Server], Message | Sent]
Update = Callable[[Client, Public, Message], Client]
Absorb = Callable[[Public, Message], Public]
Reads = Callable[[Message, Public], Message]
Selects = Callable[[Public, int | None], Selections]


def in_full(*names: str) -> Selects:
    """A `selects`: messages both ways have these vectors, each with a symbol for every weight, in order."""
    selections = dict.fromkeys(names)
    return lambda public, sender: selections


update_alone = in_full(UPDATE)


_KEPT = ("aux", "start", "scales", "memory")


@dataclass(frozen=True)
class Algorithm:
    """A row of the paper's table: pure functions, and what others need to know of them (docs/adding-an-algorithm.md).

    `upload` and `broadcast` may return `Sent(message, memory)` to keep something in `client.memory` or `server.memory`.
    """

    upload: Upload  # what a client says after training
    broadcast: Broadcast  # what the server says of the tally
    update: Update  # the client's private reaction to the news; `public` has absorbed them already
    absorb: Absorb = take_over  # everyone's public reaction to the news
    reads: Reads = as_it_is  # what an upload stands for, before it is added to the others: un-rotated, times its own scale …
    aggregate: Callable[[Sequence[Message], Public], Tally] | None = None  # for sums that are no mean: sees all uploads at once
    # the names of a message's vectors, and what the symbols of each are about: None for all weights, in order. The sender is None
    # for the broadcast. It may use the public seed, round, layout and streams, nothing else
    selects: Selects = update_alone
    local: Callable[[Client, Public], Local] | None = None  # what every step of training adds to its gradient or its loss
    forward: Forward = binary  # which weights the network computes with, given aux
    central: bool = False  # one client holds all the data and nothing is sent (the paper's upper bounds)
    keeps: tuple[str, ...] = _KEPT  # all that is remembered of a client's last round: what many clients cost in memory
    validation: float = 0.0  # the share of the training samples that the server holds out, before dealing, for its judge
    uploads: str = ""  # WEIGHTS where an upload is the client's weights as they are: `privacy=` needs that
    broadcasts: str = ""  # VOTES where a broadcast counts positive votes: some robust sums need that
    plain_steps: bool = False  # clients must train by plain gradient descent: `upload` divides by `client.steps` and `client.rate`
    mirrors: bool = False  # the server keeps the mean of what all clients remember: each counts once, and none may forget
    exchanges: tuple[tuple[str, Mapping[str, Any]], ...] = ()  # that follow its ballot: (("personal", {"pull": 1.0}),)
    name: str = "of this run"  # under which it is registered; filled in

    def __post_init__(self) -> None:
        if not isinstance(self.keeps, tuple) or not set(self.keeps) <= set(_KEPT):
            raise AlgorithmError(f"keeps is {self.keeps!r}; it must be a tuple of {', '.join(_KEPT)}: keeps=('aux',)")

    @property
    def parts(self) -> tuple[Algorithm, ...]:
        """Itself, as one that never changes (`Schedule` is one that does)."""
        return (self,)

    @property
    def begins(self) -> tuple[int, ...]:
        """After how many rounds each of its parts begins."""
        return (0,)

    def at(self, round: int) -> Algorithm:
        """The algorithm of a round."""
        return self

    def map(self, change: Callable[[Algorithm], Algorithm]) -> Algorithm:
        """The changed algorithm."""
        return change(self)


@dataclass(frozen=True)
class Schedule:
    """`first` for the rounds up to `switch`, `then` afterwards; a broadcast is absorbed by the algorithm that made it."""

    first: Algorithm
    then: Algorithm
    switch: int

    def __post_init__(self) -> None:
        if self.first.forward.codes is not self.then.forward.codes:
            raise ConfigError("a schedule needs two algorithms that code the same layers")
        if self.first.central or self.then.central:
            raise ConfigError("a schedule needs two algorithms with clients that upload")

    @property
    def keeps(self) -> tuple[str, ...]:
        """What either of the two needs."""
        return tuple(dict.fromkeys((*self.first.keeps, *self.then.keeps)))

    @property
    def exchanges(self) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """Those of either of the two: they are held in every round."""
        return (*self.first.exchanges, *(one for one in self.then.exchanges if one not in self.first.exchanges))

    @property
    def validation(self) -> float:
        """What the more demanding of the two needs."""
        return max(self.first.validation, self.then.validation)

    @property
    def parts(self) -> tuple[Algorithm, ...]:
        """The algorithms of its rounds, in order."""
        return (self.first, self.then)

    @property
    def begins(self) -> tuple[int, ...]:
        """After how many rounds each of its parts begins."""
        return (0, self.switch)

    @property
    def central(self) -> bool:
        """Whether the data are in one place: they never are."""
        return False

    def at(self, round: int) -> Algorithm:
        """The algorithm of a round."""
        return self.first if round <= self.switch else self.then

    def map(self, change: Callable[[Algorithm], Algorithm]) -> Schedule:
        """The schedule of changed algorithms."""
        return replace(self, first=change(self.first), then=change(self.then))


Algorithms = Algorithm | Schedule
register: Registry[Algorithms] = Registry("algorithm")


def require(holds: bool, key: str, value: float | str, wanted: str, hint: str = "") -> None:
    """Refuse a parameter of an algorithm, in one sentence, where what it must be does not hold."""
    if not holds:
        raise ConfigError(f"algorithm.{key} must be {wanted}, not {value!r}{hint}")


def forward_of(name: str) -> Forward:
    """The forward that `algorithm.forward` names."""
    require(name in ("real", "binary"), "forward", name, "real or binary")
    return FORWARDS[name]


def with_name(algorithms: Algorithms, name: str) -> Algorithms:
    """The same with a name for errors."""
    return algorithms.map(lambda part: replace(part, name=name))


def first_vectors(algorithms: Algorithms, public: Public) -> dict[str, Floats]:
    """The public vectors before the first round: zeros, for every name that broadcasts have beside the update."""
    names = [name for part in algorithms.parts for name in selections(part, public, None) if name != UPDATE]
    return {name: np.zeros(public.layout.count, np.float32) for name in names}


def refuse_further_vectors(algorithms: Algorithms, public: Public, setting: str) -> None:
    """Refuse a setting that deals with the update of an upload alone, where uploads hold other vectors besides."""
    for algorithm in algorithms.parts:
        if others := sorted(selections(algorithm, public, 0).keys() - {UPDATE}):
            raise ConfigError(
                f"{setting} deals with the update of an upload alone, and uploads of algorithm '{algorithm.name}' hold "
                f"{', '.join(others)} besides: leave it out, or take another algorithm"
            )


# ---- what an author's functions return is checked where it enters --------------------------------------------------------


class Checks(NamedTuple):
    """Checks what a function of an algorithm, or of a robust rule, returned: a mistake is one sentence that names both."""

    whose: str
    function: str

    def error(self, returned: str, wanted: str) -> AlgorithmError:
        """The sentence."""
        return AlgorithmError(f"{self.whose}: {self.function} returned {returned}; it must be {wanted}")

    def kind(self, returned: Any, kind: type, wanted: str) -> None:
        """An object of a class."""
        if not isinstance(returned, kind):
            raise self.error(f"a {type(returned).__name__}", wanted)

    def floats(self, what: str, returned: Any, size: int | None) -> None:
        """A float32 array of a length; None stands for any shape."""
        if not isinstance(returned, np.ndarray) or returned.dtype != np.float32:
            kind = returned.dtype if isinstance(returned, np.ndarray) else type(returned).__name__
            raise self.error(f"{what} of {kind}", "float32: .astype(np.float32)")
        if size is not None and returned.shape != (size,):
            raise self.error(f"{what} of shape {returned.shape}", f"({size},)")

    def memory(self, returned: Any) -> None:
        """A finite float32 array of any shape."""
        self.floats("memory", returned, None)
        if not np.isfinite(returned).all():
            raise self.error("a memory that holds NaN or infinity", "finite")

    def names(self, what: str, returned: Iterable[str], wanted: Iterable[str], why: str) -> None:
        """The names of vectors."""
        if set(returned) != set(wanted):
            names, right = (" and ".join(map(repr, sorted(vectors))) or "none" for vectors in (returned, wanted))
            raise self.error(f"the {what} {names}", f"{right}, as `selects` says{why}")

    def vector(self, vector: Any, count: int) -> None:
        """A vector of so many symbols."""
        if not isinstance(vector, Vector):
            raise self.error(f"a {type(vector).__name__} among its vectors", "Vector(symbols, alphabet)")
        symbols, alphabet = vector.symbols, vector.alphabet
        self.floats("scales", vector.scales, np.size(vector.scales))
        if not isinstance(alphabet, Alphabet):
            raise self.error(f"alphabet {alphabet!r}", "an Alphabet, such as BINARY")
        if not isinstance(symbols, np.ndarray) or symbols.shape != (count,):
            shape = getattr(symbols, "shape", type(symbols).__name__)
            raise self.error(f"symbols of shape {shape}", f"({count},): one per coded weight, or as `selects` says")
        if alphabet.size == 0:
            if symbols.dtype != np.float32:
                raise self.error(f"{alphabet.name} symbols of {symbols.dtype}", "float32: .astype(np.float32)")
            return
        if symbols.dtype.kind not in "ui":
            raise self.error(f"{alphabet.name} symbols of {symbols.dtype}", "unsigned integers: .astype(np.uint8)")
        if len(symbols) and not 0 <= int(symbols.min()) <= int(symbols.max()) < alphabet.size:
            returned = f"{alphabet.name} symbols from {symbols.min()} to {symbols.max()}"
            raise self.error(returned, f"from 0 to {alphabet.size - 1}")

    def tally(self, returned: Any, public: Public) -> Tally:
        """A tally of all weights."""
        self.kind(returned, Tally, "a Tally")
        tally: Tally = returned
        for vector in tally.vectors.values():
            if np.shape(vector.mean) != (public.layout.count,):
                raise self.error(f"mean of shape {np.shape(vector.mean)}", f"({public.layout.count},)")
        self.floats("real", tally.real, public.layout.reals)
        return tally

    def message(self, returned: Any, public: Public, abouts: Selections) -> tuple[Message, Floats | None]:
        """An upload or a broadcast: the message, told what it is about, and what is kept in memory, if anything."""
        memory = None
        if isinstance(returned, Sent):
            returned, memory = returned
            self.memory(memory)
        self.kind(returned, Message, "a Message, or Sent(message, memory)")
        message: Message = returned
        if not isinstance(message.vectors, Mapping):
            wanted = "Message.of(symbols, alphabet, real), or Message.of({'update': Vector(symbols, alphabet)}, real)"
            raise self.error(f"a Message with a {type(message.vectors).__name__} for its vectors", wanted)
        self.names("vectors", message.vectors, abouts, "")
        for name, about in abouts.items():
            self.vector(message.vectors[name], public.layout.count if about is None else about.length)
        self.floats("real", message.real, public.layout.reals)
        return message._replace(
            vectors={name: message.vectors[name]._replace(about=about) for name, about in abouts.items()}
        ), memory


def checks(algorithm: Algorithm, function: str) -> Checks:
    """The checks of one of its functions."""
    return Checks(f"algorithm '{algorithm.name}'", function)


def selections(algorithm: Algorithm, public: Public, sender: int | None) -> Selections:
    """What the vectors of a message of the round under way are about: what `selects` returns."""
    returned, check = algorithm.selects(public.bare(public.round), sender), checks(algorithm, "selects")
    check.kind(returned, Mapping, "what each vector is about: {'update': None}")
    if UPDATE not in returned or len(returned) > MOST_VECTORS or not all(map(is_name, returned)):
        wanted = f"up to {MOST_VECTORS} names of 1 to {LONGEST_NAME} letters from a to z or _, and one of them '{UPDATE}'"
        raise check.error(f"vectors called {', '.join(map(repr, returned))}", wanted)
    return returned


def local_of(algorithm: Algorithm, client: Client, public: Public) -> Local:
    """What `local` returns: what every step of a client's training adds."""
    if algorithm.local is None:
        return PLAIN
    given, check, layout = algorithm.local(client, public), checks(algorithm, "local"), public.layout
    check.kind(given, Local, "a Local: Local(pull=0.01)")
    if given.correction is not None:
        check.floats("correction", given.correction, layout.count)
    if not 0 <= given.pull < np.inf:
        raise check.error(f"pull {given.pull}", "0 or more")
    for what, part, size in zip(("weights", "real"), given.centre or (), (layout.count, layout.reals), strict=False):
        check.floats(f"a centre's {what}", part, size)
    return given


def update_client(algorithm: Algorithm, client: Client, public: Public, news: Message) -> Client:
    """What `update` returns: the client after the news."""
    updated, check = algorithm.update(client, public, news), checks(algorithm, "update")
    check.kind(updated, Client, "the client: client._replace(aux=…)")
    check.floats("aux", updated.aux, public.layout.count)
    check.memory(updated.memory)
    check.floats("scales", updated.scales, np.size(updated.scales))
    return updated


def absorb_news(algorithm: Algorithm, before: Public, news: Message) -> Public:
    """What `absorb` returns: the public state after the news."""
    after, check, count = algorithm.absorb(before, news), checks(algorithm, "absorb"), before.layout.count
    check.kind(after, Public, "the public state: public._replace(weights=…)")
    check.floats("weights", after.weights, count)
    check.floats("real", after.real, before.layout.reals)
    check.floats("scales", after.scales, np.size(after.scales))
    check.names("public vectors", after.vectors, before.vectors, " of the broadcast")
    for name, values in after.vectors.items():
        check.floats(f"vectors['{name}']", values, count)
    return after


def read_upload(algorithm: Algorithm, upload: Message, public: Public) -> Message:
    """What `reads` returns: something of every weight; or, as it came, all that a selection from place 0 on speaks of."""
    read, check = algorithm.reads(upload, public), checks(algorithm, "reads")
    check.kind(read, Message, "the upload: upload.with_update(symbols=…, alphabet=FLOAT32)")
    for vector in read.vectors.values():
        about = vector.about
        check.vector(vector, public.layout.count if about is None or about.place != 0 else about.length)
    check.floats("real", read.real, public.layout.reals)
    return read
