"""The commands for real machines, which need Flower: what they are for, and where to find what they do."""

from __future__ import annotations

import argparse
from importlib import import_module
from types import ModuleType

from bifl.errors import ConfigError

KEYS = "Make an authority, the server's certificate and a key pair per client. What is there already stays as it is."
SERVER = "Serve one run: certificates, Flower's SuperLink, the clients' keys, the rounds as they come, and a run folder in the end."
CLIENT = "Take part with local data: one of Flower's SuperNodes, started again whenever it ends, until Ctrl-C."
DATA = "FILE.npz, a folder of LEAF's, or a dataset's name, of which this client gets its part (default: the run's dataset)"
ALLOW = "a file that the run may name, as in algorithm=FILE.py:mine or dataset.path=FILE: yours is used; may be repeated"
UP = "A server and its clients on this machine, each a process of its own, over TLS and with keys, as between machines."


def _module(name: str) -> ModuleType:
    try:
        return import_module(f"bifl.flower.{name}")
    except ModuleNotFoundError as error:
        raise ConfigError(f"this command needs Flower ({error}): pip install 'bifl[flower]'") from error


def make_keys(options: argparse.Namespace) -> int:
    """Make certificates and keys."""
    return int(_module("supernode").make_keys(options))


def server(options: argparse.Namespace) -> int:
    """Serve a run."""
    return int(_module("commands").server(options))


def client(options: argparse.Namespace) -> int:
    """Take part in a run."""
    return int(_module("supernode").client(options))


def federation_up(options: argparse.Namespace) -> int:
    """Serve a run to clients on this machine."""
    return int(_module("commands").federation_up(options))
