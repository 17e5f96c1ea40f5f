"""What server and client write into Flower's messages: one record each, the wire's messages in it as bytes.

A request says which run and round it is of, what the client lacks of the public state, and what to do. An answer carries the
upload.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict

from bifl.errors import RunError
from bifl.flower.public import Step, Update

RECORD = "bifl"
HELLO, TURN, MEASURE, SCORE, HEAR = "query.hello", "train", "query.measure", "evaluate", "query.hear"
_WHOLE = "whole."


class Terms(NamedTuple):
    """What all clients of a run must agree on; sent once to each."""

    experiment: str  # its words
    classes: int
    shape: tuple[int, ...]  # (channels, height, width)
    mean: float
    std: float
    share: float  # of its images that a client holds out


def content(fields: Mapping[str, Any]) -> RecordDict:
    """A message's content."""
    return RecordDict({RECORD: ConfigRecord(dict(fields))})


def fields_of(message: Message) -> dict[str, Any]:
    """What such a message says.

    Raises:
        RunError: it is another app's.
    """
    record = message.content.get(RECORD)
    if not isinstance(record, ConfigRecord):
        raise RunError(f"a message without the record '{RECORD}': server and clients must run the same app")
    return dict(record)


def update_fields(update: Update) -> dict[str, Any]:
    """An update as fields of a request; what is empty is left out."""
    fields: dict[str, Any] = {"digest": update.target}
    if update.steps:
        fields |= {
            "starts": [step.start for step in update.steps],
            "kinds": [step.kind for step in update.steps],
            "steps": [step.data for step in update.steps],
        }
    if update.whole is not None:
        fields |= {"anew": True} | {_WHOLE + name: data for name, data in update.whole.items()}
    return fields


def read_update(fields: Mapping[str, Any]) -> Update:
    """The same again."""
    steps = zip(fields.get("starts", []), fields.get("kinds", []), fields.get("steps", []), strict=True)
    whole = {name.removeprefix(_WHOLE): data for name, data in fields.items() if name.startswith(_WHOLE)}
    return Update(
        fields["digest"],
        tuple(Step(start, kind, fields["round"], data) for start, kind, data in steps),
        whole if fields.get("anew") else None,
    )


def terms_fields(terms: Terms) -> dict[str, Any]:
    """Terms as fields of a request."""
    return terms._asdict() | {"shape": list(terms.shape)}


def read_terms(fields: Mapping[str, Any]) -> Terms:
    """The same again."""
    return Terms(**{name: fields[name] for name in Terms._fields} | {"shape": tuple(fields["shape"])})
