"""What a run must remember to go on: one file for the server, one per client and round trained.

A client's file carries its round in its name and is never overwritten with other contents; the server's file, replaced
atomically, says which round is complete. Killed at any moment, the newest files up to that round are a consistent state.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bifl import wire
from bifl.algorithm import Client, Message, Shared
from bifl.errors import RunError
from bifl.files import write_atomic, writing
from bifl.runtime.record import Record

_SERVER = "server.npz"
_CLIENT = re.compile(r"client-(\d+)\.round-(\d+)\.npz")


def save_server(folder: Path, shared: Shared, news: Message, record: Record) -> None:
    """Declare the record's round complete."""
    arrays = {"weights": shared.weights, "real": shared.real, "scales": shared.scales}
    if shared.votes is not None:
        arrays["votes"] = shared.votes
    facts = {"seed": shared.seed, "round": shared.round, "model": shared.layout.fingerprint, "record": record.to_json()}
    _write(folder / _SERVER, arrays | {"news": np.frombuffer(wire.encode(news), np.uint8), "facts": np.array(json.dumps(facts))})


def load_server(folder: Path, fresh: Shared) -> tuple[Shared, Message, Record]:
    """The state after the last complete round.

    Args:
        folder: of the checkpoint.
        fresh: the state before the first round of the same experiment; says what must fit.
    """
    arrays = _read(folder / _SERVER, ("weights", "real", "scales", "news", "facts"))
    facts = json.loads(str(arrays["facts"]))
    if facts["model"] != fresh.layout.fingerprint or facts["seed"] != fresh.seed:
        raise RunError(f"the checkpoint in '{folder}' belongs to another model or seed than its config.toml")
    shared = fresh._replace(
        round=facts["round"], weights=arrays["weights"], real=arrays["real"], scales=arrays["scales"], votes=arrays.get("votes")
    )
    return shared, wire.decode(arrays["news"].tobytes(), expect=fresh.layout.count), Record.from_json(facts["record"])


def has_server(folder: Path) -> bool:
    """Whether a round was ever completed."""
    return (folder / _SERVER).is_file()


def save_client(folder: Path, number: int, round: int, client: Client) -> None:
    """Keep what a client must remember of a round."""
    _write(
        folder / f"client-{number:05d}.round-{round:05d}.npz", {"aux": client.aux, "scales": client.scales, "memory": client.memory}
    )


def load_client(path: Path, client: Client) -> Client:
    """The client with what it remembered."""
    arrays = _read(path, ("aux", "scales", "memory"))
    if arrays["aux"].shape != client.aux.shape:
        raise RunError(f"'{path}' holds {arrays['aux'].size} weights, the model has {client.aux.size}")
    return client._replace(aux=arrays["aux"], scales=arrays["scales"], memory=arrays["memory"])


def newest_clients(folder: Path, round: int) -> dict[int, Path]:
    """Each client's newest file up to a round. Clients that never trained have none."""
    newest: dict[int, tuple[int, Path]] = {}
    for number, trained, path in _client_files(folder):
        if trained <= round and trained >= newest.get(number, (0, path))[0]:
            newest[number] = (trained, path)
    return {number: path for number, (_, path) in newest.items()}


def prune(folder: Path, round: int) -> None:
    """Delete the client files that no continuation after `round` needs."""
    keep = set(newest_clients(folder, round).values())
    for _, trained, path in _client_files(folder):
        if path not in keep and trained <= round:
            path.unlink(missing_ok=True)


def _client_files(folder: Path) -> Iterable[tuple[int, int, Path]]:
    for path in folder.iterdir():
        if match := _CLIENT.fullmatch(path.name):
            yield int(match[1]), int(match[2]), path


def _write(path: Path, arrays: dict[str, Any]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    with writing(path.parent):
        write_atomic(path, buffer.getvalue())


def _read(path: Path, needed: tuple[str, ...]) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as file:  # a zip: its checksums are verified on reading
            arrays = {name: file[name] for name in file.files}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise RunError(f"the checkpoint file '{path}' cannot be read ({error}): start the run again in a new folder") from error
    for name in needed:
        if name not in arrays:
            raise RunError(f"the checkpoint file '{path}' lacks '{name}': start the run again in a new folder")
    return arrays
