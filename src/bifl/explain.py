"""What a file of messages or a model says, for `bifl inspect`: header, bytes of every section, bits per weight by layer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bifl import wire
from bifl.algorithm import absorb
from bifl.errors import DataError
from bifl.experiment import Experiment
from bifl.message import Message
from bifl.model import MAGIC, Model, embedded
from bifl.registry import without_folder
from bifl.runtime import calibration
from bifl.runtime.folder import CONFIG
from bifl.runtime.mailbox import BROADCAST, FOLDER, STATISTICS, Mailbox
from bifl.runtime.world import build, context


class Layer(NamedTuple):
    """A tensor of the coded vector and what its symbols cost."""

    name: str
    shape: tuple[int, ...]
    weights: int
    bits: float


class Explanation(NamedTuple):
    """What there is to say of a file."""

    facts: dict[str, str]
    sections: dict[str, int]  # bytes
    layers: list[Layer]  # empty where the network is not known
    parameters: int  # what "bits per parameter" divides by; 0 where the network is not known


def explain(path: Path, trust: bool = False) -> Explanation:
    """Read a message or a model file.

    A message that lies in the folder of its run is decoded in its context, which the run's earlier broadcasts give. `trust` allows
    to run the Python files that the model or the run's configuration names.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror}") from error
    if data.startswith(MAGIC):
        return _model(path, data, trust)
    header = wire.read_header(data)
    run = _run_of(path)
    known = None if run is None else _context(run, header, trust)
    facts = _facts(header, known)
    if header.context == bytes(8) or (known is not None and known.digest == header.context):
        message = wire.decode(data, known)
        return Explanation(facts, header.sections(), _layers(data, message, known), known.layout.parameters if known else 0)
    return Explanation(facts, header.sections(), [], known.layout.parameters if known else 0)


def _model(path: Path, data: bytes, trust: bool) -> Explanation:
    model, message = Model.read(path, trust), embedded(data)
    header, layout = wire.read_header(message), model.layout()
    facts = {
        "network": f"{without_folder(model.network.name)}, {model.classes} classes",
        "forward": f"{model.forward.name} weights",
    }
    facts["pixels"] = f"/255, mean {model.mean}, deviation {model.std}"
    sections = {"model header": len(data) - len(message) - 4, **header.sections(), "file checksum": 4}
    plain = wire.Context(layout, header.round)
    layers = _layers(message, model.message, plain)
    spelled = {key: value for key, value in _facts(header, plain).items() if key not in ("kind", "sender")}
    return Explanation(facts | spelled, sections, layers, layout.parameters)


def _facts(header: wire.Header, known: wire.Context | None) -> dict[str, str]:
    alphabet = header.spelled_alphabet()
    votes = f" 0 … {header.total}, each worth {header.unit} images" if header.total else ""
    precision = f"{header.precision} binary digits" if header.precision else "float32"
    if header.context == bytes(8):
        digest = "none needed"
    else:
        ours = "" if known is None else ", the run's" if known.digest == header.context else ", not the run's: symbols not decoded"
        digest = header.context.hex() + (ours or ": symbols not decoded, the file lies in no run's messages folder")
    return {
        "kind": wire.KINDS[header.kind], "round": str(header.round),
        "sender": f"client {header.sender}, {header.weight} images" if header.kind == 1 else "server",
        "model": header.model.hex() if any(header.model) else "any",
        "symbols": f"{header.symbols:,} {alphabet.name}{votes}", "coder": wire.CODERS[header.coder], "context": digest,
        "reals": f"{header.reals:,}, {precision}", "scales": f"{header.scales:,}", "format": f"version {header.version}",
        "checksum": "ok",
    }  # fmt: skip


def _layers(data: bytes, message: Message, known: wire.Context | None) -> list[Layer]:
    if known is None:
        return []
    bits = wire.bits_by_weight(data, message, known)
    return [
        Layer(tensor.name, tensor.shape, tensor.size, float(part.sum()))
        for tensor, part in zip(known.layout.coded, known.layout.split(bits), strict=True)
    ]


def _run_of(path: Path) -> Path | None:
    """The run in whose messages folder the file lies."""
    for folder in path.resolve().parents:
        if folder.name == FOLDER and (folder.parent / CONFIG).is_file():
            return folder.parent
    return None


def _context(run: Path, header: wire.Header, trust: bool) -> wire.Context | None:
    """What both ends knew when a message of this run was sent; None where the run's earlier messages were not kept."""
    try:
        return _replayed(run, header, trust)
    except FileNotFoundError:
        return None


def _replayed(run: Path, header: wire.Header, trust: bool) -> wire.Context:
    experiment = Experiment.from_toml(run / CONFIG, trust)
    world = build(experiment)
    shared, mailbox = world.shared, Mailbox(run)
    statistics = header.model.hex() == shared.layout.statistics.fingerprint
    while shared.round < header.round - (not statistics):
        news = mailbox.path(shared.round + 1, BROADCAST).read_bytes()
        shared = absorb(world.algorithm, shared, wire.decode(news, context(experiment, shared)))
        if calibration.wanted(experiment, world.algorithm, shared) and shared.round < header.round:
            known = calibration.context(experiment, shared)
            shared = calibration.settled(shared, wire.decode(mailbox.path(shared.round, STATISTICS).read_bytes(), known))
    return calibration.context(experiment, shared) if statistics else context(experiment, shared)
