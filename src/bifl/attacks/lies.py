"""The attacks that come with bifl. A lie about ballots is made in the message, a lie about updates in the weights before it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from bifl.attacks.attack import Attack, Labels, Liar, attack
from bifl.core import BINARY, Client, Floats, Message, Public, change, random_signs
from bifl.errors import ConfigError

Signs = Callable[[Public, Liar], Floats]  # (count,) ±1

LARGE = np.float32(2.0**20)  # far beyond what training gives; the server's bounds cut it


def moved(client: Client, public: Public, by: Floats) -> Client:
    """The client as if training had changed the public weights so."""
    return client._replace(aux=(public.weights + by).astype(np.float32))


def length(client: Client, public: Public) -> np.float32:
    """Root mean square of what training changed: a lie of this size is no louder than the truth."""
    return np.float32(np.sqrt(np.square(change(client, public), dtype=np.float64).mean()))


def ballot(message: Message, signs: Floats) -> Message:
    """A ballot of these signs."""
    return message.with_update(symbols=(signs > 0).astype(message.update.symbols.dtype), alphabet=BINARY)


# ---- the sign turned ---------------------------------------------------------------------------------------------------


def turned(client: Client, public: Public, liar: Liar) -> Client:
    """An update with its sign turned."""
    return client if liar.ballots else moved(client, public, -change(client, public))


def turned_ballot(message: Message, public: Public, liar: Liar) -> Message:
    """Every vote turned."""
    return ballot(message, -message.update.values()) if liar.ballots else message


@attack
def flip(share: float = 0.2) -> Attack:
    """Liars turn the sign of every vote, or of their update."""
    return Attack(share, trained=turned, said=turned_ballot)


# ---- all liars the same, or noise ----------------------------------------------------------------------------------------


def push(client: Client, public: Public, liar: Liar, *, signs: Signs) -> Client:
    """An update of these signs, of honest length."""
    return client if liar.ballots else moved(client, public, length(client, public) * signs(public, liar))


def push_ballot(message: Message, public: Public, liar: Liar, *, signs: Signs) -> Message:
    """A ballot of these signs."""
    return ballot(message, signs(public, liar)) if liar.ballots else message


def against(public: Public, liar: Liar) -> Floats:
    """(count,) ±1 against the public weights, the same for all liars."""
    return np.where(public.weights > 0, np.float32(-1), np.float32(1))


@attack
def collude(share: float = 0.2) -> Attack:
    """Liars all vote, or push, against the sign of every public weight."""
    return Attack(share, trained=partial(push, signs=against), said=partial(push_ballot, signs=against))


def noise(public: Public, liar: Liar) -> Floats:
    """(count,) random signs, of each liar's own."""
    return random_signs(liar.own("noise"), public.layout.count)


@attack
def random(share: float = 0.2) -> Attack:
    """Liars say random signs, or an update of random signs and honest length."""
    return Attack(share, trained=partial(push, signs=noise), said=partial(push_ballot, signs=noise))


# ---- too loud ------------------------------------------------------------------------------------------------------------


def louder(client: Client, public: Public, liar: Liar, *, factor: float) -> Client:
    """An update times a factor, that of the real parameters too."""
    trained, times = public.layout.trained, np.float32(factor)
    real = client.real.copy()
    real[:trained] = public.real[:trained] + times * (client.real - public.real)[:trained]
    loud = client._replace(real=real)
    return loud if liar.ballots else moved(loud, public, times * change(client, public))


@attack
def scaled(share: float = 0.2, factor: float = -10.0) -> Attack:
    """Liars multiply their update by a factor; of ballots only the real parameters."""
    if not math.isfinite(factor) or abs(factor) > 1e3:
        raise ConfigError(f"attack.factor must be a number from −1000 to 1000, not {factor}")
    return Attack(share, trained=partial(louder, factor=factor))


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


# ---- real parameters -------------------------------------------------------------------------------------------------------


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


# ---- batch-norm's statistics -----------------------------------------------------------------------------------------------


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
