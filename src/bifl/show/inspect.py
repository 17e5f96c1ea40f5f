"""What a file of messages or a model says, for `bifl inspect`: header, bytes of every section, bits per weight by layer."""

from __future__ import annotations

from pathlib import Path

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
from bifl.show.layers import trained
from bifl.show.tables import NAME, Column, Table, facts


def file_tables(path: Path, trust: bool = False) -> list[RichTable | Table | str]:
    """What a message or a model file says: facts, sections, layers, and what a model costs on a device.

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


def _sections_table(sections: dict[str, int], parameters: int) -> Table:
    """Bytes of each, and bits per parameter where the network, and so their number, is known."""
    whole = sum(sections.values())
    rows = []
    for key, count in (sections | {"whole file": whole}).items():
        bits = [f"{8 * count / parameters:.4f}"] if parameters else []
        rows.append([key, f"{count:,}", f"{count / whole:.1%}", *bits])
    return Table([Column("section", NAME), *map(Column, ("bytes", "share", *(["bit/param"] if parameters else [])))], rows)


def _message(path: Path, data: bytes, trust: bool) -> list[RichTable | Table | str]:
    header = codec.read_header(data)
    run = _run_of(path)
    known = None if run is None else _context(run, header, trust)
    decodable = header.context == NO_DIGEST or (known is not None and known.digest == header.context)
    sections = _sections_table(header.sections(), known.layout.parameters if known else 0)
    layers = _layers(data, codec.decode(data, known), known) if decodable else []
    return [facts(_facts(header, known).items(), path.name), sections, *layers]


def _unreadable(path: Path, error: codec.WireError) -> DataError:
    return DataError(f"'{path}' is neither a model nor a message that can be read: at byte {error.offset}: {error.reason}")


def _model(path: Path, data: bytes, trust: bool) -> list[RichTable | Table | str]:
    model, message = Model.read(path, trust), embedded(data)
    header, layout = codec.read_header(message), model.layout()
    about = {
        "network": f"{without_folder(model.network.name)}, {model.classes} classes",
        "forward": f"{model.forward.name} weights",
    }
    if model.inputs != BYTES:
        about["inputs"] = model.inputs
    if model.inputs != TOKENS:
        about["pixels" if model.inputs == BYTES else "normalised by"] = _scales(model)
    if model.task.name != "classification":
        about["task"] = without_folder(model.task.name)
    constants = 4 * len(model.constants)
    sections = {"model header": len(data) - len(message) - constants - 4, **header.sections()}
    sections |= ({"constants": constants} if constants else {}) | {"file checksum": 4}
    plain = codec.Context(layout, header.round)
    about |= {key: value for key, value in _facts(header, plain).items() if key not in ("kind", "sender")}
    layers = _layers(message, model.message, plain)
    return [facts(about.items(), path.name), _sections_table(sections, layout.parameters), *layers, trained(model, path)]


def _scales(model: Model) -> str:
    divided = "/255, " if model.inputs == BYTES else ""
    if isinstance(model.mean, tuple) or isinstance(model.std, tuple):
        return f"mean and deviation of each of {np.size(model.mean)} channels"
    return f"{divided}mean {model.mean}, deviation {model.std}"


def _facts(header: codec.Header, known: codec.Context | None) -> dict[str, str]:
    vectors = {}
    for vector in header.vectors:
        votes = f" 0 … {vector.total}, in units of {vector.unit}" if vector.unit else ""
        vectors[vector.section("symbols")] = f"{vector.symbols:,} {vector.spelled_alphabet().name}{votes}"
        vectors[vector.section("coder")] = codec.CODERS[vector.coder]
        vectors[vector.section("scales")] = f"{vector.scales:,}"
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


def _layers(data: bytes, message: Message, known: codec.Context | None) -> list[Table]:
    """What the symbols of each layer cost; nothing where the network is not known, or they are about no single weights."""
    if known is None:
        return []
    whole = np.zeros(known.layout.count)
    for name, bits in codec.bits_by_weight(data, message, known).items():
        about = message.vectors[name].about
        if about is not None and about.positions is None:
            return []
        whole[slice(None) if about is None else about.positions] += bits
    rows = []
    for tensor, part in zip(known.layout.coded, known.layout.split(whole), strict=True):
        shape, cost = "×".join(map(str, tensor.shape)), float(part.sum())
        rows.append([tensor.name, shape, f"{tensor.size:,}", f"{cost / 8:,.0f}", f"{cost / tensor.size:.4f}"])
    return [Table([Column("weights of", NAME), *map(Column, ("shape", "weights", "bytes", "bit/weight"))], rows)] if rows else []


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
