"""Settings: strict about every key, with a sentence that helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bifl.errors import ConfigError
from bifl.experiment import config_file
from bifl.experiment.presets import PRESETS
from bifl.experiment.settings import Choice, Experiment
from bifl.runs.comparison import planned


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_survive_toml(preset: str, tmp_path: Path) -> None:
    experiment = Experiment.of(preset, ["algorithm=up_down", "lr=0.1", "participation=0.25"])
    path = tmp_path / "config.toml"
    path.write_text(config_file.to_toml(experiment))
    assert config_file.read(path) == experiment


def test_three_ways_to_say_the_same() -> None:
    words = Experiment.of(None, ["algorithm.alpha=1.5", "algorithm=biml", "lr=0.01,0.001", "lr_steps=5", "rounds=7"])
    keywords = Experiment.of(rounds=7, lr=(0.01, 0.001), lr_steps=(5,), algorithm={"name": "biml", "alpha": 1.5})
    fields = Experiment(algorithm={"name": "biml", "alpha": 1.5}, rounds=7, lr=[0.01, 0.001], lr_steps=5)
    assert words == keywords == fields
    assert words.algorithm == Choice("biml", {"alpha": 1.5})


def test_another_algorithm_does_not_inherit_parameters() -> None:
    experiment = Experiment.of(None, ["algorithm=biml", "algorithm.alpha=2"]).changed({"algorithm": "up_down"})
    assert experiment.algorithm == Choice("up_down", {"beta": 0.3})
    assert Experiment.of("mnist-nc5", ["rounds=1"]).partition == Choice("by_class", {"classes_per_client": 5})


def test_the_recommended_algorithm_is_the_usual_one_and_the_papers_presets_name_theirs() -> None:
    assert Experiment().algorithm.name == "murmur"
    found = {name: Experiment.of(name).algorithm.name for name in PRESETS}
    papers = ("mnist-", "femnist-", "celeba-", "unipen-")  # UNIPEN's have the paper's settings of FEMNIST
    assert found == {name: "biml" if name.startswith(papers) else "murmur" for name in PRESETS}


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("algoritm=biml", "unknown key 'algoritm': did you mean 'algorithm'?"),
        ("algorithm=bilm", "unknown algorithm 'bilm': did you mean 'biml'?"),
        ("algorithm=biml algorithm.alhpa=1", "unknown key 'algorithm.alhpa' of algorithm 'biml': did you mean 'alpha'?"),
        ("rounds.x=1", "unknown key 'rounds.x'"),
        ("partition.x=1", "partition 'iid' has no parameters"),
        ("rounds=ten", "rounds must be a whole number, not 'ten'"),
        ("rounds=1.5", "rounds must be a whole number, not '1.5'"),
        ("rounds=0", "rounds must be 1 or more, not 0"),
        ("seed=-1", "seed must be 0 or more"),
        ("seed=99999999999999999999", "seed must be less than 2^63"),
        ("lr_steps=-5,60", "lr_steps must be rising round numbers"),
        ("batch=1", "batch must be 2 or more"),
        ("algorithm=biml algorithm.alpha=0", "algorithm.alpha must be greater than 0, not 0.0"),
        ("algorithm=biml algorithm.alpha=-1", "algorithm.alpha must be greater than 0"),
        ("algorithm=biml algorithm.alpha=nan", "algorithm.alpha must be greater than 0"),
        ("participation=0", "participation must be greater than 0 and at most 1, not 0.0"),
        ("participation=1.1", "participation must be greater than 0 and at most 1"),
        ("idle=nap", "idle must be one of train, sleep, not 'nap'"),
        ("optimizer=lion", "unknown optimizer 'lion' (known: adam, sgd, adamw)"),
        ("batchnorm=x", "batchnorm must be one of recalibrate, average, not 'x'"),
        ("lr=0", "lr must be one or more positive numbers, not 0"),
        ("lr=", "lr must be one or more positive numbers"),
        ("lr=0.1,0.2", "lr has 2 values for 2 lr_steps"),
        ("lr_steps=60,30", "lr_steps must be rising round numbers, not 60,30"),
        ("word", "'word' is neither a preset nor key=value"),
    ],
)
def test_a_wrong_setting_gets_one_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Experiment.of(None, setting.split())
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"), [("rounds", 1.5), ("rounds", True), ("seed", None), ("participation", "x"), ("algorithm", 3)]
)
def test_wrong_python_values_too(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        Experiment(**{key: value})


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'rounds' is given twice"):
        Experiment.of(None, ["rounds=1", "rounds=2"])


OWN = """
from __future__ import annotations
from dataclasses import dataclass
from bifl.core import Algorithm, register
from bifl.core.rules import floats, means, replace

@dataclass
class Thing:
    size: int

@register
def {name}(step: float = 1) -> Algorithm:
    'My own.'
    return Algorithm(upload=floats, broadcast=means, update=replace)
"""


def test_an_algorithm_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN.format(name="mine"))
    experiment = Experiment.of(None, [f"algorithm={tmp_path}/mine.py:mine", "algorithm.step=0.5"])
    assert experiment.algorithm.parameters == {"step": 0.5}
    (tmp_path / "clash.py").write_text(OWN.format(name="biml"))
    with pytest.raises(ConfigError, match="algorithm 'biml' exists already"):
        Experiment.of(None, [f"algorithm={tmp_path}/clash.py:biml"])


def test_a_file_alone_is_the_only_thing_in_it(tmp_path: Path) -> None:
    file = tmp_path / "single.py"
    file.write_text(OWN.format(name="single"))
    experiment = Experiment.of(None, [f"algorithm={file}", "algorithm.step=0.5"])
    assert experiment == Experiment.of(None, [f"algorithm={file}:single", "algorithm.step=0.5"])
    with pytest.raises(ConfigError, match=r"single\.py' defines no model"):
        Experiment(model=str(file))
    two = tmp_path / "two.py"
    two.write_text(OWN.format(name="one") + OWN.format(name="other").partition("    size: int")[2])
    with pytest.raises(ConfigError, match=r"two\.py' defines more than one algorithm: say which, two\.py:one or two\.py:other"):
        Experiment(algorithm=str(two))
    with pytest.raises(ConfigError, match=r"none\.py' does not exist"):
        Experiment(dataset=str(tmp_path / "none.py"))
    assert [row[:2] for row in planned(Experiment(), f"biml,{file}+step=2", "3")] == [
        ("biml-s3", "biml"), ("single+step=2-s3", "single+step=2"),
    ]  # fmt: skip


def test_an_algorithm_from_a_file_that_fails_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    with pytest.raises(ConfigError, match=r"mine\.py' does not exist"):
        Experiment.of(None, [f"algorithm={path}:mine"])
    path.write_text("1/0")
    with pytest.raises(ConfigError, match=r"mine\.py' fails to load: ZeroDivisionError"):
        Experiment.of(None, [f"algorithm={path}:mine"])


CELL = """
from bifl.core.algorithm import register
from bifl.algorithms.paper import up_down
from bifl.nn.models import mnist_cnn, model

@register
def edited_cell(beta: float = {beta}):
    "Of a notebook."
    return up_down(beta)

@model
def network_of_a_cell(classes: int, width: int = {width}):
    return mnist_cnn(classes)
"""


def test_a_notebook_cell_may_be_edited_and_run_again() -> None:
    notebook = {"__name__": "__main__"}
    for number, (beta, width) in enumerate([(0.5, 4), (0.25, 8)]):
        cell = compile(CELL.format(beta=beta, width=width), f"/tmp/ipykernel_1/{number}.py", "exec")  # ipykernel's own names
        exec(cell, notebook)
    experiment = Experiment(algorithm="edited_cell", model="network_of_a_cell")
    assert experiment.algorithm.parameters == {"beta": 0.25}
    assert experiment.model.parameters == {"width": 8}


def test_two_files_cannot_claim_one_name(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(OWN.format(name="claimed"))
    Experiment(algorithm=f"{tmp_path}/first.py:claimed")
    with pytest.raises(ConfigError, match=r"algorithm 'claimed' exists already, in .*first\.py: choose another name"):
        Experiment(algorithm=f"{tmp_path}/second.py:claimed")
