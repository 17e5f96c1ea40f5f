"""The command line as a person uses it: what it prints, writes, draws and refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from bifl.cli import main
from bifl.experiment.catalogue import catalogue
from bifl.experiment.presets import PRESETS
from bifl.experiment.settings import Choice, Experiment
from tests.support.commands import BALLOTS, BIFL, SMALL, Run, refused, rounds

FIELDS = ["round", "accuracy", "loss", "train_loss", "clients", "up_bytes", "down_bytes", "broadcast_bytes"]  # what others rely on
FIELDS += ["up_bpp", "down_bpp", "flips", "seconds", "up_ideal_bpp", "down_ideal_bpp"]


def test_a_run_leaves_what_it_promises(finished: Path) -> None:
    lines = [json.loads(line) for line in (finished / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert all(list(line)[: len(FIELDS)] == FIELDS for line in lines)
    config = tomllib.loads((finished / "config.toml").read_text())
    assert config["algorithm"] == {"name": "biml", "alpha": 1.25}
    assert config["lr"] == [0.005, 0.002, 0.001]
    assert (finished / "model").stat().st_size < 13_000
    assert (finished / "checkpoint").is_dir()


def test_eval_gives_the_accuracy_of_the_last_round(finished: Path, here: Run) -> None:
    done = here("eval", finished / "model", "mnist5k")
    assert f"accuracy {rounds(finished)[-1]['accuracy']:.2%}" in done.stdout
    assert "81,958 binary weights" in done.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "mnist5k-idd"], "unknown preset 'mnist5k-idd': did you mean 'mnist5k-iid'?"),
        (["run", "algoritm=biml"], "unknown key 'algoritm': did you mean 'algorithm'?"),
        (["run", "rounds=many"], "rounds must be a whole number"),
        (["run", "algorithm=biml", "algorithm.alpha=-1"], "algorithm.alpha must be greater than 0"),
        (["run", "participation=2"], "participation must be"),
        (["run", "clients=4001"], "clients=4001 is more than the 4000 training samples"),
        (["run", "clients=3000"], "a client would hold 1 of 4000 samples"),
        (["run", "algorithm=fedavg", "optimizer=sgd", "lr=1e30", "clients=2", "workers=2"], "diverged; lower lr"),
        (["run", "--resume", "nowhere"], "'nowhere' holds no run"),
        (["compare", "--resume", "nowhere"], "'nowhere' holds no comparison"),
        (["compare", "algorithm=biml"], "takes algorithms="),
        (["compare", "algorithms=biml,biml"], "different values"),
        (["run", "alpha=1.5"], "did you mean 'algorithm.alpha'?"),
        (["run", "mnist-iid", "mnist5k-iid"], "only one preset"),
        (["compare", "algorithms=up_down+beta"], "up_down+beta=1"),
        (["eval", "nothing", "mnist5k"], "cannot read model 'nothing'"),
        (["run", "algorithm=biml", "algorithm.grup=3"], "unknown key 'algorithm.grup' of algorithm 'biml' (known: alpha)"),
        (["run", "algorithm=murmur", "algorithm.grup=3"], "'algorithm.grup' of algorithm 'murmur': did you mean 'group'?\n"),
        (["run", "roundz=3"], "unknown key 'roundz': did you mean 'rounds'?\n"),
        (["run", "xyz=3"], "unknown key 'xyz' (known: algorithm, dataset, "),
        (["run", "switch=3"], "unknown key 'switch': did you mean 'algorithm.switch'?\n"),
        (["list", "murmr"], "bifl: nothing is called 'murmr': did you mean 'murmur'?\n"),
        (["list", "qqq"], "bifl: nothing is called 'qqq'; bifl list shows all names\n"),
        (["frobnicate"], "bifl: unknown command 'frobnicate' (known: run, compare, "),
        (["exprot", "x"], "bifl: unknown command 'exprot': did you mean 'export'?\n"),
        (["federation", "down"], "bifl: unknown command 'down' (known: up)"),
        ([], "bifl: the following arguments are required: COMMAND; see bifl --help\n"),
        (["inspect"], "bifl: the following arguments are required: FILE; see bifl inspect --help\n"),
        (["run", "--out"], "bifl: --out: expected one argument; see bifl run --help\n"),
        (["keys", "--clients", "x"], "bifl: --clients: 'x' is not a whole number, 1 or more; see bifl keys --help\n"),
    ],
)
def test_bad_input_ends_in_one_sentence(words: list[str], sentence: str, tmp_path: Path, here: Run) -> None:
    os.chdir(tmp_path)
    assert sentence in refused(here(*words))
    assert not list(tmp_path.rglob("model"))


def test_messages_are_kept_and_explained(tmp_path: Path, here: Run) -> None:
    run = tmp_path / "run"
    assert here("run", *BALLOTS, "rounds=3", "--keep-messages", "--out", run).returncode == 0
    up = [*run.glob("messages/*/upload-*"), *run.glob("messages/*/statistics-*")]
    assert sum(path.stat().st_size for path in up) == sum(r["up_bytes"] for r in rounds(run))
    down = [*run.glob("messages/*/broadcast"), *run.glob("messages/*/statistics")]
    assert sum(path.stat().st_size for path in down) == sum(r["broadcast_bytes"] for r in rounds(run))
    assert "284, 6 binary digits" in here("inspect", run / "messages" / "round-00002" / "statistics-00000").stdout
    shown = here("inspect", run / "messages" / "round-00003" / "upload-00001").stdout
    for words in ("client 1, 2000 images", "context", "the run's", "checksum", "ok", "linear3.weight", "whole file"):
        assert words in shown
    (tmp_path / "lost").write_bytes((run / "messages" / "round-00003" / "broadcast").read_bytes())
    shown = here("inspect", tmp_path / "lost").stdout
    assert "votes 0 … 2, in units of 2000" in shown
    assert "not decoded" in shown
    shown = here("inspect", run / "model").stdout
    assert "mnist_cnn, 10 classes" in shown
    assert "conv1.weight" in shown
    (tmp_path / "short").write_bytes((run / "model").read_bytes()[:-1])
    assert "checksum does not fit" in refused(here("inspect", tmp_path / "short"))
    (tmp_path / "other").write_bytes(b"hello" * 50)
    said = refused(here("inspect", tmp_path / "other"))
    assert f"'{tmp_path / 'other'}' is neither a model nor a message that can be read: at byte 0: starts with b'hell'" in said
    (earlier := run / "messages" / "round-00002" / "broadcast").write_bytes(b"hello" * 50)
    assert f"'{earlier}' is neither" in refused(here("inspect", run / "messages" / "round-00003" / "upload-00001"))


def test_a_damaged_model_is_refused(finished: Path, tmp_path: Path, here: Run) -> None:
    raw = (finished / "model").read_bytes()
    flipped = raw[:5000] + bytes([raw[5000] ^ 1]) + raw[5001:]
    altered = raw.replace(b'"std": 0.3', b'"std": 0.9')
    for damaged in (b"", b"BIFLMODL", b"BIFLMODL\xff\xff\xff\xff{}", b"BIFLMODL\x02\0\0\0{}rest", raw[:-1], flipped, altered):
        (tmp_path / "model").write_bytes(damaged)
        assert "is not a model file" in refused(here("eval", tmp_path / "model", "mnist5k"))


def test_compare_runs_tabulates_draws_and_continues(tmp_path: Path, here: Run) -> None:
    words = ["compare", "algorithms=fedavg,up_down+beta=1", "seeds=0,1", *SMALL, "rounds=2", "--out", "both"]
    done = here(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mean ± std of 2 seeds" in done.stdout
    assert (tmp_path / "both" / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.parent.name for p in (tmp_path / "both").rglob("model")) == [
        "fedavg-s0", "fedavg-s1", "up_down+beta=1-s0", "up_down+beta=1-s1",
    ]  # fmt: skip
    up_bytes = [rounds(tmp_path / "both" / name)[0]["up_bytes"] for name in ("fedavg-s0", "up_down+beta=1-s0")]
    assert up_bytes[0] > 26 * up_bytes[1]  # 31.9 bit per parameter against at most one packed bit, and 0.05 for batch-norm
    assert "holds a comparison already" in refused(here(*words, cwd=tmp_path))
    more = here("compare", "--resume", "both", "rounds=3", cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    assert len(rounds(tmp_path / "both" / "fedavg-s1")) == 3


def test_names_are_made_up_and_never_taken_twice(tmp_path: Path) -> None:
    command = [*BIFL, "run", *SMALL, "rounds=1"]
    both = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["mnist5k-iid-murmur-s0", "mnist5k-iid-murmur-s0-2"]


def test_list_shows_every_name_on_a_screen(here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = here("list").stdout
    assert shown.count("\n") <= 30
    words = shown.replace(",", " ").split()
    for key, entries in catalogue().items():
        assert key in words
        assert {entry.name for entry in entries} <= {*words}
    assert {*PRESETS} <= {*words}


@pytest.mark.parametrize("word", ["algorithm", "algorithms", "algorithm="])
def test_list_of_a_kind_has_a_line_for_each(word: str, here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = here("list", word).stdout.splitlines()
    assert "default: " in lines[0]
    assert [line.split()[0] for line in lines[1:]] == [entry.name for entry in catalogue()["algorithm"]]


def test_list_of_a_name_tells_all_about_it(here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    shown = here("list", "eden").stdout
    for text in (
        "algorithm=eden\n",
        "FedAvg by signs of a share p of the rotated update",
        "Take it to compare with",
        "algorithm.p=0.0             a share of the coordinates, from 0 (chosen by the number of voters) to 1\n",
        "algorithm.forward=real      real or binary\n",
        "EDEN (Vargaftik et al., 2022)",
    ):
        assert text in shown
    assert "(default)" not in shown


def test_list_of_a_name_that_several_have(here: Run) -> None:
    shown = here("list", "none").stdout
    assert [line for line in shown.splitlines() if "=none" in line] == [
        f"{kind}=none (default)" for kind in ("robust", "attack", "privacy", "augment")
    ]


def test_list_of_a_preset_tells_what_it_sets(here: Run) -> None:
    shown = here("list", "femnist-iid").stdout
    assert "dataset=femnist dataset.share=0.1 model=femnist_cnn clients=89" in shown
    assert "lr=0.0003,0.0001,5e-05" in shown


def test_every_algorithm_says_when_to_take_it() -> None:
    for entry in catalogue()["algorithm"]:
        assert any(text.startswith("Take it ") for text in entry.docstring()), entry.name


def test_help_tells_every_key_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    shown = capsys.readouterr().out
    for item in fields(Experiment):
        default = item.default
        text = (
            default.name if isinstance(default, Choice) else ",".join(map(str, default)) if isinstance(default, tuple) else default
        )
        assert f"{item.name} ({text})" in shown


def test_help_needs_no_torch() -> None:
    check = "import sys, bifl.cli\ntry: bifl.cli.main(['--help'])\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert "bifl run --resume" in done.stdout


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*BIFL, "run", *SMALL, "rounds=1", "--out", tmp_path / "x"], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "x" / "model").exists()


def test_nowhere_to_print() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*BIFL, "list"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert "No space left" in refused(done)
