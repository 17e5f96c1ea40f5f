"""The trained model as a product: one packed file, one bit per binary weight, the reals beside it.

For the file's format see `bifl.codec.model_file`. A network from a user's own file is named `file.py:name`, without its folder;
reading such a model runs that file, if the caller trusts it, from the folder of the model or from the current one.

>>> import bifl
>>> network = bifl.load("runs/first/model")  # doctest: +SKIP
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bifl import codec
from bifl.codec.format import PACKED
from bifl.codec.model_file import parts, reading, whole
from bifl.core import BINARY, FLOAT32, TERNARY, Message, Public
from bifl.core.forward import FORWARDS, Forward, real
from bifl.core.layout import Layout
from bifl.core.message import Floats
from bifl.data.arrays import further_array, input_array, refuse_missing
from bifl.data.inputs import BYTES, FLOATS, TOKENS, Dataset, Scale, is_shape, kind_of
from bifl.errors import DataError, Untrusted
from bifl.experiment.declarations import Choice, chosen, from_mapping
from bifl.experiment.objects import Net, model_name
from bifl.files import write_atomic, writing
from bifl.nn import scores as score_norms
from bifl.nn.batch import Samples
from bifl.nn.models import model
from bifl.nn.network import Network
from bifl.registry import GIVEN, Registry, of_file, short, without_folder
from bifl.tasks import task
from bifl.training.evaluation import evaluate_all, example, predict_all

if TYPE_CHECKING:
    from bifl.experiment.run import Run

MOST_CHANNELS = 2**24

_USUAL = Choice("classification")


@dataclass(frozen=True)
class Model:
    """Weights, and what is needed to use them.

    Attributes:
        network: the architecture by name.
        classes: number of outputs.
        forward: how the weights are used.
        mean: pixels/255, or floats, are normalised with this mean, or with one for each channel,
        std: and this deviation.
        message: the weights and real parameters.
        constants: what the network computes with beside them: frozen parameters, and buffers that nobody trains.
        task: what it has learnt.
        inputs: what it takes: bytes (pixels), floats or tokens.
        shape: of one input; empty in files of versions that did not keep it.
        scores: the setting of this name.
    """

    network: Choice
    classes: int
    forward: Forward
    mean: Scale
    std: Scale
    message: Message
    constants: Floats
    task: Choice = _USUAL
    inputs: str = BYTES
    shape: tuple[int, ...] = ()
    scores: str = "trained"

    @classmethod
    def of(cls, run: Run, data: Dataset, public: Public, forward: Forward) -> Model:
        """The model of a run, whose weights `forward` uses."""
        choice, task, scores, network = run.experiment.model, run.experiment.task, run.experiment.scores, run.network
        weights, reals = public.weights, public.real
        if FORWARDS.get(forward.name) != forward:  # somebody's own: keep what the network computes with in the end
            network.show(weights, reals, forward)
            plain = _make(choice, data.classes, real, scores)
            (weights, reals), forward = network.laid_out(plain.layout), real
        alphabet = forward.alphabet
        if alphabet == TERNARY and not np.isin(weights, (-1, 0, 1)).all():
            alphabet = FLOAT32  # the server preferred floats in the last round
        symbols = weights if alphabet == FLOAT32 else (weights > 0 if alphabet == BINARY else weights + 1).astype(np.uint8)
        message = Message.of(symbols, alphabet, reals, round=public.round)
        constants, shape = network.constants.read(), tuple(int(size) for size in data.form.shape)
        return cls(choice, data.classes, forward, data.mean, data.std, message, constants, task, data.form.kind, shape, scores)

    def to_bytes(self) -> bytes:
        """The file's contents."""
        facts = {
            "model": {"name": without_folder(self.network.name), **self.network.parameters},
            "classes": self.classes, "forward": self.forward.name, "mean": self.mean, "std": self.std,
        } | ({"constants": len(self.constants)} if len(self.constants) else {})  # fmt: skip
        facts |= {"inputs": self.inputs} if self.inputs != BYTES else {}
        facts |= {"task": {"name": without_folder(self.task.name), **self.task.parameters}} if self.task != _USUAL else {}
        facts |= {"input": self.shape} if self.shape else {}
        facts |= {"scores": self.scores} if self.scores != "trained" else {}
        return whole(facts, codec.encode(self.message, codec.Context(self.layout(), self.message.round)), self.constants)

    def save(self, path: str | Path) -> int:
        """Write the file; its size in bytes."""
        data, path = self.to_bytes(), Path(path)
        with writing(path.parent):
            write_atomic(path, data)
        return len(data)

    @classmethod
    def read(cls, path: str | Path, trust: bool = False, network: Net | None = None) -> Model:
        """Read a model file.

        Args:
            path: of the file.
            trust: whether to run the Python file that it names, if it does.
            network: its network, where that was given to `bifl.simulate` as an object.

        Raises:
            DataError: it is not a model file, or damaged.
            Untrusted: it names a Python file, which is not trusted.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise DataError(f"cannot read model '{path}': {error.strerror}") from error
        with reading(path):
            facts, message, constants = parts(data)
            choice = from_mapping(facts["model"])
            goal = from_mapping(facts["task"]) if "task" in facts else _USUAL
        if network is not None:
            choice = Choice(model_name(network))
        elif choice.name.startswith(GIVEN) and choice.name not in model.names():
            name = choice.name.removeprefix(GIVEN)
            raise DataError(f"the network of '{path}' was given as an object, {name}: give it again, bifl.load(path, model=…)")
        if of_file(choice.name):
            choice = _vouched(choice, model, Path(path), trust)
        if of_file(goal.name):
            goal = _vouched(goal, task, Path(path), trust)
        with reading(path):
            return cls._of_facts(choice, chosen("task", task, goal), facts, message, constants)

    @classmethod
    def _of_facts(cls, choice: Choice, goal: Choice, facts: dict[str, Any], message: bytes, constants: Floats) -> Model:
        """Every number is checked against the length of the message before a network of that size is built."""
        forward, header = FORWARDS[facts["forward"]], codec.read_header(message)
        classes, mean, std = facts["classes"], _scale(facts["mean"]), _scale(facts["std"])
        inputs = facts.get("inputs", BYTES)
        if inputs not in (BYTES, FLOATS, TOKENS):
            raise DataError(f"its inputs are {inputs!r:.40}")
        if type(classes) is not int or not 1 <= classes <= header.symbols + header.reals:
            raise DataError(f"{header.symbols + header.reals:,} weights cannot tell {classes} classes apart")
        tuples = isinstance(mean, tuple) or isinstance(std, tuple)
        if not (np.isfinite(mean).all() and np.isfinite(std).all() and np.min(std) > 0) or (tuples and inputs != FLOATS):
            raise DataError(f"its pixels have mean {mean!s:.80} and deviation {std!s:.80}")
        scores = facts.get("scores", "trained")
        if scores not in score_norms.SCORES:
            raise DataError(f"its scores are {scores!r:.40}")
        layout, size = _blueprint(choice, classes, forward, scores, header)
        if size != len(constants):
            raise DataError(f"{choice.name} has {size:,} constants, the file holds {len(constants):,}")
        if (layout.count, layout.reals) != (header.symbols, header.reals):
            raise DataError(
                f"{choice.name} of {classes} classes has {layout.count:,} coded and {layout.reals:,} real numbers, "
                f"the file holds {header.symbols:,} and {header.reals:,}"
            )
        decoded, shape = codec.decode(message, codec.Context(layout, header.round)), _input_shape(facts.get("input", []))
        return cls(choice, classes, forward, mean, std, decoded, constants, goal, inputs, shape, scores)

    def layout(self) -> Layout:
        """How the weights lie in the message."""
        return _make(self.network, self.classes, self.forward, self.scores).layout

    def module(self) -> nn.Module:
        """The network in evaluation mode. It takes floats: (pixels/255 − mean)/std, or (floats − mean)/std; or tokens."""
        return self._network().ordinary()

    @torch.no_grad()
    def predict(self, inputs: npt.ArrayLike, **further: npt.ArrayLike) -> Floats:
        """(n, …) what the network gives for raw inputs, as ONNX and C give it: bytes, floats or tokens as the dataset has them.

        `further` is what its forward takes beside them, by name.
        """
        raw = np.asarray(inputs)
        raw = input_array(raw.astype(np.float32) if raw.dtype == np.float64 else raw, "inputs")
        refuse_missing(raw, "inputs")
        name, one = without_folder(self.network.name), self.shape or raw.shape[1:]
        if (kind_of(raw), raw.shape[1:]) != (self.inputs, one):
            raise DataError(f"{name} takes {self.inputs} of shape (n, {str(one)[1:]}, not {raw.dtype} of shape {raw.shape}")
        beside = {key: torch.from_numpy(further_array(np.array(array), len(raw), key)) for key, array in further.items()}
        samples = Samples(
            torch.from_numpy(np.require(raw, requirements=("C", "W"))), torch.zeros(len(raw)), self.mean, self.std, beside
        )
        return predict_all(self._module, samples, name) if len(raw) else np.zeros((0, self.classes), np.float32)

    @cached_property
    def _module(self) -> nn.Module:
        """For `predict`; nobody else may change it."""
        return self.module()

    def _network(self) -> Network:
        network = _make(self.network, self.classes, self.forward, self.scores)
        network.constants.write(self.constants)
        network.show(self.message.update.values(), self.message.real, self.forward)
        return network

    def metrics(self, data: Dataset) -> tuple[dict[str, float], float]:
        """All metrics of the task, and the loss, on a dataset's test samples."""
        network, goal = self._network(), self.task.made(task)
        if not len(data.test_labels):
            raise DataError("the dataset has no test images")
        labels, outputs = goal.targets(data.test_labels, self.classes)
        if labels.ndim == 1 and labels.max() >= self.classes:
            raise DataError(f"the dataset has a label {labels.max()}, the model tells {self.classes} classes apart, from 0 on")
        form = data.form
        if outputs != self.classes or form.kind != self.inputs:
            theirs = f"{outputs} outputs for {form.kind}"
            raise DataError(f"the dataset needs {theirs}, {self.network.name} gives {self.classes} for {self.inputs}")
        if misfit := network.misfit(example(form, 1), goal.output(labels.shape[1:], self.classes)):
            raise DataError(f"{self.network.name} does not take the dataset's inputs: {misfit.reason}")
        whole = data._replace(test_labels=labels, classes=self.classes, mean=self.mean, std=self.std)
        samples = Samples.testing(whole)
        return evaluate_all(self._network(), goal, samples)


def _make(choice: Choice, classes: int, forward: Forward, scores: str) -> Network:
    return Network(score_norms.make(choice.name, choice.parameters, classes, scores), forward)


def _blueprint(choice: Choice, classes: int, forward: Forward, scores: str, header: codec.Header) -> tuple[Layout, int]:
    """The layout of a network, which takes no memory for its weights, and how many constants it has."""
    if header.coder != PACKED or header.precision:  # then the file's length says nothing of how many there are
        raise DataError("its numbers are coded, in a model file they are spelled out")
    try:
        with torch.device("meta"):
            network = _make(choice, classes, forward, scores)
        return network.layout, network.constants.size()
    except Exception as error:
        numbers = [number for number in choice.parameters.values() if isinstance(number, (int, float))]
        built_in = not of_file(choice.name) and not choice.name.startswith(GIVEN)
        if built_in or max(numbers, default=0) > header.symbols + header.reals:
            raise DataError(f"{choice.name} cannot be built ({type(error).__name__}: {error})") from error
    network = _make(choice, classes, forward, scores)  # a user's network that computes while it is built
    return network.layout, network.constants.size()


def _input_shape(sizes: Any) -> tuple[int, ...]:
    """The shape of one input, as a header says; a network is tried out with one."""
    if not isinstance(sizes, list) or not is_shape(sizes):
        raise DataError(f"its inputs cannot have the shape {sizes}")
    return tuple(sizes)


def _scale(given: Any) -> Scale:
    """A number, or one for each channel."""
    if isinstance(given, list):
        if not 1 <= len(given) <= MOST_CHANNELS:
            raise DataError(f"it cannot have {len(given)} channels")
        return tuple(map(float, given))
    return float(given)


def _vouched(choice: Choice, registry: Registry[Any], path: Path, trust: bool) -> Choice:
    """A network or task from a Python file, which is looked for beside the model and in the current folder, and run if trusted."""
    name, places = without_folder(choice.name), list(dict.fromkeys([path.resolve().parent, Path.cwd()]))
    file = of_file(name)
    python_file = next((place / file for place in places if (place / file).is_file()), None)
    kind = "network" if registry is model else registry.kind
    if not trust:
        raise Untrusted(
            f"'{path}' has its {kind} from a Python file and would run the code in '{python_file or file}': "
            "if you trust it, allow that with --trust (in Python: trust=True)"
        )
    if python_file is None:
        looked = " and in ".join(f"'{place}'" for place in places)
        raise DataError(f"'{path}' needs the Python file '{file}', which was looked for in {looked}: put it there")
    return Choice(registry.load(f"{python_file}:{short(name)}"), choice.parameters)


def load(path: str | Path, trust: bool = False, model: Net | None = None) -> nn.Module:
    """A trained model as an ordinary nn.Module in evaluation mode, its weights what the network computes with.

    `trust` allows to run the Python file of a network that somebody wrote; without it such models are refused. `model` is the
    network of a run that it was given to as an object: a module, or a function classes → module.
    """
    return Model.read(path, trust, model).module()
