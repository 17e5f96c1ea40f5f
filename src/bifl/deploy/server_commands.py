"""What `bifl server` and `bifl federation up` do."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bifl.core.sums import LARGEST_WEIGHT
from bifl.data.fingerprint import loaded
from bifl.data.inputs import Dataset, Form
from bifl.deploy import certificates
from bifl.deploy.client_commands import LOCAL, address
from bifl.deploy.flower_programs import NODES, Link, ended_by_signals, free_port, last_words, refuse_blanks, stop
from bifl.deploy.operator_choices import named_files
from bifl.deploy.server_app import DEADLINE, rules
from bifl.engine import running
from bifl.errors import ConfigError, RunError
from bifl.exchanges.input_counts import normalised_by
from bifl.experiment import config_file
from bifl.experiment.settings import Experiment, of_words, pairs
from bifl.experiment.setup import load, serve
from bifl.files import write_atomic, writing
from bifl.processes import tied
from bifl.registry import short
from bifl.runs.events import FAILED, FINISHED, Reader
from bifl.runs.folder import CONFIG, RunFolder, claim, folder_name, read_records
from bifl.show.output import console, say
from bifl.show.terminal import Meter, data_line, run_table

# in the run's folder: Flower's own files; how the server was started; the clients of a federation on this machine
FLOWER, SETTINGS, NEIGHBOURS = "flower", "server.json", "clients"
_LOOK = 0.3  # seconds between two looks at what the server has done
_ASK = 60.0  # seconds of silence after which Flower is asked whether the run still lives


class Settings(NamedTuple):
    """How a server was started: what `--resume` need not be told again."""

    keys: str
    host: str
    port: int
    min_clients: int
    deadline: float
    keep_messages: bool
    max_images: int = 0  # runs of earlier versions have none


def server(options: argparse.Namespace) -> int:
    """Serve one run."""
    if options.resume:
        settings = _remembered(options, ("listen", "keys", "name", "keep_messages"))
        run = _resumed(options, settings)
    else:
        host, port = address(options.listen or "127.0.0.1:8000")
        run = _started(options, _asked(options, of_words(options.settings)), "")
        settings = _settings(options, run, (options.keys or Path("keys")).resolve(), host, port)
    certificates.make_keys(Path(settings.keys), [*options.name, *LOCAL], run.experiment.clients)
    with ended_by_signals():
        return _shown(run, settings, f"bifl server --resume {_quoted(run)} (clients that ended must be started again)")


def _asked(options: argparse.Namespace, experiment: Experiment) -> Experiment:
    """The experiment, its inputs normalised by what clients have said before, if --asked names where.

    Raises:
        RunError: nothing is said there.
    """
    if options.asked is None:
        return experiment
    records, form = read_records(options.asked), load(experiment).form
    if records and records[-1].report:
        _refuse_other_inputs(options.asked, form, load(config_file.read(options.asked / CONFIG, options.trust)).form)
    words = normalised_by(records[-1].report or {}, form) if records else {}
    if not words:
        raise RunError(f"'{options.asked}' holds no mean and deviation of inputs: give the folder of bifl ask --listen")
    return experiment.changed(words)


def _refuse_other_inputs(folder: Path, ours: Form, theirs: Form) -> None:
    """Refuse a mean and deviation of other inputs than the run's.

    Raises:
        RunError: they are.
    """
    if (ours.kind, ours.shape) != (theirs.kind, theirs.shape):
        said, wanted = (f"{form.kind} of shape {','.join(map(str, form.shape))}" for form in (theirs, ours))
        raise RunError(f"'{folder}' tells of inputs that are {said}, and those of this run are {wanted}: ask again")


def _started(options: argparse.Namespace, experiment: Experiment, kind: str) -> RunFolder:
    """The folder of a new run; what cannot be run is refused before anything is written."""
    setup = serve(experiment)
    running.check(setup)
    rules(experiment, options.min_clients or 0, _deadline(options), options.max_images or 0)
    refuse_blanks()
    run = RunFolder.start(options.out or claim(Path("runs"), kind + folder_name(experiment)), experiment)
    _settle(run, setup.data)
    return run


def _settle(run: RunFolder, data: Dataset) -> None:
    """Write down what the run is on, and show it; other data than before are refused."""
    found = loaded(data)
    run.settle(found)
    say(console(), data_line(run.experiment, found))


def _settings(options: argparse.Namespace, run: RunFolder, keys: Path, host: str, port: int, most: int = 0) -> Settings:
    """As asked for, or with at `most` so many images a client; `--resume` reads it."""
    most = most if options.max_images is None else options.max_images
    settings = Settings(str(keys), host, port, options.min_clients or 0, _deadline(options), options.keep_messages, most)
    _write(run, settings)
    return settings


def _write(run: RunFolder, settings: Settings) -> None:
    with writing(run.path):
        write_atomic(run.path / SETTINGS, json.dumps(settings._asdict()))


def _quoted(run: RunFolder) -> str:
    return shlex.quote(str(run.path)) + (" --trust" if run.experiment.python_files() else "")


def serve_once(options: argparse.Namespace, experiment: Experiment) -> RunFolder:
    """Hold the rounds of an experiment with the clients that come to an address, without a table of them; the run's folder.

    Raises:
        RunError: it was stopped.
    """
    host, port = address(options.listen)
    run = _started(options, experiment, f"{short(experiment.exchange.name)}-")
    settings = _settings(options, run, (options.keys or Path("keys")).resolve(), host, port)
    certificates.make_keys(Path(settings.keys), LOCAL, experiment.clients)
    with ended_by_signals():
        if _serve(run, settings, f"bifl server --resume {_quoted(run)}"):
            raise RunError("stopped before all clients had answered")
    return run


def _shown(run: RunFolder, settings: Settings, again: str) -> int:
    """Serve a run, and show a table of it in the end."""
    code = _serve(run, settings, again)
    if not code:
        console().print(run_table(run.records(), run.path / "model"))
    return code


def _serve(run: RunFolder, settings: Settings, again: str) -> int:
    """Start everything, show the rounds as they come, end everything.

    Args:
        run: the run.
        settings: how to serve it.
        again: the command that continues it.
    """
    keys, out = Path(settings.keys), console()
    with Meter(out, run.experiment.rounds).running() as meter:
        meter.begin(short(run.experiment.algorithm.name), run.records())
        try:
            with Link(run.path / FLOWER, keys, settings.host, settings.port) as link:
                say(out, f"listening on {settings.host}:{settings.port}; run folder {run.path}")
                link.register(certificates.public_keys(keys))
                watch = Watch(run, meter)
                watch.until_done(link, link.run(_config(run, settings)), keys)
        except KeyboardInterrupt:
            done = len(run.records())
            print(f"bifl: stopped after round {done} of {run.experiment.rounds}; continue with: {again}", file=sys.stderr)
            return 130
    return 0


def _config(run: RunFolder, settings: Settings) -> dict[str, str | int | float | bool]:
    return {
        "folder": str(run.path.resolve()),
        "min-clients": settings.min_clients,
        "deadline": settings.deadline,
        "max-images": settings.max_images,
        "numbers": str((run.path / FLOWER / NODES).resolve()),
        "keys": settings.keys,
        "keep-messages": settings.keep_messages,
    }


def _deadline(options: argparse.Namespace) -> float:
    return DEADLINE if options.deadline is None else float(options.deadline)


def _remembered(options: argparse.Namespace, fixed: tuple[str, ...]) -> Settings:
    """As the server was started, but for what is asked for now and is not fixed; nothing is written."""
    for name in fixed:
        if getattr(options, name):
            flag = "--" + name.replace("_", "-")
            can = "--min-clients, --deadline, --max-images and rounds="
            raise ConfigError(f"{flag} cannot change when a run is continued, only {can} can")
    given = {"min_clients": options.min_clients, "deadline": options.deadline, "max_images": options.max_images}
    return remembered(RunFolder.resume(options.resume, {}, options.trust), given)


def remembered(run: RunFolder, given: Mapping[str, Any]) -> Settings:
    """As the server of a run was started, but for what is given now."""
    path = run.path / SETTINGS
    try:
        old = Settings(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"'{run.path}' is not a run of bifl server: {path.name} cannot be read ({error})") from error
    settings = old._replace(**{name: value for name, value in given.items() if value is not None})
    rules(run.experiment, settings.min_clients, settings.deadline, settings.max_images)
    return settings


def _resumed(options: argparse.Namespace, settings: Settings) -> RunFolder:
    """The run, which from now on is served so."""
    refuse_blanks()
    run = RunFolder.resume(options.resume, pairs(options.settings), options.trust)
    _settle(run, load(run.experiment))
    _write(run, settings)
    return run


class Watch:
    """Follows a run by what its ServerApp writes into the folder."""

    def __init__(self, run: RunFolder, meter: Meter) -> None:
        self._run, self._meter = run, meter
        self._shown, self._finished = len(run.records()), False
        self._heard = time.monotonic()  # the last sign of life
        self._events = Reader(run.path).skip()

    def until_done(self, link: Link, number: str, keys: Path) -> None:
        """Show rounds and events; let clients take part whose keys are new.

        Raises:
            RunError: the run failed.
        """
        while not self.done():
            link.check()
            link.register(certificates.public_keys(keys))
            if time.monotonic() > self._heard + _ASK:
                self._heard = time.monotonic()
                if (status := self._status(link, number)).startswith("finished") and not self.done():
                    raise RunError(f"the ServerApp ended ({status}): {last_words(link.log)}")
            time.sleep(_LOOK)

    def _status(self, link: Link, number: str) -> str:
        """What Flower says of the run; where it does not answer just now, a busy machine is no reason to end a training."""
        try:
            return link.status(number)
        except RunError as error:
            self._meter.note(str(error))
            return "unknown"

    def done(self) -> bool:
        """Show what is new; whether the run is over."""
        records = self._run.records()
        for record in records[self._shown :]:
            self._heard = time.monotonic()
            self._meter.show(record, self._run.experiment.rounds)
        self._shown = max(self._shown, len(records))
        for event in self._events.new():
            self._heard = time.monotonic()
            if event.kind == FAILED:
                raise RunError(event.text)
            if event.kind == FINISHED:
                self._finished = True
            else:
                self._meter.note(event.text)
        return self._finished


def federation_up(options: argparse.Namespace) -> int:
    """A server and its clients, all on this machine."""
    if options.resume:
        settings = _remembered(options, ("clients", "keep_messages"))
        if not (options.resume / NEIGHBOURS).is_dir():
            raise RunError(f"'{options.resume}' is not a run of bifl federation up: continue it with bifl server --resume")
        run = _resumed(options, settings)
    else:
        run = _started(options, _asked(options, of_words([*options.settings, f"clients={options.clients or 5}"])), "federation-")
        # the clients are our own, whatever they have
        settings = _settings(options, run, (run.path / "keys").resolve(), LOCAL[1], free_port(), LARGEST_WEIGHT)
    certificates.make_keys(Path(settings.keys), LOCAL, run.experiment.clients)
    with ended_by_signals(), _neighbours(run, settings):
        return _shown(run, settings, f"bifl federation up --resume {_quoted(run)}")


@contextmanager
def _neighbours(run: RunFolder, settings: Settings) -> Iterator[None]:
    """Start every client as a process, with a state directory of its own."""
    keys, server = Path(settings.keys), f"{settings.host}:{settings.port}"
    allowed = [word for path in named_files(run.experiment) for word in ("--allow", path)]  # they are the same person's
    if run.experiment.secure_sum:  # who is told of its peers takes part in nothing else
        allowed += ["--peers", certificates.peers(keys)]
    with ExitStack() as stack:
        for number in range(run.experiment.clients):
            state = run.path / NEIGHBOURS / str(number)
            with writing(state):
                state.mkdir(parents=True, exist_ok=True)
            command: list[str | Path] = [
                sys.executable, "-m", "bifl.cli", "client", "--server", server, "--ca", certificates.authority(keys),
                "--key", certificates.client_key(keys, number), "--state", state, *allowed,
            ]  # fmt: skip
            with writing(state), (state / "client.log").open("ab") as log:
                process = subprocess.Popen(tied(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            stack.callback(stop, process)
        yield
