"""What a run must remember to go on: one file for the server, one per client.

A client's file carries its round in its name and is never overwritten with other contents. The server's file, replaced
atomically, says which round is complete and which client files belong to it. Killed at any moment, that is a consistent state; and
since clients' files reach the disk before the server's is replaced, so it is after a power cut.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bifl import npz, wire
from bifl.algorithm import Client, Message, Shared
from bifl.errors import RunError
from bifl.files import parse_json, sync_folder, write_atomic, write_unlisted, writing
from bifl.message import Floats
from bifl.runtime.record import Record

_SERVER = "server.npz"


class State(NamedTuple):
    """A run after a complete round."""

    shared: Shared
    record: Record  # of that round
    trained: dict[int, int]  # client → the last round in which it trained
    counted: frozenset[int]  # the clients whose ballots are in that round's broadcast


def save_server(folder: Path, state: State) -> None:
    """Declare the state's round complete, and delete the files that no longer matter."""
    with writing(folder):
        sync_folder(folder)  # of the clients' files, which this one relies on
    arrays = {
        "trained": np.array(sorted(state.trained.items()), np.int64).reshape(-1, 2),
        "counted": np.array(sorted(state.counted)),
    }
    save_shared(folder / _SERVER, state.shared, {"record": state.record.to_json()}, arrays)
    needed = {_SERVER, *(_name(*item) for item in state.trained.items())}
    with writing(folder):
        for path in folder.iterdir():
            if path.name not in needed:
                path.unlink(missing_ok=True)


def load_server(folder: Path, fresh: Shared) -> State | None:
    """The state after the last complete round; None before the first.

    Args:
        folder: of the checkpoint.
        fresh: the public state before the first round of the same experiment; says what must fit.
    """
    path = folder / _SERVER
    if not path.is_file():
        return None
    shared, facts, arrays = load_shared(path, fresh, ("trained", "counted"))
    with _reading(path):
        record, trained, counted = Record.from_json(facts["record"]), arrays["trained"], arrays["counted"]
        if trained.dtype.kind != "i" or trained.ndim != 2 or trained.shape[1] != 2:
            raise ValueError(f"trained is {trained.shape} of {trained.dtype}")
        if counted.ndim != 1 or (len(counted) and counted.dtype.kind != "i"):
            raise ValueError(f"counted is {counted.shape} of {counted.dtype}")
        if record.round != shared.round:
            raise ValueError(f"the record is of round {record.round}, the state of round {shared.round}")
    return State(shared, record, dict(trained.tolist()), frozenset(map(int, counted)))


def save_shared(path: Path, shared: Shared, facts: dict[str, Any], more: dict[str, Any]) -> None:
    """Write the public state down, and what else belongs to it: `facts` as JSON, `more` as arrays."""
    arrays: dict[str, Any] = {"weights": shared.weights, "real": shared.real, "scales": shared.scales}
    for name, message in {"news": shared.news, "before": shared.before}.items():
        arrays[name] = np.frombuffer(b"" if message is None else wire.encode(message), np.uint8)
    facts = {"seed": shared.seed, "round": shared.round, "model": shared.layout.fingerprint} | facts
    data = _packed(arrays | more | {"facts": np.array(json.dumps(facts))})
    with writing(path.parent):
        write_atomic(path, data)


def load_shared(path: Path, fresh: Shared, more: Iterable[str] = ()) -> tuple[Shared, dict[str, Any], dict[str, Any]]:
    """Read the same again: the state, the facts and all arrays, `more` among them."""
    arrays = _read(path, ("weights", "real", "scales", "news", "before", "facts", *more))
    with _reading(path):
        facts = parse_json(str(arrays["facts"]))
        if facts["model"] != fresh.layout.fingerprint or facts["seed"] != fresh.seed:
            raise RunError(f"the checkpoint in '{path.parent}' belongs to another model or seed than its config.toml")
        if type(facts["round"]) is not int or facts["round"] < 0:
            raise ValueError(f"round is {facts['round']!r}")
        weights, real = _floats(arrays, "weights", fresh.weights.shape), _floats(arrays, "real", fresh.real.shape)
        shared = fresh._replace(
            round=facts["round"], weights=weights, real=real, scales=_floats(arrays, "scales"),
            news=_message(arrays, "news", fresh), before=_message(arrays, "before", fresh),
        )  # fmt: skip
    return shared, facts, arrays


def save_client(folder: Path, number: int, round: int, client: Client, keeps: tuple[str, ...]) -> None:
    """Keep what a client must remember of a round."""
    if keeps:
        data = _packed({field: getattr(client, field) for field in keeps})
        with writing(folder):
            write_unlisted(folder / _name(number, round), data)  # a folder's entries are synced once, by the server


def load_client(folder: Path, number: int, round: int, fresh: Client, keeps: tuple[str, ...]) -> Client:
    """The client with what it remembered."""
    path = folder / _name(number, round)
    arrays = _read(path, keeps) if keeps else {}
    shapes = {"aux": fresh.aux.shape, "start": fresh.start.shape}
    with _reading(path):
        kept: dict[str, Any] = {field: _floats(arrays, field, shapes.get(field)) for field in keeps}
    return fresh._replace(**kept)


def rounds_of(folder: Path, number: int) -> list[int]:
    """The rounds of which a client remembers something, rising."""
    return sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob(f"client-{number:05d}.round-*.npz"))


def forget(folder: Path, number: int, rounds: Iterable[int]) -> None:
    """Delete what a client remembers of rounds."""
    with writing(folder):
        for round in rounds:
            (folder / _name(number, round)).unlink(missing_ok=True)


def _floats(arrays: dict[str, Any], name: str, shape: tuple[int, ...] | None = None) -> Floats:
    """An array that must be float32, finite and, where that is known, of a shape."""
    found: Floats = arrays[name]
    if found.dtype != np.float32 or (found.shape != shape if shape is not None else found.ndim != 1):
        raise ValueError(f"{name} is {found.shape} of {found.dtype}, not {shape or '(n,)'} of float32")
    if not np.isfinite(found).all():
        raise ValueError(f"{name} holds a number that is not finite")
    return found


def _message(arrays: dict[str, Any], name: str, fresh: Shared) -> Message | None:
    data = arrays[name]
    if data.dtype != np.uint8 or data.ndim != 1:
        raise ValueError(f"{name} is {data.shape} of {data.dtype}, not bytes")
    if not len(data):
        return None
    message = wire.decode(data.tobytes(), expect=fresh.layout.count)
    if len(message.real) != fresh.layout.reals:
        raise ValueError(f"{name} holds {len(message.real)} real numbers, the model has {fresh.layout.reals}")
    return message


def _name(number: int, round: int) -> str:
    return f"client-{number:05d}.round-{round:05d}.npz"


def _packed(arrays: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _read(path: Path, needed: Iterable[str]) -> dict[str, Any]:
    needed = tuple(needed)
    try:
        arrays = npz.read(path, needed)  # a zip: its checksums are verified on reading
    except (OSError, npz.Damaged) as error:
        raise RunError(f"the checkpoint file '{path}' cannot be read ({error}): start the run again in a new folder") from error
    for name in needed:
        if name not in arrays:
            raise RunError(f"the checkpoint file '{path}' lacks '{name}': start the run again in a new folder")
    return arrays


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what damaged contents raise into one sentence."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise RunError(f"the checkpoint file '{path}' is damaged ({error}): start the run again in a new folder") from error
