"""What a curious server reads from uploads: which classes a client holds, as AUC over all pairs of a client and a class.

    python benchmarks/class_inference.py                          # docs/results/privacy.md: about ten minutes of one core
    python benchmarks/class_inference.py biml --partitions by_class --scores trained --seeds 0 --rounds 1 --set local_epochs=5
    python benchmarks/class_inference.py --page                   # the page anew of what is kept; runs nothing

0.5 is guessing, 1 is certainty. Half of mnist5k's training images belong to the clients, the other half to the attacker, who deals
them to shadow clients (`watched.py`); `curious.py` are the attacks. What was measured is kept in results/privacy.jsonl.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from curious import Numbers, Source, Truth, auc, central, last_rows, learnt, simple
from watched import Scene, View, watch

from bifl.experiment.settings import Experiment

ROOT = Path(__file__).parent.parent
KEPT, PAGE = ROOT / "results" / "privacy.jsonl", ROOT / "docs" / "results" / "privacy.md"
ALGORITHMS, SCORES, ROUNDS = ("fedavg", "biml", "murmur"), ("trained", "fixed"), (1, 10)
PARTITIONS = {"by_class": "Three classes", "dirichlet": "Dirichlet 0.5"}
CLIENTS, MANY = 20, 100
DEALS = {CLIENTS: 3, MANY: 1}  # of the attacker's images, to as many shadow clients as there are clients
SIMPLE = ("γ", "β", "rows", "variance")
HINTS = {"ballots": ("rows",), "reals": ("γ", "β"), "statistics": ("variance",)}  # hints that go with each
SUMS = (1, 2, 5, 10, 20, 100)  # clients in a sum of whom the attacker knows nothing else
DRAWS = 20  # groups of each size
ABOUT = """\
# What a curious server reads from uploads

Written by `python benchmarks/class_inference.py --page` from `results/privacy.jsonl`; without `--page`
it measures what is missing there.
[security.md](../security.md#a-curious-server-follows-the-protocol-and-looks-at-everything) says what follows from it.

The question is "does client i hold class c?", for all pairs of a client and a class. The numbers are the AUC of the attacker's
answers: 0.5 is guessing, 1 is certainty. mnist5k, `mnist_cnn`, 20 clients of 100 images (two steps of training a round), all of
them in every round. "Three classes" is `partition=by_class`: a client holds 27 % of the classes, as two of its shards may be of
one. "Dirichlet 0.5" is `partition=dirichlet`: a client holds 81 % of the classes, some of them with one or two images. Means of
the seeds, whose number stands in the last column.

The simple attacks take one number a class:

- **γ** and **β** of the batch-norm of the class scores;
- **rows**: how unlike the other rows the class's row of the last linear layer has changed, in signs for `biml`, in what the upload
  stands for with `murmur`;
- **variance** of the class's score, which clients upload with batch-norm's statistics.

The learnt attack has 60 shadow clients, with other images than the clients', which train from the same public states: ridge
regression on all numbers of a kind, then logistic regression of its guesses and the simple attacks (`benchmarks/curious.py`). It
sees ballots alone, real numbers (ϑ, γ, β of all layers) alone, statistics alone, or everything.
"""
SUMMED = """\
## What a sum tells

With `secure_sum=true` the server sees sums and nothing else of an upload. This is the learnt attack on everything, on the sum of n
clients of whom the attacker knows nothing else: round 1, `scores=trained`. All clients of a sum get the same answer, as nothing in
it is about one of them. AUC over the pairs within a sum; mean of 20 random sums of each seed's clients, sums of all 20 or 100 are
one. The sums are made of the uploads of a run without masks: the secure sum's are the same integers
(`test_secure_runs.py::test_the_model_is_the_same_with_and_without`).

n = 1 is a client all of whose companions are in league with the server: the sum without them is its upload, and hides nothing.
"Counts known" is who is told how many clients of the sum hold each class, and nothing else: what a sum can tell at best. Sums of
100 are of clients of 20 images.
"""


class Case(NamedTuple):
    """What is attacked, but for the seed."""

    partition: str
    algorithm: str
    scores: str = "trained"
    clients: int = CLIENTS

    def experiment(self, seed: int, settings: Iterable[str] = ()) -> Experiment:
        """What is run."""
        words = [f"{key}={value}" for key, value in self._asdict().items()]
        return Experiment.of(None, [*words, f"seed={seed}", "workers=1", *settings])


class Evidence(NamedTuple):
    """What there is to look at, of shadow clients and targets."""

    features: dict[str, list[Source]]
    hints: dict[str, Source]

    @classmethod
    def of(cls, scene: Scene, targets: View) -> Evidence:
        """All of it."""
        layout, shadows = scene.layout, scene.shadows
        own, theirs = simple(layout, *shadows[1:]), simple(layout, *targets[1:])
        rows = Source(*(last_rows(layout, view.weights).reshape(len(view.weights), -1) for view in (shadows, targets)))
        features = {
            "ballots": [rows, Source(shadows.weights, targets.weights)],
            "reals": [Source(shadows.real, targets.real)],
            "statistics": [Source(central(shadows.moments), central(targets.moments))],
        }
        return cls(features, {name: Source(own[name], theirs[name]) for name in own})

    def answers(self, kinds: Iterable[str], images: Numbers) -> Numbers:
        """(targets, classes) of the learnt attack that sees these kinds."""
        features = [block for kind in kinds for block in self.features[kind]]
        hints = [self.hints[name] for kind in kinds for name in HINTS[kind] if name in self.hints]
        return learnt(features, hints, images)


def attacks(scene: Scene) -> dict[str, float]:
    """AUC of every attack on single uploads."""
    evidence, images = Evidence.of(scene, scene.targets), scene.shadows.images
    found = {name: hint.targets for name, hint in evidence.hints.items()}
    found |= {f"learnt: {kind}": evidence.answers([kind], images) for kind in HINTS}
    found["learnt: all"] = evidence.answers(list(HINTS), images)
    return {name: auc(answers, scene.targets.images > 0) for name, answers in found.items()}


def sums(scene: Scene, seed: int) -> dict[str, float]:
    """AUC within random sums of each size, of the attack by everything and of who knows how many of them hold each class."""
    dice, holds = np.random.default_rng(seed), scene.targets.images > 0
    clients = len(holds)
    sizes = [size for size in SUMS if size <= clients] if clients == CLIENTS else [clients]
    groups = [dice.permutation(clients)[:size] for size in sizes for _ in range(DRAWS if size < clients else 1)]
    told = Evidence.of(scene, scene.targets.summed(groups)).answers(list(HINTS), scene.shadows.images)
    found: dict[str, float] = {}
    for size in sizes:
        chosen = [number for number, group in enumerate(groups) if len(group) == size]
        pairs = [(number, holds[groups[number]]) for number in chosen]
        found[f"sum {size}"] = float(np.nanmean([_within(told[number], own) for number, own in pairs]))
        found[f"counts {size}"] = float(np.nanmean([_within(own.sum(0), own) for _, own in pairs]))
    return found


def _within(answer: Numbers, holds: Truth) -> float:
    """AUC within a sum, all of whose clients get one answer."""
    return auc(np.tile(answer, (len(holds), 1)), holds)


def measure(case: Case, seed: int, rounds: Sequence[int], settings: Sequence[str]) -> list[dict[str, object]]:
    """What is found of a case, a record for each round."""
    found: list[dict[str, object]] = []
    for scene in watch(case.experiment(seed, settings), rounds, DEALS[case.clients]):
        aucs = attacks(scene)
        aucs |= sums(scene, seed) if scene.round == 1 and case.scores == "trained" else {}
        found.append(
            case._asdict() | {"seed": seed, "round": scene.round, "auc": {key: round(own, 4) for key, own in aucs.items()}}
        )
    return found


def kept() -> dict[tuple[Case, int], dict[int, dict[str, float]]]:
    """AUCs of all that is kept: by case and round, then by seed."""
    found: dict[tuple[Case, int], dict[int, dict[str, float]]] = {}
    for line in KEPT.read_text().splitlines() if KEPT.is_file() else ():
        record = json.loads(line)
        case = Case(**{name: record[name] for name in Case._fields})
        found.setdefault((case, record["round"]), {})[record["seed"]] = record["auc"]
    return found


def _cell(seeds: dict[int, dict[str, float]], name: str) -> str:
    known = [aucs[name] for aucs in seeds.values() if name in aucs]
    return f"{fmean(known):.2f}" if known else "–"


def table(partition: str) -> list[str]:
    """Attacks on single uploads."""
    names = [*SIMPLE, *(f"learnt: {name}" for name in (*HINTS, "all"))]
    lines = [f"| | round | `scores=` | {' | '.join(names)} | seeds |", "|---" * (len(names) + 4) + "|"]
    found = kept()
    for algorithm, number, scores in product(ALGORITHMS, ROUNDS, SCORES):
        if seeds := found.get((Case(partition, algorithm, scores), number), {}):
            cells = " | ".join(_cell(seeds, name) for name in names)
            lines.append(f"| `{algorithm}` | {number} | {scores} | {cells} | {len(seeds)} |")
    return [f"## {PARTITIONS[partition]}", "", *lines, ""]


def sum_table() -> list[str]:
    """Attacks on sums."""
    pairs = list(product(PARTITIONS, ("fedavg", "biml")))  # murmur is refused with a secure sum
    heads = [f"{PARTITIONS[partition]}, `{algorithm}`" for partition, algorithm in pairs]
    heads += [f"{PARTITIONS[partition]}, counts known" for partition in PARTITIONS]
    lines, found = [f"| n | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"], kept()
    for size in SUMS:
        seeds = [found.get((Case(*pair, clients=max(CLIENTS, size)), 1), {}) for pair in pairs]
        cells = [_cell(own, f"sum {size}") for own in seeds] + [_cell(own, f"counts {size}") for own in seeds[::2]]
        lines.append(f"| {size} | {' | '.join(cells)} |")
    return [SUMMED, *lines, ""]


def main() -> None:
    """Measure what was asked for and is not kept, a line for each, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", default=ALGORITHMS)
    parser.add_argument("--partitions", type=lambda text: text.split(","), default=list(PARTITIONS))
    parser.add_argument("--scores", type=lambda text: text.split(","), default=SCORES)
    parser.add_argument("--rounds", type=lambda text: [int(number) for number in text.split(",")], default=ROUNDS)
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--set", action="append", default=[], help="other settings; nothing is kept of them")
    options = parser.parse_args()
    cases = [Case(*own) for own in product(options.partitions, options.algorithms, options.scores)]
    cases += [
        Case(own, algorithm, clients=MANY)
        for own in options.partitions
        for algorithm in options.algorithms
        if algorithm != "murmur"
    ]
    for seed, case in product(options.seeds, () if options.page else cases):
        rounds = [number for number in options.rounds if case.clients == CLIENTS or number == 1]
        rounds = [number for number in rounds if options.set or seed not in kept().get((case, number), {})]
        for record in measure(case, seed, rounds, options.set) if rounds else ():
            print(json.dumps(record, ensure_ascii=False), flush=True)
            if not options.set:
                with KEPT.open("a") as file:
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
    if not options.set:
        PAGE.write_text("\n".join([ABOUT, *(line for partition in PARTITIONS for line in table(partition)), *sum_table()]))


if __name__ == "__main__":
    main()
