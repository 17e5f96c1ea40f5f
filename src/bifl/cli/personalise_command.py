"""`bifl personalise`: a client's own network."""

from __future__ import annotations

import argparse

from bifl.data.fingerprint import loaded
from bifl.engine.simulator import Simulation
from bifl.errors import RunError
from bifl.experiment.setup import build
from bifl.files import size
from bifl.runs.folder import RunFolder, locked
from bifl.show.output import console, say


def personalise(options: argparse.Namespace) -> int:
    """Write the network of one client, and say how it does beside the global one."""
    run = RunFolder.resume(options.run, trust=options.trust)
    with locked(run.path):
        setup = build(run.experiment)
        run.refuse_other_data(loaded(setup.data))  # the client's samples would be somebody else's
        simulation = Simulation(setup, run.checkpoint)
        if simulation.last is None:
            raise RunError(f"'{run.path}' has no complete round yet")
        own = simulation.client_model(options.client)
    path = options.out or run.path / f"client-{options.client}.model"
    written = own.save(path)
    out, shared = console(), simulation.model()
    shard = setup.shards[options.client]
    held = setup.data._replace(test_inputs=setup.data.inputs[shard], test_labels=setup.data.labels[shard])
    for what, data in {f"what client {options.client} holds out": held, "the test set": setup.data}.items():
        if len(data.test_labels):
            mine, theirs = own.metrics(data)[0], shared.metrics(data)[0]
            name = next(iter(mine))  # the one that tables show, in %
            result = f"{name} {mine[name]:.2%}, of the global network {theirs[name]:.2%}"
            say(out, f"{result}, on {what}, {len(data.test_labels):,} samples")
    say(out, f"{path}: {size(written)}")
    return 0
