"""Certificates, keys, and what the commands for deployment refuse before anything is started."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from bifl.deploy.certificates import authority, client_key, make_keys, public_keys
from bifl.deploy.client.own_data import check_data
from bifl.deploy.flower.programs import refuse_blanks
from bifl.deploy.server import server_commands
from bifl.deploy.server.server_commands import SERVER, ServerStart
from bifl.errors import RunError
from bifl.experiment.settings import Experiment
from bifl.runs.folder import RunFolder
from tests.support.commands import Run, refused


def test_keys_fit_together_and_are_private(tmp_path: Path) -> None:
    made = make_keys(tmp_path, ["fl.example.org", "10.0.0.5"], 2)
    assert len(made) == 9
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority(tmp_path).read_bytes()))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.5", "127.0.0.1"]
    ssl.create_default_context(cafile=str(authority(tmp_path)))
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    for public in public_keys(tmp_path):
        private = load_ssh_private_key(public.with_suffix("").read_bytes(), None)
        assert load_ssh_public_key(public.read_bytes()) == private.public_key()
    secrets = [tmp_path / "ca.key", tmp_path / "server.key", client_key(tmp_path, 0), client_key(tmp_path, 1)]
    assert {path.stat().st_mode & 0o777 for path in secrets} == {0o600}


def test_keys_are_never_replaced(tmp_path: Path) -> None:
    make_keys(tmp_path, ["localhost"], 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    made = make_keys(tmp_path, ["elsewhere"], 2)
    assert [path.name for path in made] == ["client-1", "client-1.pub", "clients.pub"]
    before.pop("clients.pub")  # which names all clients
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_a_certificate_needs_the_authority(tmp_path: Path, here: Run) -> None:
    make_keys(tmp_path / "keys", ["localhost"], 1)
    for name in ("ca.key", "server.pem"):
        (tmp_path / "keys" / name).unlink()
    assert "has no ca.key" in refused(here("keys", "--out", tmp_path / "keys"))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["algorithm=baseline"], "centralised"),
        (["clients=3", "--min-clients", "4"], "min-clients must be from 1 to clients=3"),
        (["--deadline", "-1"], "deadline must be a number of seconds"),
        (["--listen", "8000"], "an address is host:port, not '8000'"),
        (["dataset=nowhere"], "unknown dataset 'nowhere'"),
        (["mnist5k-iid", "mnist-iid"], "only one preset"),
        (["algorithm=murmur", "secure_sum=true"], "algorithm 'murmur' cannot be used with secure_sum=true"),
    ],
)
def test_a_server_refuses_before_it_writes(tmp_path: Path, here: Run, words: list[str], why: str) -> None:
    assert why in refused(here("server", *words, "--out", tmp_path / "run", "--keys", tmp_path / "keys"))
    assert not list(tmp_path.iterdir())


def test_what_cannot_change_is_not_ignored(tmp_path: Path, here: Run) -> None:
    RunFolder.start(tmp_path / "run", Experiment())
    for words in (["server", "--keys", "keys"], ["server", "--listen", "x:1"], ["federation", "up", "--clients", "3"]):
        assert f"{words[-2]} cannot change" in refused(here(*words, "--resume", tmp_path / "run"))


def test_a_server_s_run_has_no_clients_of_its_own_to_continue(tmp_path: Path, here: Run) -> None:
    folder = RunFolder.start(tmp_path / "run", Experiment()).path
    (folder / SERVER).write_text(json.dumps(asdict(ServerStart(keys="keys", host="127.0.0.1", port=8000, keep_messages=False))))
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    words = ("federation", "up", "--resume", folder, "rounds=50", "--deadline", "9")
    assert "is not a run of bifl federation up" in refused(here(*words))
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_an_environment_that_flower_cannot_run_from(tmp_path: Path) -> None:
    refuse_blanks(str(tmp_path / "env"))
    with pytest.raises(RunError, match="cannot run from a path with a blank"):
        refuse_blanks(str(tmp_path / "my env"))


def test_a_simulation_is_not_a_server_s_run(tmp_path: Path, here: Run) -> None:
    RunFolder.start(tmp_path / "run", Experiment())
    assert "is not a run of bifl server" in refused(here("server", "--resume", tmp_path / "run"))


def test_a_client_refuses_what_is_not_there(tmp_path: Path, here: Run) -> None:
    make_keys(tmp_path, ["localhost"], 1)
    words = ["client", "--server", "localhost:1", "--ca", tmp_path / "ca.crt", "--key"]
    assert "does not exist" in refused(here(*words, tmp_path / "client-7"))
    assert "'none.npz' does not exist" in refused(here(*words, tmp_path / "client-0", "--data", "none.npz"))
    assert "--allow: 'none.py' does not exist" in refused(here(*words, tmp_path / "client-0", "--allow", "none.py"))
    (tmp_path / "mine").write_bytes((tmp_path / "client-0").read_bytes())
    assert "which client is this?" in refused(here(*words, tmp_path / "mine"))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--least", "1"], "--least must be 2 or more, not 1"),
        (["--colluders", "1"], "--colluders goes with --peers"),
        (["--peers", "clients.pub", "--colluders", "-1"], "--colluders must be 0 or more, not -1"),
        (["--peers", "none.pub"], "'none.pub' does not exist"),
    ],
)
def test_what_a_client_insists_on_is_checked(tmp_path: Path, here: Run, options: list[str], why: str) -> None:
    make_keys(tmp_path, ["localhost"], 1)
    os.chdir(tmp_path)  # `here` comes back
    assert why in refused(here("client", "--server", "localhost:1", "--ca", "ca.crt", "--key", "client-0", *options))
    assert not Path("client-0-state").exists()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("damaged.npz", "cannot be read as .npz"),
        ("nameless.npz", "has no array 'labels'"),
        ("floats.npz", "must be uint8, float16, float32, int32 or int64, not float64"),
        ("one.npz", "holds 1 training images, batch-norm needs two"),
        ("empty", "holds none of LEAF's files"),
        ("leaf", "as femnist: "),
        ("femnits", "neither a file nor a folder here, nor a dataset (known: "),
        ("remote", "it has no images"),
        ("npz", "give the file itself"),
    ],
)
def test_a_client_checks_its_data_before_it_joins(tmp_path: Path, here: Run, data: str, why: str) -> None:
    """Before: it said "connected", and nothing more."""
    make_keys(tmp_path, ["localhost"], 1)
    os.chdir(tmp_path)  # `here` comes back
    Path("damaged.npz").write_bytes(b"PK\3\4" + bytes(50))
    np.savez("nameless.npz", images=np.zeros((9, 8, 8), np.uint8))
    np.savez("floats.npz", images=np.zeros((9, 8, 8)), labels=np.arange(9))
    np.savez("one.npz", images=np.zeros((1, 8, 8), np.uint8), labels=np.arange(1))
    Path("empty").mkdir()
    Path("leaf").mkdir()
    Path("leaf/all_data_0.json").write_text('{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[0.5]], "y": [0]}}}')
    said = refused(here("client", "--server", "localhost:1", "--ca", "ca.crt", "--key", "client-0", "--data", data))
    assert said.startswith("bifl: --data cannot be used, and nothing was joined: ")
    assert why in said
    assert not Path("client-0-state").exists()


def test_data_is_called_so_that_it_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", images=np.zeros((9, 8, 8), np.uint8), labels=np.arange(9))
    assert check_data("mine.npz") == str(tmp_path / "mine.npz")
    assert check_data("mnist5k") == "mnist5k"
    assert check_data("") == ""


def test_a_client_s_watchman_does_without_torch() -> None:
    program = "import sys, bifl.cli, bifl.deploy.client.client_commands; sys.exit('torch' in sys.modules or 'flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_client_s_process_imports_no_more_than_it_needs() -> None:
    """A new process per message: what it imports is paid in every round."""
    heavy = ("scipy.optimize", "numba", "matplotlib", "mlxtend", "pandas", "sklearn", "plotly")
    program = f"import sys, bifl.deploy.client_app; sys.exit(' '.join(name for name in {heavy} if name in sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("secure", [False, True])
def test_clients_on_this_machine_know_their_peers_in_secure_sums_only(
    secure: bool, tmp_path: Path, here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with `--peers` would refuse every other run."""
    started: list[list[str]] = []

    def stopped(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append([str(word) for word in command]))
    monkeypatch.setattr(server_commands, "stop", lambda process: None)
    monkeypatch.setattr(server_commands, "SuperLink", stopped)  # as by Ctrl-C when the clients have been started
    done = here("federation", "up", "--clients", "3", "algorithm=biml", f"secure_sum={str(secure).lower()}", cwd=tmp_path)
    assert done.returncode == 130, done.stderr
    assert ["--peers" in command for command in started] == [secure] * 3
