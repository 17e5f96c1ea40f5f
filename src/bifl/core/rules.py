"""The verbs of the paper's table (paper §2, §3). Each is a pure function; an algorithm is a choice of three, and of a forward.

upload: `signs`, `floats` · broadcast: `votes`, `majority`, `means` · update: `replace`, `blend`, `blend_signs`, `ml_pu`

>>> import numpy as np
>>> sign(np.array([-0.5, 0.0, 0.5], np.float32))
array([-1., -1.,  1.], dtype=float32)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bifl.core import likelihood
from bifl.core.message import BINARY, FLOAT32, Floats, Message, Votes
from bifl.core.state import Client, Public, Server
from bifl.core.sums import Tally
from bifl.errors import ConfigError


def sign(weights: npt.NDArray[np.floating]) -> Floats:
    """±1, with Sign(0) = −1 as the paper defines it (numpy's and torch's is 0)."""
    return np.where(weights > 0, np.float32(1), np.float32(-1))


# ---- upload ----------------------------------------------------------------------------------------------------------


def signs(client: Client, public: Public) -> Message:
    """A ballot: one bit per weight, the sign of aux."""
    return Message.of((client.aux > 0).astype(np.uint8), BINARY, client.real)


def floats(client: Client, public: Public) -> Message:
    """The weights themselves, 32 bit each."""
    return Message.of(client.aux, FLOAT32, client.real)


# ---- broadcast -------------------------------------------------------------------------------------------------------


def votes(tally: Tally, public: Public, server: Server) -> Message:
    """W̃ as exact vote counts, log2(total + 1) bit each."""
    if tally.update.votes is None:
        raise ConfigError("the votes rule counts binary ballots: combine it with an upload of signs")
    return Message.of(tally.update.votes, Votes(tally.total, tally.unit), tally.real)


def rounded_votes(tally: Tally, public: Public, server: Server, *, levels: int) -> Message:
    """W̃ rounded to so many levels: counts of fewer votes, each of which is worth more."""
    if tally.update.votes is None:
        raise ConfigError("the rounded_votes rule counts binary ballots: combine it with an upload of signs")
    total = min(levels - 1, tally.total)
    if total == tally.total:
        return votes(tally, public, server)
    counts = (2 * tally.update.votes * total + tally.total) // (2 * tally.total)  # to the nearest, in integers
    return Message.of(counts, Votes(total, max(1, round(tally.total * tally.unit / total))), tally.real)


def majority(tally: Tally, public: Public, server: Server) -> Message:
    """Sign(W̃), one bit each; a tie counts as −1."""
    return Message.of((tally.update.mean > 0).astype(np.uint8), BINARY, tally.real)


def means(tally: Tally, public: Public, server: Server) -> Message:
    """The weighted mean of the uploads, 32 bit each."""
    return Message.of(tally.update.mean.astype(np.float32), FLOAT32, tally.real)


# ---- changes instead of weights --------------------------------------------------------------------------------------


def change(client: Client, public: Public) -> Floats:
    """(count,) how far training moved the weights from the public ones, where clients continue from those (`replace`)."""
    return client.aux - public.weights


def apply_change(upload: Message, public: Public, by: Floats) -> Message:
    """What an upload stands for that tells a change: the public weights and that change. For `reads`."""
    return upload.with_update(symbols=public.weights + by, alphabet=FLOAT32, about=None)


def scaled_change(upload: Message, public: Public) -> Message:
    """What an upload stands for whose values are changes in units of its own scales, one for each layer. For `reads`."""
    return apply_change(upload, public, upload.update.values() * public.layout.per_weight(upload.update.scales))


# ---- update ----------------------------------------------------------------------------------------------------------


def replace(client: Client, public: Public, news: Message) -> Client:
    """aux ← the broadcast."""
    return client._replace(aux=public.weights)


def blend(client: Client, public: Public, news: Message, *, beta: float) -> Client:
    """aux ← β·broadcast + (1−β)·aux."""
    return client._replace(aux=np.float32(beta) * public.weights + np.float32(1 - beta) * client.aux)


def blend_signs(client: Client, public: Public, news: Message, *, beta: float) -> Client:
    """aux ← β·Sign(broadcast) + (1−β)·aux."""
    return client._replace(aux=np.float32(beta) * sign(public.weights) + np.float32(1 - beta) * client.aux)


def ml_pu(client: Client, public: Public, news: Message, *, alpha: float, ratio: likelihood.Ratio = likelihood.ratio) -> Client:
    """aux ← clip(α·μ̂, −1, 1), where μ̂ = r·aux is the most likely mean of all clients' aux (ML-PU, paper §3).

    The ratio r depends only on how many votes agree with this client's own sign, so it is a function of the vote counts.
    A vote is worth unit/|D_i| of this client's own: that is the paper's virtual M_i = |D|/|D_i| for unequal sizes.
    """
    if not isinstance(news.update.alphabet, Votes):
        raise ConfigError("the ml_pu rule needs vote counts: combine it with a broadcast of votes")
    total, unit = news.update.alphabet.total, news.update.alphabet.unit
    agree = np.where(client.aux > 0, news.update.symbols, total - news.update.symbols)
    gain = (likelihood.ratios(agree, total, unit, client.weight, client.voted, ratio) * alpha).astype(np.float32)
    return client._replace(aux=np.clip(gain * client.aux, -1, 1))
