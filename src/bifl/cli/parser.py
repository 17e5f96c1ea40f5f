"""What can be typed: run, compare, ask, eval, export, personalise, inspect, data, summary, reproduce, report, list; keys, server,
client, federation.

Commands are known by where their functions stand, and imported when they are called: `--help` does not wait for torch.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from bifl import __version__
from bifl.cli import help_texts
from bifl.cli.help_format import AsTyped
from bifl.errors import ConfigError


class Strict(argparse.ArgumentParser):
    """Refuses in one sentence, as every command does; argparse would print how the command is used, and end the process."""

    def error(self, message: str) -> NoReturn:
        """What argparse found wrong.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{message.removeprefix('argument ')}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: str) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            from bifl.registry import nearest  # only those who need it wait for it

            raise ConfigError(f"unknown command '{value}'{nearest(value, action.choices)}")
        super()._check_value(action, value)


def parser() -> argparse.ArgumentParser:
    """All commands; `command` of what it parses is the module and the name of the function that does the work."""
    whole: argparse.ArgumentParser = Strict(
        "bifl",
        formatter_class=AsTyped,
        epilog=help_texts.EXAMPLES,
        description="Federated learning in which every client uploads a fraction of a bit per weight.",
    )
    whole.add_argument("--version", action="version", version=f"bifl {__version__}")
    verbs = whole.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_training(verbs)
    _add_asking(verbs)
    _add_looking(verbs)
    _add_export(verbs)
    _add_personalise(verbs)
    _add_deployment(verbs)
    _add_reproduce(verbs)
    _add_report(verbs)
    listing = verbs.add_parser("list", help="show what there is to choose from", description="What keys can be set to.")
    listing.set_defaults(command="bifl.cli.list_command:show_choices")
    listing.add_argument("what", nargs="?", metavar="KIND | NAME", help="algorithms: a line each; murmur: all about it")
    return whole


Verbs = argparse._SubParsersAction  # there is no public name for it


def _add_training(verbs: Verbs[argparse.ArgumentParser]) -> None:
    """Run and compare."""
    run = verbs.add_parser(
        "run",
        help="train one model",
        formatter_class=AsTyped,
        epilog=help_texts.RUN_KEYS + help_texts.TRACK,
        description="Train one model federatedly.",
    )
    run.set_defaults(command="bifl.cli.training_commands:run")
    compare = verbs.add_parser(
        "compare", help="train with several algorithms on the same split", formatter_class=AsTyped,
        epilog=help_texts.COMPARE_KEYS + help_texts.TRACK,
        description="Train with several algorithms on the same split: a table, and a picture of accuracy against bytes.",
    )  # fmt: skip
    compare.set_defaults(command="bifl.cli.training_commands:compare")
    for command in (run, compare):
        command.add_argument("settings", nargs="*", metavar="PRESET | KEY=VALUE", help="a preset first, if any, then keys")
        _add_trust(command, "run the Python files that the configuration in --resume's folder names")
        where = command.add_mutually_exclusive_group()
        where.add_argument("--out", type=Path, metavar="DIR", help="write into exactly this folder (default: runs/<name>)")
        where.add_argument(
            "--resume", type=Path, metavar="DIR", help="continue what is in this folder; rounds= and workers= may change"
        )
    run.add_argument("--keep-messages", action="store_true", help="keep a copy of every message in DIR/messages, for bifl inspect")


def _add_asking(verbs: Verbs[argparse.ArgumentParser]) -> None:
    """Ask and eval: what clients say without training."""
    ask = verbs.add_parser(
        "ask", help="count what clients have, without training", formatter_class=AsTyped, epilog=help_texts.RUN_KEYS,
        description=help_texts.ABOUT_ASK,
    )  # fmt: skip
    ask.set_defaults(command="bifl.cli.ask_command:ask")
    ask.add_argument("settings", nargs="*", metavar="PRESET | KEY=VALUE", help="a preset first, if any, then keys")
    _add_clients(ask)

    evaluate = verbs.add_parser("eval", help="test a trained model", formatter_class=AsTyped, description=help_texts.ABOUT_EVAL)
    evaluate.set_defaults(command="bifl.cli.eval_command:evaluate")
    _add_trust(evaluate, "run the Python file that the model, or its run's configuration, names")
    evaluate.add_argument("model", type=Path, metavar="MODEL", help="a run's folder, or a model file: runs/<name>/model")
    evaluate.add_argument("settings", nargs="*", metavar="DATA | KEY=VALUE", help=help_texts.EVAL_DATA)
    evaluate.add_argument("--clients", action="store_true", help="on what the clients of its run, or of KEY=VALUE, hold out")
    _add_clients(evaluate)


def _add_clients(command: argparse.ArgumentParser) -> None:
    """Where clients are, other than those of a simulation."""
    command.add_argument("--listen", metavar="HOST:PORT", help="wait there for clients, as bifl server does; else simulate them")
    command.add_argument("--keys", type=Path, metavar="DIR", help="with --listen: default keys; made if missing")
    command.add_argument("--out", type=Path, metavar="DIR", help="with --listen: the folder to write into")
    command.add_argument("--min-clients", type=int, metavar="K", help="with --listen: clients that must answer (default: half)")
    command.add_argument("--deadline", type=float, metavar="S", help="with --listen: seconds to wait for the rest (600)")
    command.set_defaults(max_images=None, keep_messages=False)


def _add_looking(verbs: Verbs[argparse.ArgumentParser]) -> None:
    """The commands that show files, data and networks: inspect, data, summary."""
    inspect = verbs.add_parser(
        "inspect",
        help="show what a message or a model file contains",
        description="Header, bytes of every section, bits per weight by layer.",
    )
    inspect.set_defaults(command="bifl.cli.show_commands:inspect")
    _add_trust(inspect, "run the Python file that the model, or its run's configuration, names")
    inspect.add_argument("file", type=Path, metavar="FILE", help="runs/<name>/model, or a message: see bifl run --keep-messages")

    split = verbs.add_parser(
        "data", help="show who holds which images", formatter_class=AsTyped, epilog=help_texts.RUN_KEYS,
        description="How many images of each class every client gets: a table, and with --out a picture.",
    )  # fmt: skip
    split.set_defaults(command="bifl.cli.show_commands:data")
    split.add_argument("settings", nargs="*", metavar="PRESET | KEY=VALUE", help="a preset first, if any, then keys")
    split.add_argument("--out", type=Path, metavar="FILE", help="draw it too: a PNG of clients and classes")

    summary = verbs.add_parser(
        "summary", help="show a network layer by layer", description="What is binary in a network, what stays real, what it weighs."
    )
    summary.set_defaults(command="bifl.cli.show_commands:summary")
    summary.add_argument("model", metavar="MODEL", help="a network from `bifl list`, or my.py:mine")
    summary.add_argument(
        "settings",
        nargs="*",
        metavar="PRESET | KEY=VALUE",
        help="as of bifl run: algorithm=biml, whose weights are binary; dataset=, or else classes=10 and input=1x28x28",
    )


def _add_export(verbs: Verbs[argparse.ArgumentParser]) -> None:
    """Export: what leaves for other programs and for devices."""
    export = verbs.add_parser("export", help="write a trained model as ONNX or as C", description=help_texts.ABOUT_EXPORT)
    export.set_defaults(command="bifl.cli.export_command:export")
    _add_trust(export, "run the Python file that the model names")
    export.add_argument("model", type=Path, metavar="MODEL", help="a model file: runs/<name>/model")
    export.add_argument("--onnx", type=Path, metavar="FILE", help="for onnxruntime and others; weights stay packed bits")
    export.add_argument("--c", type=Path, metavar="DIR", help="C99 without malloc: model.h, model.c, main.c, Makefile")
    export.add_argument("--input", metavar="SIZES", help="of one input, as 1x28x28, for model files that do not say it")


def _add_personalise(verbs: Verbs[argparse.ArgumentParser]) -> None:
    """Personalise: a client's own network."""
    own = verbs.add_parser("personalise", help="a client's own network, as a model file", description=help_texts.ABOUT_PERSONALISE)
    own.set_defaults(command="bifl.cli.personalise_command:personalise")
    _add_trust(own, "run the Python files that the run's configuration names")
    own.add_argument("run", type=Path, metavar="RUN", help="a run's folder: runs/<name>")
    own.add_argument("client", type=int, metavar="CLIENT", help="its number, from 0")
    own.add_argument("-o", "--out", type=Path, metavar="FILE", help="the model file (default: RUN/client-N.model)")


def _add_deployment(verbs: Verbs[argparse.ArgumentParser]) -> None:
    """The commands for real machines: keys, server, client, federation."""
    _add_keys(verbs)
    _add_server(verbs)
    _add_client(verbs)
    _add_federation(verbs)


def _add_keys(verbs: Verbs[argparse.ArgumentParser]) -> None:
    keys = verbs.add_parser("keys", help="make certificates and keys for a deployment", description=help_texts.ABOUT_KEYS)
    keys.set_defaults(command="bifl.deploy.client_commands:make_keys")
    keys.add_argument("--out", type=Path, metavar="DIR", default=Path("keys"), help="where to (default: keys); nothing is replaced")
    keys.add_argument("--host", action="append", default=[], metavar="NAME", help="a name by which clients reach the server")
    keys.add_argument("--clients", type=_count, default=10, metavar="N", help="how many clients (default: 10)")


def _add_server(verbs: Verbs[argparse.ArgumentParser]) -> None:
    about = "serve a run to clients on other machines"
    server = verbs.add_parser(
        "server", help=about, formatter_class=AsTyped, epilog=help_texts.RUN_KEYS, description=help_texts.ABOUT_SERVER
    )
    server.set_defaults(command="bifl.deploy.server_commands:server")
    server.add_argument("--listen", metavar="HOST:PORT", help="default: 127.0.0.1:8000")
    server.add_argument("--keys", type=Path, metavar="DIR", help="default: keys; made if missing")
    server.add_argument("--name", action="append", default=[], metavar="NAME", help="for a certificate that has yet to be made")
    _add_rules(server)


def _add_client(verbs: Verbs[argparse.ArgumentParser]) -> None:
    client = verbs.add_parser("client", help="take part in a run with local data", description=help_texts.ABOUT_CLIENT)
    client.set_defaults(command="bifl.deploy.client_commands:client")
    client.add_argument("--server", required=True, metavar="HOST:PORT", help="where bifl server listens")
    client.add_argument("--ca", type=Path, required=True, metavar="FILE", help="the authority's certificate: ca.crt")
    client.add_argument("--key", type=Path, required=True, metavar="FILE", help="this client's private key: client-N")
    client.add_argument("--peers", type=Path, metavar="FILE", help=help_texts.CLIENT_PEERS)
    client.add_argument("--least", type=int, default=2, metavar="K", help="with --peers: clients that a sum must be of (2)")
    client.add_argument("--colluders", type=int, default=0, metavar="C", help=help_texts.CLIENT_COLLUDERS)
    client.add_argument("--number", type=int, metavar="N", help="which client this is (default: the N of client-N)")
    client.add_argument("--data", default="", metavar="DATA", help=help_texts.CLIENT_DATA)
    client.add_argument("--allow", type=Path, action="append", default=[], metavar="FILE", help=help_texts.CLIENT_ALLOW)
    client.add_argument("--state", type=Path, metavar="DIR", help="what this client remembers (default: client-N-state)")
    client.add_argument("--patience", type=float, default=120.0, metavar="S", help="seconds of refusal until giving up (120)")


def _add_federation(verbs: Verbs[argparse.ArgumentParser]) -> None:
    federation = verbs.add_parser(
        "federation", help="server and clients on this machine, to try it", description=help_texts.ABOUT_FEDERATION
    )
    inner = federation.add_subparsers(required=True, metavar="up")
    up = inner.add_parser("up", formatter_class=AsTyped, epilog=help_texts.RUN_KEYS, description=help_texts.ABOUT_FEDERATION)
    up.set_defaults(command="bifl.deploy.server_commands:federation_up")
    up.add_argument("--clients", type=_count, metavar="N", help="how many (default: 5)")
    _add_rules(up)


def _add_rules(command: argparse.ArgumentParser) -> None:
    where = command.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, metavar="DIR", help="write into exactly this folder (default: runs/<name>)")
    where.add_argument("--resume", type=Path, metavar="DIR", help="continue what is in this folder, as it was started")
    _add_trust(command, "run the Python files that the configuration in --resume's folder names")
    command.add_argument("settings", nargs="*", metavar="PRESET | KEY=VALUE", help="a preset first, if any, then keys")
    command.add_argument("--asked", type=Path, metavar="DIR", help="normalise inputs by what bifl ask --listen --out DIR found")
    command.add_argument("--min-clients", type=int, metavar="K", help="ballots that a round needs (default: half of the voters)")
    command.add_argument("--deadline", type=float, metavar="S", help="seconds until a round goes on without the rest (600)")
    command.add_argument("--max-images", type=int, metavar="N", help="that one client may count for (0: goes by the others)")
    command.add_argument("--keep-messages", action="store_true", help="keep a copy of every message in DIR/messages")


def _add_trust(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("--trust", action="store_true", help=f"{what}; without it they are refused")


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number, 1 or more")
    return int(text)


def _add_reproduce(verbs: Verbs[argparse.ArgumentParser]) -> None:
    command = verbs.add_parser(
        "reproduce", help="run the paper's tables and figures", formatter_class=AsTyped,
        epilog=help_texts.STUDIES,
        description="Run the paper's studies, several runs at a time, and show them beside the paper's numbers.",
    )  # fmt: skip
    command.set_defaults(command="bifl.cli.reproduce_command:reproduce")
    command.add_argument("settings", nargs="+", metavar="STUDY | KEY=VALUE", help="one or more of the studies below, then keys")
    command.add_argument("--quick", action="store_true", help="5,000 embedded digits, 10 clients, 12 rounds: minutes")
    command.add_argument("--kept", action="store_true", help="run nothing, show what is kept: no dataset is needed")
    command.add_argument("--out", type=Path, metavar="DIR", help="tables, and kept runs (results; of --quick runs/quick)")
    command.add_argument("--work", type=Path, metavar="DIR", default=Path("runs"), help="unfinished runs go to DIR/work (runs)")


def _add_report(verbs: Verbs[argparse.ArgumentParser]) -> None:
    report = verbs.add_parser(
        "report",
        help="make a page of finished runs",
        description="Tables and interactive charts of runs, beside the paper's values, in one HTML file that needs no network.",
    )
    report.set_defaults(command="bifl.cli.show_commands:report")
    report.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="run folders, comparisons, or folders of such: runs")
    report.add_argument("-o", "--out", type=Path, metavar="FILE", default=Path("report.html"), help="default: report.html")
