"""The trained model as a product: one packed file, one bit per binary weight, the reals beside it.

File: magic "BIFLMODL", a JSON header (length as 4 bytes, little-endian), and one message of the wire with the weights.

>>> import bifl
>>> network = bifl.load("runs/first/model")  # doctest: +SKIP
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from bifl import wire
from bifl.algorithm import Message, Shared
from bifl.data.datasets import Dataset
from bifl.errors import BiflError, DataError
from bifl.experiment import Choice, Experiment
from bifl.files import write_atomic, writing
from bifl.nn.flat import Network
from bifl.nn.forward import FORWARDS, Forward
from bifl.nn.models import model
from bifl.train import Samples, evaluate

MAGIC = b"BIFLMODL"
_LENGTH = struct.Struct("<I")


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
    def of(cls, experiment: Experiment, data: Dataset, shared: Shared, forward: Forward) -> Model:
        """The global model of an experiment."""
        binary = forward.alphabet.size == 2
        symbols = (shared.weights > 0).astype(np.uint8) if binary else shared.weights
        message = Message(symbols, forward.alphabet, shared.real, round=shared.round)
        return cls(experiment.model, data.classes, forward, data.mean, data.std, message)

    def to_bytes(self) -> bytes:
        """The file's contents."""
        facts = {
            "model": {"name": self.network.name, **self.network.parameters},
            "classes": self.classes, "forward": self.forward.name, "mean": self.mean, "std": self.std,
        }  # fmt: skip
        header = json.dumps(facts).encode()
        return MAGIC + _LENGTH.pack(len(header)) + header + wire.encode(self.message)

    def save(self, path: Path) -> int:
        """Write the file; its size in bytes."""
        data = self.to_bytes()
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
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise DataError(f"'{path}' is not a model file of this program: its header is damaged ({error})") from error

    @classmethod
    def _parse(cls, data: bytes) -> Model:
        if not data.startswith(MAGIC):
            raise DataError(f"it does not start with {MAGIC.decode()}")
        start = len(MAGIC) + _LENGTH.size
        end = start + _LENGTH.unpack_from(data, len(MAGIC))[0]
        facts: dict[str, Any] = json.loads(data[start:end])
        choice = dict(facts["model"])
        return cls(
            Choice(choice.pop("name"), choice), facts["classes"], FORWARDS[facts["forward"]], facts["mean"], facts["std"],
            wire.decode(data[end:]),
        )  # fmt: skip

    def module(self) -> nn.Module:
        """The network in evaluation mode. It takes (n, channels, height, width) floats: (pixels/255 − mean)/std."""
        return self._network().ordinary()

    def _network(self) -> Network:
        network = Network(model.make(self.network.name, self.network.parameters, self.classes))
        layout, message = network.layout, self.message
        if len(message.symbols) != layout.count or len(message.real) != layout.reals:
            raise DataError(f"the model file holds {len(message.symbols)} weights, {self.network.name} has {layout.count}")
        network.show(message.values(), message.real, self.forward)
        return network

    def score(self, data: Dataset, chunk: int = 500) -> tuple[float, float]:
        """Accuracy and loss on a dataset's test images."""
        network = self._network()
        samples = Samples.of(data.test_images, data.test_labels, data)._replace(mean=self.mean, std=self.std)
        images = len(data.test_labels)
        parts = [evaluate(network, samples, slice(start, start + chunk)) for start in range(0, images, chunk)]
        return sum(correct for correct, _ in parts) / images, sum(loss for _, loss in parts) / images


def load(path: str | Path) -> nn.Module:
    """A trained model as an ordinary nn.Module in evaluation mode, its weights what the network computes with."""
    return Model.read(path).module()
