"""The command line: every command's declaration (`commands`), how it is called (`dispatch`), and a file for the work of each."""

from bifl.cli.dispatch import main

__all__ = ["main"]
