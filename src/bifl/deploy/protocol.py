"""What is said: what server and client write into Flower's messages, one record each, the wire's messages in it as bytes.

A request says which run and round it is of, what the client lacks of the public state, and what to do. An answer carries the
upload, or a short reason why there is none. A client believes nothing that a request says: `read_request` checks every field.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict

from bifl import __version__
from bifl.codec import WireError
from bifl.core.sides import Request
from bifl.data.inputs import BYTES, FLOATS, MOST_DIMENSIONS, MOST_VALUES, TOKENS, Scale, further_text, is_shape, read_further
from bifl.engine.catch_up import MOST_STEPS, Step, Update
from bifl.errors import BiflError, DataError, Diverged, Refused, RunError
from bifl.experiment.declarations import SETTINGS
from bifl.experiment.run import share_of
from bifl.experiment.settings import REGISTRIES, Experiment, pairs
from bifl.experiment.setup import Setup
from bifl.experiment.starting import digest_alone

RECORD = "bifl"
HELLO, EXCHANGE, HEAR = "query.hello", "train", "query.hear"
FAILED, VERSION = "failed", "version"  # fields of an answer: why it is none; which bifl speaks
LONGEST_REASON = 300  # characters
DATA_PATH = "dataset.path"
_WHOLE = "whole."

MOST_ROUNDS = 2**31 - 1
MOST_CLASSES = 10_000
_LONGEST_SIDE = 2**14
_LONGEST_EXPERIMENT = 10_000  # characters; all settings spelled out take less than a thousand, paths apart
_LONGEST_NOTICE = 1000
_LONGEST_PRIVATE_REPLY = 2**26  # bytes; what an exchange can need it checks itself
_MOST_BYTES = 2**30  # of one message; what a model can need is checked when the model is known
_NAME = re.compile(r"[0-9a-f]{16}")  # of a run, and of a public state
_WORD = re.compile(r"[a-z][a-z0-9_]{0,39}")  # of an exchange
_RELEASE = re.compile(r"[0-9A-Za-z.+!-]{1,40}")


class Refusal(BiflError):
    """Why a client does not do what is asked: a sentence for its own operator, and a shorter one, without paths, for the server."""

    def __init__(self, text: str, public: str = "") -> None:
        super().__init__(text)
        self.public = public or text


class Terms(NamedTuple):
    """What all clients of a run must agree on; sent once to each."""

    experiment: str  # its words
    classes: int  # or other outputs of the network
    shape: tuple[int, ...]  # of an input
    mean: Scale
    std: Scale
    share: float  # of its samples that a client holds out
    kind: str = BYTES  # of inputs: bytes, floats or tokens
    further: str = ""  # what lies beside the inputs, as `data.inputs.further_text` says it
    labels: tuple[int, ...] | None = None  # shape of one sample's labels; None where the server has no samples that tell


class Envelope(NamedTuple):
    """What the server sends, checked."""

    kind: str
    run: str
    round: int
    terms: Terms | None = None  # in a greeting
    update: Update | None = None  # in everything else
    exchange: str = ""  # which one the client takes part in
    voted: bool = False
    uploads: bool = False
    private_reply: bytes = b""  # what the last exchange answered this client alone
    finished: bool = False
    notice: str = ""  # for the client's operator


def content(fields: Mapping[str, Any]) -> RecordDict:
    """A message's content."""
    return RecordDict({RECORD: ConfigRecord(dict(fields))})


def fields_of(message: Message) -> dict[str, Any]:
    """What such a message says; nothing if it is another app's."""
    record = message.content.get(RECORD) if message.has_content() else None
    return dict(record) if isinstance(record, ConfigRecord) else {}


def update_fields(update: Update) -> dict[str, Any]:
    """An update as fields of a request; what is empty is left out."""
    fields: dict[str, Any] = {"digest": update.target}
    if update.steps:
        fields |= {
            "starts": [step.start for step in update.steps],
            "exchanges": [step.exchange for step in update.steps],
            "steps": [step.data for step in update.steps],
        }
    if update.whole is not None:
        fields |= {"anew": True} | {_WHOLE + name: data for name, data in update.whole.items()}
    return fields


def request_fields(request: Request) -> dict[str, Any]:
    """What a client is asked, as fields; its number it knows."""
    fields: dict[str, Any] = {"voted": request.voted, "uploads": request.uploads}
    return fields | {"letter": request.private_reply} if request.private_reply else fields


def terms_fields(terms: Terms) -> dict[str, Any]:
    """Terms as fields of a request."""
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in terms._asdict().items()}
    return {name: value for name, value in plain.items() if value is not None}


# ---- what a server tells of an experiment ----------------------------------------------------------------------------


def terms_of(setup: Setup) -> Terms:
    """What all clients of a run must agree on."""
    data, experiment = setup.data, setup.run.experiment
    form = data.form
    labels = data.labels.shape[1:] if len(data.labels) or data.labels.ndim > 1 else None
    share, further = share_of(experiment, data), further_text(form.further)
    return Terms(words_for_clients(experiment), data.classes, form.shape, data.mean, data.std, share, form.kind, further, labels)


def words_for_clients(experiment: Experiment) -> str:
    """An experiment as clients are told of it: what they need, and files by their names alone, wherever the server has them."""
    settings = pairs(experiment.words())
    settings = {key: value for key, value in settings.items() if SETTINGS[key.partition(".")[0]].for_clients}
    for kind in REGISTRIES:
        file, colon, name = settings.get(kind, "").rpartition(":")
        if colon:
            settings[kind] = f"{PurePath(file).name}:{name}"
    if DATA_PATH in settings:
        settings[DATA_PATH] = PurePath(settings[DATA_PATH]).name
    settings["start"] = digest_alone(settings.get("start", ""))
    return shlex.join(f"{key}={value}" for key, value in settings.items())


def named_files(experiment: Experiment) -> list[Path]:
    """The files of a user's own that clients need of an experiment."""
    choices = [getattr(experiment, kind) for kind in REGISTRIES if SETTINGS[kind].for_clients]
    names = [choice.name.rpartition(":")[0] for choice in choices] + [experiment.dataset.parameters.get("path", "")]
    return [Path(name).resolve() for name in dict.fromkeys(names) if name]


# ---- a client reads a request ----------------------------------------------------------------------------------------


def read_request(kind: str, fields: Mapping[str, Any]) -> Envelope:
    """What the server asks, if every field is there, of its type and within its bounds. Unknown fields are passed over."""
    if not fields:
        raise Refusal(f"a message without the record '{RECORD}': server and clients must run the same app")
    if kind not in (HELLO, EXCHANGE, HEAR):
        raise Refusal("the server asks for something that this client does not do")
    if problem := other_version(fields.get(VERSION), "the server", "this client"):
        raise Refusal(problem)
    run, round = _name(fields, "run"), _whole_number(fields, "round", 0, MOST_ROUNDS)
    if kind == HELLO:
        return Envelope(kind, run, round, terms=_read_terms(fields))
    request = Envelope(kind, run, round, update=_read_update(fields, round))
    if kind == EXCHANGE:
        voted, uploads = _yes_or_no(fields, "voted"), _yes_or_no(fields, "uploads")
        exchange = _field(fields, "exchange", lambda value: _matches(value, _WORD), "a word of small letters")
        private_reply = fields.get("letter", b"")
        if type(private_reply) is not bytes or len(private_reply) > _LONGEST_PRIVATE_REPLY:
            raise _malformed("letter", f"at most {_LONGEST_PRIVATE_REPLY} bytes")
        return request._replace(exchange=exchange, voted=voted, uploads=uploads, private_reply=private_reply)
    notice = _text(fields, "notice", _LONGEST_NOTICE, "")
    return request._replace(finished=_yes_or_no(fields, "finished", False), notice=notice)


def other_version(theirs: object, they: str, we: str) -> str | None:
    """The sentence for two versions of bifl that meet; None if they are the same. The oldest do not tell theirs."""
    if theirs == __version__:
        return None
    plausible = isinstance(theirs, str) and _RELEASE.fullmatch(theirs)
    other = f"bifl {theirs}" if plausible else "a bifl that does not tell its version"
    return f"{they} runs {other}, {we} bifl {__version__}: install the same version on both"


def _read_terms(fields: Mapping[str, Any]) -> Terms:
    text = _text(fields, "experiment", _LONGEST_EXPERIMENT)
    shape = _list(fields, "shape", MOST_DIMENSIONS - 1)
    if not shape or not is_shape(shape) or max(shape) > _LONGEST_SIDE:
        raise _malformed("shape", f"1 to {MOST_DIMENSIONS - 1} sides, at most {_LONGEST_SIDE} each and {MOST_VALUES} in all")
    kind = fields.get("kind", BYTES)
    if kind not in (BYTES, FLOATS, TOKENS):
        raise _malformed("kind", f"{BYTES}, {FLOATS} or {TOKENS}")
    largest = 1e3 if kind == BYTES else 1e30
    return Terms(
        text,
        _whole_number(fields, "classes", 1, MOST_CLASSES),
        tuple(shape),
        _scale(fields, "mean", -largest, largest, shape[0]),
        _scale(fields, "std", 1e-6 if kind == BYTES else 1e-30, 1e6 if kind == BYTES else 1e30, shape[0]),
        _number(fields, "share", 0.0, 0.999),
        kind,
        _read_further(fields),
        _read_labels(fields),
    )


def _read_labels(fields: Mapping[str, Any]) -> tuple[int, ...] | None:
    if "labels" not in fields:
        return None
    sides = _list(fields, "labels", MOST_DIMENSIONS - 1)
    if not is_shape(sides):
        raise _malformed("labels", f"at most {MOST_DIMENSIONS - 1} sides, and {MOST_VALUES} in all")
    return tuple(sides)


def _read_further(fields: Mapping[str, Any]) -> str:
    text = _text({"further": "", **fields}, "further", _LONGEST_EXPERIMENT)
    try:
        return further_text(read_further(text))
    except DataError as error:
        raise _malformed("further", str(error)) from error


def _scale(fields: Mapping[str, Any], name: str, least: float, most: float, channels: int) -> Scale:
    values = fields.get(name)
    if type(values) is not list:
        return _number(fields, name, least, most)
    if len(values) != channels or fields.get("kind") != FLOATS:
        raise _malformed(name, f"a number, or for floats a list of {channels}")
    return tuple(_number({name: one}, name, least, most) for one in values)


def _read_update(fields: Mapping[str, Any], round: int) -> Update:
    starts, exchanges, steps = (_list(fields, name, MOST_STEPS) for name in ("starts", "exchanges", "steps"))
    if not len(starts) == len(exchanges) == len(steps):
        raise _malformed("steps", "as many as starts and exchanges")
    for start, exchange, data in zip(starts, exchanges, steps, strict=True):
        if not _matches(start, _NAME) or not _matches(exchange, _WORD) or type(data) is not bytes:
            raise _malformed("steps", "messages, each with its exchange and the name of a state")
    whole = {name.removeprefix(_WHOLE): data for name, data in fields.items() if name.startswith(_WHOLE)}
    if len(whole) > MOST_STEPS or not all(_matches(name, _WORD) and type(data) is bytes for name, data in whole.items()):
        raise _malformed("whole", "messages, each with the name of its exchange")
    if any(len(data) > _MOST_BYTES for data in (*steps, *whole.values())):
        raise _malformed("steps", f"messages of at most {_MOST_BYTES} bytes")
    anew = _yes_or_no(fields, "anew", False)
    path = tuple(Step(start, exchange, round, data) for start, exchange, data in zip(starts, exchanges, steps, strict=True))
    return Update(_name(fields, "digest"), path, whole if anew else None)


def _malformed(name: str, wanted: str) -> Refusal:  # what was said is not repeated: it may be anything
    return Refusal(f"the server's request makes no sense: its '{name}' must be {wanted}")


def _field(fields: Mapping[str, Any], name: str, fits: Callable[[Any], bool], wanted: str, default: object = None) -> Any:
    value = fields.get(name, default)
    if not fits(value):
        raise _malformed(name, wanted)
    return value


def _matches(value: object, pattern: re.Pattern[str]) -> bool:
    return type(value) is str and pattern.fullmatch(value) is not None


def _name(fields: Mapping[str, Any], name: str) -> str:
    return str(_field(fields, name, lambda value: _matches(value, _NAME), "16 hexadecimal digits"))


def _text(fields: Mapping[str, Any], name: str, longest: int, default: str | None = None) -> str:
    wanted = f"a text of at most {longest} characters"
    return str(_field(fields, name, lambda value: type(value) is str and len(value) <= longest, wanted, default))


def _whole_number(fields: Mapping[str, Any], name: str, least: int, most: int) -> int:
    wanted = f"a whole number from {least} to {most}"
    return int(_field(fields, name, lambda value: type(value) is int and least <= value <= most, wanted))


def _number(fields: Mapping[str, Any], name: str, least: float, most: float) -> float:
    wanted = f"a number from {least:g} to {most:g}"
    return float(_field(fields, name, lambda value: type(value) in (int, float) and least <= value <= most, wanted))  # never NaN


def _yes_or_no(fields: Mapping[str, Any], name: str, default: bool | None = None) -> bool:
    return bool(_field(fields, name, lambda value: type(value) is bool, "true or false", default))


def _list(fields: Mapping[str, Any], name: str, most: int) -> list[Any]:
    return list(_field(fields, name, lambda value: type(value) is list and len(value) <= most, f"a list of at most {most}", []))


# ---- a client says why not -------------------------------------------------------------------------------------------


def public_reason(error: Exception) -> str:
    """Why there is no answer, in words that tell the server nothing of this machine: no paths, no contents of files."""
    if isinstance(error, Refusal):
        return error.public
    if isinstance(error, (WireError, Diverged, Refused)):
        return str(error)  # which speak of messages and numbers only
    cause = error if isinstance(error, OSError) else error.__cause__
    why = f": {cause.strerror}" if isinstance(cause, OSError) and cause.strerror else ""
    if isinstance(error, DataError):
        return f"its data cannot be used{why}"
    if isinstance(error, (RunError, OSError)):
        return f"cannot write its state{why}" if why else "its state cannot be used"
    return "it cannot run these settings" if isinstance(error, BiflError) else f"it failed with {type(error).__name__}"
