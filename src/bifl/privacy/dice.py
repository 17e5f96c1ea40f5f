"""Where private noise comes from. In a deployment: from secrets that nobody else has. In a simulation: from the seed.

`secret_dice`, which `bifl.experiment.run.make_run` takes unless it is told otherwise, draws ChaCha20's key stream under a key of
the operating system's. `simulated_dice` draws a named stream of the experiment's seed, so that a simulation can be repeated:
**whoever knows the seed can take that noise away again, and nothing that it made is private.** Only the simulator and its readable
twin ask for it (`bifl.experiment.setup.build`); nodes and servers of a deployment have no setting that does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping

import numpy as np
import numpy.typing as npt

from bifl.codec.format import state_digest
from bifl.core import Public, random_words, stream
from bifl.errors import Refused

Words = Callable[[int], npt.NDArray[np.uint64]]  # so many random words of 64 bits
Dice = Callable[[Public, int | None, bytes], Words]  # (public state, client or None for the server, its secret) → random words

KEY = 32  # bytes
NOTE = "privacy"


def secret_dice(public: Public, sender: int | None, secret: bytes) -> Words:
    """Random words that nobody but the owner of the secret can derive; of fresh randomness, where there is no secret."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    flow = Cipher(algorithms.ChaCha20(secret or os.urandom(KEY), bytes(16)), mode=None).encryptor()
    return lambda count: np.frombuffer(flow.update(bytes(8 * count)), "<u8")


def simulated_dice(public: Public, sender: int | None, secret: bytes) -> Words:
    """Random words of the seed, which everyone can derive: FOR SIMULATIONS ONLY, in which nothing is private."""
    generator = stream(public.seed, public.round + 1, sender, "privacy, simulated")
    return lambda count: random_words(generator, count)


def round_secret(notes: MutableMapping[str, bytes], public: Public) -> bytes:
    """A client's secret for the round under way: a new one for every round, the same if a round is held again.

    Noise that is drawn anew for the same update could be averaged away. So a client answers each round once: if it is asked
    again, with the same noise, and for no other model. `notes` are what the client keeps, durable before its answer leaves.
    """
    round, model, note = public.round + 1, state_digest(public, (public.news,)), notes.get(NOTE, b"")
    last = int.from_bytes(note[:8], "big")
    if last > round or (last == round and note[8:40] != model):
        raise Refused(f"this client has told its private update of round {last}: it tells no other for round {round}")
    if last < round:
        notes[NOTE] = note = round.to_bytes(8, "big") + model + os.urandom(KEY)
    return note[40:]
