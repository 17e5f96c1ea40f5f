"""What a client counts for: its images, or once like all others (`weigh=`)."""

from __future__ import annotations

from bifl.errors import ConfigError


def weighs_equally(weigh: str, *, private: bool, masked: bool) -> bool:
    """Whether every client counts once.

    With `auto` that is so under a secure sum: all know each other's number of images, and of ballots the numbers of those who voted
    for a weight often add up to its sum in one way only. Floats are no better: after one step of Adam they are ballots too.

    Args:
        weigh: as an experiment has it.
        private: whether `privacy=` is set: then not even numbers of images are told.
        masked: whether there is a secure sum.

    Raises:
        ConfigError: such clients cannot count for their images.
    """
    if private and weigh == "images":
        raise ConfigError("with privacy= every client counts once, and its number of images is not told: leave weigh= out")
    return weigh == "equal" or (weigh == "auto" and (private or masked))
