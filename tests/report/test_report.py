"""`bifl report`: what it gathers and says, and that a browser shows it."""

from __future__ import annotations

import gzip
import json
import math
import re
import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from bifl.core.forward import binary
from bifl.experiment.settings import Experiment, pairs
from bifl.report import charts
from bifl.report.page import render
from bifl.report.remarks import ordering
from bifl.report.summary import printed, settings
from bifl.runs.folder import Result
from bifl.runs.record import Record
from bifl.runs.results import Spread, read
from bifl.show.plot import PALETTE
from tests.support.commands import Run, refused
from tests.support.exports import saved

ROUNDS = 30


def result(*overrides: str, preset: str = "mnist5k-iid", level: float = 0.9, rounds: int = ROUNDS, votes: bool = True) -> Result:
    """A run that climbs to a level, and stays."""
    experiment = Experiment.of(preset, rounds=ROUNDS, algorithm="biml").changed(pairs(overrides))
    records = [
        Record(
            round=number, accuracy=level * (1 - 0.5**number), loss=0.1, train_loss=0.1, clients=10, up_bytes=1_000_000,
            down_bytes=2_000_000, broadcast_bytes=200_000, up_bpp=0.5, down_bpp=3.5, flips=0.02, seconds=1.0,
            layer_flips={"conv1": 0.01, "linear3": 0.03}, sureness=[0.05] * 8 + [0.1, 0.5] if votes else None,
        )
        for number in range(1, rounds + 1)
    ]  # fmt: skip
    return Result(" ".join(overrides), experiment, records)


def test_seeds_are_averaged_and_stand_beside_the_paper() -> None:
    runs = [result(f"seed={seed}", preset="mnist-iid", level=level) for seed, level in ((0, 0.96), (1, 0.98))]
    (setting,) = settings([*runs, result("seed=2", preset="mnist-iid", rounds=3), runs[0]])
    (row,) = setting.series
    assert (setting.title, setting.about, row.label) == ("mnist · iid", "100 clients, mnist_cnn", "biml")
    assert len(row.runs) == 2  # one more is still under way, and one was given twice
    assert row.final().mean == pytest.approx(97.0, abs=0.01)
    assert row.final().std == pytest.approx(1.414, abs=0.01)
    assert printed(row) == Spread(97.17, 0.21)
    assert row.average("up_bpp") == 0.5
    assert row.up_per_client() == 100_000
    assert row.until(97) is None  # one seed does not
    reach = row.until(90)
    assert reach
    assert (reach.up_bytes, reach.down_bytes) == (4.5e6, 9.0e6)  # round 5 and round 4: both 0.9/0.96 and 0.9/0.98 of the way
    page = render([setting])
    for text in ("97.17", "± 0.21", "−0.17", "± 1.41"):
        assert text in page


def test_labels_tell_runs_apart_and_no_more() -> None:
    runs = [result(), result("batchnorm=average"), result("algorithm=up_down", "algorithm.beta=1"), result("algorithm=fedavg")]
    runs += [result("partition=by_class"), result("clients=20", "partition=by_class"), result("clients=5", "partition=by_class")]
    first, second = settings(runs)
    assert [one.label for one in first.series] == ["fedavg", "biml", "biml batchnorm=average", "up_down beta=1"]
    assert second.title == "mnist5k · by_class, classes_per_client=3"
    assert [one.label for one in second.series] == ["biml clients=5", "biml clients=10", "biml clients=20"]


def test_where_a_parameter_varies_its_default_is_told_too() -> None:
    (setting,) = settings(result("algorithm=hybrid", f"algorithm.switch={switch}") for switch in (60, 40, 20))
    assert [one.label for one in setting.series] == ["hybrid switch=20", "hybrid switch=40", "hybrid switch=60"]


def test_more_rounds_of_the_same_are_the_same_row() -> None:
    (setting,) = settings([result(rounds=5), result("rounds=60", rounds=40), result("rounds=60", "seed=1", rounds=40)])
    (row,) = setting.series
    assert (row.label, row.rounds, row.planned, len(row.runs)) == ("biml", 40, 60, 2)
    (setting,) = settings([result(rounds=5), result("seed=1", rounds=9)])
    page = render([setting])
    assert "biml, seed 1</option>" in page, "the charts inside a run are of a seed that got furthest"
    assert '1<span class="of"> of 2</span>' in page


def test_the_same_data_in_another_place_are_the_same() -> None:
    (setting,) = settings([result("dataset=npz", f"dataset.path=/{n}/mine.npz", f"seed={n}") for n in (0, 1)])
    assert [len(one.runs) for one in setting.series] == [2]


def order(**levels: float) -> str | None:
    return ordering(settings(result(f"algorithm={name}", level=level) for name, level in levels.items())[0].series)


def test_the_order_of_algorithms_is_told() -> None:
    assert order(biml=0.9) is None
    assert order(biml=0.9, full=0.9) == "The paper’s order, full > biml, holds here."
    every = "The paper’s order, fedavg > full > biml ≫ up_only ≈ fttq ≈ up_down,"
    assert order(up_down=0.89, fedavg=0.99, full=0.98, biml=0.97, up_only=0.91, fttq=0.9) == f"{every} holds here."
    assert order(fedavg=0.8, biml=0.97) == (
        "The paper’s order, fedavg > biml, does not hold here: biml (97.00) is above fedavg (80.00)."
    )
    assert order(fedavg=0.99, full=0.98, biml=0.97, up_only=0.91, fttq=0.95, up_down=0.89) == (
        f"{every} does not quite hold here: fttq (95.00) is only 2.00 points below biml (97.00); "
        "fttq (95.00) is 6.00 points above up_down (89.00)."
    )
    assert (
        order(fedavg=0.99, biml=float("nan"))
        == "The paper’s order, fedavg > biml, cannot be told here: nobody evaluated some rounds of biml."
    )


def test_rounds_that_nobody_evaluated_are_told_as_such() -> None:
    blind = result("seed=1")
    blind = blind._replace(records=[record._replace(accuracy=math.nan) for record in blind.records])
    (row,) = settings([result(), blind])[0].series
    assert math.isnan(row.final().mean)
    assert math.isnan(row.best().mean)
    assert re.search(r'<td class="main">\s*–', render(settings([result(), blind])))
    gap = result()._replace(records=[*result().records[:-1], result().records[-1]._replace(accuracy=math.nan)])
    assert settings([gap])[0].series[0].best().mean == pytest.approx(90.0, abs=0.1)


def test_the_order_is_one_of_algorithms_that_differ_in_nothing_else() -> None:
    fedavg, biml, low = result("algorithm=fedavg", level=0.95), result(level=0.94), result("algorithm=fedavg", level=0.9, rounds=25)
    others = [result("algorithm.alpha=3", level=0.99), result("clients=20", level=0.99), result("algorithm=hybrid", level=0.99)]
    said = "The paper’s order, fedavg clients=10 > biml alpha=1.25 clients=10, holds here."
    assert ordering(settings([fedavg, biml, *others])[0].series) == said
    said = "The paper’s order, fedavg > biml, does not hold here after 25 to 30 rounds: biml (94.00) is above fedavg (90.00)."
    assert ordering(settings([low, biml])[0].series) == said


def test_colours_are_the_pictures_and_stay_with_a_label() -> None:
    style = (files("bifl.report") / "style.css").read_text()
    assert [colour.upper() for colour in re.findall(r"--series-\d: (#\w+);", style)[: len(PALETTE)]] == list(PALETTE)
    names = ["fedavg", "full", "biml", "up_only", "fttq", "up_down", "baseline", "bnn"]
    many = [result(f"algorithm={name}") for name in names]
    few = [result("partition=by_class", f"algorithm={name}") for name in ("hybrid", "up_down", "biml")]
    page = render(settings([*many, *few]))
    keys = re.findall(r'scope="row"><span class="key" style="border-top: 3px (.*?)"></span>(\w+)', page)
    assert len({look for look, _ in keys[: len(names)]}) == len(names)
    looks = {name: {look for look, label in keys if label == name} for name in ("up_down", "biml")}
    assert all(len(look) == 1 for look in looks.values())


def test_few_rounds_have_no_mean_of_the_last_ten_and_no_order() -> None:
    short = [result(f"algorithm={name}", level=level, rounds=3) for name, level in (("fedavg", 0.9), ("biml", 0.8))]
    (setting,) = settings(short)
    assert ordering(setting.series) is None
    page = render([setting])
    assert "last 10 rounds" not in page
    assert "last round, %" in page
    assert not re.search(r'<td class="main">\s*(78|70)', page)
    (mixed,) = settings([*short, result("algorithm=full")])
    assert re.search(r"biml</th>\s*<td class=\"none\">–", render([mixed]))
    assert ordering(mixed.series) is None  # one that has rounds enough is no order


def test_the_papers_order_is_not_looked_for_among_liars() -> None:
    attacked = [result(f"algorithm={name}", "attack=flip", "attack.share=0.3") for name in ("fedavg", "biml")]
    assert ordering(settings(attacked)[0].series) is None


def test_the_title_says_what_is_true_of_every_algorithm() -> None:
    assert "one-bit uploads" not in render(settings([result("algorithm=murmur"), result("algorithm=fedavg")]))


def test_a_model_to_start_with_is_shown_without_its_folder(tmp_path: Path) -> None:
    saved(tmp_path / "first", "mnist_cnn", binary)
    (setting,) = settings([result(f"start={tmp_path / 'first'}"), result()])
    assert [one.label.partition("@")[0] for one in setting.series] == ["biml", "biml start=first"]
    assert str(tmp_path) not in render([setting])
    (alone,) = settings([result(f"start={tmp_path / 'first'}")])
    assert str(tmp_path) not in render([alone])


def test_figures_are_what_plotly_takes() -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    page = render(settings([result("seed=0"), result("seed=1"), result("algorithm=fedavg", votes=False)]))
    found = re.search(r'id="figures">(.*?)</script>', page)
    assert found
    drawn = json.loads(found[1])
    assert set(drawn) == {
        f"s0-{name}" for name in ["rounds", "uploaded", "downloaded", "flips-0", "flips-1", "votes-1", "split-0"]
    } | {"ml-pu"}
    for figure in drawn.values():
        graph_objects.Figure(figure)  # refuses what it does not know
        assert figure["layout"]["xaxis"]["title"]["text"]
        assert figure["layout"]["yaxis"]["title"]["text"]


def test_records_of_earlier_versions_are_drawn_too() -> None:
    older = [record._replace(layer_flips=None, sureness=None) for record in result().records]
    assert [trace["name"] for trace in charts.flips(older)["data"]] == ["all layers"]
    assert charts.sureness(older) is None


def test_runs_are_found_wherever_they_lie(finished: Path, tmp_path: Path, here: Run) -> None:
    inner = tmp_path / "runs" / "compare-x"
    shutil.copytree(finished, inner / "biml-s0")
    empty = shutil.copytree(finished, tmp_path / "runs" / "just-begun")
    (empty / "rounds.jsonl").write_text("")
    assert [len(found.records) for found in read([tmp_path / "runs"]).results] == [4]
    assert read([inner]) == read([inner / "biml-s0"]) == read([tmp_path / "runs", inner])
    out = tmp_path / "report.html"
    done = here("report", tmp_path / "runs", inner, "-o", out)
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    assert "1 run, bifl" in text
    assert str(tmp_path) not in text
    assert "://" not in re.sub(r'<script type="application/gzip".*?</script>', "", text, flags=re.DOTALL)  # no network
    assert len(gzip.compress(out.read_bytes())) < 2_000_000


def test_what_cannot_be_reported_ends_in_one_sentence(finished: Path, tmp_path: Path, here: Run) -> None:
    out = tmp_path / "report.html"
    (tmp_path / "empty").mkdir()
    assert "'nowhere' does not exist" in refused(here("report", "nowhere", "-o", out))
    assert "holds no run with a complete round" in refused(here("report", tmp_path / "empty", "-o", out))
    broken = shutil.copytree(finished, tmp_path / "broken")
    lines = (broken / "rounds.jsonl").read_text().splitlines(keepends=True)
    (broken / "rounds.jsonl").write_text(lines[0] + "{nothing}\n" + lines[2])
    assert "rounds.jsonl' line 2 is not a record" in refused(here("report", broken, "-o", out))
    (broken / "config.toml").write_text("rounds = [")
    assert "cannot read" in refused(here("report", broken, "-o", out))
    (broken / "config.toml").write_text('rounds = 1\n[algorithm]\nname = "lost"\n')
    assert "broken/config.toml': unknown algorithm 'lost'" in refused(here("report", broken, "-o", out))
    shutil.copy(finished / "config.toml", broken)
    (broken / "rounds.jsonl").write_bytes(b"\xff\n")
    assert "cannot read" in refused(here("report", broken, "-o", out))
    assert not out.exists()
    assert "no/report.html': No such" in refused(here("report", finished, "-o", tmp_path / "no" / "report.html"))


def test_one_run_that_cannot_be_read_costs_no_report(finished: Path, tmp_path: Path, here: Run) -> None:
    shutil.copytree(finished, tmp_path / "runs" / "good")
    shutil.copytree(finished, tmp_path / "runs" / "bad")
    (tmp_path / "runs" / "bad" / "config.toml").write_text("rounds = [")
    (tmp_path / "runs" / "cut.jsonl.gz").write_bytes(b"")
    done = here("report", tmp_path / "runs", "-o", tmp_path / "report.html")
    assert done.returncode == 0
    assert "1 run, bifl" in (tmp_path / "report.html").read_text()
    assert [line.partition("'")[0] for line in done.stderr.splitlines()] == ["bifl: left out: cannot read ", "bifl: left out: "]
    assert "cut.jsonl.gz' is not a kept run" in done.stderr


def test_a_split_that_cannot_be_dealt_is_no_obstacle() -> None:
    page = render(settings([result("dataset=npz", "dataset.path=/far/away/gone.npz")]))
    assert "The split cannot be shown: npz’s images are not on the machine that made this page." in page
    assert "path = &#34;gone.npz&#34;" in page
    assert "/far/away" not in page, "the page may be passed on"


def test_an_algorithm_of_ones_own_is_shown_without_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "my.py"
    imports = "from bifl.core import register\nfrom bifl.algorithms.paper import up_down\n"
    file.write_text(imports + "@register\ndef shy(): return up_down()\n")
    page = render(settings([result(f"algorithm={file}:shy")]))
    assert "name = &#34;my.py:shy&#34;" in page
    assert str(tmp_path) not in page


# ---- in a browser ----------------------------------------------------------------------------------------------------


def test_a_trained_model_stands_with_what_it_costs_on_a_device(tmp_path: Path) -> None:
    saved(tmp_path / "model", "mnist_cnn", binary)
    (setting,) = settings([result()._replace(name=str(tmp_path)), result("algorithm=fedavg")])
    page = " ".join(render([setting]).split())
    assert "On a device" in page
    assert '<td class="first main">11.7 </td> <td class="main">17.1 </td> <td class="first">647,910</td> <td>4,030</td>' in page
    saved(tmp_path / "model", "mnist_cnn", binary, shape=(1, 9, 9))
    assert "no C: it does not take inputs of shape (1, 9, 9)" in render([setting])
    (tmp_path / "model").write_bytes(b"something else")
    told = render([setting])
    assert "no C: its file cannot be read" in told
    assert str(tmp_path) not in told.partition("On a device")[2].partition("Inside a run")[0]
    assert "On a device" not in render(settings([result()]))
