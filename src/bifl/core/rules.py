"""The verbs of the paper's table (paper §2, §3). Each is a pure function; an algorithm is a choice of three, and of a forward.

upload: `signs`, `floats` · broadcast: `votes`, `majority`, `means` · update: `replace`, `blend`, `blend_signs`, `ml_pu`

ML-PU is the most likely mean of all clients' auxiliary weights, given my own and everyone's votes (paper §3). The j-th auxiliary
weight over the clients is taken as i.i.d. N(μ, σ²). I know my own w̄ and that M_P of M signs are positive. With u = μ/σ and σ
eliminated in closed form, and for my sign s = +1 (the other sign is its mirror image), the log-likelihood is

  f(u) = (a − 1)·ln Φ(u) + (M − a)·ln Φ(−u) + ln(q + u) − (q − u)²/8,    q = √(u² + 4),  a = votes that agree with me,

and μ̂ = r·w̄ with r = û·(q − û)/2: a number that depends on (a, M) only. f has one maximum, the root of f′.

>>> import numpy as np
>>> sign(np.array([-0.5, 0.0, 0.5], np.float32))
array([-1., -1.,  1.], dtype=float32)
>>> float(exact_ratio(50, 100).round(4)), float(exact_ratio(100, 100))
(0.0032, 1.0)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

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


# ---- update by maximum likelihood -----------------------------------------------------------------------------------------

FIT = (-5.4092, 1.3761, -0.5038)  # the paper's a1, a2, a3, made at M = 100
FIT_VOTERS = 100.0

Array = npt.NDArray[np.float64]
Ratio = Callable[[Array, float, bool], Array]

MANY = 2**14  # votes beyond which a table of all counts costs more than it saves
NODES = 2**16


def _mills(u: Array) -> Array:
    """φ(u)/Φ(u), accurate for every u: 0 far right, −u far left."""
    from scipy.special import erfcx

    return np.asarray(np.sqrt(2 / np.pi) / erfcx(-u / np.sqrt(2)), np.float64)


def _slope(u: Array, agree: Array, against: Array) -> Array:
    """f′(u)."""
    q = np.sqrt(u * u + 4)
    return np.asarray((agree - 1) * _mills(u) - against * _mills(-u) + 1 / q + (q - u) ** 2 / (4 * q), np.float64)


def exact_ratio(agree: npt.ArrayLike, voters: npt.ArrayLike, voted: bool = True) -> Array:
    """r = μ̂/w̄, exactly, in (−∞, 1]: 1 where all agree, the limit of the likelihood's unbounded maximum.

    Args:
        agree: votes with my sign, from 1 (mine alone; 0 if I did not vote) to `voters`; scalar or array.
        voters: M, the votes counted, 1 or more; need not be an integer.
        voted: whether my own vote is among them.
    """
    from scipy.optimize import elementwise  # half a second to import, which most processes of a deployment need not spend

    a, m = _with_mine(agree, voters, voted)
    if not (np.all(m >= 1) and np.all(a >= 1 - 1e-9) and np.all(a <= m + 1e-9)):
        low = 1 if voted else 0
        raise ValueError(f"exact_ratio(agree, voters) needs voters ≥ 1 and {low} ≤ agree ≤ voters")
    a = np.clip(a, 1, m)
    against = m - a
    unanimous = against <= 0
    against = np.where(unanimous, 1.0, against)  # any number will do, the result is overwritten
    # far right f′ ≈ 1/u − against·u, so û stays below 1/√against; far left the votes against cannot outweigh |u| beyond −40
    bracket = (np.full(a.shape, -40.0), 10 + 2 / np.sqrt(against))
    with np.errstate(over="ignore"):  # erfcx overflows to inf far left, where φ/Φ's partner is 0 as it should be
        u = np.asarray(elementwise.find_root(_slope, bracket, args=(a, against)).x, np.float64)
    q = np.sqrt(u * u + 4)
    return np.where(unanimous, 1.0, _ratio_at(u, q))


def _with_mine(agree: npt.ArrayLike, voters: npt.ArrayLike, voted: bool) -> tuple[Array, Array]:
    """Votes with my sign, and all: who did not vote has the f of one more voter, who agrees."""
    a, m = np.broadcast_arrays(np.asarray(agree, np.float64), np.asarray(voters, np.float64))
    return (a, m) if voted else (a + 1, m + 1)


def _ratio_at(u: Array, q: Array) -> Array:
    """r = û(q − û)/2, in two spellings, so that nothing cancels on either side."""
    return np.where(u > 0, 2 * u / (q + np.abs(u)), u * (q - u) / 2)


def location(ratio: Array) -> Array:
    """û = μ̂/σ̂ of a ratio r: r = û(√(û² + 4) − û)/2, solved for û; infinite where all agree."""
    with np.errstate(divide="ignore"):
        return np.asarray(ratio / np.sqrt(1 - ratio))


def fitted_ratio(agree: npt.ArrayLike, voters: npt.ArrayLike, voted: bool = True) -> Array:
    """The paper's fit a1 + a2·ln(M_P + a3) of r, made at M = 100; other M by the share of votes that agree."""
    a, m = _with_mine(agree, voters, voted)
    a1, a2, a3 = FIT
    return np.asarray(a1 + a2 * np.log(np.maximum(a * FIT_VOTERS / m, 1) + a3))


@lru_cache(maxsize=256)
def table(total: int, unit: int, weight: int, voted: bool, ratio: Ratio = exact_ratio) -> Array:
    """(total + 1,) r by the number of agreeing votes, for a client of |D_i| = weight; no fewer can agree than vote for my own."""
    values = _in_units(np.arange(total + 1), total, unit, weight, voted, ratio)
    values.flags.writeable = False
    return values


def ratios(agree: npt.NDArray[np.integer], total: int, unit: int, weight: int, voted: bool, ratio: Ratio = exact_ratio) -> Array:
    """r for vote counts, each from 0 to `total`: a table if that is short, else every count on its own."""
    if total < MANY:  # a liar can make it 2³⁰: time and memory must then follow the number of weights
        return np.take(table(total, unit, weight, voted, ratio), agree)
    quick = near_ratio if ratio is exact_ratio else ratio
    values = np.empty(len(agree))
    for start in range(0, len(agree), MANY):
        values[start : start + MANY] = _in_units(agree[start : start + MANY], total, unit, weight, voted, quick)
    return values


def _in_units(agree: npt.NDArray[np.integer], total: int, unit: int, weight: int, voted: bool, ratio: Ratio) -> Array:
    """A vote is worth unit/weight of this client's own."""
    votes = agree * (unit / weight)
    return ratio(np.maximum(votes, 1.0 if voted else 0.0), total * (unit / weight), voted)


def near_ratio(agree: npt.ArrayLike, voters: float, voted: bool = True) -> Array:
    """`exact_ratio` of many counts, interpolated between exact nodes: off by less than 1e-6 of r (of 1, where |r| < 1)."""
    mine = 0 if voted else 1  # as in `_with_mine`
    a = np.asarray(agree, np.float64) + mine
    return np.asarray(np.interp(np.clip(a, 1, voters + mine), *_nodes(voters + mine)))


@lru_cache(maxsize=16)
def _nodes(voters: float) -> tuple[Array, Array]:
    """Rising a from below 1 to `voters`, and r there, dense enough for straight lines between them."""
    coarse = np.linspace(-40, 0, 401)
    left = np.arcsinh(coarse[np.flatnonzero(_agree(coarse, voters) < 1).max(initial=0)])
    # beyond u = 40 r is 1 − (voters − a) almost exactly: few nodes will do
    u = np.sinh(np.concatenate([np.linspace(left, np.arcsinh(40), NODES), np.linspace(np.arcsinh(40), np.arcsinh(1e6), 512)]))
    rising = np.maximum.accumulate(np.minimum(_agree(u, voters), voters))  # it is, but for rounding
    return np.append(rising, voters), np.append(_ratio_at(u, np.sqrt(u * u + 4)), 1.0)


def _agree(u: Array, voters: float) -> Array:
    """The a whose û is u: f′(u) = 0 is linear in a, so that nodes need no search."""
    q = np.sqrt(u * u + 4)
    with np.errstate(over="ignore"):
        mine, theirs = _mills(u), _mills(-u)
    return np.asarray((mine + voters * theirs - 1 / q - (q - u) ** 2 / (4 * q)) / (mine + theirs))


def ml_pu(client: Client, public: Public, news: Message, *, alpha: float, ratio: Ratio = exact_ratio) -> Client:
    """aux ← clip(α·μ̂, −1, 1), where μ̂ = r·aux is the most likely mean of all clients' aux (ML-PU, paper §3).

    The ratio r depends only on how many votes agree with this client's own sign, so it is a function of the vote counts.
    A vote is worth unit/|D_i| of this client's own: that is the paper's virtual M_i = |D|/|D_i| for unequal sizes.
    """
    if not isinstance(news.update.alphabet, Votes):
        raise ConfigError("the ml_pu rule needs vote counts: combine it with a broadcast of votes")
    total, unit = news.update.alphabet.total, news.update.alphabet.unit
    agree = np.where(client.aux > 0, news.update.symbols, total - news.update.symbols)
    gain = (ratios(agree, total, unit, client.weight, client.voted, ratio) * alpha).astype(np.float32)
    return client._replace(aux=np.clip(gain * client.aux, -1, 1))
