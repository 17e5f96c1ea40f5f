"""Runs what was typed: finds the command, and turns errors that a person can cause into one sentence and exit code 2.

A command is a file of this folder called `NAME_command.py` or `NAME_commands.py`: its `add` declares parser, help, keys and work.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib import import_module

import bifl
from bifl.cli.parser import Parser
from bifl.errors import BiflError, ConfigError, printable
from bifl.experiment.catalogue import catalogue
from bifl.registry import nearest

FIRST = ("training", "ask", "eval", "show", "export", "personalise", "deployment", "reproduce", "report", "list")  # in --help
EXAMPLES = """\
examples:
  bifl run                                     train on embedded digits, with half a bit per weight up
  bifl run algorithm=up_down algorithm.beta=1  another algorithm, another parameter
  bifl run mnist-iid --out runs/table1         the paper's setting on full MNIST
  bifl run --resume runs/table1                continue what was stopped or killed
  bifl compare seeds=0,1,2 rounds=30           five algorithms: table and picture
  bifl eval runs/table1                        a trained model on its run's test set …
  bifl eval runs/table1/model mine.npz         … or on any other
  bifl export runs/table1/model --onnx m.onnx  … as ONNX; --c DIR: as C for a microcontroller
  bifl run --keep-messages --out runs/look     keep every message …
  bifl inspect runs/look/messages/round-00002/upload-00001    … and see what its bytes are
  bifl reproduce table1                        the paper's Table I on full MNIST, beside its values
  bifl report runs -o report.html              a page with charts of all runs, beside the paper's values
  bifl data mnist-nc3                          who holds what; --out FILE.png draws it
  bifl summary mnist_cnn                       a network layer by layer: what is binary, what it weighs
  bifl run har dataset.path=windows.npz        windows of sensors: docs/sensors.md
  bifl list                                    all names; bifl list algorithms: a line each; bifl list murmur: all about it
  bifl federation up --clients 3 rounds=5      server and clients as processes of their own, over TLS
  bifl server --listen 0.0.0.0:8000 …          on real machines: docs/deploy.md

Bad input ends with one sentence and exit code 2, Ctrl-C with 130.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the process's exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if any("\0" in word for word in arguments):
        print("bifl: an argument holds a NUL character, which no path and no value can have", file=sys.stderr)
        return 2
    try:
        options = parse(arguments)
        code: int = options.command(options)
        sys.stdout.flush()
        return code
    except BiflError as error:
        print(f"bifl: {printable(error)}", file=sys.stderr)
        return 2
    except MemoryError:
        print("bifl: there is not enough memory for this", file=sys.stderr)
        return 2
    except OSError as error:  # of standard output; everything else has a sentence of its own
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"bifl: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bifl: interrupted", file=sys.stderr)
        return 130


def parser() -> Parser:
    """All commands."""
    whole = Parser(
        "bifl", epilog=EXAMPLES, description="Federated learning in which every client uploads a fraction of a bit per weight."
    )
    whole.add_argument("--version", action="version", version=f"bifl {bifl.__version__}")
    commands = whole.add_subparsers(title="commands", required=True, metavar="COMMAND")
    files = {
        file.name.partition("_command")[0]: file.name
        for file in pkgutil.iter_modules([os.path.dirname(__file__)])
        if "_command" in file.name
    }
    for name in dict.fromkeys([*FIRST, *files]):
        import_module(f"bifl.cli.{files[name]}").add(commands)
    return whole


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What was typed.

    Raises:
        ConfigError: it is no command, or nothing that this command takes.
    """
    options, more = parser().parse_known_args(arguments)
    unknown = [word for word in more if word.startswith("-")]
    if unknown or (more and not hasattr(options, "settings")):
        raise ConfigError(_mistyped(options, arguments, (unknown or more)[0]))
    if more:
        options.settings += more  # key=value may stand after --out too
    return options


def _mistyped(options: argparse.Namespace, arguments: Sequence[str], word: str) -> str:
    """What somebody meant by a word that the command does not know: most often a setting, which has no dashes."""
    option, _, value = word.partition("=")
    if not option.startswith("-"):
        return f"'{word}' is one word too many: see {options.parser.prog} --help"
    key = option.lstrip("-").replace("-", "_")
    if not _is_key(key, options.takes):
        known = [action.option_strings[-1] for action in options.parser._actions if action.option_strings]
        return f"there is no option '{option}'{nearest(option, known)}"
    place = arguments.index(word) + 1 if word in arguments else len(arguments)
    if not value and place < len(arguments) and not arguments[place].startswith("--"):
        value = arguments[place]
    return f"there is no option '{option}': settings have no dashes, write {key}={value or '…'}"


def _is_key(key: str, known: Sequence[str]) -> bool:
    """Whether a word is a setting, such as rounds, or a parameter of a choice, such as algorithm.alpha."""
    head, _, parameter = key.partition(".")
    return head in known and (not parameter or any(parameter in entry.parameters() for entry in catalogue().get(head, [])))
