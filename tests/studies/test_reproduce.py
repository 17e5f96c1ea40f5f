"""The paper's studies: their cells, what is kept of them, and the command."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bifl
from bifl import __version__
from bifl.cli import commands
from bifl.errors import RunError
from bifl.experiment.settings import Experiment, identity
from bifl.report import paper_values
from bifl.report.page import render
from bifl.runs.folder import RunFolder
from bifl.runs.record import Record
from bifl.runs.results import read as read_results
from bifl.runs.results import read_kept
from studies import keeping, runner
from studies.cells import PLACES, STUDIES
from studies.cells import cells as cells_of
from studies.reproduce import ALL, THEORY, Part, request, theory_seed, wanted
from studies.runner import Store
from studies.study_tables import Shown
from tests.support.commands import BIFL, Run, refused, wait_for_round

RECORD = Record(1, 0.5, 1.0, 1.0, 10, 100, 200, 20, 0.5, 1.5, 0.1, 1.0)


def records(*accuracies: float) -> list[Record]:
    return [RECORD._replace(round=n, accuracy=accuracy) for n, accuracy in enumerate(accuracies, 1)]


def test_the_help_names_every_study() -> None:
    """It is in the package, and what runs the studies is not."""
    assert {*commands.STUDIES} == {*STUDIES, THEORY, ALL}


def test_every_study_runs_on_every_dataset_and_no_two_cells_share_a_name() -> None:
    for dataset in PLACES:
        found: dict[str, Experiment] = {}
        for study in STUDIES:
            for cell in cells_of(study, dataset, rounds=5):
                other = found.setdefault(keeping.name(cell.experiment), cell.experiment)
                assert identity(other) == identity(cell.experiment)
        assert len(found) >= 30


def test_tables_one_and_two_on_mnist_are_the_papers_cells() -> None:
    printed = [paper_values.cell_of(cell.experiment) for study in ("table1", "table2") for cell in cells_of(study, "mnist", None)]
    assert None not in printed
    assert set(printed) == {cell for cell in paper_values.CELLS if cell.preset.startswith("mnist")}


def test_a_kept_cell_is_found_by_what_decides_its_numbers(tmp_path: Path) -> None:
    ran = Experiment(rounds=3, workers=2, seed=1)
    path = keeping.save(tmp_path, ran, records(0.1, 0.2, 0.3))
    assert keeping.load(tmp_path, Experiment(rounds=2, workers=1, seed=1)) == records(0.1, 0.2)
    assert keeping.load(tmp_path, Experiment(rounds=9, seed=1)) == records(0.1, 0.2, 0.3)
    for other in (Experiment(seed=2), Experiment(seed=1, lr=0.1), Experiment(seed=1, algorithm={"name": "biml", "alpha": 2.0})):
        assert keeping.load(tmp_path, other) == []
    assert keeping.save(tmp_path, ran, records(0.9)) == path
    assert len(keeping.load(tmp_path, ran)) == 3, "fewer rounds do not replace more"
    assert read_results([tmp_path]).results[0].records == records(0.1, 0.2, 0.3), "the report reads cells"


def test_the_same_run_is_the_same_file(tmp_path: Path) -> None:
    first = keeping.save(tmp_path / "a", Experiment(workers=1), records(0.1)).read_bytes()
    assert keeping.save(tmp_path / "b", Experiment(workers=2), records(0.1)).read_bytes() == first


def test_a_damaged_cell_is_named(tmp_path: Path) -> None:
    path = keeping.save(tmp_path, Experiment(), records(0.1))
    for damage in (path.read_bytes()[:-9], b"", gzip.compress(b"{}\n"), gzip.compress(b"\xff")):
        path.write_bytes(damage)
        with pytest.raises(RunError, match=path.name):
            keeping.load(tmp_path, Experiment())


def test_everything_is_run_in_the_order_of_the_paper_and_the_first_seed_first() -> None:
    asked = request(["all"], {"dataset": "mnist5k", "seeds": "0,1"}, (Path("a"), Path("b")), quick=False, kept=False)
    assert asked.studies == ["table1", "table2", "alpha", "hybrid", "clients", "unbalanced", "participation", "theory"]
    parts = [Part(study, dataset, cells_of(study, dataset, None)) for study, dataset in asked.places]
    experiments = asked.store.missing(wanted(asked, parts))
    seeds = [experiment.seed for experiment in experiments]
    assert seeds == sorted(seeds)
    assert [experiment.algorithm.name for experiment in experiments[:3]] == ["baseline", "fedavg", "bnn"]


def test_only_what_is_missing_is_run(tmp_path: Path) -> None:
    store = Store(tmp_path / "cells", tmp_path / "work")
    short, long, other = Experiment(rounds=2), Experiment(rounds=3), Experiment(rounds=2, seed=1)
    assert store.missing([short, long, other, short]) == [long, other]
    keeping.save(store.kept, long, records(0.1, 0.2, 0.3))
    assert store.missing([short, long, other]) == [other]


def shown(store: Store, study: str, rounds: int | None) -> Shown:
    return Shown.of(store, study, "mnist5k", rounds, [0])


def test_remarks_tell_the_order_and_the_price_of_a_switch(tmp_path: Path) -> None:
    for cell in cells_of("hybrid", "mnist5k", rounds=10):
        good = {"fedavg": 0.9, "biml": 0.8}.get(cell.experiment.algorithm.name, 0.7)
        keeping.save(tmp_path, cell.experiment, records(good, good - 0.1, *[good] * 8))
    found = shown(Store(tmp_path, tmp_path), "hybrid", 10)
    assert [line.texts()[3] for line in found.lines] == ["79.00", "69.00", "69.00", "69.00", "89.00"]
    assert found.remarks() == [
        "IID: The paper’s order, FA > BiFL-BiML, holds here.",
        "IID: hybrid T = 2: 60.00 % before the switch, 70.00 % in the round after it.",
        "IID: hybrid T = 4: 70.00 % before the switch, 70.00 % in the round after it.",
        "IID: hybrid T = 6: 70.00 % before the switch, 70.00 % in the round after it.",
        f"Made by bifl {__version__}.",
    ]
    page = render(found.settings())
    assert '<p class="note">hybrid T = 2: 60.00 % before the switch' in page


def test_a_table_shows_every_seed_that_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, tmp_path)
    base = cells_of("table1", "mnist5k", 2)[4].experiment
    for seed, ran in ((0, records(0.5, 0.7)), (12, records(0.5, 0.9)), (3, records(0.1))):
        keeping.save(tmp_path, base.changed({"seed": seed}), ran)
    keeping.save(tmp_path, base.changed({"lr": 0.1, "seed": 4}), records(0.1, 0.1))
    assert store.seeds(base) == [0, 3, 12]
    found = shown(store, "table1", 2)
    (line,) = found.lines
    assert line.texts()[:5] == ["BiFL-BiML", "IID", "2 × 2 of 3", "65.00 ± 7.07", "80.00 ± 14.14"]
    assert found.command == "bifl reproduce table1 dataset=mnist5k seeds=0,3,12 rounds=2"
    page, picture = found.write(tmp_path / "out")
    assert (page.name, picture.name) == ("table1-mnist5k-2-rounds.md", "table1-mnist5k-2-rounds.png")
    assert "- Yet to be run: 8 of 9 rows." in page.read_text()


def test_megabytes_stand_beside_the_papers_account(tmp_path: Path) -> None:
    experiment = cells_of("table1", "mnist5k", 1)[4].experiment  # BiFL-BiML, 10 clients
    heavy = RECORD._replace(up_bytes=500_000, down_bytes=3_200_000, up_bpp=0.5)  # of 10 clients with 800,000 parameters
    keeping.save(tmp_path, experiment, [heavy])
    (line,) = shown(Store(tmp_path, tmp_path), "table1", 1).lines
    assert line.wide_texts()[-2:] == ["0.50 / 3.20", "1.00 / 3.46"]


def test_every_study_has_its_own_rounds_in_the_report(tmp_path: Path) -> None:
    """FedAvg is in Table I with 100 rounds and in `unbalanced` with 60."""
    known = cells_of("table1", "mnist", None)[1].experiment
    keeping.save(tmp_path, known, records(*[0.9] * 100))
    lines = [Shown.of(Store(tmp_path, tmp_path), study, "mnist", None, [0]).lines for study in ("table1", "unbalanced")]
    assert [line.series.rounds for (line,) in lines] == [100, 60]


def test_reproduce_runs_keeps_and_shows(tmp_path: Path, here: Run) -> None:
    command = ["reproduce", "pictures", "--quick", "rounds=1"]
    first = here(*command, cwd=tmp_path)
    assert "1 run, 0 known already; 1 to run, 1 round: about" in first.stdout
    assert "FA" in first.stdout
    again = here(*command, cwd=tmp_path)
    assert "1 run, all known already" in again.stdout
    more = here("reproduce", "pictures", "--quick", "rounds=2", cwd=tmp_path)
    assert "1 to run, 1 round" in more.stdout, "the first round is not run again"
    assert "start anew" not in more.stdout
    made = {path.name for path in (tmp_path / "runs" / "quick").iterdir()}
    pages = {f"pictures-mnist5k-{n}-rounds{kind}" for n in (1, 2) for kind in (".md", ".png", "-bits.png")}
    assert made == {"cells", "work", "report.html"} | pages
    assert {cell.data and cell.data.train for cell in map(read_kept, (tmp_path / "runs/quick/cells").iterdir())} == {4000}


def test_a_cell_that_fails_costs_no_table(tmp_path: Path, here: Run) -> None:
    """The folder of one cell holds a config that cannot be read, that of another cannot be written to; the third cell is kept."""
    command = ["reproduce", "clients", "--quick"]
    known, foreign, broken = (cell.experiment for cell in cells_of("clients", "mnist5k", None))
    store = Store(tmp_path / "runs" / "quick" / "cells", tmp_path / "runs" / "quick" / "work")
    keeping.save(store.kept, known, records(*[0.5] * 12))
    RunFolder.start(store.folder(foreign), foreign)
    (store.folder(foreign) / "config.toml").write_text(f'version = "{__version__}"\nwarp = 9\n')
    RunFolder.start(store.folder(broken), broken)
    (store.folder(broken) / "checkpoint").write_bytes(b"")
    done = here(*command, cwd=tmp_path)
    assert "warp" in refused(done)
    assert f"{keeping.name(broken)}: " in done.stderr
    assert f"{keeping.name(broken)}: failed" in done.stdout
    assert "M = 5" in done.stdout
    assert (tmp_path / "runs" / "quick" / "report.html").exists()


def test_what_is_kept_can_be_shown_without_data(tmp_path: Path, here: Run) -> None:
    known = cells_of("unbalanced", "mnist_writers", None)[1].experiment
    keeping.save(tmp_path / "results" / "cells", known.changed({"seed": 1}), records(0.1, 0.2))
    done = here("reproduce", "table1", "unbalanced", "dataset=mnist_writers", "--kept", cwd=tmp_path, data=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "12 runs, 1 of them kept in '" in done.stdout
    assert "Table I" in done.stdout, "one of its cells is the one that is kept"
    assert "2 of 100×1" in done.stdout
    assert not (tmp_path / "runs").exists()


def test_nothing_is_downloaded_for_what_is_kept(tmp_path: Path, here: Run) -> None:
    known = cells_of("clients", "mnist", None)[1].experiment
    keeping.save(tmp_path / "results" / "cells", known, records(0.1, 0.2))
    done = here("reproduce", "clients", "--kept", cwd=tmp_path, data=tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert "mnist’s images are not on the machine" in (tmp_path / "results" / "report.html").read_text()
    assert not (tmp_path / "data").exists()


def test_a_damaged_cell_costs_no_table_and_is_not_replaced(tmp_path: Path, here: Run) -> None:
    small, middle, large = (cell.experiment for cell in cells_of("clients", "mnist5k", 1))
    store = Store(tmp_path / "results" / "cells", tmp_path / "runs" / "work")
    for experiment in (small, middle):
        keeping.save(store.kept, experiment, records(0.5))
    damaged = keeping.save(store.kept, large, records(0.5))
    damaged.write_bytes(damaged.read_bytes()[:-9])
    RunFolder.start(store.folder(small), small)
    (store.folder(small) / "rounds.jsonl").write_bytes(b"\xff\n")
    for words in ([], ["--kept"]):
        done = here("reproduce", "clients", "dataset=mnist5k", "rounds=1", *words, cwd=tmp_path)
        assert f"{damaged.name}' is not a kept run" in refused(done)
        assert "M = 5" in done.stdout
        assert "M = 20" not in done.stdout
        assert not list((tmp_path / "results").glob("*.md")), "pages that were better are not replaced"


class Ended:
    """A process that ended as soon as it began."""

    returncode = 1

    def poll(self) -> int:
        return self.returncode


def no_processes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """From now on no process lives long enough to do anything; the environments of those that begin."""
    environments: list[dict[str, str]] = []

    def begin(command: object, *, env: dict[str, str], **more: object) -> Ended:
        environments.append(env)
        return Ended()

    monkeypatch.setattr(subprocess, "Popen", begin)
    return environments


def test_a_run_has_one_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many run at once as there are cores: a second thread of one would wait for another's core."""
    started = no_processes(monkeypatch)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    (failure,) = runner.run(Store(tmp_path / "cells", tmp_path / "work"), [Experiment(rounds=1)], 1, lambda running: None)
    assert "its process ended with code 1 after round 0" in failure
    assert [environment["OMP_NUM_THREADS"] for environment in started] == ["1"]


def test_killed_it_goes_on_and_two_at_once_share_the_work(tmp_path: Path, here: Run) -> None:
    words = ["reproduce", "clients", "--quick", "rounds=2"]
    store = Store(tmp_path / "runs" / "quick" / "cells", tmp_path / "runs" / "quick" / "work")
    experiments = [cell.experiment for cell in cells_of("clients", "mnist5k", 2)]
    keeping.save(store.kept, experiments[2], records(0.5, 0.5))  # two others are enough to share
    first = subprocess.Popen([*BIFL, *words], cwd=tmp_path, stdout=subprocess.DEVNULL)
    wait_for_round(store.folder(experiments[0]), 1)
    first.kill()
    first.wait()
    other = subprocess.Popen([*BIFL, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ours = here(*words, cwd=tmp_path)
    said, wrong = other.communicate(timeout=300)
    for done in (ours, subprocess.CompletedProcess(words, other.returncode, said, wrong)):
        assert (done.returncode, done.stderr) == (0, "")
        assert "failed" not in done.stdout
        assert "M = 20" in done.stdout
    assert store.missing(experiments) == []


def test_more_seeds_leave_the_theory_alone() -> None:
    alone, beside = (request(names, {"seeds": "1,2"}, (None, Path("b")), quick=True, kept=False) for names in (["theory"], ["all"]))
    assert theory_seed(alone) == 1
    assert theory_seed(beside) == 0


def test_quick_results_go_where_they_are_asked_to(tmp_path: Path, here: Run) -> None:
    known = cells_of("clients", "mnist5k", None)[0].experiment
    keeping.save(tmp_path / "here" / "cells", known, records(0.5))
    done = here("reproduce", "clients", "--quick", "--kept", "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here" / "clients-mnist5k.md").is_file()
    assert not (tmp_path / "runs").exists()


def test_a_dataset_has_one_name_however_it_is_spelled() -> None:
    asked = request(["table1"], {"dataset": "mnist-writers,mnist_writers"}, (None, Path("b")), quick=False, kept=True)
    assert asked.datasets == ["mnist_writers"]
    assert Experiment(dataset="fashion-mnist") == Experiment(dataset="fashion_mnist")


def test_rounds_that_cannot_be_continued_are_announced(tmp_path: Path, here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were run elsewhere: the cell came without its checkpoint."""
    no_processes(monkeypatch)
    first, *_ = (cell.experiment for cell in cells_of("clients", "mnist5k", 2))
    keeping.save(tmp_path / "runs/quick/cells", first, records(0.1))
    said = here("reproduce", "clients", "--quick", "rounds=2", cwd=tmp_path).stdout
    assert "3 to run, 6 rounds" in said
    assert "1 of them, kept with fewer rounds and without a checkpoint here, will start anew" in said


def test_datasets_that_are_not_here_are_named_and_left_out(tmp_path: Path, here: Run) -> None:
    for cell in cells_of("clients", "mnist5k", 1):
        keeping.save(tmp_path / "results/cells", cell.experiment, records(0.5))  # so that nothing is to be run
    done = here("reproduce", "clients", "dataset=mnist_writers,mnist5k", "rounds=1", cwd=tmp_path, data=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mnist_writers is left out: " in done.stdout
    assert "(mnist5k)" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tabel1"], "unknown study 'tabel1': did you mean 'table1'?"),
        (["dataset=mnist5k"], "say which study"),
        (["table1", "dataset=mnist6k"], "dataset 'mnist6k' is none that"),
        (["table1", "algorithm=biml"], "dataset=, dataset.path=, seeds= and rounds=, not 'algorithm'"),
        (["table1", "rounds=0"], "rounds must be 1 or more"),
        (["table1", "--quick", "dataset=mnist"], "--quick means dataset=mnist5k"),
        (["table1", "dataset=celeba"], "celeba is not in '"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(words: list[str], said: str, tmp_path: Path, here: Run) -> None:
    assert said in refused(here("reproduce", *words, cwd=tmp_path, data=tmp_path / "none"))
    assert not list(tmp_path.iterdir())


def test_an_installed_package_says_where_the_studies_are(tmp_path: Path) -> None:
    installed = tmp_path / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "bifl").symlink_to(Path(bifl.__file__).parent)
    words = [sys.executable, "-m", "bifl.cli", "reproduce", "theory", "--quick"]
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "the studies and their kept runs are in bifl's repository, not in the package" in refused(done)
