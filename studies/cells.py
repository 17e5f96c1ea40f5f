"""What the paper ran (§4): every table and figure as a list of cells. The code is the paper's list.

>>> [cell.row for cell in cells("alpha", "mnist", rounds=None)]
['α = 1', 'α = 1.25', 'α = 1.5', 'α = 2', 'α = 3']
>>> cells("participation", "mnist", rounds=5)[4].column
'N_c = 3'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bifl.errors import ConfigError
from bifl.experiment.settings import Experiment
from bifl.registry import nearest

QUICK = "mnist5k"  # the dataset of --quick
QUICK_ROUNDS = 12


class Cell(NamedTuple):
    """One number of a table."""

    row: str
    column: str
    experiment: Experiment


class Place(NamedTuple):
    """A dataset's splits, as the paper uses them."""

    iid: Experiment
    skewed: Mapping[str, Experiment]  # the last is the hardest
    unbalanced: Experiment

    def rounds(self, count: int) -> Place:
        """The same with so many rounds."""
        change = {"rounds": count}
        skewed = {label: split.changed(change) for label, split in self.skewed.items()}
        return Place(self.iid.changed(change), skewed, self.unbalanced.changed(change))


class Study(NamedTuple):
    """A table or figure."""

    title: str
    rounds: int
    make: Callable[[Place], list[Cell]]
    of_paper: bool = True  # as opposed to what goes beyond it
    dataset: str = "mnist"  # where none is named


def _by_class(base: Experiment) -> dict[str, Experiment]:
    split = {"partition": "by_class", "partition.classes_per_client": 5}
    return {f"N_c = {count}": base.changed(split | {"partition.classes_per_client": count}) for count in (5, 3)}


def _preset(name: str) -> Experiment:
    """A preset with the paper's algorithm, which studies vary."""
    return Experiment.of(name).changed({"algorithm": "biml"})


def _digits(preset: str) -> Place:
    base = _preset(preset)
    return Place(base, _by_class(base), base.changed({"partition": "unbalanced"}))


def _presets(dataset: str) -> Place:
    base = _preset(f"{dataset}-iid")
    return Place(base, {"by user": _preset(f"{dataset}-noniid")}, base.changed({"partition": "unbalanced"}))


def _writers() -> Place:
    by_writer = _preset("writers")
    iid = by_writer.changed({"partition": "iid"})
    return Place(iid, {"by writer": by_writer}, by_writer.changed({"partition": "unbalanced"}))


def _persons() -> Place:
    by_person = _preset("har")
    iid = by_person.changed({"partition": "iid"})
    return Place(iid, {"by person": by_person}, by_person.changed({"partition": "unbalanced"}))


def _characters() -> Place:
    iid = _preset("unipen-iid")
    return Place(iid, {"by writer": _preset("unipen-writers")}, iid.changed({"partition": "unbalanced"}))


PLACES: dict[str, Callable[[], Place]] = {
    "mnist": lambda: _digits("mnist-iid"),
    "mnist5k": lambda: _digits("mnist5k-iid"),
    "fashion_mnist": lambda: _digits("fashion-iid"),
    "mnist_writers": _writers,
    "femnist": lambda: _presets("femnist"),
    "celeba": lambda: _presets("celeba"),
    "uci_har": _persons,
    "unipen": _characters,
    "cifar10": lambda: _digits("cifar10-iid"),
}

_ROWS: dict[str, dict[str, Any]] = {
    "baseline": {"algorithm": "baseline"},
    "FA": {"algorithm": "fedavg"},
    "BNN": {"algorithm": "bnn"},
    "BiFL-Full": {"algorithm": "full"},
    "BiFL-BiML": {"algorithm": "biml"},
    "UpOnly β = 0.3": {"algorithm": "up_only"},
    "FTTQ": {"algorithm": "fttq"},
    "UpDown β = 0.3": {"algorithm": "up_down"},
    "UpDown β = 1": {"algorithm": "up_down", "algorithm.beta": 1.0},
}
_FEWER = ("FA", "BiFL-BiML", "FTTQ", "UpDown β = 0.3")


def _table1(place: Place) -> list[Cell]:
    return [Cell(row, "IID", place.iid.changed(settings)) for row, settings in _ROWS.items()]


def _table2(place: Place) -> list[Cell]:
    return [Cell(row, column, split.changed(_ROWS[row])) for column, split in place.skewed.items() for row in _FEWER]


def _alpha(place: Place) -> list[Cell]:
    return [Cell(f"α = {alpha:g}", "IID", place.iid.changed({"algorithm.alpha": alpha})) for alpha in (1.0, 1.25, 1.5, 2.0, 3.0)]


def _hybrid(place: Place) -> list[Cell]:
    """The paper switches after rounds 20, 40 and 60 of 100: the same shares of fewer rounds."""
    alpha = place.iid.algorithm.parameters["alpha"]
    switches = [max(1, share * place.iid.rounds // 100) for share in (20, 40, 60)]
    hybrids = [{"algorithm": "hybrid", "algorithm.switch": switch, "algorithm.alpha": alpha} for switch in switches]
    named = {f"hybrid T = {settings['algorithm.switch']}": settings for settings in hybrids}
    named = {"BiFL-BiML": _ROWS["BiFL-BiML"]} | named | {"FA": _ROWS["FA"]}
    return [Cell(row, "IID", place.iid.changed(settings)) for row, settings in named.items()]


def _clients(place: Place) -> list[Cell]:
    counts = [place.iid.clients // 2, place.iid.clients, 2 * place.iid.clients]
    return [Cell(f"M = {count}", "IID", place.iid.changed({"clients": count})) for count in counts]


def _unbalanced(place: Place) -> list[Cell]:
    splits = {"equal": place.iid, "unbalanced": place.unbalanced}
    return [Cell(row, column, split.changed(_ROWS[row])) for column, split in splits.items() for row in ("FA", "BiFL-BiML")]


def _participation(place: Place) -> list[Cell]:
    column, skewed = list(place.skewed.items())[-1]
    return [
        Cell(f"λ = {share:g}", name, split.changed({"participation": share}))
        for name, split in {"IID": place.iid, column: skewed}.items()
        for share in (0.1, 0.3, 0.5, 1.0)
    ]


_MURMUR: dict[str, dict[str, Any]] = {
    "FA": {"algorithm": "fedavg"},
    "murmur": {"algorithm": "murmur"},
    "murmur, momentum": {"algorithm": "murmur_momentum"},
    "murmur, 1of8 down": {"algorithm": "murmur", "algorithm.down": "1of8"},
    "murmur, group 32": {"algorithm": "murmur", "algorithm.group": 32},
    "murmur, momentum, group 32": {"algorithm": "murmur_momentum", "algorithm.group": 32},
    "BiFL-Full": {"algorithm": "full"},
    "BiFL-BiML": {"algorithm": "biml"},
    "murmur, binary": {"algorithm": "murmur", "algorithm.forward": "binary"},
}


def _murmur(place: Place) -> list[Cell]:
    """Beside FedAvg and the paper's algorithms; with few voters; where clients lack classes, with the network that suits that."""
    column, skewed = list(place.skewed.items())[-1]
    if skewed.model.name == "mnist_cnn":
        column, skewed = f"{column}, fixed scores", skewed.changed({"model": "mnist_cnn_fixed"})
    longer = place.iid.changed({"rounds": 5 * place.iid.rounds // 3})  # binary networks learn longer: 100 rounds, as in Table I
    rows = [
        ("IID", place.iid, ("FA", "murmur", "murmur, momentum", "murmur, 1of8 down")),
        ("IID, binary", longer, ("BiFL-Full", "BiFL-BiML", "murmur, binary")),
        ("a tenth votes", place.iid.changed({"participation": 0.1}), ("FA", "murmur", "murmur, momentum")),
        (column, skewed, ("FA", "murmur, group 32", "murmur, momentum, group 32")),  # clients differ, so each must say more
    ]
    return [Cell(row, column, split.changed(_MURMUR[row])) for column, split, names in rows for row in names]


_SGD = {"optimizer": "sgd", "lr": 0.1}
_FIELD: dict[str, dict[str, Any]] = {  # rates as tuned with five rounds of another seed (docs/research.md)
    "fedavg": _SGD,
    "float16": _SGD,
    "murmur": _SGD,
    "eden": _SGD,
    "dither": _SGD,
    "ef_sign": _SGD,
    "qsgd": _SGD,
    "top_k": _SGD,
    "sign_majority": _SGD | {"algorithm.step": 0.001},
    "fedbat": _SGD,
    "fedmrn": _SGD,
    "fedvote": {"optimizer": "adam", "lr": 0.1},
    "fedpm": {"optimizer": "adam", "lr": 0.1},
    "biml": {"optimizer": "adam", "lr": 0.0005},
}


def _tenth(place: Place) -> Experiment:
    """The setting of this field: 10 of 100 clients a round, cnn4."""
    base = place.iid.changed({"participation": 0.1, "idle": "sleep", "evaluate_every": 2})
    return base.changed({"model": "cnn4"}) if base.dataset.name == "fashion_mnist" else base


def _field(place: Place) -> list[Cell]:
    """Every algorithm in the setting of this field, each with its own rate."""
    base = _tenth(place)
    splits = {
        "IID": base,
        "Dirichlet 0.3": base.changed({"partition": "dirichlet", "partition.concentration": 0.3}),
        "3 classes": base.changed({"partition": "by_class", "partition.classes_per_client": 3}),
    }
    return [
        Cell(name, column, split.changed({"algorithm": name} | settings))
        for column, split in splits.items()
        for name, settings in _FIELD.items()
    ]


_DRIFT: dict[str, dict[str, Any]] = {  # one rate for all: that of plain FedAvg
    "fedavg": {"algorithm": "fedavg"},
    "fedprox": {"algorithm": "fedprox"},
    "scaffold": {"algorithm": "scaffold"},
    "scaffold, murmur both": {"algorithm": "scaffold", "algorithm.up": "murmur", "algorithm.down": "sign"},
    "feddyn": {"algorithm": "feddyn"},
    "murmur": {"algorithm": "murmur"},
}


def _drift(place: Place) -> list[Cell]:
    """Clients whose data differ much, and the algorithms that correct for it."""
    base = _tenth(place)
    splits = {
        "Dirichlet 0.1": base.changed({"partition": "dirichlet", "partition.concentration": 0.1}),
        "3 classes": base.changed({"partition": "by_class", "partition.classes_per_client": 3}),
    }
    return [
        Cell(row, column, split.changed(_SGD | settings)) for column, split in splits.items() for row, settings in _DRIFT.items()
    ]


_SENSORS = ("baseline", "FA", "murmur", "BiFL-Full", "BiFL-BiML", "UpDown β = 0.3", "BNN")


def _sensors(place: Place) -> list[Cell]:
    """By person, and what costs BiML its last points: the same people dealt out evenly, and one binary network of all data."""
    column, skewed = list(place.skewed.items())[-1]
    rows = _ROWS | {"murmur": _MURMUR["murmur"]}
    people = [Cell(row, column, skewed.changed(rows[row])) for row in _SENSORS]
    return people + [Cell(row, "IID", place.iid.changed(rows[row])) for row in ("BiFL-Full", "BiFL-BiML")]


def _second_column(place: Place) -> list[Cell]:
    """Of Table I, as near as the data allow."""
    rows = ("FA", "BiFL-BiML", "BiFL-Full", "FTTQ", "UpDown β = 0.3")
    return [Cell(row, "IID", place.iid.changed(_ROWS[row])) for row in rows]


def _pictures(place: Place) -> list[Cell]:
    return [Cell("FA", "IID", place.iid.changed({"algorithm": "fedavg"}))]


STUDIES: dict[str, Study] = {
    "table1": Study("Table I: accuracy, IID", 100, _table1),
    "table2": Study("Table II: accuracy, not IID", 60, _table2),
    "alpha": Study("BiFL-BiML: the gain α", 60, _alpha),
    "hybrid": Study("BiFL-BiML up to round T, then FedAvg", 100, _hybrid),
    "clients": Study("BiFL-BiML: number of clients", 60, _clients),
    "unbalanced": Study("Clients of unequal size: virtual M_i", 60, _unbalanced),
    "participation": Study("BiFL-BiML: share of clients that upload", 60, _participation),
    "murmur": Study("A tenth of a bit", 60, _murmur, of_paper=False),
    "field": Study("One-bit methods, bytes as sent", 20, _field, of_paper=False, dataset="fashion_mnist"),
    "drift": Study("Clients that differ much", 50, _drift, of_paper=False, dataset="fashion_mnist"),
    "sensors": Study("Windows of phone sensors", 30, _sensors, of_paper=False, dataset="uci_har"),
    "characters": Study("FEMNIST's column of Table I, with other characters", 25, _second_column, of_paper=False, dataset="unipen"),
    "pictures": Study("A larger network", 20, _pictures, of_paper=False, dataset="cifar10"),
}


def cells(study: str, dataset: str, rounds: int | None) -> list[Cell]:
    """A study's cells for seed 0; `rounds` instead of the study's own."""
    if dataset not in PLACES:
        raise ConfigError(f"dataset '{dataset}' is none that the paper's studies run on{nearest(dataset, PLACES)}")
    usual = QUICK_ROUNDS if dataset == QUICK else STUDIES[study].rounds
    return STUDIES[study].make(PLACES[dataset]().rounds(rounds or usual))
