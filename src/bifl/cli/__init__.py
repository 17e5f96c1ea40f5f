"""The command line: how it is called (`dispatch`), what parsers share (`parser`), and a file for each command or group of them."""

from bifl.cli.dispatch import main

__all__ = ["main"]
