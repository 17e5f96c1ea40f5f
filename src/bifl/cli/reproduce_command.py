"""`bifl reproduce`: the paper's tables and figures."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from bifl.errors import ConfigError
from bifl.experiment.presets import pairs
from bifl.show.output import console


def reproduce(options: argparse.Namespace) -> int:
    """The paper's tables and figures."""
    studies = load_studies(Path(__file__).parents[3])
    names = [word for word in options.settings if "=" not in word]
    if not names:
        raise ConfigError("say which study to reproduce, such as table1, or all")
    settings = pairs(word for word in options.settings if "=" in word)
    try:
        asked = studies.request(names, settings, (options.out, options.work), options.quick, options.kept)
        studies.reproduce(asked, console())
    except KeyboardInterrupt:
        print("bifl: stopped; the same command goes on where it was", file=sys.stderr)
        return 130
    return 0


def load_studies(clone: Path) -> ModuleType:
    """What runs the studies: `studies/`, which lies beside `src/` in a clone of bifl and in no installed package."""
    folder = clone / "studies"
    if not (folder / "reproduce.py").is_file():
        raise ConfigError(
            "the studies and their kept runs are in bifl's repository, not in the package: call bifl of a clone (make ready)"
        )
    if "studies" not in sys.modules:  # by its path: whatever else is called so is another's
        spec = spec_from_file_location("studies", folder / "__init__.py", submodule_search_locations=[str(folder)])
        assert spec is not None
        assert spec.loader is not None
        sys.modules["studies"] = package = module_from_spec(spec)
        spec.loader.exec_module(package)
    return import_module("studies.reproduce")
