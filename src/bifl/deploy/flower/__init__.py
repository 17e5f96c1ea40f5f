"""Flower's part of a deployment: its SuperLink behind a gate, a client's node, and the one bundle that both know.

Nothing of Flower's is replaced: `superlink` serves its application, `supernode` speaks its protocol. Both use modules that Flower
may change with any release, so they go with one version. (An app for Flower's own programs needs none of this.)
"""

from importlib.metadata import version

from bifl.errors import RunError

VERSION = "1.41.0"

if (installed := version("flwr")) != VERSION:
    raise RunError(f"this is Flower {installed}: install the version that bifl was made for, flwr=={VERSION}")
