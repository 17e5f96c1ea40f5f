"""Keeps finished runs: `results/cells/<name>.jsonl.gz`, which `bifl.runs.results` reads.

They can be committed: work adds up over days and machines. A kept run is found by everything that decides its numbers, seed
included, and holds as many rounds as were run; whoever asks for fewer gets the first ones. It says which version of bifl made it.

>>> from bifl.experiment.settings import Experiment
>>> name(Experiment.of("mnist-nc3", ["algorithm.alpha=1.5"]))
'mnist-by_class-3-m100-biml-alpha-1.5-s0-6e7b036b'
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from bifl import __version__
from bifl.data import fingerprint
from bifl.data.fingerprint import Loaded
from bifl.errors import RunError
from bifl.experiment import config_file
from bifl.experiment.settings import Experiment, checksum, identity
from bifl.files import write_atomic, writing
from bifl.registry import short
from bifl.runs.folder import Result
from bifl.runs.record import Record
from bifl.runs.results import KEPT, read_kept


def name(experiment: Experiment) -> str:
    """For a file: readable, and with a checksum of everything."""
    usual = Experiment(algorithm=experiment.algorithm.name).algorithm.parameters
    chosen = [f"{key}-{_text(value)}" for key, value in experiment.algorithm.parameters.items() if value != usual[key]]
    split = [experiment.partition.name, *(f"{value:g}" for value in experiment.partition.parameters.values())]
    share = [] if experiment.participation == 1 else [f"share-{experiment.participation:g}"]
    share += [f"validation-{experiment.validation:g}"] if experiment.validation else []
    parts = [experiment.dataset.name, *split, f"m{experiment.clients}", *share, short(experiment.algorithm.name), *chosen]
    return "-".join([*parts, f"s{experiment.seed}", checksum(experiment)])


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def path(folder: Path, experiment: Experiment) -> Path:
    """Where an experiment is kept, or would be."""
    return folder / (name(experiment) + KEPT)


def find(folder: Path, experiment: Experiment) -> Result | None:
    """What is kept of an experiment."""
    file = path(folder, experiment)
    result = read_kept(file) if file.is_file() else None
    return result if result and identity(result.experiment) == identity(experiment) else None


def load(folder: Path, experiment: Experiment) -> list[Record]:
    """The rounds that are known of an experiment, at most as many as it has."""
    result = find(folder, experiment)
    return result.records[: experiment.rounds] if result else []


def save(folder: Path, experiment: Experiment, records: list[Record], data: Loaded | None = None) -> Path:
    """Keep a run, unless more of it is kept already; what is kept must have been run on the same data."""
    file, before = path(folder, experiment), find(folder, experiment)
    if before and before.data and data and before.data != data:
        raise RunError(
            f"'{file}' was run on other data ({fingerprint.sentence(before.data)}) than this run "
            f"({fingerprint.sentence(data)}), which is not kept: delete the one that is wrong"
        )
    if before and len(before.records) >= len(records):
        return file
    facts: dict[str, Any] = {"config": config_file.to_toml(identity(experiment).changed({"rounds": len(records)}))}
    facts |= {"version": __version__} | ({"data": fingerprint.facts(data)} if data else {})
    text = "\n".join([json.dumps(facts), *(record.to_json() for record in records)]) + "\n"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(file, gzip.compress(text.encode(), mtime=0))  # without the time: the same records, the same file
    return file
