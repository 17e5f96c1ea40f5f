"""The command line: what can be typed (`parser`), how it is called (`dispatch`), what the commands do (`…_commands`)."""

from bifl.cli.dispatch import main

__all__ = ["main"]
