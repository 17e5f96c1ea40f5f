"""What `bifl client` does. Without torch and Flower: it stays all day, its node is a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from bifl.deploy.client.own_data import check_data
from bifl.deploy.flower.programs import ADMITTED, address, ended_by_signals, last_words, read_pipe, start, stop
from bifl.errors import ConfigError, RunError, quoted
from bifl.files import writing

_LOOK = 0.3  # seconds between two looks at what it says
_LONGEST = 900  # characters of what a node said before it ended
_AGAIN = 5.0  # seconds until one that was refused tries again


def client(options: argparse.Namespace) -> int:
    """Take part in runs as a client until interrupted."""
    address(options.server)
    for path in (options.ca, options.key):
        if not path.is_file():
            raise ConfigError(f"'{path}' does not exist: get it from whoever ran bifl keys")
    number = _number(options)
    for path in options.allow:
        if not path.exists():
            raise ConfigError(f"--allow: '{path}' does not exist")
    insists = _insists(options)
    data = check_data(options.data)
    state = (options.state or Path(f"client-{number}-state")).resolve()
    with writing(state):
        state.mkdir(parents=True, exist_ok=True)
    config: dict[str, str | int] = {"partition-id": number, "state-dir": str(state), "data": data, **insists}
    files = dict.fromkeys(path.resolve() for path in options.allow)
    config |= {f"allow-{place}": str(path) for place, path in enumerate(files)}
    words = [options.server, options.ca.resolve(), options.key.resolve(), json.dumps(config)]
    with ended_by_signals():
        try:
            _stay(words, state, options.patience)
        except KeyboardInterrupt:
            print("bifl: client stopped; started again it continues from its state", file=sys.stderr)
            return 130


def _number(options: argparse.Namespace) -> int:
    text = options.key.name.rpartition("-")[2]
    if options.number is None and not text.isdecimal():
        raise ConfigError(f"which client is this? Give --number, or a key that is called client-N instead of '{options.key.name}'")
    return int(text) if options.number is None else int(options.number)


def _insists(options: argparse.Namespace) -> dict[str, str | int]:
    """What a client insists on in secure sums, if it was started with --peers."""
    if options.least < 2:
        raise ConfigError(f"--least must be 2 or more, not {options.least}: a sum of one client hides nobody")
    if options.colluders < 0:
        raise ConfigError(f"--colluders must be 0 or more, not {options.colluders}")
    if options.peers is None:
        if options.colluders:
            raise ConfigError("--colluders goes with --peers, without which this client takes part in no secure sum")
        return {}
    if not options.peers.is_file():
        raise ConfigError(f"--peers: '{options.peers}' does not exist: bifl keys makes it, as clients.pub")
    keys = {"key": str(options.key.resolve()), "peers": str(options.peers.resolve())}
    return keys | {"least": options.least, "colluders": options.colluders}


def _stay(words: list[str | Path], state: Path, patience: float) -> NoReturn:
    """Start the client's node with these words, again whenever it ends, until interrupted or refused for `patience` seconds."""
    server, authority, key, _ = words
    log = state / "supernode.log"
    refused_since: float | None = None
    while True:
        begin = log.stat().st_size if log.exists() else 0
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        process = start("supernode", [*words, str(writing)], state / "flower", log, pipe=writing)
        os.close(writing)
        try:
            while process.poll() is None:
                _show(reading)
                time.sleep(_LOOK)
        finally:
            stop(process)
            _show(reading)
            os.close(reading)
        why = log.read_bytes()[begin:].decode(errors="replace")
        if "CERTIFICATE_VERIFY_FAILED" in why:
            raise RunError(f"{server} shows a certificate that '{authority}' does not vouch for: is it the right server?")
        refused = ADMITTED not in why and "code: 2004" in why
        refused_since = (refused_since or time.monotonic()) if refused else None
        if refused_since is not None and time.monotonic() > refused_since + patience:
            raise RunError(f"{server} refuses the key '{key}': it is not registered there (bifl server does that)")
        reason = "the server refuses the key, or has not noticed yet that we were gone" if refused else last_words(log)
        print(f"not connected: {quoted(reason, _LONGEST)}; trying again in {_AGAIN:g} s", flush=True)
        time.sleep(_AGAIN)


def _show(pipe: int) -> None:
    for text, problem in read_pipe(pipe):
        print(f"bifl: {text}" if problem else text, file=sys.stderr if problem else sys.stdout, flush=True)
