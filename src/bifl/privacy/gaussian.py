"""`privacy=gaussian`: updates of bounded length, and Gaussian noise that the server adds to their sum (McMahan et al., 2018).

It trusts the server: that sees every update as it is, or with `secure_sum=true` their sum as it is. Whoever sees the broadcasts
alone, other clients and all who get the model, learns no more of one client than ε says.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from bifl.core import FLOAT32, Floats, Public
from bifl.core.randomness import uniform
from bifl.errors import ConfigError
from bifl.privacy.accounting import Numbers, gaussian_divergences
from bifl.privacy.dice import Words
from bifl.privacy.mechanism import Crowd, Mechanism, privacy

_ROUNDING = 1 + 1e-6  # of lengths, in single precision
_GRID = 2.0**-33  # how far a number is rounded where sums are exact (`bifl.core.sums`)


def says(update: Floats, public: Public, words: Words) -> Floats:
    """The update as it is."""
    return update


def hears(mean: Numbers, clients: int, public: Public, words: Words, *, deviation: float) -> npt.NDArray[np.floating]:
    """The mean of the sum with noise. 53 random bits a number: noise beyond 8.2 deviations, 1 in 10¹⁶, does not occur."""
    noise: Numbers = ndtri(uniform(words(len(mean))))
    return mean + noise * (deviation / clients)


def divergences(summed: int, crowd: Crowd, numbers: int, *, clip: float, noise: float) -> Numbers:
    """One client moves the sum by twice the clip at most; where it is not known who was drawn, less is learnt of each.

    Any other client knows of itself whether it was drawn, and colluders know it of each other: at worst, that they were not.
    """
    longest = clip * _ROUNDING + math.sqrt(numbers) * _GRID
    unknown = crowd.clients - max(1, crowd.colluders)
    drawn, among = (summed, unknown) if crowd.hidden and summed < unknown else (1, 1)
    return gaussian_divergences(noise * clip / longest / 2, drawn, among)


@privacy
def gaussian(clip: float = 1.0, noise: float = 1.0, delta: float = 1e-5, budget: float = 0.0) -> Mechanism:
    """The server, which is trusted, adds noise of `noise` times `clip` to the sum of clipped updates."""
    if not 0 < noise <= 1e6:
        raise ConfigError(f"privacy.noise must be the noise's deviation in clips, greater than 0, not {noise}")
    return Mechanism(
        clip=clip, delta=delta, budget=budget, says=says, alphabet=FLOAT32,
        hears=partial(hears, deviation=noise * clip), divergences=partial(divergences, clip=clip, noise=noise),
    )  # fmt: skip
