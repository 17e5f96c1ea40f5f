"""Only the installed app is run: what it is known by. (test_foreign_code.py: with real processes.)"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from bifl.deploy import APP
from bifl.deploy.flower.bundle import Bundle, ForeignBundleError, content, installed, refuse_foreign


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
    assert installed().app == "bifl/bifl"


@pytest.mark.parametrize(
    ("old", "new"), [("[] #", '["evil"] #'), ("bifl.deploy.client_app:app", "bifl.deploy.evil:app"), ("600.0", "601.0")]
)
def test_a_bundle_with_our_names_and_other_content_is_foreign(tmp_path: Path, old: str, new: str) -> None:
    other = installed()._replace(digest=hashlib.sha256(changed(tmp_path, old, new)).hexdigest())
    assert other != installed()
    with pytest.raises(ForeignBundleError, match=f"refused to run the app bundle 'bifl/bifl' .* \\(SHA-256 {other.digest}\\)"):
        refuse_foreign(other)


def test_a_strangers_name_does_not_reach_the_terminal_as_it_is() -> None:
    with pytest.raises(ForeignBundleError) as refused:
        refuse_foreign(Bundle("x\n\x1b[2Jfinished" + "y" * 10_000, "\r0", "\u202e" * 1000))
    assert str(refused.value).replace("…", "").isascii()
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1000
