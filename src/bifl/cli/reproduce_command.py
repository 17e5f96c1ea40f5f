"""`bifl reproduce`: the paper's tables and figures."""

from __future__ import annotations

import argparse
import sys

from bifl.errors import ConfigError
from bifl.experiment.settings import pairs
from bifl.paper import reproduce as paper
from bifl.show.terminal import console


def reproduce(options: argparse.Namespace) -> int:
    """The paper's tables and figures."""
    names = [word for word in options.settings if "=" not in word]
    if not names:
        raise ConfigError("say which study to reproduce, such as table1, or all")
    settings = pairs(word for word in options.settings if "=" in word)
    try:
        paper.reproduce(paper.request(names, settings, (options.out, options.work), options.quick, options.kept), console())
    except KeyboardInterrupt:
        print("bifl: stopped; the same command goes on where it was", file=sys.stderr)
        return 130
    return 0
