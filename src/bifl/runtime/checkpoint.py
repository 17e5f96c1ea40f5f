"""What a run must remember to go on: one file for the server, one per client.

A client's file carries its round in its name and is never overwritten with other contents. The server's file, replaced
atomically, says which round is complete and which client files belong to it. Killed at any moment, that is a consistent state.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bifl import wire
from bifl.algorithm import Client, Message, Shared
from bifl.errors import RunError
from bifl.files import DAMAGED_NPZ, write_atomic, writing
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
    try:
        record = Record.from_json(facts["record"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"the checkpoint file '{path}' is damaged ({error}): start the run again in a new folder") from error
    trained = {int(client): int(round) for client, round in arrays["trained"]}
    return State(shared, record, trained, frozenset(map(int, arrays["counted"])))


def save_shared(path: Path, shared: Shared, facts: dict[str, Any], more: dict[str, Any]) -> None:
    """Write the public state down, and what else belongs to it: `facts` as JSON, `more` as arrays."""
    arrays: dict[str, Any] = {"weights": shared.weights, "real": shared.real, "scales": shared.scales}
    for name, message in {"news": shared.news, "before": shared.before}.items():
        arrays[name] = np.frombuffer(b"" if message is None else wire.encode(message), np.uint8)
    facts = {"seed": shared.seed, "round": shared.round, "model": shared.layout.fingerprint} | facts
    _write(path, arrays | more | {"facts": np.array(json.dumps(facts))})


def load_shared(path: Path, fresh: Shared, more: Iterable[str] = ()) -> tuple[Shared, dict[str, Any], dict[str, Any]]:
    """Read the same again: the state, the facts and all arrays, `more` among them."""
    arrays = _read(path, ("weights", "real", "scales", "news", "before", "facts", *more))
    try:
        facts = json.loads(str(arrays["facts"]))
        if facts["model"] != fresh.layout.fingerprint or facts["seed"] != fresh.seed:
            raise RunError(f"the checkpoint in '{path.parent}' belongs to another model or seed than its config.toml")
        shared = fresh._replace(
            round=facts["round"], weights=arrays["weights"], real=arrays["real"], scales=arrays["scales"],
            news=_message(arrays["news"], fresh), before=_message(arrays["before"], fresh),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"the checkpoint file '{path}' is damaged ({error}): start the run again in a new folder") from error
    return shared, facts, arrays


def save_client(folder: Path, number: int, round: int, client: Client, keeps: tuple[str, ...]) -> None:
    """Keep what a client must remember of a round."""
    if keeps:
        _write(folder / _name(number, round), {field: getattr(client, field) for field in keeps})


def load_client(folder: Path, number: int, round: int, fresh: Client, keeps: tuple[str, ...]) -> Client:
    """The client with what it remembered."""
    path = folder / _name(number, round)
    arrays = _read(path, keeps) if keeps else {}
    if "aux" in arrays and arrays["aux"].shape != fresh.aux.shape:
        raise RunError(f"'{path}' holds {arrays['aux'].size} weights, the model has {fresh.aux.size}")
    return fresh._replace(**{field: arrays[field] for field in keeps})


def rounds_of(folder: Path, number: int) -> list[int]:
    """The rounds of which a client remembers something, rising."""
    return sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob(f"client-{number:05d}.round-*.npz"))


def forget(folder: Path, number: int, rounds: Iterable[int]) -> None:
    """Delete what a client remembers of rounds."""
    with writing(folder):
        for round in rounds:
            (folder / _name(number, round)).unlink(missing_ok=True)


def _message(data: npt.NDArray[np.uint8], fresh: Shared) -> Message | None:
    return wire.decode(data.tobytes(), expect=fresh.layout.count) if len(data) else None


def _name(number: int, round: int) -> str:
    return f"client-{number:05d}.round-{round:05d}.npz"


def _write(path: Path, arrays: dict[str, Any]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    with writing(path.parent):
        write_atomic(path, buffer.getvalue())


def _read(path: Path, needed: Iterable[str]) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as file:  # a zip: its checksums are verified on reading
            arrays = {name: file[name] for name in file.files}
    except DAMAGED_NPZ as error:
        raise RunError(f"the checkpoint file '{path}' cannot be read ({error}): start the run again in a new folder") from error
    for name in needed:
        if name not in arrays:
            raise RunError(f"the checkpoint file '{path}' lacks '{name}': start the run again in a new folder")
    return arrays
