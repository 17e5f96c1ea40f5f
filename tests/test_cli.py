"""The command line as a person uses it: real processes, real files, real signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from bifl import cli
from bifl.experiment import Choice, Experiment

BIFL = [sys.executable, "-m", "bifl.cli"]
SMALL = ["clients=2", "workers=1"]
FIELDS = ["round", "accuracy", "loss", "train_loss", "clients", "up_bytes", "down_bytes", "broadcast_bytes"]  # what others rely on
FIELDS += ["up_bpp", "down_bpp", "flips", "seconds"]


def bifl(*words: str | Path, cwd: Path | None = None, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command. `limit` caps the size of every file it writes, in kB: a full disk, on request."""
    command: Sequence[str | Path] = [*BIFL, *words]
    if limit is not None:
        command = ["bash", "-c", f'ulimit -f {limit}; exec "$@"', "bash", *command]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300, check=False)


Here = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    """The same within this process: for refusals, which need no process of their own."""
    monkeypatch.chdir(Path.cwd())  # and back afterwards

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        code = cli.main([str(word) for word in words])
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, shown.out, shown.err)

    return run


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a refusal."""
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("bifl: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def rounds(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four rounds that nobody disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    done = bifl("run", *SMALL, "rounds=4", "--out", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_run_leaves_what_it_promises(finished: Path) -> None:
    lines = [json.loads(line) for line in (finished / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert all(list(line)[: len(FIELDS)] == FIELDS for line in lines)
    config = tomllib.loads((finished / "config.toml").read_text())
    assert config["algorithm"] == {"name": "biml", "alpha": 1.25}
    assert config["lr"] == [0.005, 0.002, 0.001]
    assert (finished / "model").stat().st_size < 13_000
    assert (finished / "checkpoint").is_dir()


def test_eval_gives_the_accuracy_of_the_last_round(finished: Path) -> None:
    done = bifl("eval", finished / "model", "mnist5k")
    assert f"accuracy {rounds(finished)[-1]['accuracy']:.2%}" in done.stdout
    assert "81,958 binary weights" in done.stdout


def start(*words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen([*BIFL, "run", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_round(folder: Path, count: int) -> None:
    for _ in range(6000):
        if (folder / "rounds.jsonl").exists() and len((folder / "rounds.jsonl").read_text().splitlines()) >= count:
            return
        time.sleep(0.01)
    raise AssertionError(f"round {count} never came")


@pytest.mark.parametrize("workers", ["workers=1", "workers=2"])
def test_killed_and_resumed_is_as_never_killed(finished: Path, tmp_path: Path, workers: str) -> None:
    """Killed twice, at whatever moment, and continued with other workers."""
    folder = tmp_path / "killed"
    first: list[str | Path] = [*SMALL, "rounds=4", "--out", folder]
    second: list[str | Path] = ["--resume", folder, workers]
    for words, complete in ((first, 1), (second, 3)):
        process = start(*words)
        wait_for_round(folder, complete)
        process.kill()
        process.communicate()
    done = bifl("run", "--resume", folder, workers)
    assert done.returncode == 0, done.stderr
    assert rounds(folder) == rounds(finished)
    assert (folder / "model").read_bytes() == (finished / "model").read_bytes()


def test_killed_between_checkpoint_and_record(finished: Path, tmp_path: Path) -> None:
    """The moments a kill can hit on purpose: a line not written, half written, or written for a round that is not complete."""
    for tail in ("", '{"round": 2, "accu'):
        folder = tmp_path / f"cut{len(tail)}"
        assert bifl("run", *SMALL, "rounds=2", "--out", folder).returncode == 0
        first = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)[0]
        (folder / "rounds.jsonl").write_text(first + tail)
        (folder / "model").unlink()
        done = bifl("run", "--resume", folder, "rounds=4")
        assert done.returncode == 0, done.stderr
        assert rounds(folder) == rounds(finished)


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    process = start("clients=2", "--out", folder, "workers=2", "rounds=4")
    wait_for_round(folder, 1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"continue with: bifl run --resume {folder}" in error
    assert "Traceback" not in error
    assert bifl("run", "--resume", folder).returncode == 0
    assert rounds(folder) == rounds(finished)


def test_a_killed_server_leaves_no_workers_and_no_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    process = start("clients=2", "workers=2", "rounds=1000", "--out", tmp_path / "orphans")
    wait_for_round(tmp_path / "orphans", 1)
    workers = [int(word) for word in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    process.kill()
    process.communicate()
    assert len(workers) == 2
    assert not list((tmp_path / "temporary").iterdir())
    for _ in range(3000):
        if not any(Path(f"/proc/{pid}").exists() for pid in workers):
            return
        time.sleep(0.01)
    raise AssertionError("a worker is still there")


def test_a_full_disk_loses_nothing(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "full"
    assert bifl("run", *SMALL, "rounds=2", "--out", folder).returncode == 0
    sentence = refused(bifl("run", "--resume", folder, "rounds=4", limit=100))  # a client's state takes 328 kB
    assert "File too large" in sentence
    assert len(rounds(folder)) == 2
    assert not list(folder.rglob("*.tmp"))
    assert bifl("run", "--resume", folder).returncode == 0
    assert rounds(folder) == rounds(finished)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "Not a directory" in refused(bifl("run", *SMALL, "--out", tmp_path / "file" / "run"))


def test_a_run_is_never_overwritten(finished: Path) -> None:
    before = (finished / "rounds.jsonl").read_bytes()
    assert "holds a run already" in refused(bifl("run", *SMALL, "rounds=1", "--out", finished))
    assert (finished / "rounds.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("victim", "sentence"),
    [
        ("server.npz", "server.npz' cannot be read"),
        ("client-00001.round-00004.npz", "client-00001.round-00004.npz' cannot be read"),
    ],
)
def test_a_truncated_or_missing_checkpoint_is_named(finished: Path, tmp_path: Path, victim: str, sentence: str, here: Here) -> None:
    folder = shutil.copytree(finished, tmp_path / "damaged")
    path = folder / "checkpoint" / victim
    path.write_bytes(path.read_bytes()[:-100])
    before = (folder / "rounds.jsonl").read_bytes()
    assert sentence in refused(here("run", "--resume", folder, "rounds=5"))
    assert (folder / "rounds.jsonl").read_bytes() == before
    if "client" in victim:
        path.unlink()
        assert sentence in refused(here("run", "--resume", folder))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "mnist5k-idd"], "unknown preset 'mnist5k-idd': did you mean 'mnist5k-iid'?"),
        (["run", "algoritm=biml"], "unknown key 'algoritm': did you mean 'algorithm'?"),
        (["run", "rounds=many"], "rounds must be a whole number"),
        (["run", "algorithm.alpha=-1"], "algorithm.alpha must be greater than 0"),
        (["run", "participation=2"], "participation must be"),
        (["run", "clients=4001"], "clients=4001 is more than the 4000 training images"),
        (["run", "clients=3000"], "a client would hold 1 of 4000 images"),
        (["run", "algorithm=fedavg", "optimizer=sgd", "lr=1e30", "clients=2", "workers=2"], "diverged; lower lr"),
        (["run", "--resume", "nowhere"], "'nowhere' holds no run"),
        (["compare", "--resume", "nowhere"], "'nowhere' holds no comparison"),
        (["compare", "algorithm=biml"], "takes algorithms="),
        (["compare", "algorithms=biml,biml"], "different values"),
        (["run", "alpha=1.5"], "did you mean 'algorithm.alpha'?"),
        (["run", "mnist-iid", "mnist5k-iid"], "only one preset"),
        (["compare", "algorithms=up_down+beta"], "up_down+beta=1"),
        (["eval", "nothing", "mnist5k"], "cannot read model 'nothing'"),
    ],
)
def test_bad_input_ends_in_one_sentence(words: list[str], sentence: str, tmp_path: Path, here: Here) -> None:
    os.chdir(tmp_path)
    assert sentence in refused(here(*words))
    assert not list(tmp_path.rglob("model"))


def test_resume_changes_nothing_but_rounds_and_workers(finished: Path, here: Here) -> None:
    assert "less than the 4 rounds" in refused(here("run", "--resume", finished, "rounds=3"))
    assert "'seed' cannot change" in refused(here("run", "--resume", finished, "seed=1"))


def test_a_damaged_model_is_refused(finished: Path, tmp_path: Path, here: Here) -> None:
    raw = (finished / "model").read_bytes()
    flipped = raw[:5000] + bytes([raw[5000] ^ 1]) + raw[5001:]
    altered = raw.replace(b'"std": 0.3', b'"std": 0.9')
    for damaged in (b"", b"BIFLMODL", b"BIFLMODL\xff\xff\xff\xff{}", b"BIFLMODL\x02\0\0\0{}rest", raw[:-1], flipped, altered):
        (tmp_path / "model").write_bytes(damaged)
        assert "is not a model file" in refused(here("eval", tmp_path / "model", "mnist5k"))


def test_compare_runs_tabulates_draws_and_continues(tmp_path: Path) -> None:
    words = ["compare", "algorithms=fedavg,up_down+beta=1", "seeds=0,1", *SMALL, "rounds=2", "--out", "both"]
    done = bifl(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mean ± std of 2 seeds" in done.stdout
    assert (tmp_path / "both" / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.parent.name for p in (tmp_path / "both").rglob("model")) == [
        "fedavg-s0", "fedavg-s1", "up_down+beta=1-s0", "up_down+beta=1-s1",
    ]  # fmt: skip
    up_bytes = [rounds(tmp_path / "both" / name)[0]["up_bytes"] for name in ("fedavg-s0", "up_down+beta=1-s0")]
    assert up_bytes[0] > 26 * up_bytes[1]
    assert "holds a comparison already" in refused(bifl(*words, cwd=tmp_path))
    more = bifl("compare", "--resume", "both", "rounds=3", cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    assert len(rounds(tmp_path / "both" / "fedavg-s1")) == 3


def test_names_are_made_up_and_never_taken_twice(tmp_path: Path) -> None:
    command = [*BIFL, "run", *SMALL, "rounds=1"]
    both = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["mnist5k-iid-biml-s0", "mnist5k-iid-biml-s0-2"]


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    process = start(*SMALL, "rounds=1000", "--out", tmp_path / "busy")
    wait_for_round(tmp_path / "busy", 1)
    try:
        assert "another process is running" in refused(bifl("run", "--resume", tmp_path / "busy"))
    finally:
        process.kill()
        process.communicate()


def test_list_shows_everything() -> None:
    shown = bifl("list").stdout
    for word in ("biml_fit", "alpha=1.25", "mnist5k", "by_class", "classes_per_client=3", "mnist_cnn", "mnist-unbalanced"):
        assert word in shown


def test_help_tells_every_key_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
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
