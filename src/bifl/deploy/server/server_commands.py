"""What `bifl server` and `bifl federation up` do."""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from bifl.core.sums import LARGEST_WEIGHT
from bifl.data.fingerprint import loaded
from bifl.deploy import certificates
from bifl.deploy.flower.programs import address, ended_by_signals, free_port, refuse_blanks, stop
from bifl.deploy.flower.superlink import SuperLink
from bifl.deploy.protocol import named_files
from bifl.deploy.server.nodes import run_rounds
from bifl.deploy.server.requests import Rules
from bifl.errors import ConfigError, RunError, quoted
from bifl.exchanges.input_counts import normalised_by
from bifl.experiment import config_file
from bifl.experiment.settings import Experiment, of_words, pairs
from bifl.experiment.setup import Setup, load, serve
from bifl.files import write_atomic, writing
from bifl.processes import tied
from bifl.registry import short
from bifl.runs.events import FAILED, FINISHED, LONGEST, NOTE, Tell, writer
from bifl.runs.folder import CONFIG, RunFolder, claim, folder_name, read_records
from bifl.show.output import console, say
from bifl.show.terminal import Meter, data_line, run_table

# in the run's folder: Flower's own files; how the server was started; the clients of a federation on this machine
FLOWER, SERVER, NEIGHBOURS = "flower", "server.json", "clients"


@dataclass(frozen=True, kw_only=True)
class ServerStart(Rules):
    """How a server was started: what `--resume` need not be told again. Runs of earlier versions have no `max_images`."""

    keys: str
    host: str
    port: int
    keep_messages: bool


class Service(NamedTuple):
    """A run, and how it is served."""

    run: RunFolder
    setup: Setup
    start: ServerStart


def server(options: argparse.Namespace) -> int:
    """Serve one run."""
    if options.resume:
        service = _resumed(options, ("listen", "keys", "name", "keep_messages"), "bifl server")
    else:
        experiment = _asked(options, of_words(options.settings))
        service = _begun(options, experiment, "", _rules(options), options.listen or "127.0.0.1:8000", options.keys or Path("keys"))
    certificates.make_keys(Path(service.start.keys), options.name, service.run.experiment.clients)
    with ended_by_signals():
        return _serve_and_show(service, "bifl server", " (clients that ended must be started again)")


def _asked(options: argparse.Namespace, experiment: Experiment) -> Experiment:
    """The experiment, its inputs normalised by what clients have said before, if --asked names where."""
    folder = options.asked
    if folder is None:
        return experiment
    records, ours = read_records(folder), load(experiment).form
    report = records[-1].report if records else None
    if report:
        theirs = load(config_file.read(folder / CONFIG, options.trust)).form
        if (ours.kind, ours.shape) != (theirs.kind, theirs.shape):
            asked, wanted = (f"{form.kind} of shape {','.join(map(str, form.shape))}" for form in (theirs, ours))
            raise RunError(f"'{folder}' tells of inputs that are {asked}, and those of this run are {wanted}: ask again")
    words = normalised_by(report or {}, ours)
    if not words:
        raise RunError(f"'{folder}' holds no mean and deviation of inputs: give the folder of bifl ask --listen")
    return experiment.changed(words)


def _rules(options: argparse.Namespace) -> dict[str, Any]:
    """The rules that were given."""
    given = {field.name: getattr(options, field.name) for field in fields(Rules)}
    return {name: value for name, value in given.items() if value is not None}


def _begun(
    options: argparse.Namespace, experiment: Experiment, kind: str, rules: Mapping[str, Any], listen: str, keys: Path | None = None
) -> Service:
    """A new run, served at an address; what cannot be run is refused before anything is written. Its folder may have the keys."""
    host, port = address(listen)
    Rules(**rules).check(experiment)
    setup = serve(experiment)
    refuse_blanks()
    run = RunFolder.start(options.out or claim(Path("runs"), kind + folder_name(experiment)), experiment)
    keys = (run.path / "keys" if keys is None else keys).resolve()
    start = ServerStart(**rules, keys=str(keys), host=host, port=port, keep_messages=options.keep_messages)
    return _service(run, setup, start)


def _service(run: RunFolder, setup: Setup, start: ServerStart) -> Service:
    """Show what the run is on, and write down how it is served; other data than before are refused."""
    data = loaded(setup.data)
    run.settle(data)
    say(console(), data_line(run.experiment, data))
    with writing(run.path):
        write_atomic(run.path / SERVER, json.dumps(asdict(start)))
    return Service(run, setup, start)


def serve_once(options: argparse.Namespace, experiment: Experiment) -> RunFolder:
    """Hold the rounds of an experiment with the clients that come to an address, without a table of them; the run's folder."""
    kind = f"{short(experiment.exchange.name)}-"
    service = _begun(options, experiment, kind, _rules(options), options.listen, options.keys or Path("keys"))
    certificates.make_keys(Path(service.start.keys), [], experiment.clients)
    with ended_by_signals():
        if _serve(service, "bifl server"):
            raise RunError("stopped before all clients had answered")
    return service.run


def _serve_and_show(service: Service, command: str, besides: str = "") -> int:
    code = _serve(service, command, besides)
    if not code:
        console().print(run_table(service.run.records(), service.run.path / "model"))
    return code


def _serve(service: Service, command: str, besides: str = "") -> int:
    """Start the SuperLink, hold the rounds and show them as they come; `command` continues them, with what is told `besides`."""
    (run, setup, start), out = service, console()
    keys, rounds = Path(start.keys), run.experiment.rounds
    run.keep_messages = start.keep_messages
    with Meter(out, rounds).running() as meter:
        meter.begin(short(run.experiment.algorithm.name), run.records())
        try:
            with SuperLink(run.path / FLOWER, keys, start.host, start.port) as link, _flowers_log(run.path / FLOWER):
                link.numbers()  # so that clients are let in from now on
                say(out, f"listening on {start.host}:{start.port}; run folder {run.path}")
                with link.grid() as grid:
                    for record in run_rounds(grid, run, start, setup, keys, link.numbers, shown_as_well(run, meter)):
                        meter.show(record, rounds)
        except KeyboardInterrupt:
            again = f"{command} --resume {shlex.quote(str(run.path))}" + " --trust" * bool(run.experiment.python_files()) + besides
            print(f"bifl: stopped after round {len(run.records())} of {rounds}; continue with: {again}", file=sys.stderr)
            return 130
    return 0


def shown_as_well(run: RunFolder, meter: Meter) -> Tell:
    """Tell by the run's events, and show what an error or a table does not show in any case."""
    write = writer(run.path)

    def tell(text: str, kind: str = NOTE, client: int | None = None) -> None:
        write(text, kind, client)
        if kind not in (FAILED, FINISHED):
            meter.note(quoted(text, LONGEST))

    return tell


@contextmanager
def _flowers_log(folder: Path) -> Iterator[None]:
    """Let what Flower's library says go to a file, while the screen shows the rounds."""
    log, file = logging.getLogger("flwr"), logging.FileHandler(folder / "rounds.log")
    screens = log.handlers[:]
    log.handlers[:] = [file]
    try:
        yield
    finally:
        log.handlers[:] = screens
        file.close()


def _resumed(options: argparse.Namespace, fixed: tuple[str, ...], command: str) -> Service:
    """A run that goes on as its server was started, but for what is asked for now and is not fixed."""
    for name in fixed:
        if getattr(options, name):
            flag = "--" + name.replace("_", "-")
            can = "--min-clients, --deadline, --max-images and rounds="
            raise ConfigError(f"{flag} cannot change when a run is continued, only {can} can")
    start = remembered(RunFolder.resume(options.resume, {}, options.trust), _rules(options))
    if command != "bifl server" and not (options.resume / NEIGHBOURS).is_dir():
        raise RunError(f"'{options.resume}' is not a run of {command}: continue it with bifl server --resume")
    refuse_blanks()
    run = RunFolder.resume(options.resume, pairs(options.settings), options.trust)
    return _service(run, serve(run.experiment), start)


def remembered(run: RunFolder, given: Mapping[str, Any]) -> ServerStart:
    """As the server of a run was started, but for what is given now."""
    path = run.path / SERVER
    try:
        old = ServerStart(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"'{run.path}' is not a run of bifl server: {path.name} cannot be read ({error})") from error
    start = replace(old, **given)
    start.check(run.experiment)
    return start


def federation_up(options: argparse.Namespace) -> int:
    """A server and its clients, all on this machine."""
    command = "bifl federation up"
    if options.resume:
        service = _resumed(options, ("clients", "keep_messages"), command)
    else:
        experiment = _asked(options, of_words([*options.settings, f"clients={options.clients or 5}"]))
        rules = {"max_images": LARGEST_WEIGHT} | _rules(options)  # the clients are our own, whatever they have
        service = _begun(options, experiment, "federation-", rules, f"127.0.0.1:{free_port()}")
    certificates.make_keys(Path(service.start.keys), [], service.run.experiment.clients)
    with ended_by_signals(), _neighbours(service.run, service.start):
        return _serve_and_show(service, command)


@contextmanager
def _neighbours(run: RunFolder, start: ServerStart) -> Iterator[None]:
    """Start every client as a process, with a state directory of its own."""
    keys, server = Path(start.keys), f"{start.host}:{start.port}"
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
