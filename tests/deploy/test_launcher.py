"""Only the installed app is run: what Flower's programs do with a bundle. (test_doors.py: the same with real processes.)"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from bifl.deploy import gate, launcher
from bifl.deploy.bundle import APP, Bundle, ForeignBundleError, content, named, own, refuse_foreign
from bifl.errors import RunError


def changed(folder: Path, old: str, new: str) -> bytes:
    """Our app's bundle, but for one word."""
    shutil.copytree(APP, folder / "app")
    text = (APP / "pyproject.toml").read_text()
    assert old in text
    (folder / "app/pyproject.toml").write_text(text.replace(old, new))
    built: bytes = build_fab_from_disk(folder / "app")
    return built


def test_the_bundle_does_not_depend_on_where_it_lies(tmp_path: Path) -> None:
    assert changed(tmp_path, "bifl", "bifl") == content()
    assert own() == named(content())
    assert own().app == "bifl/bifl"


@pytest.mark.parametrize(
    ("old", "new"), [("[] #", '["evil"] #'), ("bifl.deploy.client_app:app", "bifl.deploy.evil:app"), ("600.0", "601.0")]
)
def test_a_bundle_with_our_names_and_other_content_is_foreign(tmp_path: Path, old: str, new: str) -> None:
    other = named(changed(tmp_path, old, new))
    assert other[:2] == own()[:2]
    with pytest.raises(ForeignBundleError, match=f"refused to run the app bundle 'bifl/bifl' .* \\(SHA-256 {other.digest}\\)"):
        refuse_foreign(other)


def test_what_is_no_bundle_is_refused_by_its_hash() -> None:
    with pytest.raises(ForeignBundleError, match=r"'\?' \? \(SHA-256 [0-9a-f]{64}\)"):
        refuse_foreign(named(b"PK\x03\x04 no zip"))


def test_a_strangers_name_does_not_reach_the_terminal_as_it_is() -> None:
    with pytest.raises(ForeignBundleError) as refused:
        refuse_foreign(Bundle("x\n\x1b[2Jfinished" + "y" * 10_000, "\r0", "\u202e" * 1000))
    assert str(refused.value).isascii()
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1000


def test_an_apps_process_installs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process: Any = ModuleType("process")
    for name in ("install_from_fab", "install_app_dependencies", "get_project_dir"):
        setattr(process, name, None)
    monkeypatch.setitem(sys.modules, "process", process)
    launcher._install_nothing("process")
    assert process.install_from_fab(content(), skip_prompt=True) == APP
    assert process.get_project_dir("mallory/evil", "../..", "0") == APP
    with pytest.raises(ForeignBundleError, match="'bifl/bifl'"):
        process.install_from_fab(changed(tmp_path, "600.0", "601.0"), skip_prompt=True)
    with pytest.raises(RunError, match="installs no packages"):
        process.install_app_dependencies(APP, launch_id="0", run_id=1)


def test_flowers_programs_start_each_other_through_the_launcher_and_no_others() -> None:
    started: list[list[str]] = []
    real: Any = ModuleType("subprocess")
    real.Popen = lambda command, **options: started.append(command)
    children = launcher._Children(real)
    children.Popen(["flower-superexec", "--insecure"])
    assert started == [[sys.executable, "-P", "-m", "bifl.deploy.launcher", "flower-superexec", "--insecure"]]
    for program in ("flwr-agentapp", "flwr-simulation", "flwr-connector", "sh"):
        with pytest.raises(RunError, match=program):
            children.Popen([program])
    assert len(started) == 1


def test_what_flower_does_not_have_is_not_passed_over() -> None:
    for owner in ("flwr.supernode.start_client_internal", "flwr.supercore.protobuf.client:ProtobufClient", "flwr.no_such_module"):
        with pytest.raises(RunError, match=r"flwr==1\.41\.0"):
            launcher._replace(owner, "no_such_function", lambda real: real)


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
    assert launcher._registered(app, signed)
    assert not launcher._registered(app, headers(theirs, unknown))  # not registered
    assert not launcher._registered(app, headers(theirs, known))  # signed with another key
    assert not launcher._registered(app, [(name, value) for name, value in signed if b"sign" not in name])
    assert not launcher._registered(app, [(name, b"\xff" + value) for name, value in signed])
    assert not launcher._registered(app, [])


def launch(*words: str, **environment: str) -> str:
    command = [sys.executable, "-P", "-m", "bifl.deploy.launcher", *words]
    own = {name: value for name, value in os.environ.items() if name != launcher.ENVIRONMENT}
    done = subprocess.run(command, env=own | environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("bifl: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_another_flower_no_token_or_another_program_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr/__init__.py").write_text('__version__ = "1.42.0"')
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert "this is Flower 1.42.0" in launch("node", PYTHONPATH=path)
    assert "BIFL_TOKEN is not set" in launch("flower-superlink")
    assert "'flwr-agentapp' is none of" in launch("flwr-agentapp")
