"""Which experiments a client lets the server choose: what comes with bifl, within bounds, and files that its operator gave.

The server's words are checked before an experiment is made of them, as a name like `my.py:mine` runs that file.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path, PurePath

from bifl.deploy.protocol import Refusal
from bifl.errors import BiflError
from bifl.experiment.composition import plain_algorithm
from bifl.experiment.declarations import MAY_CHANGE, SETTINGS
from bifl.experiment.settings import REGISTRIES, Experiment, pairs
from bifl.experiment.setup import refuse_undeployable
from bifl.experiment.starting import digest_alone
from bifl.registry import of_file, short

_PATH = "dataset.path"


def words_for_clients(experiment: Experiment) -> str:
    """An experiment as clients are told of it: what they need, and files by their names alone, wherever the server has them."""
    settings = pairs(experiment.words())
    settings = {key: value for key, value in settings.items() if SETTINGS[key.partition(".")[0]].for_clients}
    for kind in REGISTRIES:
        file, colon, name = settings.get(kind, "").rpartition(":")
        if colon:
            settings[kind] = f"{PurePath(file).name}:{name}"
    if _PATH in settings:
        settings[_PATH] = PurePath(settings[_PATH]).name
    settings["start"] = digest_alone(settings.get("start", ""))
    return shlex.join(f"{key}={value}" for key, value in settings.items())


def permitted(text: str, allowed: Sequence[Path], own_data: bool) -> Experiment:
    """The experiment that a server's words stand for.

    Args:
        text: `key=value` words.
        allowed: files that the operator lets the server name. A file is known by its path or, as other machines have other
            folders, by its name; it is always the operator's file that is used.
        own_data: whether the operator decides what is read; what the server says of the dataset's files is then left out.

    Raises:
        Refusal: the words are none, or name what this client does not have, or does not want to run.
    """
    settings = _settings(text)
    if own_data and of_file(settings.get("dataset", "")):
        settings = {key: value for key, value in settings.items() if key.partition(".")[0] != "dataset"}
    if own_data:
        settings.pop(_PATH, None)
    files = {kind: settings[kind] for kind in REGISTRIES if of_file(settings.get(kind, ""))}
    for kind, name in files.items():
        settings[kind] = f"{_allowed(of_file(name), kind, allowed)}:{short(name)}"
    if settings.get(_PATH):
        settings[_PATH] = str(_allowed(settings[_PATH], _PATH, allowed))
    try:
        settings |= {"start": digest_alone(settings.get("start", ""))}  # the server's file: its weights come as the public state
        experiment = Experiment.of(None, [f"{key}={value}" for key, value in settings.items()])
        central = plain_algorithm(experiment).central
        refuse_undeployable(experiment)
    except BiflError as error:
        # built-in things complain of the server's own words, a file of the operator's may say anything
        public = "it cannot run its own copy of the run's files" if files else f"it cannot run these settings: {error}"
        raise Refusal(f"this client cannot run what the server asks for: {error}", public) from error
    for key, declared in SETTINGS.items():
        most = declared.most_from_server
        if most is not None and getattr(experiment, key) > most:
            raise Refusal(f"this client does not take {key}={getattr(experiment, key)} from a server: {most} is the most")
    if central:
        raise Refusal("the server asks for a centralised algorithm, which has no clients")
    return experiment


def same_but_for_length(first: str, second: str) -> bool:
    """Whether two texts are the same experiment, but for what may change while a run goes on."""
    one, other = ({k: v for k, v in _settings(text).items() if k not in MAY_CHANGE} for text in (first, second))
    return one == other


def named_files(experiment: Experiment) -> list[Path]:
    """The files of a user's own that clients need of an experiment."""
    choices = [getattr(experiment, kind) for kind in REGISTRIES if SETTINGS[kind].for_clients]
    names = [choice.name.rpartition(":")[0] for choice in choices] + [experiment.dataset.parameters.get("path", "")]
    return [Path(name).resolve() for name in dict.fromkeys(names) if name]


def _settings(text: str) -> dict[str, str]:
    try:
        return pairs(shlex.split(text))
    except (ValueError, BiflError) as error:
        raise Refusal("the server's request makes no sense: its experiment is not key=value words") from error


def _allowed(asked: str, key: str, allowed: Sequence[Path]) -> Path:
    """The operator's own file that the server's name stands for."""
    name = PurePath(asked).name
    fitting = [path for path in allowed if str(path) == asked] or [path for path in allowed if path.name == name]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise Refusal(f"{key}: two of the files given with --allow are called '{name}'", f"it has two files for {key}")
    raise Refusal(
        f"the run wants {key}={asked}, a file: get it, read it, and start bifl client with --allow {name}"
        + (", or bring your own images with --data" if key.startswith("dataset") else ""),
        f"it does not allow {key}={name}, a file: its operator can, with --allow" + (", or give --data" if key == _PATH else ""),
    )
