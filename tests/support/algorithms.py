"""Algorithms that need more than the paper's: what an author writes in one file. They are no part of the package.

eden: updates in a random rotation, signs of a share of the coordinates. error_feedback: a client remembers what its message lost,
with a random compressor. compressed_news: the broadcast is compressed, and the server remembers what that lost; an Adam step of
the server's own comes first. trimmed: a sum that must see all uploads together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from bifl.core import (
    BINARY,
    FLOAT32,
    UPDATE,
    Algorithm,
    Alphabet,
    Client,
    Floats,
    Message,
    Public,
    Selection,
    Selections,
    Sent,
    Server,
    Tally,
    floats,
    mean,
    means,
    random_positions,
    random_signs,
    real,
    register,
    replace,
)  # fmt: skip

FOUR = Alphabet("four levels", 4)

# ---- signs of a share of the coordinates of a rotated update -----------------------------------------------------------


def hadamard(values: Floats) -> Floats:
    """The orthonormal Walsh-Hadamard transform of a vector whose length is a power of two: its own inverse."""
    rows = values.reshape(1, -1)
    while rows.shape[1] > 1:
        left, right = np.split(rows, 2, axis=1)
        rows = np.concatenate([left + right, left - right])
    return np.asarray(rows.ravel() / np.sqrt(len(values)), np.float32)


def padded(public: Public) -> int:
    return int(1 << (public.layout.count - 1).bit_length())


def coordinates(public: Public, sender: int | None, share: float) -> Selections:
    """Uploads are about a share of the rotated coordinates, the broadcast about all weights."""
    return {UPDATE: None if sender is None else Selection(round(share * padded(public)))}


def eden_upload(client: Client, public: Public, share: float) -> Message:
    size = padded(public)
    change = np.zeros(size, np.float32)
    change[: public.layout.count] = client.aux - public.weights
    rotated = hadamard(change * random_signs(public.stream(client.number, "rotation"), size))
    chosen = rotated[random_positions(public.stream(client.number, "coordinates"), size, round(share * size))]
    scale = np.square(rotated).sum() / np.abs(rotated).sum() / share
    return Message.of((chosen > 0).astype(np.uint8), BINARY, client.real, np.array([scale], np.float32))


def eden_reads(upload: Message, public: Public, share: float, shift: int = 0) -> Message:
    size, sender = padded(public), (upload.sender or 0) + shift
    rotated = np.zeros(size, np.float32)
    rotated[random_positions(public.stream(sender, "coordinates"), size, round(share * size))] = (
        upload.update.values() * upload.update.scales[0]
    )
    change = hadamard(rotated) * random_signs(public.stream(sender, "rotation"), size)
    return upload.with_update(symbols=public.weights + change[: public.layout.count], alphabet=FLOAT32, about=None)


@register
def example_eden(share: float = 0.25, shift: int = 0) -> Algorithm:
    """FedAvg by signs of a share of the rotated update."""
    reads = partial(eden_reads, share=share, shift=shift)
    selects = partial(coordinates, share=share)
    return Algorithm(partial(eden_upload, share=share), means, replace, reads=reads, selects=selects, forward=real, keeps=())


# ---- error feedback at the client, with a random compressor ------------------------------------------------------------


def feedback_upload(client: Client, public: Public) -> Sent:
    """Four levels, rounded at random; what rounding lost is added to the next upload."""
    wanted = client.aux - public.weights + (client.memory if client.memory.size else 0)
    largest = np.float32(np.abs(wanted).max() + 1e-12)
    dice = public.stream(client.number, "rounding").random(len(wanted), np.float32)
    symbols = np.clip(np.floor((wanted / largest + 1) * 1.5 + dice), 0, 3).astype(np.uint8)
    lost = (wanted - largest * FOUR.values(symbols)).astype(np.float32)
    return Sent(Message.of(symbols, FOUR, client.real, np.array([largest], np.float32)), memory=lost)


def feedback_reads(upload: Message, public: Public) -> Message:
    return upload.with_update(symbols=public.weights + upload.update.scales[0] * upload.update.values(), alphabet=FLOAT32)


@register
def example_feedback() -> Algorithm:
    """FedAvg by four levels an update, with error feedback."""
    return Algorithm(feedback_upload, means, replace, reads=feedback_reads, forward=real, keeps=("memory",))


# ---- a compressed broadcast with the server's memory, after a step of Adam -----------------------------------------------


def adam_broadcast(tally: Tally, public: Public, server: Server, *, rate: float) -> Sent:
    """Memory: the moments of Adam and what the last broadcast lost."""
    first, second, lost = server.memory if server.memory.size else np.zeros((3, public.layout.count), np.float32)
    change = (tally.update.mean - public.weights).astype(np.float32)
    first, second = np.float32(0.9) * first + np.float32(0.1) * change, np.float32(0.99) * second + np.float32(0.01) * change**2
    wanted = np.float32(rate) * first / (np.sqrt(second) + np.float32(1e-3)) + lost
    scales = np.array([np.abs(part).mean() for part in public.layout.layer_parts(wanted)], np.float32)
    news = Message.of((wanted > 0).astype(np.uint8), BINARY, tally.real, scales)
    said = news.update.values() * public.layout.per_weight(scales)
    return Sent(news, memory=np.stack([first, second, wanted - said]).astype(np.float32))


def add(public: Public, news: Message) -> Public:
    change = news.update.values() * public.layout.per_weight(news.update.scales)
    return public._replace(weights=public.weights + change, real=news.real, scales=news.update.scales)


@register
def example_adam(rate: float = 0.01) -> Algorithm:
    """FedAdam whose broadcast is the sign of the step, with error feedback at the server."""
    return Algorithm(floats, partial(adam_broadcast, rate=rate), replace, absorb=add, forward=real, keeps=())


# ---- a sum that is no mean ----------------------------------------------------------------------------------------------


def trimmed(uploads: Sequence[Message], public: Public) -> Tally:
    """The mean without the largest and the smallest value of every weight."""
    if len(uploads) < 3:
        raise ValueError("two uploads of three are left out")
    values = np.sort([upload.update.values() for upload in uploads], axis=0)[1:-1].mean(0, dtype=np.float64)
    return mean(uploads).with_update(mean=values)


@register
def example_trimmed() -> Algorithm:
    """FedAvg by trimmed means."""
    return Algorithm(floats, means, replace, aggregate=trimmed, forward=real, keeps=())


EXAMPLES: dict[str, Callable[[], Algorithm]] = {
    "example_eden": example_eden,
    "example_feedback": example_feedback,
    "example_adam": example_adam,
    "example_trimmed": example_trimmed,
    "eden_of_another_sender": partial(example_eden, shift=1),
}
