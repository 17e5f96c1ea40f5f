"""Every setting of an experiment, declared once: its type, its default, what it may be, what it means, and who must know of it.

Help, `bifl list`, checks, `config.toml` and the words of a command line are made of this. Nothing here waits for torch.

>>> SETTINGS["rounds"].default, SETTINGS["rounds"].may_change, SETTINGS["idle"].allowed.refusal("nap")
(15, True, "one of train, sleep, not 'nap'")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from bifl.errors import ConfigError
from bifl.registry import Registry, nearest, short

LARGEST = 2**63
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
T = TypeVar("T")
G = TypeVar("G")


# ---- a choice -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """A registered thing by name, with all of its parameters."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def made(self, registry: Registry[T], *given: Any) -> T:
        """The thing itself, built by its registry of its parameters, and of what is `given` besides."""
        return registry.make(self.name, self.parameters, *given)


@dataclass(frozen=True)
class Unloaded(Choice):
    """A choice from a Python file that must not be run, as a config spells it: it can be shown, not used."""


Given = Choice | str | Mapping[str, Any]  # what a choice may be given as

if TYPE_CHECKING:

    class Kept(Generic[T, G]):
        """A setting of which more may be given to `Experiment(…)` than it keeps: type checkers read that of `__set__`."""

        def __get__(self, experiment: Any, kind: Any) -> T: ...
        def __set__(self, experiment: Any, given: G) -> None: ...

    Chosen = Kept[Choice, Given]
    Rates = Kept[tuple[float, ...], float | Sequence[float]]
    Rounds = Kept[tuple[int, ...], int | Sequence[int]]


# ---- what a value may be ------------------------------------------------------------------------------------------------


# `refusal` is how "NAME must be …" ends for a value that is not allowed; None for one that is.


class Whole(NamedTuple):
    """Whole numbers from one to another; the upper end keeps a config from asking for any amount of memory."""

    least: int
    most: int = 10**9

    def refusal(self, value: int) -> str | None:
        """The end that the number is beyond."""
        if value < self.least:
            return f"{self.least} or more, not {value}"
        return f"at most {self.most:,}, not {value:.3g}" if value > self.most else None


class OneOf(NamedTuple):
    """A few words."""

    words: tuple[str, ...]

    def refusal(self, value: str) -> str | None:
        """All words."""
        return None if value in self.words else f"one of {', '.join(self.words)}, not '{value}'"


class Such(NamedTuple):
    """Values that a test holds for, and the words for them."""

    description: str
    holds: Callable[[Any], bool]

    def refusal(self, value: Any) -> str | None:
        """The words."""
        return None if self.holds(value) else f"{self.description}, not {text_of(value) if isinstance(value, tuple) else value}"


Allowed = Whole | OneOf | Such
ANYTHING = Such("", lambda value: True)  # of the setting's type


# ---- a declaration ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What there is to know of a setting.

    Attributes:
        default: its value where nobody says anything.
        help: what it means.
        allowed: what it may be.
        register: the decorator that registers what can be chosen, `@optimizer`; empty where nothing is chosen.
        changes_numbers: whether another value changes the rounds that are there.
        may_change: whether it may change when a run is continued.
        agreed: whether all who take part in a run must have the same value, if it changes numbers.
        for_clients: whether clients of a deployment need it.
        most_from_server: the largest value that a client takes from a server, of what costs it time or memory.
    """

    default: Any
    help: str
    allowed: Allowed = ANYTHING
    register: str = ""
    changes_numbers: bool = True
    may_change: bool = False
    agreed: bool = True
    for_clients: bool = True
    most_from_server: int | None = None

    def spelled(self) -> str:
        """The default, as it could be typed."""
        value = self.default.name if isinstance(self.default, Choice) else self.default
        return text_of(value) if isinstance(value, tuple) else str(value)


def setting(default: T, *, help: str, **more: Any) -> T:
    """A number, a word, or true or false. What `more` can say, `Declaration` tells."""
    declared: T = field(default=default, metadata={"setting": Declaration(default=default, help=help, **more)})
    return declared


def several(default: tuple[Any, ...], *, help: str, **more: Any) -> Any:
    """Numbers, kept as a tuple; a single one may be given alone."""
    return field(default=default, metadata={"setting": Declaration(default=default, help=help, **more)})


def choice(default: str, *, register: str, help: str, **more: Any) -> Any:
    """One of the things that a decorator registers, by name, with parameters of its own."""
    kept = Choice(default)
    return field(default=kept, metadata={"setting": Declaration(default=kept, help=help, register=register, **more)})


# ---- the settings -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings, in the order of `--help` and `config.toml`."""

    algorithm: Chosen = choice(
        "murmur", register="register",
        help="what is sent and how it is used: a name from `bifl list`, its parameters as in algorithm.group=32; "
        "algorithm=my.py:mine takes one from a file of your own",
    )  # fmt: skip
    dataset: Chosen = choice(
        "mnist5k", register="dataset", agreed=False, help="which samples: a name from `bifl list`, or my.py:mine; docs/data.md"
    )
    partition: Chosen = choice("iid", register="partition", help="which client holds which of them")
    model: Chosen = choice("mnist_cnn", register="model", help="which network")
    task: Chosen = choice(
        "classification", register="task", help="what it learns: classification, regression, multilabel, or my.py:mine"
    )
    robust: Chosen = choice(
        "none", register="robust", for_clients=False,
        help="the server's sum, which a minority of clients that lie cannot steer: credibility, median, …; docs/robust.md",
    )  # fmt: skip
    attack: Chosen = choice(
        "none", register="attack", for_clients=False,
        help="what lying clients do in a simulation: flip, collude, …; attack.share=0.2 of them",
    )  # fmt: skip
    privacy: Chosen = choice(
        "none",
        register="privacy",
        help="how clients hide in the sum, with ε accounted: poisson_binomial, gaussian; docs/privacy.md",
    )
    exchange: Chosen = choice(
        "ballot",
        register="exchange",
        help="what rounds are held for: training; inputs or evaluation ask clients something instead (bifl ask, bifl eval)",
    )
    rounds: int = setting(
        15, allowed=Whole(1), changes_numbers=False, may_change=True, help="training → upload → broadcast, so many times"
    )
    clients: int = setting(10, allowed=Whole(1, 10**6), help="how many there are")
    participation: float = setting(
        1.0, allowed=Such("greater than 0 and at most 1", lambda share: 0 < share <= 1),
        help="share of the clients that upload in a round",
    )  # fmt: skip
    idle: str = setting(
        "train", allowed=OneOf(("train", "sleep")), help="what the others do: train, as in the paper, or sleep, as phones do"
    )
    weigh: str = setting(
        "auto", allowed=OneOf(("auto", "images", "equal")),
        help="what a client counts for: its images, or equal, once each; auto is once with privacy= and secure_sum=true, since "
        "numbers of images would tell there who voted how (docs/security.md), and with algorithms whose server keeps the mean of "
        "what clients remember (scaffold, feddyn), and its images otherwise",
    )  # fmt: skip
    seed: int = setting(0, allowed=Whole(0, 2**63 - 1), help="fixes everything else")
    optimizer: Chosen = choice(
        "adam", register="optimizer", help="adam, adamw, sgd or my.py:mine, fresh every round; optimizer.momentum=0.9"
    )
    lr: Rates = several(
        (0.005, 0.002, 0.001),
        allowed=Such("one or more positive numbers", lambda rates: rates and all(0 < rate < math.inf for rate in rates)),
        help="learning rates: one more than lr_steps, or a single one for all rounds",
    )
    lr_steps: Rounds = several(
        (30, 60),
        allowed=Such("rising round numbers", lambda rounds: list(rounds) == sorted(set(rounds)) and min(rounds, default=1) >= 1),
        help="rounds after which the next rate applies",
    )
    schedule: Chosen = choice(
        "steps", register="schedule",
        help="what is made of them: steps, or cosine, from the first lr to 0 in schedule.over=100 rounds, or my.py:mine; "
        "both take schedule.warmup=5",
    )  # fmt: skip
    batch: int = setting(64, allowed=Whole(2), most_from_server=2**16, help="samples per step")
    local_epochs: int = setting(1, allowed=Whole(1), most_from_server=1000, help="passes over a client's samples per round")
    local_steps: int = setting(0, allowed=Whole(0), most_from_server=10**6, help="so many steps per round instead; 0: epochs")
    clip: float = setting(
        0.0, allowed=Such("0 or more", lambda norm: 0 <= norm < math.inf), help="largest norm of a step's gradient; 0: any"
    )
    augment: Chosen = choice(
        "none", register="augment", help="what becomes of inputs before a step: none, shift_flip, noise, or my.py:mine"
    )
    start: str = setting(
        "",
        help="a model file to begin with; empty: the network's own initialisation. It is kept as path@digest: docs/training.md",
    )
    batchnorm: str = setting(
        "recalibrate", allowed=OneOf(("recalibrate", "average")),
        help="how running statistics become global: recalibrate pools exactly what clients measure of the broadcast network, in an "
        "exchange of its own; average takes those of their own training, which is also what idle=sleep does where not all vote",
    )  # fmt: skip
    scores: str = setting(
        "trained", allowed=OneOf(("trained", "fixed")),
        help="γ and β of the class scores' norm: trained, or fixed, which is neither trained nor sent",
    )  # fmt: skip
    holdout: float = setting(
        0.0, allowed=Such("a share of each client's images, at least 0 and below 1", lambda share: 0 <= share < 1),
        help="share of its samples that every client holds out for federated evaluation; 0: none, or a fifth where the dataset has "
        "no test samples",
    )  # fmt: skip
    validation: float = setting(
        0.0, allowed=Such("a share of the training samples, at least 0 and below 1", lambda share: 0 <= share < 1),
        agreed=False, for_clients=False,
        help="share of the training samples, of whole users where these are known, that nobody trains on and that the run is "
        "evaluated on instead of the test samples, to choose settings by (bifl tune); 0: none. Of a simulation: docs/training.md",
    )  # fmt: skip
    evaluate_every: int = setting(
        1, allowed=Whole(1),
        help="rounds from one evaluation of the model to the next; the last is evaluated too; training does not depend on it",
    )  # fmt: skip
    wire: str = setting(
        "context", allowed=OneOf(("context", "packed")),
        help="context codes messages in what both ends know, packed spells every symbol out; results do not depend on it",
    )  # fmt: skip
    reals: str = setting(
        "short", allowed=OneOf(("short", "byte", "sign", "float32")),
        help="real parameters on the wire: short rounds batch-norm's to 6 binary digits up and 10 down; byte and sign do too, and "
        "say how layers kept real changed, in 8 bits a number, or 1 up and 8 down; float32 rounds nothing: docs/wire-format.md",
    )  # fmt: skip
    secure_sum: bool = setting(False, help="the server learns sums only, and nothing of one client's upload: docs/security.md")
    colluders: int = setting(
        0, allowed=Whole(0, 10**6), help="clients that may be in league with the server before a secure sum tells it more"
    )
    device: str = setting(
        "auto", allowed=OneOf(("auto", "cpu", "cuda")), changes_numbers=False, help="cpu, cuda, or auto: a GPU if there is one"
    )
    workers: int = setting(
        0, allowed=Whole(0, 4096), changes_numbers=False, may_change=True,
        help="processes; 0: one per core. Results do not depend on it",
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Nothing is checked here: `Experiment` does it, which knows what is registered."""


class Former(NamedTuple):
    """A setting that earlier versions had; their configs still name it."""

    default: Any  # with which it did nothing
    instead: str


FORMER = {"proximal": Former(0.0, "FedProx is an algorithm now, algorithm=fedprox algorithm.mu=0.01, or around=NAME another one")}
SETTINGS: dict[str, Declaration] = {item.name: item.metadata["setting"] for item in fields(Settings)}
CHOICES = {name: each.register for name, each in SETTINGS.items() if each.register}
MAY_CHANGE = tuple(name for name, each in SETTINGS.items() if each.may_change)
NO_NUMBERS = {name: each.default for name, each in SETTINGS.items() if not each.changes_numbers}


# ---- values as they are kept --------------------------------------------------------------------------------------------


def chosen(kind: str, registry: Registry[Any], given: object) -> Choice:
    """A name, mapping or Choice with every parameter known, typed and present."""
    if isinstance(given, str):
        given = Choice(given)
    elif isinstance(given, Mapping):
        given = from_mapping(given)
    if not isinstance(given, Choice):
        raise ConfigError(f"{kind} must be a name, not {given!r}")
    if isinstance(given, Unloaded):
        parameters = {key: _plain(f"{kind}.{key}", value) for key, value in given.parameters.items()}
        return Unloaded(_plain(kind, given.name), parameters)
    name = registry.load(_plain(kind, given.name))
    defaults = registry.parameters(name)
    for key in given.parameters:
        if key not in defaults:
            unset = f": set {kind}= too" if given.name == "none" else f": {kind} '{given.name}' has no parameters"
            allowed = f" of {kind} '{short(name)}'{nearest(key, defaults)}" if defaults else unset
            raise ConfigError(f"unknown key '{kind}.{key}'{allowed}")
    values = {key: typed(f"{kind}.{key}", given.parameters.get(key, default), default) for key, default in defaults.items()}
    return Choice(name, values)


def from_mapping(given: Mapping[str, Any]) -> Choice:
    """The choice that a mapping with `name` and parameters spells."""
    return Choice(str(given.get("name", "")), {key: value for key, value in given.items() if key != "name"})


def _plain(key: str, given: Any) -> Any:
    """The value, if it is one that a choice may have."""
    if type(given) not in _KINDS:
        raise ConfigError(f"{key} must be a number, a word, or true or false, not {given!r:.80}")
    if isinstance(given, str) and "\0" in given:
        raise ConfigError(f"{key} must not hold a NUL character, as {given!r:.80} does")
    if isinstance(given, int) and abs(given) >= LARGEST:
        raise ConfigError(f"{key} must be less than 2^63")
    return given


def typed(key: str, given: Any, default: Any) -> Any:
    """The value as the type of its default, from a text or a Python value."""
    if isinstance(default, tuple):
        parts = given.split(",") if isinstance(given, str) else given if isinstance(given, (list, tuple)) else (given,)
        return tuple(typed(key, part, default[0]) for part in parts if part != "")
    kind = type(default)
    try:
        if isinstance(given, str) and kind is not str:
            return _BOOLEANS[given.lower()] if kind is bool else _plain(key, kind(given))
        if type(given) is kind or (type(given) is int and kind is float):
            return kind(_plain(key, given))
    except (ValueError, KeyError, OverflowError):
        pass
    raise ConfigError(f"{key} must be {_KINDS[kind]}, not {given!r:.80}")


def text_of(values: Iterable[object]) -> str:
    """Several values, as a config has them."""
    return ",".join(map(str, values))
