"""A server's SuperLink: who is registered, and what it needs to start. (test_foreign_code.py: real ones.)"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from bifl.deploy.flower import gate, superlink
from bifl.deploy.flower.programs import TOKEN, free_port
from bifl.errors import RunError


def test_registered_is_who_signs_with_a_registered_key() -> None:
    _, links = get_objectstore_linkstate_factories(FLWR_IN_MEMORY_DB_NAME, get_federation_manager())
    app: Any = SimpleNamespace(state=SimpleNamespace(linkstate_factory=links))
    (ours, known), (theirs, unknown) = generate_key_pairs(), generate_key_pairs()
    links.state().create_node("", "", public_key_to_bytes(known), 0)

    def headers(private: Any, public: Any) -> gate.Headers:
        context: Any = SimpleNamespace(request=httpx.Request("POST", "https://x"))
        NodeAuthHttpInterceptor(private, public).intercept(context, lambda context: httpx.Response(200))
        return [(name.lower(), value) for name, value in context.request.headers.raw]

    signed = headers(ours, known)
    assert superlink.registered(app, signed)
    assert not superlink.registered(app, headers(theirs, unknown))  # not registered
    assert not superlink.registered(app, headers(theirs, known))  # signed with another key
    assert not superlink.registered(app, [(name, value) for name, value in signed if b"sign" not in name])
    assert not superlink.registered(app, [(name, b"\xff" + value) for name, value in signed])
    assert not superlink.registered(app, [])


def started(**environment: str) -> str:
    """What the program says that ends at once."""
    command = [sys.executable, "-P", "-m", "bifl.deploy.flower.superlink", "localhost", "1", "keys", "link.db"]
    ours = {name: value for name, value in os.environ.items() if name != TOKEN}
    done = subprocess.run(command, env=ours | environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    return done.stderr.strip().splitlines()[-1]


def test_no_superlink_without_a_token() -> None:
    assert started() == "bifl: BIFL_TOKEN is not set: bifl server starts this program with it"


def test_another_flower_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "flwr-1.43.0.dist-info").mkdir()
    (tmp_path / "flwr-1.43.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: flwr\nVersion: 1.43.0\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert started(PYTHONPATH=path).endswith("this is Flower 1.43.0: install a version that bifl was made for, 1.41.0 or 1.42.0")
    program = "import bifl.cli, sys; sys.exit(bifl.cli.main(['client', '--server', 'x:1', '--ca', 'x', '--key', 'client-0']))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("bifl: this is Flower 1.43.0")


def test_a_superlink_that_ended_is_not_waited_for(tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*given: Any, **more: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["false"], start_new_session=True)
        process.wait()
        return process

    monkeypatch.setattr(superlink, "start", ended)
    with (
        pytest.raises(RunError, match="Flower's SuperLink ended: it said nothing"),
        superlink.SuperLink(tmp_path, keys, "127.0.0.1", free_port()),
    ):
        pass


def test_a_key_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "client-0.pub").write_text("garbage")
    with pytest.raises(RunError, match=r"client-0\.pub' cannot be read as a public key"):
        superlink.SuperLink(tmp_path, tmp_path, "127.0.0.1", 1).numbers()
