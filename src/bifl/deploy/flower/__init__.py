"""Flower's part of a deployment: its SuperLink behind a gate, a client's node, and the one bundle that both know.

Nothing of Flower's is replaced: `superlink` serves its application, `supernode` speaks its protocol. Both use modules that Flower
may change with any release, so they go with the versions that they were tried with (tests/deploy/test_foreign_code.py). An app
for Flower's own programs needs none of this.
"""

from importlib.metadata import version

from bifl.errors import RunError

VERSIONS = ("1.41.0", "1.42.0")

if (installed := version("flwr")) not in VERSIONS:
    raise RunError(f"this is Flower {installed}: install a version that bifl was made for, {' or '.join(VERSIONS)}")
