"""The longer texts of `--help`: examples, keys and their meaning, studies, what the commands for real machines do."""

from __future__ import annotations

import textwrap

from bifl.experiment.declarations import SETTINGS, Declaration

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

_WIDTH, _COLUMN = 100, 24  # of the whole screen; where meanings begin


def _keys(*without: str) -> str:
    """Every setting, its default, and what it means."""
    return "".join(_explained(name, declared) for name, declared in SETTINGS.items() if name not in without)


def _explained(name: str, declared: Declaration) -> str:
    first, indent = f"  {name} ({declared.spelled()})", " " * _COLUMN
    lines = textwrap.wrap(declared.help, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    if len(first) < _COLUMN - 1:
        lines[0] = first.ljust(_COLUMN) + lines[0].lstrip()
    else:
        lines.insert(0, first)
    return "\n".join(lines) + "\n"


STUDIES = """\
studies:
  table1                accuracy of all nine algorithms, IID
  table2                four of them, not IID
  alpha                 BiFL-BiML's gain: 1, 1.25, 1.5, 2, 3
  hybrid                BiFL-BiML up to a fifth, two and three fifths of the rounds, then FedAvg
  clients               half, once and twice as many
  unbalanced            clients of unequal size
  participation         a tenth, three tenths, half and all of the clients upload; IID and not
  theory                lemmas and theorems on random quadratics, misprints, ML-PU's curves
  all                   everything above: the paper's studies
  murmur                a tenth of a bit: murmur beside FedAvg and the paper's, few voters, not IID
  field                 every one-bit method in this field's setting, Fashion-MNIST
  sensors               UCI HAR by person: centralised, FedAvg, murmur and the paper's
  characters            FEMNIST's column of Table I on UNIPEN's characters, 25 rounds
  pictures              FedAvg on CIFAR-10, a network of 1.2 million parameters
keys (default):
  dataset (mnist; of the last four their own)
                        mnist, mnist5k, fashion_mnist, mnist_writers, femnist, celeba, uci_har, unipen,
                        cifar10; several with commas: those that are not on this machine are named and
                        left out
  dataset.path          where that dataset is, if not in BIFL_DATA
  seeds (0)             which to run; tables show all that are kept, as mean ± standard deviation
  rounds                instead of each study's own, 60 or 100

Finished runs are kept in DIR/cells and never run again; a stopped command goes on where it was.
More about it: docs/reproduce.md.
"""

TRACK = """\
  track (nothing)       tensorboard or mlflow: log every round there too; may be given with --resume
"""

RUN_KEYS = f"keys (default) and their meaning:\n{_keys()}"

COMPARE_KEYS = f"""\
keys (default) and their meaning:
  algorithms (fedavg,murmur,full,biml,up_down)
                        names from `bifl list`, parameters after plus signs: biml,up_down+beta=1;
                        my.py:mine is one from a file of your own
  seeds (0)             several give mean ± standard deviation
{_keys("algorithm", "seed")}"""

ABOUT_ASK = (
    "Ask all clients once for sums: samples, classes, mean and deviation of inputs. exchange=my.py:mine asks something of your own."
)
ABOUT_EVAL = "Metrics and size of a trained model, on its run's own dataset or on another, or on what clients hold out."
EVAL_DATA = (
    "a file (mine.npz), or a dataset from `bifl list` and its parameters (npz path=mine.npz); its test samples are used, or all"
)
ABOUT_EXPORT = "Write a trained model as ONNX that runs anywhere, as C99 that runs on a microcontroller, or both: docs/devices.md."
ABOUT_PERSONALISE = "Train a run's network once more on one client's own images, and keep it as a model file: docs/training.md."
ABOUT_KEYS = "Make an authority, the server's certificate and a key pair per client. What is there already stays as it is."
ABOUT_SERVER = (
    "Serve one run: certificates, Flower's SuperLink, the clients' keys, the rounds as they come, and a run folder in the end."
)
ABOUT_CLIENT = "Take part with local data: one of Flower's SuperNodes, started again whenever it ends, until Ctrl-C."
CLIENT_DATA = "FILE.npz, a folder of LEAF's, or a dataset's name, of which this client gets its part (default: the run's dataset)"
CLIENT_PEERS = "all clients' public keys (clients.pub): only runs with secure_sum=true are taken part in, one for each --state"
CLIENT_COLLUDERS = "with --peers: clients that may help the server; runs with fewer colluders= are refused (0)"
CLIENT_ALLOW = "a file that the run may name, as in algorithm=FILE.py:mine or dataset.path=FILE: yours is used; may be repeated"
ABOUT_FEDERATION = (
    "A server and its clients on this machine, each a process of its own, over TLS and with keys, as between machines."
)
