"""Hides what `pip install bifl` does not bring, extras of it among them: PYTHONPATH=tests/base_install bifl run …"""

from __future__ import annotations

import sys
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def brought(name: str) -> set[str]:
    """A distribution and all that it needs."""
    done: set[tuple[str, str]] = set()
    todo = [(name, "")]  # and which of its extras
    while todo:
        one = name, extra = todo.pop()
        if one in done:
            continue
        done.add(one)
        try:
            needed = [Requirement(line) for line in metadata.requires(name) or []]
        except metadata.PackageNotFoundError:  # of another platform, or of no use here
            continue
        wanted = [each for each in needed if each.marker is None or each.marker.evaluate({"extra": extra})]
        todo += [(canonicalize_name(each.name), more) for each in wanted for more in ("", *each.extras)]
    return {name for name, _ in done}


_OURS = brought("bifl")
for _module, _distributions in metadata.packages_distributions().items():
    if not _OURS & {canonicalize_name(each) for each in _distributions}:
        sys.modules[_module] = None  # type: ignore[assignment]  # an import of it fails
