"""Small runs of every kind and the digests of what they wrote: a change of the house that changes no number changes no digest.

`python -m tests.golden --out FILE` in the old tree and in the new one, then `diff`. Processors of other kinds give other digests.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SMALL = "clients=6 rounds=3 local_steps=3 batch=32 workers=1 seed=3"
RUNS = {
    "fedavg": "algorithm=fedavg",
    "biml": "algorithm=biml workers=2",
    "murmur": "algorithm=murmur workers=2",
    "murmur-narrow": "algorithm=murmur algorithm.down=1of8 algorithm.forward=binary",
    "eden": "algorithm=eden algorithm.p=0.3",
    "fttq": "algorithm=fttq",
    "hybrid": "algorithm=hybrid algorithm.switch=1",
    "up_down": "algorithm=up_down schedule=cosine clip=1 weigh=equal partition=unbalanced",
    "ef_sign": "algorithm=ef_sign",
    "fedpm": "algorithm=fedpm lr=0.1",
    "adam": "algorithm=fedadam",
    "proximal": "algorithm=fedprox algorithm.mu=0.1",
    "nc3": "algorithm=biml partition=by_class scores=fixed clients=10",
    "sleepers": "algorithm=biml participation=0.5 idle=sleep rounds=4",
    "idle-train": "algorithm=biml participation=0.5 rounds=4",
    "average": "algorithm=full batchnorm=average",
    "secure": "algorithm=biml secure_sum=true workers=2",
    "secure-float": "algorithm=fedavg secure_sum=true rounds=2",
    "privacy": "algorithm=fedavg batchnorm=average privacy=poisson_binomial clients=20 partition=shared rounds=2",
    "robust": "algorithm=biml robust=credibility attack=flip attack.share=0.34",
    "krum": "algorithm=fedavg robust=krum attack=labels attack.share=0.34",
    "holdout": "algorithm=murmur holdout=0.2 evaluate_every=2",
    "bnn": "algorithm=bnn rounds=2",
    "har": "algorithm=biml dataset=npz dataset.path=windows.npz model=har_cnn model.channels=3 partition=by_user clients=3",
    "regression": "algorithm=murmur task=regression dataset=npz dataset.path=numbers.npz model=mlp clients=3",
}


def main() -> None:
    """Run all, or those that are named, and write their digests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(RUNS))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder)
        digests = {}
        for run in options.names:
            digests[run] = digest(run, folder)
            options.out.write_text(json.dumps(digests, indent=1) + "\n")


def make_data(folder: Path) -> None:
    """Windows of three persons, and inputs with numbers to predict."""
    dice = np.random.default_rng(0)
    labels, users = dice.integers(0, 3, 240), np.arange(240) % 4
    windows = dice.normal(labels[:, None, None], 1, (240, 3, 128)).astype(np.float32)
    np.savez(folder / "windows.npz", inputs=windows, labels=labels, users=users, split=(users == 3).astype(np.uint8))
    inputs = dice.integers(0, 256, (200, 1, 28, 28)).astype(np.uint8)
    split, labels = (np.arange(200) % 5 == 4).astype(np.uint8), (inputs[:, 0, 0, 0] / 255).astype(np.float32)
    np.savez(folder / "numbers.npz", inputs=inputs, labels=labels, split=split)


def digest(name: str, folder: Path) -> dict[str, str]:
    """What a run wrote: its rounds without seconds, its model, and every message."""
    settings = dict(word.split("=", 1) for word in f"{SMALL} {RUNS[name]}".split())
    words = [f"{key}={value}" for key, value in settings.items()]
    command = [sys.executable, "-m", "bifl.cli", "run", "--keep-messages", "--out", name, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr}")
    lines = [json.loads(line) for line in (folder / name / "rounds.jsonl").read_text().splitlines()]
    rounds = json.dumps([{key: value for key, value in line.items() if key != "seconds"} for line in lines])
    messages = hashlib.sha256()
    masked = "secure_sum" in settings  # by fresh keys, other ones in every run
    for path in [] if masked else sorted((folder / name / "messages").rglob("*")):
        if path.is_file():
            messages.update(f"{path.relative_to(folder / name)}\n".encode() + path.read_bytes())
    print(f"{name}: {lines[-1]['accuracy']:.4f}", flush=True)
    return {
        "rounds": hashlib.sha256(rounds.encode()).hexdigest(),
        "model": hashlib.sha256((folder / name / "model").read_bytes()).hexdigest(),
        "messages": messages.hexdigest(),
        "accuracy": f"{lines[-1]['accuracy']:.6f}",
    }


if __name__ == "__main__":
    main()
