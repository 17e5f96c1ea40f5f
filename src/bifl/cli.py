"""The command line: bifl run, compare, eval, inspect, data, summary, reproduce, report, list; keys, server, client, federation."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bifl import commands, deployment
from bifl.errors import BiflError, printable

_EXAMPLES = """\
examples:
  bifl run                                     train with 1-bit uploads on embedded digits
  bifl run algorithm=up_down algorithm.beta=1  another algorithm, another parameter
  bifl run mnist-iid --out runs/table1         the paper's setting on full MNIST
  bifl run --resume runs/table1                continue what was stopped or killed
  bifl compare seeds=0,1,2 rounds=30           fedavg, full, biml, up_down: table and picture
  bifl eval runs/table1/model mnist            a trained model on a test set
  bifl run --keep-messages --out runs/look     keep every message …
  bifl inspect runs/look/messages/round-00002/upload-00001    … and see what its bytes are
  bifl reproduce table1                        the paper's Table I on full MNIST, beside its values
  bifl report runs -o report.html              a page with charts of all runs, beside the paper's values
  bifl data mnist-nc3                          who holds what: table and picture
  bifl summary mnist_cnn                       a network layer by layer: what is binary, what it weighs
  bifl list                                    algorithms, datasets, partitions, models, presets
  bifl federation up --clients 3 rounds=5      server and clients as processes of their own, over TLS
  bifl server --listen 0.0.0.0:8000 …          on real machines: docs/deploy.md

Bad input ends with one sentence and exit code 2, Ctrl-C with 130.
"""

_KEYS = """\
  dataset (mnist5k), partition (iid), model (mnist_cnn)
                        names from `bifl list`, parameters as for algorithms
  rounds (15), clients (10)
  participation (1.0)   share of clients that upload in a round
  idle (train)          what the others do: train (as in the paper) or sleep
  optimizer (adam)      adam or sgd, fresh every round
  lr (0.005,0.002,0.001), lr_steps (30,60)
                        learning rates, and the rounds after which the next one applies;
                        a single lr is used throughout
  batch (64), local_epochs (1)
  batchnorm (recalibrate)
                        statistics that clients measure of the broadcast network, in an exchange
                        of its own; average: those of their own training
  holdout (0.0)         share of its images that every client keeps for evaluation; without test
                        images a fifth
  wire (context)        context codes messages in what both ends know, packed spells every bit out;
                        results do not depend on it
  reals (short)         batch-norm in 6 binary digits up and 10 down, or float32
  device (auto)         a GPU if there is one; cpu, cuda
  workers (0)           processes, 0 = one per core; results do not depend on it
"""

_STUDIES = """\
studies:
  table1                accuracy of all nine algorithms, IID
  table2                four of them, not IID
  alpha                 BiFL-BiML's gain: 1, 1.25, 1.5, 2, 3
  hybrid                BiFL-BiML up to a fifth, two and three fifths of the rounds, then FedAvg
  clients               half, once and twice as many
  unbalanced            clients of unequal size
  participation         a tenth, three tenths, half and all of the clients upload; IID and not
  theory                lemmas and theorems on random quadratics, misprints, ML-PU's curves
  all                   everything above
keys (default):
  dataset (mnist)       mnist, mnist5k, fashion_mnist, mnist_writers, femnist, celeba; several with
                        commas: those that are not on this machine are named and left out
  seeds (0)             which to run; tables show all that are kept, as mean ± standard deviation
  rounds                instead of each study's own, 60 or 100

Finished cells are kept in DIR/cells and never run again; a stopped command goes on where it was.
More about it: docs/reproduce.md.
"""

_TRACK = """\
  track (nothing)       tensorboard or mlflow: log every round there too; may be given with --resume
"""

_RUN_KEYS = f"""\
keys (default) and their meaning:
  algorithm (biml)      a name from `bifl list`; its parameters are set as algorithm.alpha=1.5;
                        algorithm=my.py:mine takes one from a file of your own
  seed (0)              fixes everything
{_KEYS}"""

_COMPARE_KEYS = f"""\
keys (default) and their meaning:
  algorithms (fedavg,full,biml,up_down)
                        names from `bifl list`, parameters after plus signs: biml,up_down+beta=1;
                        my.py:mine is one from a file of your own
  seeds (0)             several give mean ± standard deviation
{_KEYS}"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the process's exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if any("\0" in word for word in arguments):
        print("bifl: an argument holds a NUL character, which no path and no value can have", file=sys.stderr)
        return 2
    parser = _parser()
    options, more = parser.parse_known_args(arguments)
    if more and hasattr(options, "settings") and not any(word.startswith("-") for word in more):
        options.settings += more  # key=value may stand after --out too
    elif more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    try:
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


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "bifl",
        formatter_class=raw,
        epilog=_EXAMPLES,
        description="Federated learning in which every client uploads about one bit per weight or less.",
    )
    parser.add_argument("--version", action="version", version=_version())
    verbs = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_training(verbs)
    _add_looking(verbs)
    _add_deployment(verbs)
    _add_reproduce(verbs)
    _add_report(verbs)
    listing = verbs.add_parser("list", help="show what there is to choose from", description="Everything a key can be set to.")
    listing.set_defaults(command=commands.show_choices)
    return parser


Verbs = argparse._SubParsersAction  # there is no public name for it


def _add_training(verbs: Verbs[argparse.ArgumentParser]) -> None:
    """Run and compare."""
    raw = argparse.RawDescriptionHelpFormatter
    run = verbs.add_parser(
        "run", help="train one model", formatter_class=raw, epilog=_RUN_KEYS + _TRACK, description="Train one model federatedly."
    )
    run.set_defaults(command=commands.run)
    compare = verbs.add_parser(
        "compare", help="train with several algorithms on the same split", formatter_class=raw,
        epilog=_COMPARE_KEYS + _TRACK,
        description="Train with several algorithms on the same split: a table, and a picture of accuracy against bytes.",
    )  # fmt: skip
    compare.set_defaults(command=commands.compare)
    for command in (run, compare):
        command.add_argument("settings", nargs="*", metavar="PRESET | KEY=VALUE", help="a preset first, if any, then keys")
        _add_trust(command, "run the Python files that the configuration in --resume's folder names")
        where = command.add_mutually_exclusive_group()
        where.add_argument("--out", type=Path, metavar="DIR", help="write into exactly this folder (default: runs/<name>)")
        where.add_argument(
            "--resume", type=Path, metavar="DIR", help="continue what is in this folder; rounds= and workers= may change"
        )
    run.add_argument("--keep-messages", action="store_true", help="keep a copy of every message in DIR/messages, for bifl inspect")


def _add_looking(verbs: Verbs[argparse.ArgumentParser]) -> None:
    """What explains files, data and networks: inspect, eval, data, summary."""
    inspect = verbs.add_parser(
        "inspect", help="explain a message or a model file", description="Header, bytes of every section, bits per weight by layer."
    )
    inspect.set_defaults(command=commands.inspect)
    _add_trust(inspect, "run the Python file that the model, or its run's configuration, names")
    inspect.add_argument("file", type=Path, metavar="FILE", help="runs/<name>/model, or a message: see bifl run --keep-messages")

    evaluate = verbs.add_parser("eval", help="test a trained model", description="Accuracy and size of a trained model.")
    evaluate.set_defaults(command=commands.evaluate)
    _add_trust(evaluate, "run the Python file that the model names")
    evaluate.add_argument("model", type=Path, metavar="MODEL", help="a model file: runs/<name>/model")
    evaluate.add_argument("data", metavar="DATA", help="a dataset from `bifl list`: its test images are used")
    evaluate.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="parameters of the dataset: path=mine.npz")

    census = verbs.add_parser(
        "data", help="show who holds which images", formatter_class=argparse.RawDescriptionHelpFormatter, epilog=_RUN_KEYS,
        description="How many images of each class every client gets: a table, and a picture.",
    )  # fmt: skip
    census.set_defaults(command=commands.data)
    census.add_argument("settings", nargs="*", metavar="PRESET | KEY=VALUE", help="a preset first, if any, then keys")
    census.add_argument("--out", type=Path, metavar="FILE", help="the picture (default: data-<name>.png)")

    summary = verbs.add_parser(
        "summary", help="show a network layer by layer", description="What is binary in a network, what stays real, what it weighs."
    )
    summary.set_defaults(command=commands.summary)
    summary.add_argument("model", metavar="MODEL", help="a network from `bifl list`, or my.py:mine")
    summary.add_argument(
        "settings", nargs="*", metavar="KEY=VALUE", help="classes (10), algorithm (biml): fttq's weights are ternary"
    )


def _add_deployment(verbs: Verbs[argparse.ArgumentParser]) -> None:
    """The commands for real machines: keys, server, client, federation."""
    _add_keys(verbs)
    _add_server(verbs)
    _add_client(verbs)
    _add_federation(verbs)


def _add_keys(verbs: Verbs[argparse.ArgumentParser]) -> None:
    keys = verbs.add_parser("keys", help="make certificates and keys for a deployment", description=deployment.KEYS)
    keys.set_defaults(command=deployment.make_keys)
    keys.add_argument("--out", type=Path, metavar="DIR", default=Path("keys"), help="where to (default: keys); nothing is replaced")
    keys.add_argument("--host", action="append", default=[], metavar="NAME", help="a name by which clients reach the server")
    keys.add_argument("--clients", type=_count, default=10, metavar="N", help="how many clients (default: 10)")


def _add_server(verbs: Verbs[argparse.ArgumentParser]) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    about = "serve a run to clients on other machines"
    server = verbs.add_parser("server", help=about, formatter_class=raw, epilog=_RUN_KEYS, description=deployment.SERVER)
    server.set_defaults(command=deployment.server)
    server.add_argument("--listen", metavar="HOST:PORT", help="default: 127.0.0.1:8000")
    server.add_argument("--keys", type=Path, metavar="DIR", help="default: keys; made if missing")
    server.add_argument("--name", action="append", default=[], metavar="NAME", help="for a certificate that has yet to be made")
    _add_rules(server)


def _add_client(verbs: Verbs[argparse.ArgumentParser]) -> None:
    client = verbs.add_parser("client", help="take part in a run with local data", description=deployment.CLIENT)
    client.set_defaults(command=deployment.client)
    client.add_argument("--server", required=True, metavar="HOST:PORT", help="where bifl server listens")
    client.add_argument("--ca", type=Path, required=True, metavar="FILE", help="the authority's certificate: ca.crt")
    client.add_argument("--key", type=Path, required=True, metavar="FILE", help="this client's private key: client-N")
    client.add_argument("--number", type=int, metavar="N", help="which client this is (default: the N of client-N)")
    client.add_argument("--data", default="", metavar="DATA", help=deployment.DATA)
    client.add_argument("--allow", type=Path, action="append", default=[], metavar="FILE", help=deployment.ALLOW)
    client.add_argument("--state", type=Path, metavar="DIR", help="what this client remembers (default: client-N-state)")
    client.add_argument("--patience", type=float, default=120.0, metavar="S", help="seconds of refusal until giving up (120)")


def _add_federation(verbs: Verbs[argparse.ArgumentParser]) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    federation = verbs.add_parser("federation", help="server and clients on this machine, to try it", description=deployment.UP)
    inner = federation.add_subparsers(required=True, metavar="up")
    up = inner.add_parser("up", formatter_class=raw, epilog=_RUN_KEYS, description=deployment.UP)
    up.set_defaults(command=deployment.federation_up)
    up.add_argument("--clients", type=_count, metavar="N", help="how many (default: 5)")
    _add_rules(up)


def _add_rules(command: argparse.ArgumentParser) -> None:
    where = command.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, metavar="DIR", help="write into exactly this folder (default: runs/<name>)")
    where.add_argument("--resume", type=Path, metavar="DIR", help="continue what is in this folder, as it was started")
    _add_trust(command, "run the Python files that the configuration in --resume's folder names")
    command.add_argument("settings", nargs="*", metavar="PRESET | KEY=VALUE", help="a preset first, if any, then keys")
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
        "reproduce", help="run the paper's tables and figures", formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_STUDIES, description="Run the paper's studies, several cells at a time, and show them beside the paper's numbers.",
    )  # fmt: skip
    command.set_defaults(command=commands.reproduce)
    command.add_argument("settings", nargs="+", metavar="STUDY | KEY=VALUE", help="one or more of the studies below, then keys")
    command.add_argument("--quick", action="store_true", help="5,000 embedded digits, 10 clients, 12 rounds: minutes")
    command.add_argument("--kept", action="store_true", help="run nothing, show what is kept: no dataset is needed")
    command.add_argument("--out", type=Path, metavar="DIR", help="tables, and kept cells (results; of --quick runs/quick)")
    command.add_argument("--work", type=Path, metavar="DIR", default=Path("runs"), help="unfinished runs go to DIR/work (runs)")


def _add_report(verbs: Verbs[argparse.ArgumentParser]) -> None:
    report = verbs.add_parser(
        "report",
        help="make a page of finished runs",
        description="Tables and interactive charts of runs, beside the paper's values, in one HTML file that needs no network.",
    )
    report.set_defaults(command=commands.report)
    report.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="run folders, comparisons, or folders of such: runs")
    report.add_argument("-o", "--out", type=Path, metavar="FILE", default=Path("report.html"), help="default: report.html")


def _version() -> str:
    from bifl import __version__

    return f"bifl {__version__}"


if __name__ == "__main__":
    sys.exit(main())
