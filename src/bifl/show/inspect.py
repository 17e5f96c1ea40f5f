"""What a file of messages or a model says, for `bifl inspect`: header, bytes of every section, bits per weight by layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.table import Table as RichTable

from bifl import codec
from bifl.codec.context import NO_DIGEST
from bifl.codec.format import UPLOAD
from bifl.codec.model_file import MAGIC, embedded
from bifl.core.message import Message
from bifl.data.inputs import BYTES, TOKENS
from bifl.errors import DataError
from bifl.experiment import config_file
from bifl.experiment.model import Model
from bifl.experiment.setup import build
from bifl.registry import without_folder
from bifl.runs.folder import CONFIG, MESSAGES, Mailbox
from bifl.show.tables import NAME, Column, Table, facts


class FileContents(NamedTuple):
    """What a file contains, for people."""

    facts: dict[str, str]
    sections: dict[str, int]  # bytes
    layers: list[list[str]]  # name, shape, weights, bytes and bits per weight of each; none where the network is not known
    parameters: int  # what "bits per parameter" divides by; 0 where the network is not known


def read_file(path: Path, trust: bool = False) -> FileContents:
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
    try:
        return _message(path, data, trust)
    except codec.WireError as error:
        raise _unreadable(path, error) from error


def contents_tables(contents: FileContents, name: str) -> Iterator[RichTable | Table]:
    """What a message or a model file says: facts, sections, layers."""
    yield facts(contents.facts.items(), name)
    whole = sum(contents.sections.values())
    headings = ("bytes", "share", *(["bit/param"] if contents.parameters else []))
    rows = []
    for key, count in (contents.sections | {"whole file": whole}).items():
        bits = [f"{8 * count / contents.parameters:.4f}"] if contents.parameters else []
        rows.append([key, f"{count:,}", f"{count / whole:.1%}", *bits])
    yield Table([Column("section", NAME), *map(Column, headings)], rows)
    if contents.layers:
        headings = ("shape", "weights", "bytes", "bit/weight")
        yield Table([Column("weights of", NAME), *map(Column, headings)], contents.layers)


def _message(path: Path, data: bytes, trust: bool) -> FileContents:
    header = codec.read_header(data)
    run = _run_of(path)
    known = None if run is None else _context(run, header, trust)
    decodable = header.context == NO_DIGEST or (known is not None and known.digest == header.context)
    layers = _layers(data, codec.decode(data, known), known) if decodable else []
    return FileContents(_facts(header, known), header.sections(), layers, known.layout.parameters if known else 0)


def _unreadable(path: Path, error: codec.WireError) -> DataError:
    return DataError(f"'{path}' is neither a model nor a message that can be read: at byte {error.offset}: {error.reason}")


def _model(path: Path, data: bytes, trust: bool) -> FileContents:
    model, message = Model.read(path, trust), embedded(data)
    header, layout = codec.read_header(message), model.layout()
    facts = {
        "network": f"{without_folder(model.network.name)}, {model.classes} classes",
        "forward": f"{model.forward.name} weights",
    }
    if model.inputs != BYTES:
        facts["inputs"] = model.inputs
    if model.inputs != TOKENS:
        facts["pixels" if model.inputs == BYTES else "normalised by"] = _scales(model)
    if model.task.name != "classification":
        facts["task"] = without_folder(model.task.name)
    constants = 4 * len(model.constants)
    sections = {"model header": len(data) - len(message) - constants - 4, **header.sections()}
    sections |= ({"constants": constants} if constants else {}) | {"file checksum": 4}
    plain = codec.Context(layout, header.round)
    layers = _layers(message, model.message, plain)
    spelled = {key: value for key, value in _facts(header, plain).items() if key not in ("kind", "sender")}
    return FileContents(facts | spelled, sections, layers, layout.parameters)


def _scales(model: Model) -> str:
    divided = "/255, " if model.inputs == BYTES else ""
    if isinstance(model.mean, tuple) or isinstance(model.std, tuple):
        return f"mean and deviation of each of {np.size(model.mean)} channels"
    return f"{divided}mean {model.mean}, deviation {model.std}"


def _facts(header: codec.Header, known: codec.Context | None) -> dict[str, str]:
    vectors = {vector.section(name): fact for vector in header.vectors for name, fact in _vector_facts(vector).items()}
    precision = f"{header.precision} binary digits" if header.precision else "float32"
    precision += f", changes of {header.change_bits} bit" if header.change_bits else ""
    if header.context == NO_DIGEST:
        digest = "none needed"
    else:
        ours = "" if known is None else ", the run's" if known.digest == header.context else ", not the run's: symbols not decoded"
        digest = header.context.hex() + (ours or ": symbols not decoded, the file lies in no run's messages folder")
    return {
        "kind": codec.KINDS[header.kind], "round": str(header.round),
        "sender": f"client {header.sender}, {header.weight} images" if header.kind == UPLOAD else "server",
        "model": header.model.hex() if any(header.model) else "any",
        **vectors, "context": digest, "reals": f"{header.reals:,}, {precision}", "format": f"version {header.version}",
        "checksum": "ok",
    }  # fmt: skip


def _vector_facts(vector: codec.VectorHeader) -> dict[str, str]:
    votes = f" 0 … {vector.total}, in units of {vector.unit}" if vector.unit else ""
    return {
        "symbols": f"{vector.symbols:,} {vector.spelled_alphabet().name}{votes}",
        "coder": codec.CODERS[vector.coder],
        "scales": f"{vector.scales:,}",
    }


def _layers(data: bytes, message: Message, known: codec.Context | None) -> list[list[str]]:
    """What the symbols of each layer cost."""
    if known is None:
        return []
    whole = np.zeros(known.layout.count)
    for name, bits in codec.bits_by_weight(data, message, known).items():
        about = message.vectors[name].about
        if about is not None and about.positions is None:
            return []  # the symbols are about no single weights
        whole[slice(None) if about is None else about.positions] += bits
    rows = []
    for tensor, part in zip(known.layout.coded, known.layout.split(whole), strict=True):
        shape, cost = "×".join(map(str, tensor.shape)), float(part.sum())
        rows.append([tensor.name, shape, f"{tensor.size:,}", f"{cost / 8:,.0f}", f"{cost / tensor.size:.4f}"])
    return rows


def _run_of(path: Path) -> Path | None:
    """The run in whose messages folder the file lies."""
    for folder in path.resolve().parents:
        if folder.name == MESSAGES and (folder.parent / CONFIG).is_file():
            return folder.parent
    return None


def _context(run: Path, header: codec.Header, trust: bool) -> codec.Context | None:
    """What both ends knew when a message of this run was sent; None where the run's earlier broadcasts were not kept."""
    setup = build(config_file.read(run / CONFIG, trust))
    public, mailbox = setup.public, Mailbox(run)
    while True:
        for exchange in setup.run.exchanges:
            context = exchange.context(public)
            if context.round >= header.round and bytes.fromhex(context.layout.fingerprint) == header.model:
                return context
            if exchange.tells:
                path = mailbox.broadcast(context.round, exchange.name)
                if not path.exists():
                    return None
                try:
                    public = exchange.advance(public, codec.decode(path.read_bytes(), context))
                except codec.WireError as error:
                    raise _unreadable(path, error) from error
