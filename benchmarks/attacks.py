"""Attacks × rules × algorithms: what lying clients cost, kept run by run, as a page with pictures.

    python benchmarks/attacks.py                       # docs/results/attacks.md: the reduced table; minutes
    python benchmarks/attacks.py --whole               # all attacks and rules, 0 to 40 %, 10 and 30 clients, three seeds: hours
    python benchmarks/attacks.py fedavg --rules flower_krum,flower_median,flower_trimmed    # Flower's own sums (flower_rules.py)
    python benchmarks/attacks.py biml --attacks flip --rules none,credibility --shares 0,0.3 --seeds 0
    python benchmarks/attacks.py --page                # the page anew of what is kept; runs nothing

Finished runs are kept in results/attacks, a file for each rule and in it a line for each run, and never run again; runs with --set
are not kept. Accuracy is the mean of the last five rounds, in percent.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import flower_rules  # noqa: F401  registers Flower's sums

from bifl import __version__
from bifl.engine.simulator import simulate
from bifl.experiment import config_file
from bifl.experiment.settings import Experiment, identity
from bifl.processes import cores
from bifl.runs.record import Record

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from studies import keeping  # noqa: E402

FOLDER, PAGE = ROOT / "results" / "attacks", ROOT / "docs" / "results" / "attacks.md"
PICTURES = ROOT / "docs" / "images"
LAST = 5  # rounds
ALGORITHMS = ("biml", "fedavg", "murmur")
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4)
CLIENTS = (10, 30)
ATTACKS = ("flip", "collude", "random", "scaled", "labels", "reals")
FLOWER = ("flower_krum", "flower_median", "flower_trimmed")
RULES = ("none", "credibility", "trimmed_mean", "krum", "median", "norm_clip", "bounded_step", *FLOWER)
FEW_RULES = RULES[:5]
ASSUMED = {"trimmed_mean", "krum", "flower_trimmed", "flower_krum"}  # rules that must be told how many lie
UNFIT = {("biml", "norm_clip"), ("fedavg", "bounded_step"), ("murmur", "bounded_step")}
UNFIT |= set(product(("biml", "murmur"), FLOWER))  # no sums of ballots; and murmur is no algorithm of Flower's


class Case(NamedTuple):
    """A cell of the table, but for the seed."""

    algorithm: str
    clients: int
    attack: str  # none without liars
    share: float
    rule: str

    @classmethod
    def of(cls, algorithm: str, clients: int, attack: str, share: float, rule: str) -> Case:
        """The cell of an attack; without liars that of all attacks."""
        return cls(algorithm, clients, attack if share else "none", share, rule)

    def experiment(self, seed: int, settings: Iterable[str] = ()) -> Experiment:
        """What is run for it. Rules that assume a share of liars assume three tenths, or four if there are so many."""
        words = [f"algorithm={self.algorithm}", f"clients={self.clients}", f"seed={seed}", f"robust={self.rule}", "workers=1"]
        if self.rule in ASSUMED:
            words.append(f"robust.share={max(0.3, self.share)}")
        if self.attack != "none":
            words += [f"attack={self.attack}", f"attack.share={self.share}"]
        return Experiment.of(None, [*words, *settings])


def cases(options: argparse.Namespace) -> list[Case]:
    """What was asked for, each once, those without liars first."""
    axes = product(options.clients, options.shares, options.attacks, options.algorithms or ALGORITHMS, options.rules)
    found = [
        Case.of(algorithm, clients, attack, share, rule)
        for clients, share, attack, algorithm, rule in axes
        if (algorithm, rule) not in UNFIT
    ]
    return list(dict.fromkeys(found))


def run(job: tuple[int, Case], settings: Sequence[str]) -> float:
    """Accuracy of a seed and a case, from what is kept or from a run that is kept then."""
    seed, case = job
    experiment = case.experiment(seed, settings)
    if not settings and (run := kept_runs().get(keeping.name(experiment))):
        return accuracy(run["rounds"])
    records = list(simulate(experiment))
    if not settings:
        keep(experiment, records)
    return accuracy([record.fields() for record in records])


def keep(experiment: Experiment, records: Sequence[Record]) -> None:
    """Add a run to those of its rule, at once: other processes add theirs to the same file."""
    run = {"name": keeping.name(experiment), "config": config_file.to_toml(identity(experiment)), "version": __version__}
    line = json.dumps(run | {"rounds": [record.fields() for record in records]}) + "\n"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{experiment.robust.name}.jsonl.gz").open("ab", buffering=0) as file:
        file.write(gzip.compress(line.encode(), mtime=0))


@cache
def kept_runs() -> dict[str, dict[str, Any]]:
    """All runs that were kept when this was first asked for, by name."""
    files = [gzip.decompress(file.read_bytes()) for file in sorted(FOLDER.glob("*.jsonl.gz"))]
    runs = [json.loads(line) for file in files for line in file.splitlines()]
    return {run["name"]: run for run in runs}


def accuracy(rounds: Sequence[dict[str, Any]]) -> float:
    """The mean of a run's last rounds, in percent."""
    return 100 * mean(float(record["accuracy"]) for record in rounds[-LAST:])


@cache
def everything() -> dict[Case, dict[int, float]]:
    """Accuracies of all kept runs, by case and seed."""
    found: dict[Case, dict[int, float]] = {}
    for run in kept_runs().values():
        experiment = config_file.parse(run["config"])
        attack, rule = experiment.attack, experiment.robust.name
        case = Case(experiment.algorithm.name, experiment.clients, attack.name, attack.parameters.get("share", 0.0), rule)
        found.setdefault(case, {})[experiment.seed] = accuracy(run["rounds"])
    return found


def known(case: Case) -> dict[int, float]:
    """Accuracies of the seeds that are kept."""
    return everything().get(case, {})


def cell(case: Case) -> str:
    """The mean of the seeds that are kept, and their number."""
    found = known(case)
    return f"{mean(found.values()):.2f} ({len(found)})" if found else ""


def table(algorithm: str, clients: int, attack: str) -> list[str]:
    """Rows of rules, columns of shares of liars."""
    lines = [f"| {attack} | {' | '.join(f'{share:.0%}' for share in SHARES)} |", "|---" * (len(SHARES) + 1) + "|"]
    for rule in RULES:
        cells = [cell(Case.of(algorithm, clients, attack, share, rule)) for share in SHARES]
        if any(cells[1:]):
            lines.append(f"| `{rule}` | {' | '.join(cells)} |")
    return [*lines, ""] if len(lines) > 2 else []


def lost(algorithm: str, clients: int, attack: str, share: float, rule: str) -> float | None:
    """Points below the same algorithm without liars and without a rule, of the same seeds; None where there are none."""
    found = known(Case.of(algorithm, clients, attack, share, rule))
    before = known(Case(algorithm, clients, "none", 0.0, "none"))
    both = found.keys() & before.keys()
    return mean(before[seed] - found[seed] for seed in both) if both else None


def recommended() -> list[str]:
    """What the rule costs that we recommend, and what it costs to have none."""
    lines = ["| clients | attack | " + " | ".join(f"{share:.0%}" for share in SHARES) + " |", "|---" * (len(SHARES) + 2) + "|"]
    for clients, attack in product(CLIENTS, ATTACKS):
        pairs = [[worst(clients, attack, share, rule) for rule in ("credibility", "none")] for share in SHARES]
        cells = [" / ".join(filter(None, pair)) for pair in pairs]
        if any(cells[1:]):
            lines.append(f"| {clients} | {attack} | {' | '.join(cells)} |")
    return [*lines, ""]


def worst(clients: int, attack: str, share: float, rule: str) -> str:
    """What the algorithm loses that loses most; nothing unless all were run."""
    found = [lost(own, clients, attack, share, rule) for own in ALGORITHMS]
    values = [value for value in found if value is not None]
    return f"{max(values):.2f}" if len(values) == len(found) else ""


def page() -> str:
    """Everything that is kept, as a page."""
    lines = [
        "# Attacks and rules",
        "",
        "Written by <!-- not run: tests/attacks/test_attack_table.py does -->`python benchmarks/attacks.py --page` from the runs "
        "kept in `results/attacks`; [robust.md](../robust.md)",
        "says what the rules do and which to take. mnist5k, IID, 15 rounds; accuracy in percent, mean of the last five rounds and",
        "of the seeds, whose number stands in brackets; seeds differ by up to 1.5 points under attack. `trimmed_mean` and `krum`",
        "assume 30 % of liars, or 40 % where there are so many, and so do Flower's own `flower_trimmed` and `flower_krum`",
        "([flower_rules.py](../../benchmarks/flower_rules.py)). Columns are shares of liars. Empty: not run. Runs of thirty",
        "clients with `random`, `scaled`, `labels` and `reals` and another rule than `credibility` are mostly of a processor with",
        "AVX2, the others of some with AVX-512, where a seed makes another run: four that were repeated ended 0.1, 0.2 and 0.4",
        "points apart, and 2.4 under an attack that works.",
        "",
        "## What `credibility` loses",
        "",
        "Points below the same algorithm and seeds without liars and without a rule, by share of liars: with `credibility` /",
        "without a rule, each of the algorithm that loses most. Negative: all gain.",
        "",
        *recommended(),
    ]
    for clients in CLIENTS:
        lines += [f"## {clients} clients", "", f"![points lost by share of liars](../images/{picture(clients).name})", ""]
        for algorithm in ALGORITHMS:
            tables = [line for attack in ATTACKS for line in table(algorithm, clients, attack)]
            lines += [f"### {algorithm}, {clients} clients", "", *tables] if tables else []
    return "\n".join(lines)


def picture(clients: int) -> Path:
    """The file of a picture."""
    return PICTURES / f"attacks-{clients}.png"


def draw(clients: int) -> None:
    """Points lost by share of liars: a panel for each algorithm and attack that has runs."""
    import matplotlib.pyplot as plt

    attacks = [name for name in ATTACKS if any(known(Case(own, clients, name, 0.3, "none")) for own in ALGORITHMS)] or ["flip"]
    figure, axes = plt.subplots(len(attacks), len(ALGORITHMS), figsize=(11, 2.4 * len(attacks) + 0.8), sharey=True, squeeze=False)
    labelled = {}
    for (row, attack), (column, algorithm) in product(enumerate(attacks), enumerate(ALGORITHMS)):
        axis = axes[row][column]
        for number, rule in enumerate(RULES):
            points = {100 * share: lost(algorithm, clients, attack, share, rule) for share in SHARES}
            found = {share: value for share, value in points.items() if value is not None}
            if len(found) > 1:
                style = {"linestyle": "--" if rule in FLOWER else "-", "linewidth": 3 if rule == "credibility" else 1.3}
                (labelled[rule],) = axis.plot(list(found), list(found.values()), marker="o", ms=4, color=f"C{number}", **style)
        axis.set_title(f"{algorithm}, {attack}", fontsize=10)
        axis.set_yscale("symlog", linthresh=1)
        axis.set_yticks([0, 1, 3, 10, 30, 90], ["0", "1", "3", "10", "30", "90"])
        axis.set_xticks([100 * share for share in SHARES])
        axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("liars, %")
    for axis in axes[:, 0]:
        axis.set_ylabel("points lost")
    figure.tight_layout(rect=(0, 0.6 / figure.get_figheight(), 1, 1))
    figure.legend(labelled.values(), labelled.keys(), loc="lower center", ncol=5, fontsize=8)
    figure.savefig(picture(clients), dpi=110)
    plt.close(figure)


def main() -> None:
    """Run what was asked for, a line for each case, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*")
    parser.add_argument("--attacks", type=lambda text: text.split(","), default=["flip", "collude"])
    parser.add_argument("--rules", type=lambda text: text.split(","), default=FEW_RULES)
    parser.add_argument("--shares", type=lambda text: [float(share) for share in text.split(",")], default=[0.0, 0.2, 0.3])
    parser.add_argument("--clients", type=lambda text: [int(number) for number in text.split(",")], default=[10])
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0, 1])
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    if options.whole:
        options.attacks, options.rules, options.shares = ATTACKS, RULES, SHARES
        options.clients, options.seeds = CLIENTS, [0, 1, 2]
    wanted = list(product(options.seeds, () if options.page else cases(options)))
    with ProcessPoolExecutor(cores()) as pool:
        for (seed, case), points in zip(wanted, pool.map(partial(run, settings=options.set), wanted), strict=True):
            liars = f"{case.attack:8} {case.share:.0%}"
            print(f"{case.algorithm:8} {case.clients:3} clients {liars} {case.rule:14} s{seed} {points:6.2f}", flush=True)
    if not options.set:
        PAGE.write_text(page())
        for clients in CLIENTS:
            draw(clients)


if __name__ == "__main__":
    main()
