"""What the documentation shows is what runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bifl as bifl_package
from bifl.engine.simulator import simulate
from bifl.experiment.settings import Experiment
from tests.commands import Run, bifl

ROOT = Path(__file__).parent.parent


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.floats
def test_the_worked_example_is_short_and_learns(tmp_path: Path) -> None:
    (example,) = python_blocks("docs/adding-an-algorithm.md")
    assert example.count("\n") < 60
    path = tmp_path / "direction_vote.py"
    path.write_text(example)
    records = list(simulate(Experiment.of(None, [f"algorithm={path}:direction_vote", "rounds=8", "workers=2"])))
    assert records[-1].accuracy > 0.9  # 96.2 to 96.5 % with three seeds, on two processors
    assert records[-1].up_bpp < 1.25  # 1.04, a packed bit and batch-norm's numbers
    assert records[-1].down_bpp < 1.25


def test_the_readme_runs(tmp_path: Path) -> None:
    blocks = python_blocks("README.md")
    assert blocks
    done = subprocess.run([sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_page_on_sensors_runs(tmp_path: Path, here: Run) -> None:
    block, use = python_blocks("docs/sensors.md")
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (words,) = re.findall(r"^bifl run (dataset=.*)$", (ROOT / "docs/sensors.md").read_text(), re.MULTILINE)
    done = here("run", *words.split(), "rounds=2", "workers=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = here("eval", "runs/npz-by_user-murmur-s0", cwd=tmp_path)
    assert "accuracy" in done.stdout
    done = subprocess.run([sys.executable, "-c", use], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_page_on_sensors_reads_a_network_of_one_s_own(tmp_path: Path, here: Run) -> None:
    """As the page says: it is refused without trust."""
    (said,) = re.findall(r"`(bifl\.Model\.read\(.*?\))`", (ROOT / "docs/sensors.md").read_text())
    (tmp_path / "own.py").write_text(
        "from bifl.nn.models import har_cnn, model\n@model\ndef own(classes: int): return har_cnn(classes, 3)"
    )
    inputs = np.random.default_rng(0).normal(size=(12, 3, 16)).astype(np.float32)
    np.savez(tmp_path / "windows.npz", inputs=inputs, labels=np.arange(12) % 3)
    words = ["dataset=npz", "dataset.path=windows.npz", "model=own.py", "clients=2", "rounds=1", "workers=1"]
    assert here("run", *words, "--out", "run", cwd=tmp_path).returncode == 0
    assert eval(said, {"bifl": bifl_package, "path": "run/model"}).predict(inputs).shape == (12, 3)


def test_the_page_on_training_runs(tmp_path: Path) -> None:
    own, *programs = python_blocks("docs/training.md")
    (tmp_path / "my_training.py").write_text(own)
    kinds = {"optimizer": "rms", "schedule": "fading", "augment": "fainter"}
    words = [f"{kind}=my_training.py:{name}" for kind, name in kinds.items()]
    done = bifl("run", *words, "model=mlp", "clients=2", "rounds=1", "workers=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ran = subprocess.run([sys.executable, "-c", "\n".join(programs)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_the_commands_on_training_are_accepted() -> None:
    """Every `bifl run` of the page, and every setting in its tables, is an experiment."""
    page = (ROOT / "docs/training.md").read_text()
    lines = re.findall(r"^bifl run (.*)$", page, re.MULTILINE) + re.findall(r"^\|.*?`([a-z_]+[.=][^`]*)`", page, re.MULTILINE)
    lines += re.findall(r"\| `([a-z_]+=[^`]*)`", page)
    assert len(lines) > 12
    for line in lines:
        words = [word for word in line.partition(" --out")[0].split() if "my_training" not in word and "start=" not in word]
        assert Experiment.of(None, [word for word in words if not word.startswith("optimizer.alpha")])


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]*)#?([^)]*)\)", (ROOT / page).read_text())
    assert links or page == "docs/wire-format.md"
    for target, heading in links:
        if "://" not in target:
            path = (ROOT / page).parent / target if target else ROOT / page
            assert path.exists(), f"{page} links to {target}"
            assert not heading or heading in anchors(path), f"{page} links to {target}#{heading}"


def anchors(path: Path) -> list[str]:
    """What GitHub calls a page's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
