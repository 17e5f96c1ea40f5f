"""What screens show: whole numbers on any screen, pictures of single rounds, help for those who mistype."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bifl.cli.commands import EXAMPLES, RUN_KEYS, STUDIES
from bifl.cli.parser import row as help_row
from bifl.experiment.catalogue import catalogue
from bifl.experiment.settings import REGISTRIES, Experiment
from bifl.experiment.setup import load
from bifl.registry import first_line
from bifl.report import charts, page
from bifl.report.summary import settings
from bifl.runs.folder import Result
from bifl.runs.record import Record
from bifl.show import split_stats
from bifl.show.output import console, say
from bifl.show.plot import BITS, ROUNDS, figure_of, save
from bifl.show.tables import NAME, SPREAD, Column, Table
from bifl.show.terminal import Meter, comparison_table, run_table
from tests.support.commands import Run, refused
from tests.support.series import series

WIDTHS = (40, 60, 80, 100)
SOURCE = Path(__file__).parents[2] / "src" / "bifl"


def shown(thing: object, width: int) -> str:
    screen = Console(width=width, file=StringIO())
    screen.print(thing)
    assert isinstance(screen.file, StringIO)
    text = screen.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    return text


def record(number: int = 1, score: float = 0.5) -> Record:
    return Record(number, score, 1.23456, 1.5, 2, 123_456, 654_321, 4000, 0.125, 31.987, 0.1, 2.5)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_is_cut(width: int) -> None:
    rows = [
        ["a_name_of_many_letters+alpha=1.25", "97.75 ± 0.08", *(f"{n}2,345.678" for n in range(6))],
        ["b", "1.00 ± 0.10", *"123456"],
    ]
    columns = [Column("algorithm", NAME), Column("accuracy\n%", SPREAD), *(Column(f"bit/param\n{n}") for n in range(6))]
    words = shown(Table(columns, rows, "a title", "a caption"), width).split()
    for cell in (text for row in rows for text in row[2:]):
        assert cell in words
    for number in ("97.75", "1.00", "a", "title", "caption"):
        assert number in words
    assert "0.08" in words or "±0.08" in words


@pytest.mark.parametrize("width", WIDTHS)
def test_a_comparison_on_any_screen(width: int) -> None:
    one = Record(1, 0.8468, 1.2, 1.5, 2, 1_234_000, 5_678_000, 4000, 31.937, 0.123, 0.1, 7654.3)
    runs = [[one._replace(accuracy=score)] for score in (0.8275, 0.8468, 0.8661)]
    words = shown(comparison_table([series(label, *runs) for label in ("up_down+beta=0.123456789", "b")]), width).split()
    for number in ("1.93" if "1.93" in words else "±1.93", "1.23", "5.68", "31.937", "0.123", "7654.3"):
        assert words.count(number) == 2
    assert words.count("84.68") == 4, "the last round is the best"
    assert " ".join(words).startswith("after 1 round, mean")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_split_on_any_screen(width: int) -> None:
    experiment = Experiment(partition="by_class")
    split = split_stats.count(experiment, load(experiment))
    words = shown(split_stats.table(split), width).split()
    for number in ("3,990", *(f"{total:,}" for total in split.counts.sum(0))):
        assert number in words


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_words_stay_whole(width: int, here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = here("summary", "mnist_cnn", "algorithm=biml").stdout
    assert max(map(len, text.splitlines())) <= width
    assert {"BatchNorm2d", "BatchNorm1d", "Conv2d"} <= {*text.split()}
    assert "26.3 times smaller than the 330 kB of float32 (ϑ and running statistics included)" in " ".join(text.split())


def test_sentences_wrap_on_screens_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = f"picture: {'folder/' * 10}compare.png, and a few words more"
    for columns, lines in (("40", 3), ("", 1)):
        monkeypatch.setenv("COLUMNS", columns)
        say(console(), sentence)
        shown = capsys.readouterr().out
        assert shown.count("\n") == lines
        assert shown.split() == sentence.split()


def test_names_fold_behind_their_joints() -> None:
    rows = [["murmur_momentum+group=32", *(f"{n}2,345.678" for n in range(4))]]
    text = shown(Table([Column("algorithm", NAME), *(Column(f"{n}") for n in range(4))], rows), 60)
    assert [line.split()[0] for line in text.splitlines() if line.strip()][2:5] == ["murmur_", "momentum+", "group=32"]


@pytest.mark.parametrize("rounds", [1, 2, 3, 30])
@pytest.mark.parametrize("ratio", [1, 40, 2000])
def test_a_logarithmic_axis_has_labels(rounds: int, ratio: int) -> None:
    few = [record(n)._replace(up_bytes=33_000, up_bpp=0.8) for n in range(1, rounds + 1)]
    many = [record(n)._replace(up_bytes=33_000 * ratio, up_bpp=0.8 * ratio) for n in range(1, rounds + 1)]
    splits = {"": [series("few", few), series("many", many)]}
    for axes in (figure_of(splits).axes[1], figure_of(splits, BITS).axes[0]):
        low, high = axes.get_xlim()
        seen = [tick for tick in axes.xaxis.get_majorticklocs() if low <= tick <= high]
        assert 3 <= len(seen) <= 9


def test_a_logarithmic_axis_of_the_report_has_labels() -> None:
    def labels(low: float, high: float) -> object:
        sent = [record(n)._replace(up_bytes=round(1e6 * more)) for n, more in enumerate((low, high - low), 1)]
        return charts.accuracy([series("one", sent)], {"one": 0}, ROUNDS[1])["layout"]["xaxis"]["dtick"]

    assert [labels(low, high) for low, high in ((2.0, 4.0), (1.0, 90.0), (0.01, 1e4))] == ["D1", "D2", 1]


def test_one_round_is_one_round(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(bytes(12_684))
    text = shown(run_table([record()], tmp_path / "model"), 200)
    assert "2.5 s in 1 round\n" in re.sub(r" +\n", "\n", text)
    assert "12.7 kB" in text


def test_what_clients_were_sent_later_is_told_apart_from_what_was_lost(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"")
    text = shown(run_table([record()._replace(catch_up_bytes=5000)], tmp_path / "model"), 200)
    assert "5.00 kB sent to clients" in text
    assert "left out" not in text
    assert "1 upload refused, 2 missing" in shown(run_table([record()._replace(refused=1, missing=2)], tmp_path / "model"), 200)


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_the_progress_bar_is_whole(width: int) -> None:
    screen = Console(width=width, file=StringIO(), force_terminal=True, color_system=None)
    meter = Meter(screen, 15)
    with meter.running():
        meter.begin("up_down+beta=1-s0", [])
        meter.show(record(score=0.9876), 15)
    assert isinstance(screen.file, StringIO)
    text = screen.file.getvalue()
    assert "98.76%" in text
    assert "…" not in text
    assert ("↑ 123 kB" in text) == (width >= 80)


def test_a_picture_of_one_round_shows_points(tmp_path: Path) -> None:
    one, three = {"": [series("biml", [record()])]}, {"": [series("biml", [record(n) for n in (1, 2, 3)])]}
    drawn = figure_of(one), figure_of(three)
    assert all(line.get_marker() == "o" for axes in drawn[0].axes for line in axes.lines)
    assert all(line.get_marker() in ("None", None) for axes in drawn[1].axes for line in axes.lines)
    for number, figure in enumerate(drawn):
        save(figure, tmp_path / f"{number}.png", "title")
        assert (tmp_path / f"{number}.png").read_bytes().startswith(b"\x89PNG")
        ticks = figure.axes[0].get_xticks()
        assert len(ticks)
        assert (ticks == np.round(ticks)).all()


@pytest.mark.parametrize("width", [40, 58, 78, 98])
@pytest.mark.parametrize("column", [24, 47])
def test_help_fits_the_screen(width: int, column: int) -> None:
    for rows in (EXAMPLES, STUDIES, *RUN_KEYS.values()):
        for name, about in rows.items():
            lines = help_row(f"  {name}", about, width, column)
            assert max(map(len, lines)) <= max(width, *map(len, f"{name} {about}".split()))
            assert "".join("".join(lines).split()) == "".join(f"{name}{about}".split())  # a path too long for a line is broken


def test_help_begins_beside_what_it_explains() -> None:
    assert help_row("  lr (0.005)", "rates", 80) == ["  lr (0.005)            rates"]
    assert help_row("  lr (0.005,0.002,0.001)", "rates", 80) == ["  lr (0.005,0.002,0.001)", 24 * " " + "rates"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "--rounds", "3"], "write rounds=3"),
        (["run", "--rounds=3"], "write rounds=3"),
        (["run", "mnist5k-iid", "--local-epochs", "2", "--out", "x"], "write local_epochs=2"),
        (["run", "--algorithm.alpha", "1.5"], "write algorithm.alpha=1.5"),
        (["run", "--rounds"], "write rounds=…"),
        (["compare", "--seeds", "0,1"], "write seeds=0,1"),
        (["reproduce", "table1", "--seeds", "1"], "write seeds=1"),
        (["run", "--oot", "x"], "did you mean '--out'?"),
        (["run", "--algorithm.nothing", "1"], "there is no option '--algorithm.nothing' (known: --help"),
        (["list", "murmur", "more"], "'more' is one word too many: see bifl list --help"),
        (
            ["client", "--server", "a", "--ca", "b", "--key", "c", "--algorithm", "x"],  # a setting, and bifl client takes none
            "there is no option '--algorithm' (known: --help, --server",
        ),
    ],
)
def test_a_mistyped_option_says_what_would_be_right(words: list[str], sentence: str, here: Run) -> None:
    assert sentence in refused(here(*words))


def test_the_catalogue_is_what_is_registered() -> None:
    found = catalogue()
    assert list(found) == list(REGISTRIES)
    for key, registry in REGISTRIES.items():
        usual = {
            name: (registry.parameters(name), first_line(registry.factory(name))) for name in registry.names() if ":" not in name
        }
        ours = {entry.name: (entry.parameters(), entry.about()) for entry in found[key]}
        assert ours == {name: usual[name] for name in ours}
        strangers = [name for name in usual if name not in ours]
        assert all(not registry.factory(name).__module__.startswith("bifl.") for name in strangers), strangers


def test_a_line_of_the_list_is_prose() -> None:
    """A function that nobody can choose is named in backticks, if at all."""
    entries = [entry for found in catalogue().values() for entry in found]
    functions = {name for path in SOURCE.rglob("*.py") for name in re.findall(r"def (\w+_\w+)", path.read_text())}
    functions -= {entry.name for entry in entries}
    for entry in entries:
        words = re.findall(r"\w+", re.sub("`[^`]*`", "", entry.about()))
        assert not functions.intersection(words), entry.name


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_the_list_on_any_screen(width: int, here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for what in ([], ["algorithms"], ["presets"], ["fttq"], ["unipen-writers"]):
        assert max(map(len, here("list", *what).stdout.splitlines())) <= width
    assert "algorithm.validation=0.02" in here("list", "fttq").stdout.split()


def test_reproduce_says_where_it_looked_and_where_kept_runs_are(here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = refused(here("reproduce", "table1", "--kept"))
    assert f"'{tmp_path / 'results' / 'cells'}' has no kept runs" in said
    assert "in results/cells of a clone of bifl; call it there, or say --out CLONE/results" in said
    assert not list(tmp_path.iterdir())
    (tmp_path / "results/cells").mkdir(parents=True)
    (tmp_path / "results/cells/x.jsonl.gz").touch()
    assert "1 kept run, none of these studies" in refused(here("reproduce", "table1", "--kept"))


def titles(*experiments: Experiment) -> list[str]:
    results = [Result(f"runs/{n}", experiment, [record()]) for n, experiment in enumerate(experiments)]
    return [one.title for one in settings(results)]


def test_the_navigation_tells_settings_apart() -> None:
    files = [{"name": "npz", "path": f"somewhere/{name}.npz"} for name in ("one", "two")]
    nets = [{"name": "mlp", "hidden": hidden} for hidden in (64, 128)]
    found = titles(*(Experiment(dataset=file, model=net) for file in files for net in nets), Experiment())
    assert found == [
        "one.npz · iid · mlp, hidden=64",
        "one.npz · iid · mlp",
        "two.npz · iid · mlp, hidden=64",
        "two.npz · iid · mlp",
        "mnist5k · iid",
    ]


def test_the_same_data_elsewhere_are_the_same() -> None:
    assert titles(Experiment(dataset="uci_har"), Experiment(dataset={"name": "uci_har", "path": "a/b"}, seed=1)) == [
        "uci_har · iid"
    ]


def test_a_task_is_told_in_words() -> None:
    (one,) = settings([Result("x", Experiment(task="multilabel"), [record()])])
    assert "task=multilabel" in one.about
    assert "Choice" not in one.about


def test_names_wrap_between_their_words() -> None:
    names = ["up_down beta=0.123", "a<b learning_rate=0.00123456", "threshold=1e-05_and-more"]
    text = page.render(settings([Result(name, Experiment(seed=n), [record()]) for n, name in enumerate(names)]))
    assert "up_down beta=0.123" in text
    assert "a&lt;b learning_<wbr>rate=<wbr>0.00123456" in text
    assert "threshold=<wbr>1e-05_<wbr>and-<wbr>more" in text
