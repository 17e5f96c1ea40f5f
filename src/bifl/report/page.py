"""The page: tables and figures of all settings in one file, with styles, script and plotly.js inside."""

from __future__ import annotations

import base64
import gzip
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from bifl import __version__
from bifl.data.fetching import local_only
from bifl.errors import BiflError, ConfigError, DataError
from bifl.experiment import config_file
from bifl.experiment.declarations import Choice, Unloaded
from bifl.experiment.model import Model
from bifl.experiment.settings import REGISTRIES, Experiment, plain_algorithm
from bifl.experiment.setup import LastDataset
from bifl.export.c_model import Cost, code_of
from bifl.files import write_atomic, writing
from bifl.registry import short, without_folder
from bifl.report import charts
from bifl.report.remarks import remarks
from bifl.report.summary import Setting, idealised, megabytes, printed, without_path
from bifl.runs.differences import MARGIN, differences, no_interval, reference, remark
from bifl.runs.folder import MODEL, Result
from bifl.runs.results import KEPT, LAST, TARGETS, Series
from bifl.show import split_stats
from bifl.show.difference_table import cells
from bifl.show.output import counted
from bifl.show.plot import ROUNDS, places

ML_PU = ("biml", "biml_fit", "hybrid")  # the algorithms with a maximum-likelihood update
_LONG = 16  # letters of a word that may be too wide for a column of a telephone
_JOINTS = re.compile(r"(?<=[_=+/:,])|(?<=-)(?=[^\W\d])")
MANY_CLIENTS = 300  # columns of a heat map beyond which nothing can be told apart


def write(groups: list[Setting], path: Path, against: str | None = None, margin: float = MARGIN) -> None:
    """Write the report of some settings: differences are to the algorithm `against`, or the first of each setting."""
    text = render(groups, against, margin)
    with writing(path.parent):
        write_atomic(path, text)


def render(groups: list[Setting], against: str | None = None, margin: float = MARGIN) -> str:
    """The whole page."""
    drawn: dict[str, charts.Figure] = {}
    images = LastDataset()
    each = enumerate(zip(groups, _places(groups), strict=True))
    sections = [
        _section(f"s{number}", group, looks, drawn, images) | _compared(group.series, against, margin)
        for number, (group, looks) in each
    ]
    voters = _voters(groups)
    if voters:
        drawn["ml-pu"] = charts.ml_pu(voters)
    environment = Environment(
        loader=PackageLoader("bifl.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(
        key=charts.key, portable=_portable, counted=counted, folder=_folder, breakable=_breakable, printed=printed,
        megabytes=megabytes, idealised=idealised,
    )  # fmt: skip
    runs = len({result.name for group in groups for one in group.series for result in one.results})
    return environment.get_template("template.html").render(
        version=__version__, runs=runs, sections=sections, voters=voters, targets=TARGETS, last=LAST,
        figures=drawn, style=_text("style.css"), script=_text("script.js"), plotly=_plotly(),
    )  # fmt: skip


def _voters(groups: list[Setting]) -> int:
    """How many clients vote where ML-PU reads the votes; 0 where it does not. Of several numbers the most frequent."""
    series = [one for group in groups for one in group.series if one.experiment.algorithm.name in ML_PU]
    numbers = [one.runs[0][0].clients for one in series]
    return max(numbers, key=numbers.count, default=0)


def _places(groups: list[Setting]) -> list[dict[str, int]]:
    """Labels' places among the colours, the same in all settings, as far as that goes."""
    known: dict[str, int] = {}
    every = []
    for group in groups:
        every.append(places({one.label: one.experiment.algorithm.name for one in group.series}, known))
        known = every[-1] | known
    return every


def _compared(series: list[Series], against: str | None, margin: float) -> dict[str, Any]:
    """A section's table of differences, or why there is none; nothing of one algorithm."""
    try:
        other = series[reference([one.label for one in series], against)]
    except ConfigError:
        other = series[0]  # the algorithm is none of this setting's
    found = differences(series, other, margin)
    if sentence := no_interval(found, other.label):
        return {"differences": [], "other": other, "differing": sentence if found else ""}
    by_label = {one.label: one for one in series}
    rows = [(by_label[one.label], cells(one)) for one in found]
    return {"differences": rows, "other": other, "differing": remark(found, other.rounds)}


def _section(
    key: str, group: Setting, places: dict[str, int], drawn: dict[str, charts.Figure], images: LastDataset
) -> dict[str, Any]:
    """One setting's part of the page; its figures go to `drawn`."""
    series = group.series
    for name, chart in zip(("rounds", "uploaded", "downloaded"), ROUNDS, strict=True):
        drawn[f"{key}-{name}"] = charts.accuracy(series, places, chart)
    for number, one in enumerate(series):
        drawn[f"{key}-flips-{number}"] = charts.flips(one.runs[0])  # of one.furthest[0], as the page says
        if votes := charts.sureness(one.runs[0]):
            drawn[f"{key}-votes-{number}"] = votes
    voted = [number for number in range(len(series)) if f"{key}-votes-{number}" in drawn]
    return {
        "key": key, "setting": group, "places": places, "remarks": remarks(series),
        "measure": series[0].measure, "axis": series[0].full_measure,
        "printed": any(map(printed, series)),
        "several": any(len(one.runs) > 1 for one in series),
        "settled": any(one.settled for one in series),
        "short": not all(one.settled for one in series),
        "seldom": any(one.averaged is not None for one in series),
        "sends": any(one.sends for one in series),
        "shown": voted[0] if voted else 0,
        "models": [
            (one, path.stat().st_size, _cost(path)) for one in series if (path := Path(one.furthest[0].name) / MODEL).is_file()
        ],
        "splits": [_split(f"{key}-split-{number}", one, drawn, images) for number, one in enumerate(_dealt(series))],
    }  # fmt: skip


def _cost(path: Path) -> Cost | str:
    """What a trained model costs, or why there is no C; a network that is Python code of somebody's is not run for it."""
    try:
        model = Model.read(path)
        if not model.shape:
            return "its file does not say what one input looks like"
        return code_of(model, model.module().eval(), model.shape, MODEL).cost
    except BiflError as error:
        reason = str(error).partition("cannot become C: ")[2]  # the rest of a sentence may name folders of this machine
        return reason or "its file cannot be read, or not without running Python code"


def _dealt(series: list[Series]) -> list[Experiment]:
    """An experiment for every number of clients, such as deal out all training images if possible."""
    known = [one.experiment for one in series if not isinstance(one.experiment.algorithm, Unloaded)]
    federated = [experiment for experiment in known if not plain_algorithm(experiment).central]
    federated.sort(key=lambda experiment: plain_algorithm(experiment).validation)
    return list({experiment.clients: experiment for experiment in reversed(federated)}.values())


def _split(key: str, experiment: Experiment, drawn: dict[str, charts.Figure], images: LastDataset) -> tuple[str, str | None]:
    """Who holds what, or why that cannot be shown, and the key of its figure, which goes to `drawn`."""
    unknown = "The split cannot be shown: "
    for choice in (experiment.dataset, experiment.partition):
        if isinstance(choice, Unloaded):
            return f"{unknown}{without_folder(choice.name)} is Python code, which a report does not run.", None
    try:
        with local_only():
            dealt = split_stats.count(experiment, images.of(experiment))
    except DataError:  # its sentence has folders of this machine in it
        return f"{unknown}{short(experiment.dataset.name)}’s images are not on the machine that made this page.", None
    except BiflError as error:
        return f"{unknown}{error}.", None
    drawn[key] = charts.partition(dealt.counts[:MANY_CLIENTS])
    more = f"; the first {MANY_CLIENTS} are shown" if len(dealt.counts) > MANY_CLIENTS else ""
    return f"{split_stats.facts(dealt)}{more}.", key


def _portable(experiment: Experiment) -> str:
    """Its configuration without the folders of this machine."""
    choices: dict[str, Choice] = {name: getattr(experiment, name) for name in REGISTRIES}
    for name, choice in choices.items():
        files = {key: Path(str(value)).name for key, value in choice.parameters.items() if key == "path" and value}
        plain = {key: without_path(value) for key, value in choice.parameters.items()}
        choices[name] = Unloaded(without_folder(choice.name), plain | files)
    return config_file.to_toml(experiment.changed(choices).changed({"start": without_path(experiment.start)}))


def _breakable(name: str) -> str:
    """HTML of a name that may wrap between its words: after _, = and the like, never within a number."""
    words = [_JOINTS.split(word) if len(word) > _LONG else [word] for word in name.split(" ")]
    return Markup(" ").join(Markup("<wbr>").join(escape(part) for part in word) for word in words)


def _folder(result: Result) -> str:
    """What a run is called on disk, without the folders above it."""
    return Path(result.name).name.removesuffix(KEPT)


def _text(name: str) -> str:
    return (files("bifl.report") / name).read_text(encoding="utf-8")


def _plotly() -> str:
    """plotly.js in a third of its size: the page unpacks it, as every browser since 2023 can."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
