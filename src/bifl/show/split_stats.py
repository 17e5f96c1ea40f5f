"""Who holds what: how many images of each class every client got, as a table and as a picture.

>>> from bifl.experiment.settings import Experiment
>>> from bifl.experiment.setup import load
>>> experiment = Experiment(partition="by_class", clients=10)
>>> count(experiment, load(experiment)).counts.sum(1).tolist()
[399, 399, 399, 399, 399, 399, 399, 399, 399, 399]
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.data.arrays import groups_of
from bifl.data.inputs import Dataset, shape_text
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import deal, outputs_word
from bifl.show.output import counted
from bifl.show.plot import save
from bifl.show.tables import NAME, Column, Table

BARS = "#8fb8c9"
FEW_CLIENTS, FEW_CLASSES = 20, 12  # as many rows and columns as a terminal shows well


class SplitStats(NamedTuple):
    """A split of a dataset, counted."""

    data: Dataset
    counts: npt.NDArray[np.int64]  # (clients, classes) images
    users: list[int] | None  # of each client, where they are known
    held: int  # images that the server keeps for its judge


def count(experiment: Experiment, data: Dataset) -> SplitStats:
    """Deal an experiment's images out, and count them."""
    parts, held = deal(experiment, data)
    groups = groups_of(data.labels)
    counts = np.array([np.bincount(groups[part], minlength=data.classes if data.labels.ndim == 1 else 1) for part in parts])
    users = None if data.users is None else [len(np.unique(data.users[part])) for part in parts]
    return SplitStats(data, counts, users, len(held))


def facts(split: SplitStats) -> str:
    """The dataset in one line."""
    data = split.data
    people = "" if data.users is None else f", {len(np.unique(data.users)):,} users"
    held = f", {split.held:,} held out on the server" if split.held else ""
    what = "test" if data.validation is None else "validation"
    return (
        f"{len(data.trained_on()):,} training and {len(data.test_labels):,} {what} images, "
        f"{shape_text(data)}, {data.classes} {outputs_word(data)}{people}; "
        f"{split.counts.sum():,} dealt to {counted(len(split.counts), 'client')}{held}"
    )


def table(split: SplitStats) -> Table:
    """A row per client, or, where these are many, what they are like."""
    return _every_client(split) if len(split.counts) <= FEW_CLIENTS else _summary(split)


def _every_client(split: SplitStats) -> Table:
    few = split.counts.shape[1] <= FEW_CLASSES
    totals = split.counts.sum(0)
    columns = [Column("client", footer="all"), Column("images", footer=f"{split.counts.sum():,}")]
    columns += [] if split.users is None else [Column("users", footer=f"{sum(split.users):,}")]
    if few:
        columns += [Column(f"{number}" if number else "class 0", footer=f"{total:,}") for number, total in enumerate(totals)]
    else:
        columns += [Column("classes", footer=f"{(totals > 0).sum()}"), Column("most of\none class", footer=f"{totals.max():,}")]
    rows = []
    for client, row in enumerate(split.counts):
        people = [] if split.users is None else [f"{split.users[client]:,}"]
        held = [f"{n:,}" if n else "·" for n in row] if few else [str(int((row > 0).sum())), f"{row.max():,}"]
        rows.append([str(client), f"{row.sum():,}", *people, *held])
    return Table(columns, rows)


def _summary(split: SplitStats) -> Table:
    headings = ("fewest", "lower\nquarter", "median", "upper\nquarter", "most", "mean")
    counts = split.counts
    rows = {"images": counts.sum(1), "classes": (counts > 0).sum(1)}
    if split.users is not None:
        rows["users"] = np.array(split.users)
    if counts.shape[1] <= FEW_CLASSES:
        rows |= {f"images of class {number}": counts[:, number] for number in range(counts.shape[1])}
    texts = []
    for name, values in rows.items():
        points = np.percentile(values, [0, 25, 50, 75, 100], method="nearest")
        texts.append([name, *(f"{point:,}" for point in points), f"{values.mean():,.1f}"])
    return Table([Column("per client", NAME), *map(Column, headings)], texts)


def draw(split: SplitStats, path: Path, title: str) -> None:
    """Write a PNG: clients across, classes up, the number of images as colour; their sums along the edges."""
    from matplotlib.figure import Figure  # takes a second to import: only when something is drawn
    from matplotlib.ticker import MaxNLocator

    counts = split.counts
    clients, classes = counts.shape
    figure = Figure(figsize=(11, 4.8 if classes <= FEW_CLASSES else 6.5), layout="constrained")
    grid = figure.add_gridspec(2, 3, width_ratios=(13, 1.5, 0.22), height_ratios=(1, 5))
    heat = figure.add_subplot(grid[1, 0])
    above, beside = figure.add_subplot(grid[0, 0], sharex=heat), figure.add_subplot(grid[1, 1], sharey=heat)
    edges = (np.arange(clients + 1) - 0.5, np.arange(classes + 1) - 0.5)
    gap = 0.8 if clients <= 40 and classes <= 20 else 0.25 if clients <= 150 else 0
    picture = heat.pcolormesh(*edges, np.ma.masked_equal(counts.T, 0), cmap="YlGnBu", vmin=0, edgecolors="white", linewidth=gap)
    heat.set(xlabel="client", ylabel="class", facecolor="#f3f3f3")  # grey where a client has no image of a class
    for axis, length in ((heat.xaxis, clients), (heat.yaxis, classes)):
        axis.set_major_locator(MaxNLocator(min(length, 20), integer=True))
    above.bar(np.arange(clients), counts.sum(1), width=0.85, color=BARS)
    above.set_ylabel("images")
    beside.barh(np.arange(classes), counts.sum(0), height=0.85, color=BARS)
    beside.set_xlabel("images")
    above.tick_params(labelbottom=False, bottom=False)
    beside.tick_params(labelleft=False, left=False)
    for axes, axis in ((above, above.yaxis), (beside, beside.xaxis)):
        axes.spines[["top", "right"]].set_visible(False)
        axis.set_major_locator(MaxNLocator(2, integer=True))
        axis.set_major_formatter("{x:,.0f}")
    heat.spines[:].set_visible(False)
    figure.colorbar(picture, cax=figure.add_subplot(grid[1, 2]), label="images of a class at a client").outline.set_visible(False)
    save(figure, path, title, dpi=130)
