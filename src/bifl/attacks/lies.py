"""The attacks that come with bifl."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from bifl.attacks.attack import Attack, Labels, Liar, attack
from bifl.core import BINARY, Client, Floats, Message, Public, change, random_signs
from bifl.errors import ConfigError

LARGE = np.float32(2.0**20)  # far beyond what training gives; the server's bounds cut it

# ---- other votes, another update ---------------------------------------------------------------------------------------


def moved(client: Client, public: Public, by: Floats) -> Client:
    """The client as if training had changed the public weights so."""
    return client._replace(aux=(public.weights + by).astype(np.float32))


def instead(share: float, values: Callable[[Floats, Public, Liar], Floats]) -> Attack:
    """Liars who say other values: (their votes of ±1, or how training changed their weights; public state; liar) → values.

    A lie about votes is made in the message, a lie about an update in the weights before it. Who says its own values is honest.
    """

    def trained(client: Client, public: Public, liar: Liar) -> Client:
        honest = change(client, public)
        lie = honest if liar.ballots else values(honest, public, liar)
        return client if lie is honest else moved(client, public, lie)

    def said(message: Message, public: Public, liar: Liar) -> Message:
        if not liar.ballots:
            return message
        votes = values(message.update.values(), public, liar) > 0
        return message.with_update(symbols=votes.astype(message.update.symbols.dtype), alphabet=BINARY)

    return Attack(share, trained=trained, said=said)


def as_loud(signs: Floats, honest: Floats) -> Floats:
    """±1 with the root mean square of what is honest: such a lie is no louder than the truth."""
    return np.float32(np.sqrt(np.square(honest, dtype=np.float64).mean())) * signs


def turned(values: Floats, public: Public, liar: Liar) -> Floats:
    """Every vote turned, or the sign of the update."""
    return -values


@attack
def flip(share: float = 0.2) -> Attack:
    """Liars turn the sign of every vote, or of their update."""
    return instead(share, turned)


def against(values: Floats, public: Public, liar: Liar) -> Floats:
    """The same for all liars: against the sign of every public weight."""
    return as_loud(np.where(public.weights > 0, np.float32(-1), np.float32(1)), values)


@attack
def collude(share: float = 0.2) -> Attack:
    """Liars all vote, or push, against the sign of every public weight."""
    return instead(share, against)


def noise(values: Floats, public: Public, liar: Liar) -> Floats:
    """Random signs of each liar's own."""
    return as_loud(random_signs(liar.own("noise"), public.layout.count), values)


@attack
def random(share: float = 0.2) -> Attack:
    """Liars say random signs, or an update of random signs and honest length."""
    return instead(share, noise)


@attack
def scaled(share: float = 0.2, factor: float = -10.0) -> Attack:
    """Liars multiply their update by a factor; of ballots only the real parameters."""
    if not math.isfinite(factor) or abs(factor) > 1e3:
        raise ConfigError(f"attack.factor must be a number from −1000 to 1000, not {factor}")

    def louder(client: Client, public: Public, liar: Liar) -> Client:
        trained, times = public.layout.trained, np.float32(factor)
        real = client.real.copy()
        real[:trained] = public.real[:trained] + times * (client.real - public.real)[:trained]
        loud = client._replace(real=real)
        return loud if liar.ballots else moved(loud, public, times * change(client, public))

    return Attack(share, trained=louder)


# ---- wrong data ------------------------------------------------------------------------------------------------------------


def shifted(labels: Labels, classes: int, dice: np.random.Generator) -> Labels:
    """Every class takes another's name, the same for all liars; numbers are dealt out anew among a client's samples."""
    if labels.ndim == 1 and labels.dtype.kind in "iu":
        return (labels + 1 + dice.integers(max(1, classes - 1))) % max(1, classes)
    return labels[dice.permutation(len(labels))]


@attack
def labels(share: float = 0.2) -> Attack:
    """Liars train on wrong labels: classes change names, other targets change owners."""
    return Attack(share, labels=shifted)


# ---- real parameters, and batch-norm's statistics --------------------------------------------------------------------------


def poison(client: Client, public: Public, liar: Liar) -> Client:
    """Huge real parameters of agreed signs; the weights are honest."""
    trained = public.layout.trained
    real = client.real.copy()
    real[:trained] = LARGE * random_signs(liar.agreed("reals"), trained)
    return client._replace(real=real)


@attack
def reals(share: float = 0.2) -> Attack:
    """Liars send huge real parameters (batch-norm, ϑ, layers kept real) of agreed signs, and honest weights."""
    return Attack(share, trained=poison)


def wild(moments: Floats, public: Public, dice: np.random.Generator) -> Floats:
    """Huge means of agreed signs; variances that are huge or none, agreed too."""
    means = LARGE * random_signs(dice, len(moments) // 2)
    spread = dice.integers(1, 3, len(means)).astype(np.float32)
    return np.concatenate([means, means**2 * spread]).astype(np.float32)


def wild_training(client: Client, public: Public, liar: Liar) -> Client:
    """The same in the ballot, where it tells statistics of training and not the last ones."""
    trained = public.layout.trained
    moments = client.real[trained:]
    if np.array_equal(moments, public.real[trained:]):
        return client
    return client._replace(real=np.concatenate([client.real[:trained], wild(moments, public, liar.agreed("statistics"))]))


@attack
def statistics(share: float = 0.2) -> Attack:
    """Liars send huge statistics of batch-norm of agreed signs, and honest weights and parameters."""
    return Attack(share, trained=wild_training, measured=wild)
