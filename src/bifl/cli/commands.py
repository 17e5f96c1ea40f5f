"""Every command: its help, what it takes, and by name the function that does its work, which is imported when it is called.

So `--help` and what is mistyped are answered without torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import bifl
from bifl.cli.parser import Parser
from bifl.experiment.declarations import SETTINGS

Commands = argparse._SubParsersAction  # there is no public name for it
_HEADING = "keys (default) and their meaning"
_KEYS = {name: (f"{name} ({declared.spelled()})", declared.help) for name, declared in SETTINGS.items()}
RUN_KEYS = {_HEADING: dict(_KEYS.values())}
_TRACK = {"track (nothing)": "tensorboard or mlflow: log every round there too; may be given with --resume"}
_COMPARE_KEYS = {
    "algorithms (fedavg,murmur,full,biml,up_down)": "names from `bifl list`, parameters after plus signs: biml,up_down+beta=1; "
    "my.py:mine is one from a file of your own",
    "seeds (0)": "several give mean ± standard deviation",
    **dict(words for name, words in _KEYS.items() if name not in ("algorithm", "seed")),
}
_HELD_BACK = (
    "validation (0.1)",
    "share of the training samples, of whole users where these are known, that nobody trains on and by which the best is chosen",
)
_TUNE_KEYS = {"seeds (0)": "several: their mean counts"} | dict(
    _HELD_BACK if name == "validation" else words for name, words in _KEYS.items() if name != "seed"
)

EXAMPLES = {
    "bifl run": "train on embedded digits, with half a bit per weight up",
    "bifl run algorithm=up_down algorithm.beta=1": "another algorithm, another parameter",
    "bifl run mnist-iid --out runs/table1": "the paper's setting on full MNIST",
    "bifl run --resume runs/table1": "continue what was stopped or killed",
    "bifl compare seeds=0,1,2 rounds=30": "five algorithms: table and picture",
    "bifl tune algorithm=fedavg optimizer=sgd lr=0.03,0.1,0.3": "choose a rate, on validation samples",
    "bifl eval runs/table1": "a trained model on its run's test set …",
    "bifl eval runs/table1/model mine.npz": "… or on any other",
    "bifl export runs/table1/model --onnx m.onnx": "… as ONNX; --c DIR: as C for a microcontroller",
    "bifl run --keep-messages --out runs/look": "keep every message …",
    "bifl inspect runs/look/messages/round-00002/upload-00001": "… and see what its bytes are",
    "bifl reproduce table1": "the paper's Table I on full MNIST, beside its values",
    "bifl report runs -o report.html": "a page with charts of all runs, beside the paper's values",
    "bifl data mnist-nc3": "who holds what; --out FILE.png draws it",
    "bifl summary mnist_cnn": "a network layer by layer: what is binary, what it weighs",
    "bifl run har dataset.path=windows.npz": "windows of sensors: docs/sensors.md",
    "bifl list": "all names; bifl list algorithms: a line each; bifl list murmur: all about it",
    "bifl federation up --clients 3 rounds=5": "server and clients as processes of their own, over TLS",
    "bifl server --listen 0.0.0.0:8000 …": "on real machines: docs/deploy.md",
}

STUDIES = {
    "table1": "accuracy of all nine algorithms, IID",
    "table2": "four of them, not IID",
    "alpha": "BiFL-BiML's gain: 1, 1.25, 1.5, 2, 3",
    "hybrid": "BiFL-BiML up to a fifth, two and three fifths of the rounds, then FedAvg",
    "clients": "half, once and twice as many",
    "unbalanced": "clients of unequal size",
    "participation": "a tenth, three tenths, half and all of the clients upload; IID and not",
    "theory": "lemmas and theorems on random quadratics, misprints, ML-PU's curves",
    "all": "everything above: the paper's studies",
    "murmur": "a tenth of a bit: murmur beside FedAvg and the paper's, few voters, not IID",
    "field": "every one-bit method in this field's setting, Fashion-MNIST",
    "drift": "clients that differ much: SCAFFOLD, FedDyn, FedProx, murmur",
    "sensors": "UCI HAR by person: centralised, FedAvg, murmur and the paper's",
    "characters": "FEMNIST's column of Table I on UNIPEN's characters, 25 rounds",
    "pictures": "FedAvg on CIFAR-10, a network of 1.2 million parameters",
}
_REPRODUCE_KEYS = {
    "dataset (mnist; of the last five their own)": "mnist, mnist5k, fashion_mnist, mnist_writers, femnist, celeba, uci_har, "
    "unipen, cifar10; several with commas: those that are not on this machine are named and left out",
    "dataset.path": "where that dataset is, if not in BIFL_DATA",
    "seeds (0)": "which to run; tables show all that are kept, as mean ± standard deviation",
    "rounds": "instead of each study's own, 60 or 100",
}
_CONFIGURED = "run the Python files that the configuration in --resume's folder names"


def parser() -> Parser:
    """The parser of all commands."""
    whole = Parser(
        "bifl", rows={"examples": EXAMPLES}, column=47,
        description="Federated learning in which every client uploads a fraction of a bit per weight.",
        epilog="Bad input ends with one sentence and exit code 2, Ctrl-C with 130.",
    )  # fmt: skip
    whole.add_argument("--version", action="version", version=f"bifl {bifl.__version__}")
    commands = whole.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_training(commands)
    _add_asking(commands)
    _add_looking(commands)
    _add_making(commands)
    _add_deployment(commands)
    _add_reading(commands)
    return whole


def _add(
    commands: Commands[Parser], name: str, work: str, about: str, description: str, *,
    keys: Sequence[str] = (), rows: Mapping[str, Mapping[str, str]] | None = None,
) -> Parser:  # fmt: skip
    """The parser of a command; `keys` are those that it takes as key=value."""
    command: Parser = commands.add_parser(name, help=about, description=description, rows=rows)
    command.set_defaults(command=work, takes=keys, parser=command)
    return command


def _add_run(
    commands: Commands[Parser], name: str, work: str, about: str, description: str, rows: Mapping[str, str] = RUN_KEYS[_HEADING],
    more: Sequence[str] = (),
) -> Parser:  # fmt: skip
    """The parser of a command that takes an experiment: a preset, its settings, and `more` keys."""
    command = _add(commands, name, work, about, description, keys=[*SETTINGS, *more], rows={_HEADING: rows})
    command.add_argument("settings", nargs="*", metavar="PRESET | KEY=VALUE", help="a preset first, if any, then keys")
    return command


def _add_trust(command: Parser, what: str) -> None:
    command.add_argument("--trust", action="store_true", help=f"{what}; without it they are refused")


def _add_folder(command: Parser, resume: str) -> None:
    """Where a run is written to."""
    where = command.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, metavar="DIR", help="write into exactly this folder (default: runs/<name>)")
    where.add_argument("--resume", type=Path, metavar="DIR", help=f"continue what is in this folder{resume}")


def _add_against(command: Parser) -> None:
    """Which algorithm the others are compared with, and how near is level."""
    command.add_argument("--against", metavar="NAME", help="show differences to this algorithm (default: the first)")
    command.add_argument("--margin", type=float, metavar="POINTS", help="differences within it count as level (0.1)")


def _add_listening(command: Parser) -> None:
    """Where clients are, other than those of a simulation."""
    command.add_argument("--listen", metavar="HOST:PORT", help="wait there for clients, as bifl server does; else simulate them")
    command.add_argument("--keys", type=Path, metavar="DIR", help="with --listen: default keys; made if missing")
    command.add_argument("--out", type=Path, metavar="DIR", help="with --listen: the folder to write into")
    command.add_argument("--min-clients", type=int, metavar="K", help="with --listen: clients that must answer (default: half)")
    command.add_argument("--deadline", type=float, metavar="S", help="with --listen: seconds to wait for the rest (600)")
    command.set_defaults(max_images=None, keep_messages=False)


def _add_training(commands: Commands[Parser]) -> None:
    run = _add_run(
        commands, "run", "bifl.cli.training_commands:run", "train one model", "Train one model federatedly.",
        RUN_KEYS[_HEADING] | _TRACK, ["track"],
    )  # fmt: skip
    compare = _add_run(
        commands, "compare", "bifl.cli.training_commands:compare", "train with several algorithms on the same split",
        "Train with several algorithms on the same split: a table, and a picture of accuracy against bytes.",
        _COMPARE_KEYS | _TRACK, ["track", "algorithms", "seeds"],
    )  # fmt: skip
    tune = _add_run(
        commands, "tune", "bifl.cli.tune_command:run", "choose settings on a grid, on validation samples",
        "Run every point of a grid, lr=0.01,0.03,0.1 algorithm.group=32,64,128, and choose the best on training samples that are "
        "held back, never on test samples. The same command goes on where it stopped, and runs what is new in a larger grid.",
        _TUNE_KEYS, ["seeds"],
    )  # fmt: skip
    tune.add_argument("--out", type=Path, metavar="DIR", help="runs, and what was tried (default: runs/tune-<name>)")
    for command in (run, compare):
        _add_trust(command, _CONFIGURED)
        _add_folder(command, "; rounds= and workers= may change")
    _add_against(compare)
    run.add_argument("--keep-messages", action="store_true", help="keep a copy of every message in DIR/messages, for bifl inspect")


def _add_asking(commands: Commands[Parser]) -> None:
    command = _add_run(
        commands, "ask", "bifl.cli.ask_commands:ask", "count what clients have, without training",
        "Ask all clients once for sums: samples, classes, mean and deviation of inputs. exchange=my.py:mine asks something of "
        "your own.",
    )  # fmt: skip
    _add_listening(command)

    command = _add(
        commands, "eval", "bifl.cli.ask_commands:evaluate", "test a trained model",
        "Metrics and size of a trained model, on its run's own dataset or on another, or on what clients hold out.",
        keys=[*SETTINGS, "path", "test_share"],
    )  # fmt: skip
    _add_trust(command, "run the Python file that the model, or its run's configuration, names")
    command.add_argument("model", type=Path, metavar="MODEL", help="a run's folder, or a model file: runs/<name>/model")
    command.add_argument(
        "settings", nargs="*", metavar="DATA | KEY=VALUE",
        help="a file (mine.npz), or a dataset from `bifl list` and its parameters (npz path=mine.npz); its test samples are used, "
        "or all",
    )  # fmt: skip
    command.add_argument("--clients", action="store_true", help="on what the clients of its run, or of KEY=VALUE, hold out")
    _add_listening(command)


def _add_looking(commands: Commands[Parser]) -> None:
    command = _add(
        commands, "inspect", "bifl.cli.show_commands:inspect", "show what a message or a model file contains",
        "Header, bytes of every section, bits per weight by layer.",
    )  # fmt: skip
    _add_trust(command, "run the Python file that the model, or its run's configuration, names")
    command.add_argument("file", type=Path, metavar="FILE", help="runs/<name>/model, or a message: see bifl run --keep-messages")

    command = _add_run(
        commands, "data", "bifl.cli.show_commands:data", "show who holds which images",
        "How many images of each class every client gets: a table, and with --out a picture.",
    )  # fmt: skip
    command.add_argument("--out", type=Path, metavar="FILE", help="draw it too: a PNG of clients and classes")

    command = _add(
        commands, "summary", "bifl.cli.show_commands:summary", "show a network layer by layer",
        "What is binary in a network, what stays real, what it weighs.", keys=[*SETTINGS, "classes", "input"],
    )  # fmt: skip
    command.add_argument("model", metavar="MODEL", help="a network from `bifl list`, or my.py:mine")
    command.add_argument(
        "settings", nargs="*", metavar="PRESET | KEY=VALUE",
        help="as of bifl run: algorithm=biml, whose weights are binary; dataset=, or else classes=10 and input=1x28x28",
    )  # fmt: skip


def _add_making(commands: Commands[Parser]) -> None:
    command = _add(
        commands, "export", "bifl.cli.export_command:export", "write a trained model as ONNX or as C",
        "Write a trained model as ONNX that runs anywhere, as C99 that runs on a microcontroller, or both: docs/devices.md.",
    )  # fmt: skip
    _add_trust(command, "run the Python file that the model names")
    command.add_argument("model", type=Path, metavar="MODEL", help="a model file: runs/<name>/model")
    command.add_argument("--onnx", type=Path, metavar="FILE", help="for onnxruntime and others; weights stay packed bits")
    command.add_argument("--c", type=Path, metavar="DIR", help="C99 without malloc: model.h, model.c, main.c, Makefile")
    command.add_argument("--input", metavar="SIZES", help="of one input, as 1x28x28, for model files that do not say it")

    command = _add(
        commands, "personalise", "bifl.cli.training_commands:personalise", "a client's own network, as a model file",
        "Train a run's network once more on one client's own images, and keep it as a model file: docs/training.md.",
    )  # fmt: skip
    _add_trust(command, "run the Python files that the run's configuration names")
    command.add_argument("run", type=Path, metavar="RUN", help="a run's folder: runs/<name>")
    command.add_argument("client", type=int, metavar="CLIENT", help="its number, from 0")
    command.add_argument("-o", "--out", type=Path, metavar="FILE", help="the model file (default: RUN/client-N.model)")


def _add_deployment(commands: Commands[Parser]) -> None:
    """Real machines: these need Flower."""
    command = _add(
        commands, "keys", "bifl.deploy.certificates:keys", "make certificates and keys for a deployment",
        "Make an authority, the server's certificate and a key pair per client. What is there already stays as it is.",
    )  # fmt: skip
    command.add_argument("--out", type=Path, metavar="DIR", default=Path("keys"), help="where to (keys); nothing is replaced")
    command.add_argument("--host", action="append", default=[], metavar="NAME", help="a name by which clients reach the server")
    command.add_argument("--clients", type=_count, default=10, metavar="N", help="how many clients (default: 10)")

    command = _add_run(
        commands, "server", "bifl.deploy.server.server_commands:server", "serve a run to clients on other machines",
        "Serve one run: certificates, Flower's SuperLink, the clients' keys, the rounds as they come, and a run folder in the end.",
    )  # fmt: skip
    command.add_argument("--listen", metavar="HOST:PORT", help="default: 127.0.0.1:8000")
    command.add_argument("--keys", type=Path, metavar="DIR", help="default: keys; made if missing")
    command.add_argument("--name", action="append", default=[], metavar="NAME", help="for a certificate that has yet to be made")
    _add_rules(command)
    _add_client(commands)

    description = (
        "A server and its clients on this machine, each a process of its own, over TLS and with keys, as between machines."
    )
    about = "server and clients on this machine, to try it"
    federation = commands.add_parser("federation", help=about, description=description)
    inner = federation.add_subparsers(required=True, metavar="up")
    command = _add_run(inner, "up", "bifl.deploy.server.server_commands:federation_up", about, description)
    command.add_argument("--clients", type=_count, metavar="N", help="how many (default: 5)")
    _add_rules(command)


def _add_rules(command: Parser) -> None:
    """What a server goes by."""
    _add_folder(command, ", as it was started")
    _add_trust(command, _CONFIGURED)
    command.add_argument("--asked", type=Path, metavar="DIR", help="normalise inputs by what bifl ask --listen --out DIR found")
    command.add_argument("--min-clients", type=int, metavar="K", help="ballots that a round needs (default: half of the voters)")
    command.add_argument("--deadline", type=float, metavar="S", help="seconds until a round goes on without the rest (600)")
    command.add_argument("--max-images", type=int, metavar="N", help="that one client may count for (0: goes by the others)")
    command.add_argument("--keep-messages", action="store_true", help="keep a copy of every message in DIR/messages")


def _add_client(commands: Commands[Parser]) -> None:
    command = _add(
        commands, "client", "bifl.deploy.client.client_commands:client", "take part in a run with local data",
        "Take part with local data: one process, started again whenever it ends, until Ctrl-C.",
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


def _add_reading(commands: Commands[Parser]) -> None:
    command = _add(
        commands, "reproduce", "bifl.cli.reproduce_command:reproduce", "run the paper's tables and figures",
        "Run the paper's studies, several runs at a time, and show them beside the paper's numbers. Finished runs are kept in "
        "DIR/cells and never run again; a stopped command goes on where it was. More about it: docs/reproduce.md.",
        keys=["dataset", "seeds", "rounds"], rows={"studies": STUDIES, "keys (default)": _REPRODUCE_KEYS},
    )  # fmt: skip
    command.add_argument("settings", nargs="+", metavar="STUDY | KEY=VALUE", help="one or more of the studies below, then keys")
    command.add_argument("--quick", action="store_true", help="5,000 embedded digits, 10 clients, 12 rounds: minutes")
    command.add_argument("--kept", action="store_true", help="run nothing, show what is kept: no dataset is needed")
    command.add_argument("--out", type=Path, metavar="DIR", help="tables, and kept runs (results; of --quick runs/quick)")
    command.add_argument("--work", type=Path, metavar="DIR", default=Path("runs"), help="unfinished runs go to DIR/work (runs)")

    command = _add(
        commands, "report", "bifl.cli.show_commands:report", "make a page of finished runs",
        "Tables and interactive charts of runs, beside the paper's values, in one HTML file that needs no network.",
    )  # fmt: skip
    command.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="run folders, comparisons, or folders of such: runs")
    command.add_argument("-o", "--out", type=Path, metavar="FILE", default=Path("report.html"), help="default: report.html")
    _add_against(command)

    command = _add(
        commands, "list", "bifl.cli.list_command:show_choices", "show what there is to choose from", "What keys can be set to."
    )
    command.add_argument("what", nargs="?", metavar="KIND | NAME", help="algorithms: a line each; murmur: all about it")


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number, 1 or more")
    return int(text)
