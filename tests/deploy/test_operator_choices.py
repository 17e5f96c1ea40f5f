"""Which experiments a client lets a server choose: what comes with bifl, and files that its own operator gave."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path

import pytest

from bifl.deploy.client.operator_choices import permitted
from bifl.deploy.protocol import Refusal, named_files, words_for_clients
from bifl.experiment.settings import of_words


def words(**changes: str) -> str:
    return shlex.join(f"{key}={value}" for key, value in changes.items())


@pytest.mark.parametrize("kind", ["algorithm", "model", "dataset", "partition", "robust", "attack", "privacy"])
def test_a_server_s_python_file_is_not_run(tmp_path: Path, kind: str) -> None:
    """Before: the client ran any file that the server named."""
    proof = tmp_path / "ran"
    file = tmp_path / "mine.py"
    file.write_text(f"open({str(proof)!r}, 'w')\n")
    for name in (f"{file}:mine", ":mine", f"{file.name}:mine", str(file), file.name, f"../{file.name}:x:mine"):
        with pytest.raises(Refusal) as refused:
            permitted(words(**{kind: name}), (), own_data=False)
        assert str(tmp_path) not in refused.value.public
    assert not proof.exists()


def test_the_operator_s_own_file_is_run(tmp_path: Path) -> None:
    """Known by its name: on another machine it lies elsewhere."""
    file = tmp_path / "permitted_net.py"
    file.write_text(
        "from bifl.algorithms.paper import biml\nfrom bifl.core import register\n\n"
        "@register\ndef permitted_net(alpha: float = 1.25):\n    '''Mine.'''\n    return biml(alpha)\n"
    )
    text = words(algorithm="/srv/elsewhere/permitted_net.py:permitted_net")
    with pytest.raises(Refusal, match=r"start bifl client with --allow permitted_net\.py"):
        permitted(text, (), own_data=False)
    experiment = permitted(text, (file,), own_data=False)
    assert experiment.algorithm.name == f"{file}:permitted_net"
    assert named_files(experiment) == [file]
    (tmp_path / "b").mkdir()
    with pytest.raises(Refusal, match="two of the files"):
        permitted(text, (file, tmp_path / "b/permitted_net.py"), own_data=False)


def test_a_server_s_data_file_is_not_read(tmp_path: Path) -> None:
    """Before: any npz on the client's disk. With --data the operator decides, with --allow the server may name that file."""
    text = words(dataset="npz", **{"dataset.path": "/srv/digits.npz"})
    with pytest.raises(Refusal, match=r"--allow digits\.npz, or bring your own images") as refused:
        permitted(text, (tmp_path / "other.npz",), own_data=False)
    assert "/srv" not in refused.value.public
    assert permitted(text, (), own_data=True).dataset.parameters["path"] == ""
    mine = tmp_path / "digits.npz"
    assert permitted(text, (mine,), own_data=False).dataset.parameters["path"] == str(mine)
    assert permitted(words(dataset="evil.py:data"), (), own_data=True).dataset.name == "mnist5k"


@pytest.mark.parametrize(
    "change",
    [
        {"clients": "99999999999"}, {"batch": "99999999"}, {"local_epochs": "1000000"}, {"rounds": "99999999999"},
        {"algorithm": "baseline"}, {"algorithm": "nothing"}, {"rounds": "9" * 5000}, {"algorithm.alpha": "nan"}, {"colour": "red"},
    ],
    ids=str,
)  # fmt: skip
def test_settings_have_bounds(change: dict[str, str]) -> None:
    with pytest.raises(Refusal):
        permitted(words(**change), (), own_data=True)


RULE = """
from bifl.robust.rule import robust
from bifl.robust.averages import median

@robust
def only_servers_rule():
    '''Mine.'''
    return median()
"""


def test_clients_are_told_what_they_need_and_no_path_of_the_server(tmp_path: Path) -> None:
    """A robust rule is the server's own affair; of a model that a run starts with, and of files, clients learn no folder."""
    net, rule, start = tmp_path / "told_net.py", tmp_path / "told_rule.py", tmp_path / "start"
    net.write_text(
        "from bifl.algorithms.paper import biml\nfrom bifl.core import register\n\n@register\ndef told_net():\n    return biml()\n"
    )
    rule.write_text(RULE)
    start.write_bytes(b"a model")
    experiment = of_words([
        f"algorithm={net}:told_net", f"robust={rule}:only_servers_rule", f"start={start}", "dataset=npz",
        f"dataset.path={tmp_path}/digits.npz", "clients=7",
    ])  # fmt: skip
    text = words_for_clients(experiment)
    assert str(tmp_path) not in text
    assert "robust" not in text
    assert named_files(experiment) == [net, tmp_path / "digits.npz"]
    found = permitted(text, [net], own_data=True)
    assert (found.algorithm.name, found.robust.name, found.clients) == (f"{net}:told_net", "none", 7)
    assert found.start == f"@{hashlib.sha256(b'a model').hexdigest()[:16]}"
