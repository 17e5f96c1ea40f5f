"""`bifl reproduce`: the paper's tables and figures."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from bifl.cli.parser import Commands, Parser, add_command
from bifl.errors import ConfigError
from bifl.experiment.presets import pairs

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
  drift                 clients that differ much: SCAFFOLD, FedDyn, FedProx, murmur
  sensors               UCI HAR by person: centralised, FedAvg, murmur and the paper's
  characters            FEMNIST's column of Table I on UNIPEN's characters, 25 rounds
  pictures              FedAvg on CIFAR-10, a network of 1.2 million parameters
keys (default):
  dataset (mnist; of the last five their own)
                        mnist, mnist5k, fashion_mnist, mnist_writers, femnist, celeba, uci_har, unipen,
                        cifar10; several with commas: those that are not on this machine are named and
                        left out
  dataset.path          where that dataset is, if not in BIFL_DATA
  seeds (0)             which to run; tables show all that are kept, as mean ± standard deviation
  rounds                instead of each study's own, 60 or 100

Finished runs are kept in DIR/cells and never run again; a stopped command goes on where it was.
More about it: docs/reproduce.md.
"""


def add(commands: Commands[Parser]) -> None:
    """Declare it."""
    command = add_command(
        commands, "reproduce", reproduce, keys=["dataset", "seeds", "rounds"], epilog=STUDIES,
        help="run the paper's tables and figures",
        description="Run the paper's studies, several runs at a time, and show them beside the paper's numbers.",
    )  # fmt: skip
    command.add_argument("settings", nargs="+", metavar="STUDY | KEY=VALUE", help="one or more of the studies below, then keys")
    command.add_argument("--quick", action="store_true", help="5,000 embedded digits, 10 clients, 12 rounds: minutes")
    command.add_argument("--kept", action="store_true", help="run nothing, show what is kept: no dataset is needed")
    command.add_argument("--out", type=Path, metavar="DIR", help="tables, and kept runs (results; of --quick runs/quick)")
    command.add_argument("--work", type=Path, metavar="DIR", default=Path("runs"), help="unfinished runs go to DIR/work (runs)")


def reproduce(options: argparse.Namespace) -> int:
    """The paper's tables and figures."""
    from bifl.show.output import console

    studies = load_studies(Path(__file__).parents[3])
    names = [word for word in options.settings if "=" not in word]
    if not names:
        raise ConfigError("say which study to reproduce, such as table1, or all")
    settings = pairs(word for word in options.settings if "=" in word)
    try:
        asked = studies.request(names, settings, (options.out, options.work), options.quick, options.kept)
        studies.reproduce(asked, console())
    except KeyboardInterrupt:
        print("bifl: stopped; the same command goes on where it was", file=sys.stderr)
        return 130
    return 0


def load_studies(clone: Path) -> ModuleType:
    """What runs the studies: `studies/`, which lies beside `src/` in a clone of bifl and in no installed package.

    Raises:
        ConfigError: there are none.
    """
    folder = clone / "studies"
    if not (folder / "reproduce.py").is_file():
        raise ConfigError(
            "the studies and their kept runs are in bifl's repository, not in the package: call bifl of a clone (make ready)"
        )
    if "studies" not in sys.modules:  # by its path: whatever else is called so is another's
        spec = spec_from_file_location("studies", folder / "__init__.py", submodule_search_locations=[str(folder)])
        assert spec is not None
        assert spec.loader is not None
        sys.modules["studies"] = package = module_from_spec(spec)
        spec.loader.exec_module(package)
    return import_module("studies.reproduce")
