"""The one app bundle that a client or a server of bifl runs: that of the installed package, known by its content hash.

Flower hands a bundle of Python code from whoever starts a run to the server and to every client. Nothing of a bundle is ever run
here: the code is the installed package's, and a run whose bundle has another hash than ours is refused by name.
"""

from __future__ import annotations

import functools
import hashlib
from typing import NamedTuple

from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import get_fab_metadata

from bifl.deploy import APP
from bifl.errors import RunError, quoted

_LONGEST = 80  # characters of a stranger's name that are repeated


class ForeignBundleError(RunError):
    """A run wants to execute another bundle than the installed one."""


class Bundle(NamedTuple):
    """What Flower knows a bundle by; `app` is publisher/name, `digest` the SHA-256 of its bytes."""

    app: str
    version: str
    digest: str

    def __str__(self) -> str:
        return f"'{quoted(self.app, _LONGEST)}' {quoted(self.version, _LONGEST)} (SHA-256 {quoted(self.digest, _LONGEST)})"


@functools.cache
def content() -> bytes:
    """The bundle of the installed app, as `flwr run` builds it."""
    built: bytes = build_fab_from_disk(APP)
    return built


def installed() -> Bundle:
    """The name of the installed app's bundle."""
    return Bundle(*get_fab_metadata(content()), hashlib.sha256(content()).hexdigest())


def refuse_foreign(bundle: Bundle) -> None:
    """Raise `ForeignBundleError` unless a bundle is the installed one, whatever it calls itself."""
    if bundle != installed():
        raise ForeignBundleError(
            f"refused to run the app bundle {bundle}: only the installed {installed()} is run here; "
            "if that is the server's bifl, install the same version on both"
        )
