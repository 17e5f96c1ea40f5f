"""`bifl keys`, `server`, `client` and `federation`: real machines. Their work stands in `bifl.deploy`, which needs Flower."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bifl.cli.parser import RUN_KEYS, Commands, Parser, add_command, add_settings, add_trust
from bifl.errors import ConfigError
from bifl.experiment.declarations import SETTINGS

_FEDERATION = "A server and its clients on this machine, each a process of its own, over TLS and with keys, as between machines."


def add(commands: Commands[Parser]) -> None:
    """Declare them."""
    _add_keys(commands)
    _add_server(commands)
    _add_client(commands)
    _add_federation(commands)


def _add_keys(commands: Commands[Parser]) -> None:
    keys = add_command(
        commands, "keys", make_keys, help="make certificates and keys for a deployment",
        description="Make an authority, the server's certificate and a key pair per client. What is there already stays as it is.",
    )  # fmt: skip
    keys.add_argument("--out", type=Path, metavar="DIR", default=Path("keys"), help="where to (default: keys); nothing is replaced")
    keys.add_argument("--host", action="append", default=[], metavar="NAME", help="a name by which clients reach the server")
    keys.add_argument("--clients", type=_count, default=10, metavar="N", help="how many clients (default: 10)")


def _add_server(commands: Commands[Parser]) -> None:
    command = add_command(
        commands, "server", server, keys=[*SETTINGS], help="serve a run to clients on other machines", epilog=RUN_KEYS,
        description="Serve one run: certificates, Flower's SuperLink, the clients' keys, the rounds as they come, and a run folder "
        "in the end.",
    )  # fmt: skip
    command.add_argument("--listen", metavar="HOST:PORT", help="default: 127.0.0.1:8000")
    command.add_argument("--keys", type=Path, metavar="DIR", help="default: keys; made if missing")
    command.add_argument("--name", action="append", default=[], metavar="NAME", help="for a certificate that has yet to be made")
    _add_rules(command)


def _add_client(commands: Commands[Parser]) -> None:
    command = add_command(
        commands, "client", client, help="take part in a run with local data",
        description="Take part with local data: one of Flower's SuperNodes, started again whenever it ends, until Ctrl-C.",
    )  # fmt: skip
    command.add_argument("--server", required=True, metavar="HOST:PORT", help="where bifl server listens")
    command.add_argument("--ca", type=Path, required=True, metavar="FILE", help="the authority's certificate: ca.crt")
    command.add_argument("--key", type=Path, required=True, metavar="FILE", help="this client's private key: client-N")
    command.add_argument(
        "--peers", type=Path, metavar="FILE",
        help="all clients' public keys (clients.pub): only runs with secure_sum=true are taken part in, one for each --state",
    )  # fmt: skip
    command.add_argument("--least", type=int, default=2, metavar="K", help="with --peers: clients that a sum must be of (2)")
    command.add_argument(
        "--colluders", type=int, default=0, metavar="C",
        help="with --peers: clients that may help the server; runs with fewer colluders= are refused (0)",
    )  # fmt: skip
    command.add_argument("--number", type=int, metavar="N", help="which client this is (default: the N of client-N)")
    command.add_argument(
        "--data", default="", metavar="DATA",
        help="FILE.npz, a folder of LEAF's, or a dataset's name, of which this client gets its part (default: the run's dataset)",
    )  # fmt: skip
    command.add_argument(
        "--allow", type=Path, action="append", default=[], metavar="FILE",
        help="a file that the run may name, as in algorithm=FILE.py:mine or dataset.path=FILE: yours is used; may be repeated",
    )  # fmt: skip
    command.add_argument("--state", type=Path, metavar="DIR", help="what this client remembers (default: client-N-state)")
    command.add_argument("--patience", type=float, default=120.0, metavar="S", help="seconds of refusal until giving up (120)")


def _add_federation(commands: Commands[Parser]) -> None:
    federation = commands.add_parser("federation", help="server and clients on this machine, to try it", description=_FEDERATION)
    inner = federation.add_subparsers(required=True, metavar="up")
    up = add_command(inner, "up", federation_up, keys=[*SETTINGS], epilog=RUN_KEYS, description=_FEDERATION)
    up.add_argument("--clients", type=_count, metavar="N", help="how many (default: 5)")
    _add_rules(up)


def _add_rules(command: Parser) -> None:
    where = command.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, metavar="DIR", help="write into exactly this folder (default: runs/<name>)")
    where.add_argument("--resume", type=Path, metavar="DIR", help="continue what is in this folder, as it was started")
    add_trust(command, "run the Python files that the configuration in --resume's folder names")
    add_settings(command)
    command.add_argument("--asked", type=Path, metavar="DIR", help="normalise inputs by what bifl ask --listen --out DIR found")
    command.add_argument("--min-clients", type=int, metavar="K", help="ballots that a round needs (default: half of the voters)")
    command.add_argument("--deadline", type=float, metavar="S", help="seconds until a round goes on without the rest (600)")
    command.add_argument("--max-images", type=int, metavar="N", help="that one client may count for (0: goes by the others)")
    command.add_argument("--keep-messages", action="store_true", help="keep a copy of every message in DIR/messages")


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number, 1 or more")
    return int(text)


@contextmanager
def require_flower() -> Iterator[None]:
    """Say so where it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).startswith("bifl"):
            raise
        raise ConfigError(f"this command needs Flower ({error}): pip install 'bifl[flower]'") from error


def make_keys(options: argparse.Namespace) -> int:
    """Make certificates and keys."""
    with require_flower():
        from bifl.deploy import client_commands
    return client_commands.make_keys(options)


def client(options: argparse.Namespace) -> int:
    """Take part in runs as a client until interrupted."""
    with require_flower():
        from bifl.deploy import client_commands
    return client_commands.client(options)


def server(options: argparse.Namespace) -> int:
    """Serve one run."""
    with require_flower():
        from bifl.deploy import server_commands
    return server_commands.server(options)


def federation_up(options: argparse.Namespace) -> int:
    """A server and its clients, all on this machine."""
    with require_flower():
        from bifl.deploy import server_commands
    return server_commands.federation_up(options)
