"""What a run must remember to go on: one file for the server, one per client.

A client's file carries its round in its name; it is overwritten only if that round is held again. The server's file, replaced
atomically, says which round is complete and which client files belong to it. Killed at any moment, that is a consistent state; and
since clients' files reach the disk before the server's is replaced, so it is after a power cut.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from bifl import codec, npz
from bifl.core.message import Message
from bifl.core.state import Client, Public, Server
from bifl.engine.catch_up import Step
from bifl.errors import RunError
from bifl.exchanges.exchange import Exchange
from bifl.files import parse_json, sync_folder, write_atomic, write_unlisted, writing
from bifl.runs.record import Ending, Record

_SERVER = "server.npz"
_STATES = "states"  # their names
_STATE = "state "  # before the name of whoever keeps it
_VECTOR = "vector "  # before its name
_FLOATS, _BYTES = ("f4",), ("u1",)  # kinds of numbers, as numpy spells them
Shape = tuple[int | None, ...] | None


class State(NamedTuple):
    """A run after a complete round, or before the first."""

    public: Public
    record: Record | None = None  # of that round
    trained: Mapping[int, int] = MappingProxyType({})  # client → the last round in which it trained
    counted: frozenset[int] = frozenset()  # the clients whose ballots are in that round's broadcast
    server: Server = Server()  # what the server keeps for itself
    steps: tuple[Step, ...] = ()  # the last broadcasts
    ending: Ending | None = None  # why no round follows, if none does; what is loaded does not tell, as `rounds` may change


def save_server(folder: Path, state: State, ballot: Exchange) -> None:
    """Declare the state's round complete, and delete the files that no longer matter."""
    assert state.record is not None  # or no round would be complete
    with writing(folder):
        sync_folder(folder)  # of the clients' files, which this one relies on
    arrays = {
        "trained": np.array(sorted(state.trained.items()), np.int64).reshape(-1, 2),
        "counted": np.array(sorted(state.counted)),
        "memory": state.server.memory,
    }
    arrays |= {f"{_STATE}{name}": array for name, array in state.server.states.items()}
    arrays |= {f"step_{place}": np.frombuffer(step.data, np.uint8) for place, step in enumerate(state.steps)}
    facts = {"record": state.record.to_json(), "steps": [[step.start, step.exchange, step.round] for step in state.steps]}
    save_public(folder / _SERVER, state.public, ballot, facts, arrays)
    needed = {_SERVER, *(_name(*item) for item in state.trained.items())}
    with writing(folder):
        for path in folder.iterdir():
            if path.name not in needed:
                path.unlink(missing_ok=True)


def load_server(folder: Path, fresh: Public, ballot: Exchange) -> State | None:
    """The state after the last complete round; None before the first.

    It must fit `fresh`, the public state before the first round; the broadcasts of `ballot` are part of the public state.
    """
    path = folder / _SERVER
    if not path.is_file():
        return None
    public, facts, arrays = load_public(path, fresh, ballot, ("trained", "counted", "memory"))
    with _reading(path):
        record, trained = Record.from_json(facts["record"]), _array(arrays, "trained", ("i",), (None, 2))
        counted = _array(arrays, "counted", ("i",) if arrays["counted"].size else ("i", "f"), (None,))
        memory = _array(arrays, "memory", _FLOATS)
        if older := {"trust", "summed"} & arrays.keys():
            raise ValueError(f"{min(older)} is of an earlier version")
        states = {name.removeprefix(_STATE): _array(arrays, name, ("i", "f")) for name in arrays if name.startswith(_STATE)}
        steps = tuple(_step(place, fact, arrays) for place, fact in enumerate(facts["steps"]))
        if record.round != public.round:
            raise ValueError(f"the record is of round {record.round}, the state of round {public.round}")
    return State(public, record, dict(trained.tolist()), frozenset(map(int, counted)), Server(memory, states=states), steps)


def _step(place: int, fact: Any, arrays: dict[str, Any]) -> Step:
    start, exchange, round = fact
    if [type(start), type(exchange), type(round)] != [str, str, int]:
        raise ValueError(f"step {place} is {fact!r:.80}")
    return Step(start, exchange, round, _array(arrays, f"step_{place}", _BYTES, (None,)).tobytes())


def save_public(path: Path, public: Public, ballot: Exchange, facts: dict[str, Any], more: dict[str, Any]) -> None:
    """Write the public state down, and what else belongs to it: `facts` as JSON, `more` as arrays."""
    arrays: dict[str, Any] = {"weights": public.weights, "real": public.real, "scales": public.scales}
    arrays |= {f"{_VECTOR}{name}": vector for name, vector in public.vectors.items()}
    for name, message in {"news": public.news, "before": public.before}.items():
        arrays[name] = np.frombuffer(
            b"" if message is None else codec.encode(message, ballot.plain(public, message.round)), np.uint8
        )
    facts = {"seed": public.seed, "round": public.round, "model": public.layout.fingerprint} | facts
    data = _packed(arrays | more | {"facts": np.array(json.dumps(facts))})
    with writing(path.parent):
        write_atomic(path, data)


def load_public(
    path: Path, fresh: Public, ballot: Exchange, more: Iterable[str] = ()
) -> tuple[Public, dict[str, Any], dict[str, Any]]:
    """Read the same again: the state, the facts and all arrays, `more` among them."""
    named = {name: f"{_VECTOR}{name}" for name in fresh.vectors}
    arrays = _read(path, ("weights", "real", "scales", "news", "before", "facts", *named.values(), *more))
    with _reading(path):
        facts = parse_json(str(arrays["facts"]))
        if facts["model"] != fresh.layout.fingerprint or facts["seed"] != fresh.seed:
            raise RunError(f"the checkpoint in '{path.parent}' belongs to another model or seed than its config.toml")
        if type(facts["round"]) is not int or facts["round"] < 0:
            raise ValueError(f"round is {facts['round']!r}")
        public = fresh._replace(
            round=facts["round"], scales=_array(arrays, "scales", _FLOATS, (None,)),
            weights=_array(arrays, "weights", _FLOATS, fresh.weights.shape),
            real=_array(arrays, "real", _FLOATS, fresh.real.shape),
            vectors={name: _array(arrays, entry, _FLOATS, fresh.weights.shape) for name, entry in named.items()},
            news=_message(arrays, "news", fresh, ballot), before=_message(arrays, "before", fresh, ballot),
        )  # fmt: skip
    return public, facts, arrays


def save_client(folder: Path, number: int, round: int, client: Client, keeps: tuple[str, ...]) -> None:
    """Keep what a client must remember of a round, if that is anything."""
    if keeps or client.states:
        kept = {field: getattr(client, field) for field in keeps}
        kept |= {f"{_STATE}{name}": np.frombuffer(state, np.uint8) for name, state in client.states.items()}
        data = _packed(kept | {_STATES: np.array(sorted(client.states), np.str_)})
        with writing(folder):
            write_unlisted(folder / _name(number, round), data)  # a folder's entries are synced once, by the server


def load_client(
    folder: Path, number: int, round: int, fresh: Client, keeps: tuple[str, ...], names: Collection[str] = ()
) -> Client:
    """The client with what it remembered: of its algorithm, or states of exchanges of these names, if there are any yet."""
    path = folder / _name(number, round)
    if not keeps and not (names and path.is_file()):
        return fresh
    arrays = _read(path, (*keeps, _STATES))
    shapes: dict[str, Shape] = {"aux": fresh.aux.shape, "start": fresh.start.shape, "memory": None}
    with _reading(path):
        kept: dict[str, Any] = {field: _array(arrays, field, _FLOATS, shapes.get(field, (None,))) for field in keeps}
        kept["states"] = {name: arrays[f"{_STATE}{name}"].tobytes() for name in arrays[_STATES].tolist()}
    return fresh._replace(**kept)


def rounds_of(folder: Path, number: int) -> list[int]:
    """The rounds of which a client remembers something, rising."""
    return sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob(f"client-{number:05d}.round-*.npz"))


def forget(folder: Path, number: int, rounds: Iterable[int]) -> None:
    """Delete what a client remembers of rounds."""
    with writing(folder):
        for round in rounds:
            (folder / _name(number, round)).unlink(missing_ok=True)


def _array(arrays: dict[str, Any], name: str, kinds: tuple[str, ...], shape: Shape = None) -> Any:
    """An array that must be finite, of one of these kinds and, where it is given, of a shape, in which None is any size."""
    array = arrays[name]
    sizes = tuple(None if wanted is None else size for wanted, size in zip(shape or (), array.shape, strict=False))
    right = array.dtype.isnative and array.dtype.str[1:].startswith(kinds)
    if not right or (shape is not None and (sizes != shape or array.ndim != len(shape))):
        raise ValueError(f"{name} is {array.shape} of {array.dtype}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds a number that is not finite")
    return array


def _message(arrays: dict[str, Any], name: str, fresh: Public, ballot: Exchange) -> Message | None:
    data = _array(arrays, name, _BYTES, (None,)).tobytes()
    return codec.decode(data, ballot.plain(fresh, codec.read_header(data).round)) if data else None


def _name(number: int, round: int) -> str:
    return f"client-{number:05d}.round-{round:05d}.npz"


def _packed(arrays: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _read(path: Path, needed: Iterable[str]) -> dict[str, Any]:
    needed = tuple(needed)
    try:
        arrays = npz.read(path)  # a zip: its checksums are verified on reading
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
