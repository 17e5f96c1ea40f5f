"""What a table does not show: whether the paper's order of algorithms holds, and what switching costs a hybrid."""

from __future__ import annotations

import math
from collections import Counter
from statistics import mean

from bifl.data.fingerprint import Loaded, sentence
from bifl.experiment.settings import Experiment, but_for, identity
from bifl.report import paper_values
from bifl.runs.results import LAST, Series, grouped

FAR = 3.0  # points: those that are ≈ lie closer together, ≫ means this far above
_ALIKE = paper_values.ORDER[-1]


def remarks(series: list[Series]) -> list[str]:
    """Sentences about the experiments of one setting."""
    several = len({result.version for one in series for result in one.results}) > 1
    sentences = [*other_data(series), *seldom(series), ordering(series), *switches(series), *spent(series)]
    return [sentence for sentence in [*sentences, made_by(series) if several else None] if sentence]


def seldom(series: list[Series]) -> list[str]:
    """What the numbers are of where not every round was evaluated."""

    def how(one: Series) -> str:
        mean_of = f": {one.averaged} of the last {LAST}, whose mean this is" if one.settled else ""
        return f"every {one.experiment.evaluate_every} rounds{mean_of}"

    sentences = []
    for way, same in grouped((one for one in series if one.averaged is not None), how).items():
        whose = "All" if 1 < len(same) == len(series) else ", ".join(dict.fromkeys(one.label for one in same))
        sentences.append(f"{whose}: evaluated {way}; what was reached in between shows in the next evaluation.")
    return sentences


def other_data(series: list[Series]) -> list[str]:
    """Which of these ran on other data than the rest, though their settings name the same; earlier versions did not tell."""
    kinds: dict[str, dict[Loaded, list[str]]] = {}
    for one in series:
        for result in one.results:
            if result.data is not None:
                same = identity(result.experiment)
                runs = kinds.setdefault(repr((same.dataset, same.task)), {}).setdefault(result.data, [])
                runs.append(f"{one.label} (seed {result.experiment.seed})")
    parts = [[f"{', '.join(runs)}: {sentence(data)}" for data, runs in kind.items()] for kind in kinds.values() if len(kind) > 1]
    return [f"These did not run on the same data, and their numbers cannot be compared: {'; '.join(each)}." for each in parts]


def made_by(series: list[Series]) -> str:
    """Which versions of bifl ran these experiments, in a sentence."""
    counts = Counter(sorted(result.version for one in series for result in one.results))
    if len(counts) == 1:
        return f"Made by bifl {next(iter(counts))}."
    parts = " and ".join(f"bifl {version} ({count} run{'s' * (count > 1)})" for version, count in counts.items())
    return f"Made by {parts}: versions draw other random numbers, so that the same seed gives other runs."


def ordering(series: list[Series]) -> str | None:
    """Whether the paper's order of algorithms holds among these, in a sentence.

    None where there are not two to compare: the paper has no liars, and its order is that after many rounds.
    """
    rows = _comparable([one for one in series if one.settled and one.experiment.attack.name == "none"])
    tiers = [present for tier in paper_values.ORDER if (present := [name for name in tier if name in rows])]
    if len(tiers) < 2:
        return None
    finals = {name: rows[name].final().mean for tier in tiers for name in tier}
    lengths = sorted({rows[name].rounds for name in finals})
    after = f" after {lengths[0]} to {lengths[-1]} rounds" if len(lengths) > 1 else ""
    order = f"The paper’s order, {_written(tiers, {name: rows[name].label for name in finals})},"
    if lost := [rows[name].label for name, final in finals.items() if math.isnan(final)]:
        return f"{order} cannot be told here: nobody evaluated some rounds of {', '.join(lost)}."
    wrong, doubtful = _complaints(tiers, finals, {name: f"{rows[name].label} ({final:.2f})" for name, final in finals.items()})
    if not wrong and not doubtful:
        return f"{order} holds here{after}."
    return f"{order} does not {'hold' if wrong else 'quite hold'} here{after}: {'; '.join(wrong + doubtful)}."


def switches(series: list[Series]) -> list[str]:
    """What the round after the switch of every hybrid did to its accuracy."""
    sentences = []
    for one in series:
        switch = one.experiment.algorithm.parameters.get("switch", one.rounds)
        if one.experiment.algorithm.name == "hybrid" and one.rounds > switch:
            before, after = (100 * mean(records[n].score for records in one.runs) for n in (switch - 1, switch))
            if math.isfinite(before + after):  # both were evaluated
                sentences.append(f"{one.label}: {before:.2f} % before the switch, {after:.2f} % in the round after it.")
    return sentences


def spent(series: list[Series]) -> list[str]:
    """What those experiments tell of one client that have it accounted."""
    sentences = []
    for one in series:
        known = [epsilon for records in one.runs if (epsilon := records[-1].epsilon) is not None]
        if known and len(known) == len(one.runs):
            delta = one.experiment.privacy.parameters.get("delta", math.nan)
            what = f"ε = {max(known):.3g} for δ = {delta:g} after {one.rounds} rounds"
            sentences.append(f"{one.label}: {what}, of each client’s data; of a simulation: what a deployment would spend.")
    return sentences


def _complaints(tiers: list[list[str]], finals: dict[str, float], shown: dict[str, str]) -> tuple[list[str], list[str]]:
    """What contradicts the order, and what is merely less far apart, or farther, than ≫ and ≈ say."""
    wrong, doubtful = [], []
    for place, tier in enumerate(tiers):
        for better in tier:
            for worse in (name for below in tiers[place + 1 :] for name in below):
                gap = finals[better] - finals[worse]
                if gap < 0:
                    wrong.append(f"{shown[worse]} is above {shown[better]}")
                elif worse in _ALIKE and gap < FAR and place == len(tiers) - 2:
                    doubtful.append(f"{shown[worse]} is only {gap:.2f} points below {shown[better]}")
    if alike := sorted((name for name in finals if name in _ALIKE), key=finals.__getitem__):
        low, high = alike[0], alike[-1]
        if finals[high] - finals[low] >= FAR:
            doubtful.append(f"{shown[high]} is {finals[high] - finals[low]:.2f} points above {shown[low]}")
    return wrong, doubtful


def _written(tiers: list[list[str]], labels: dict[str, str]) -> str:
    """With the paper's signs."""
    text = ""
    for tier in tiers:
        sign = "" if not text else " ≫ " if tier[0] in _ALIKE else " > "
        text += sign + " ≈ ".join(labels[name] for name in tier)
    return text


def _comparable(series: list[Series]) -> dict[str, Series]:
    """By algorithm, those that differ in nothing else; of several such families the largest."""
    alike = grouped(series, lambda one: but_for(one.experiment, "algorithm", "seed", "evaluate_every"))
    families = [grouped(same, lambda one: one.experiment.algorithm.name) for same in alike.values()]
    ranked = {name for tier in paper_values.ORDER for name in tier}
    largest = max(families, key=lambda family: len(ranked & family.keys()), default={})
    chosen = {name: [one for one in same if len(same) == 1 or _usual(one.experiment)] for name, same in largest.items()}
    return {name: same[0] for name, same in chosen.items() if same}


def _usual(experiment: Experiment) -> bool:
    """Whether the algorithm's parameters are the paper's first choice, or else the defaults."""
    cell = paper_values.cell_of(experiment)
    if cell is not None:
        return not cell.parameter
    return experiment.algorithm == Experiment(algorithm=experiment.algorithm.name).algorithm
