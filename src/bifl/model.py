"""The trained model as a product: one packed file, one bit per binary weight, the reals beside it.

File: magic "BIFLMODL", a JSON header (its length before it as 4 bytes, little-endian), one message of the wire with the
weights, and the CRC-32 of all that.

>>> import bifl
>>> network = bifl.load("runs/first/model")  # doctest: +SKIP
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from bifl import wire
from bifl.algorithm import BINARY, FLOAT32, TERNARY, Message, Shared
from bifl.data.datasets import Dataset
from bifl.errors import BiflError, DataError
from bifl.experiment import Choice
from bifl.files import write_atomic, writing
from bifl.layout import Layout
from bifl.nn.flat import Network
from bifl.nn.forward import FORWARDS, Forward, real
from bifl.nn.models import model
from bifl.train import Samples, evaluate_all

MAGIC = b"BIFLMODL"
_NUMBER = struct.Struct("<I")


@dataclass(frozen=True)
class Model:
    """Weights, and what is needed to use them.

    Attributes:
        network: the architecture by name.
        classes: number of outputs.
        forward: how the weights are used.
        mean: images/255 are normalised with this mean
        std: and this deviation.
        message: the weights and real parameters.
    """

    network: Choice
    classes: int
    forward: Forward
    mean: float
    std: float
    message: Message

    @classmethod
    def of(cls, choice: Choice, network: Network, data: Dataset, shared: Shared, forward: Forward) -> Model:
        """The global model, as `forward` uses it."""
        weights, reals = shared.weights, shared.real
        if FORWARDS.get(forward.name) != forward:  # somebody's own: keep what the network computes with in the end
            network.show(weights, reals, forward)
            plain = Network(model.make(choice.name, choice.parameters, data.classes), real)
            (weights, reals), forward = network.laid_out(plain.layout), real
        alphabet = forward.alphabet
        if alphabet == TERNARY and not np.isin(weights, (-1, 0, 1)).all():
            alphabet = FLOAT32  # the server preferred floats in the last round
        symbols = weights if alphabet == FLOAT32 else (weights > 0 if alphabet == BINARY else weights + 1).astype(np.uint8)
        message = Message(symbols, alphabet, reals, round=shared.round)
        return cls(choice, data.classes, forward, data.mean, data.std, message)

    def to_bytes(self) -> bytes:
        """The file's contents."""
        facts = {
            "model": {"name": self.network.name, **self.network.parameters},
            "classes": self.classes, "forward": self.forward.name, "mean": self.mean, "std": self.std,
        }  # fmt: skip
        header = json.dumps(facts).encode()
        message = wire.encode(self.message, wire.Context(self.layout(), self.message.round))
        body = MAGIC + _NUMBER.pack(len(header)) + header + message
        return body + _NUMBER.pack(zlib.crc32(body))

    def save(self, path: str | Path) -> int:
        """Write the file; its size in bytes."""
        data, path = self.to_bytes(), Path(path)
        with writing(path.parent):
            write_atomic(path, data)
        return len(data)

    @classmethod
    def read(cls, path: str | Path) -> Model:
        """Read a model file.

        Raises:
            DataError: it is not one, or damaged.
        """
        try:
            return cls._parse(Path(path).read_bytes())
        except OSError as error:
            raise DataError(f"cannot read model '{path}': {error.strerror}") from error
        except BiflError as error:
            raise DataError(f"'{path}' is not a model file of this program: {error}") from error
        except (ValueError, LookupError, TypeError, AttributeError, struct.error) as error:
            raise DataError(f"'{path}' is not a model file of this program: its header is damaged ({error})") from error

    @classmethod
    def _parse(cls, data: bytes) -> Model:
        if not data.startswith(MAGIC):
            raise DataError(f"it does not start with {MAGIC.decode()}")
        body = data[: -_NUMBER.size]
        if zlib.crc32(body) != _NUMBER.unpack_from(data, len(body))[0]:
            raise DataError("its checksum does not fit, it was damaged or cut short")
        start, end = _header(data)
        facts: dict[str, Any] = json.loads(body[start:end])
        choice = dict(facts["model"])
        network = Choice(str(choice.pop("name")), choice)
        forward, classes = FORWARDS[facts["forward"]], int(facts["classes"])
        layout = _make(network, classes, forward).layout
        message = wire.decode(body[end:], wire.Context(layout, wire.read_header(body[end:]).round))
        return cls(network, classes, forward, float(facts["mean"]), float(facts["std"]), message)

    def layout(self) -> Layout:
        """How the weights lie in the message."""
        return _make(self.network, self.classes, self.forward).layout

    def module(self) -> nn.Module:
        """The network in evaluation mode. It takes (n, channels, height, width) floats: (pixels/255 − mean)/std."""
        return self._network().ordinary()

    def _network(self) -> Network:
        network = _make(self.network, self.classes, self.forward)
        network.show(self.message.values(), self.message.real, self.forward)
        return network

    def score(self, data: Dataset) -> tuple[float, float]:
        """Accuracy and loss on a dataset's test images.

        Raises:
            DataError: there are none, or the network cannot take them.
        """
        network = self._network()
        if not len(data.test_labels):
            raise DataError("the dataset has no test images")
        if reason := network.misfit(data.test_images.shape[1:], self.classes):
            raise DataError(f"{self.network.name} does not take the dataset's images: {reason}")
        network = self._network()
        samples = Samples.of(data.test_images, data.test_labels, data)._replace(mean=self.mean, std=self.std)
        images = len(data.test_labels)
        correct, loss = evaluate_all(network, samples)
        return correct / images, loss / images


def _make(choice: Choice, classes: int, forward: Forward) -> Network:
    return Network(model.make(choice.name, choice.parameters, classes), forward)


def _header(data: bytes) -> tuple[int, int]:
    """Begin and end of a file's JSON header; the message follows."""
    start = len(MAGIC) + _NUMBER.size
    return start, start + int(_NUMBER.unpack_from(data, len(MAGIC))[0])


def embedded(data: bytes) -> bytes:
    """The message in a model file's bytes."""
    return data[_header(data)[1] : -_NUMBER.size]


def load(path: str | Path) -> nn.Module:
    """A trained model as an ordinary nn.Module in evaluation mode, its weights what the network computes with."""
    return Model.read(path).module()
