"""Operations joined into stages, each of which becomes one C function, and the memory that they share.

A stage reads one value (an addition two), computes a pixel of a convolution or a linear layer if it has one, norms and activates
it, pools, and writes. What lies between its layers is never stored.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from bifl.export.operations import Activation, Add, Affine, Dot, Doubles, Input, Operation, Pool, Shape

Pointwise = Affine | Activation


@dataclass(eq=False)
class Stage:
    """A fused part of the network.

    Attributes:
        layers: names of what was fused.
        sources: numbers of the stages that it reads.
        inner: shape of what it computes pixel by pixel, before pooling.
        shape: of what it writes.
        dot: the convolution or linear layer, if any.
        scale: its sums are multiplied with this, by channel,
        shift: and this is added: ϑ, bias and batch-norm in two numbers.
        before: what follows on every pixel.
        pool: over those.
        after: what follows on what was pooled.
    """

    layers: list[str]
    sources: tuple[int, ...]
    inner: Shape
    shape: Shape
    kind: str  # input, dot, add or pixel
    dot: Dot | None = None
    scale: Doubles | None = None
    shift: Doubles | None = None
    before: list[Pointwise] = field(default_factory=list)
    pool: Pool | None = None
    after: list[Pointwise] = field(default_factory=list)

    @property
    def pixels(self) -> int:
        """How often the dot is computed: once a pixel, several times where windows of a pool overlap."""
        if self.pool is None:
            return self.inner.height * self.inner.width
        return sum(1 for rows in self.windows(0) for columns in self.windows(1) for _ in range(len(rows) * len(columns)))

    @property
    def scaled_after(self) -> bool:
        """Whether sums are pooled before they are scaled: as no scale is negative (`c_arrays.pack`), the largest stays so."""
        return self.dot is not None and self.pool is not None and self.pool.name == "max" and not self.before

    def windows(self, axis: int) -> list[range]:
        """The rows (or columns) of the inner map that each pooled one is made of."""
        if self.pool is None:
            return [range(at, at + 1) for at in range(self.shape[1 + axis])]
        size, stride, padding = self.pool.size[axis], self.pool.stride[axis], self.pool.padding[axis]
        starts = [at * stride - padding for at in range(self.shape[1 + axis])]
        return [range(max(start, 0), min(start + size, self.inner[1 + axis])) for start in starts]


def fuse(operations: list[Operation]) -> list[Stage]:
    """The stages of a network, in order."""
    readers = Counter(source for operation in operations for source in operation.sources)
    stages: list[Stage] = []
    home: dict[int, int] = {}  # the stage that gives an operation's value
    for number, (name, work, sources, shape) in enumerate(operations):
        before = stages[home[sources[0]]] if sources else None
        if before is not None and readers[sources[0]] == 1 and _join(before, name, work, shape):
            home[number] = home[sources[0]]
            continue
        read = tuple(home[source] for source in sources)
        stages.append(_begun(name, work, read, before, shape))
        home[number] = len(stages) - 1
    return stages


def _begun(name: str, work: object, read: tuple[int, ...], before: Stage | None, shape: Shape) -> Stage:
    """A new stage that starts with an operation."""
    if isinstance(work, Input):
        return Stage([name], (), shape, shape, "input")
    if isinstance(work, Dot):
        return Stage([name], read, shape, shape, "dot", work, *_unit(work))
    if isinstance(work, Add):
        return Stage([name], read, shape, shape, "add")
    assert before is not None
    pixels = before.shape if isinstance(work, Pool) else shape
    stage = Stage([], read, pixels, pixels, "pixel")
    joined = _join(stage, name, work, shape)
    assert joined
    return stage


def _unit(dot: Dot) -> tuple[Doubles, Doubles]:
    """Scale and shift of a layer that no norm follows."""
    outputs = len(dot.weight)
    return np.ones(outputs), np.zeros(outputs) if dot.bias is None else dot.bias.astype(np.float64)


def _join(stage: Stage, name: str, work: object, shape: Shape) -> bool:
    """Let a stage do an operation too, if it can."""
    if stage.kind == "input":
        return False
    if isinstance(work, Affine) and len(work.scale) != stage.shape.channels:
        return False  # by element of a flattened map
    if isinstance(work, Pool) and stage.pool is None:
        stage.pool, stage.shape = work, shape
        if work.name == "max" and all(isinstance(each, Activation) and each.name in ("tanh", "relu") for each in stage.before):
            stage.before, stage.after = [], stage.before  # they rise, so the largest stays the largest, for less work
    elif isinstance(work, Affine) and stage.dot is not None and not stage.before and stage.pool is None:
        assert stage.scale is not None
        assert stage.shift is not None
        stage.scale, stage.shift = stage.scale * work.scale, stage.shift * work.scale + work.shift
    elif isinstance(work, (Affine, Activation)):
        (stage.before if stage.pool is None else stage.after).append(work)
    else:
        return False
    stage.layers.append(name)
    return True


@dataclass(frozen=True)
class Memory:
    """Where the stages keep their values.

    Attributes:
        values: (offset, length) of each stage's output in the working memory; the last one's is the caller's.
        scratch: (offset, length) of what a stage needs while it runs.
        size: of the working memory, in floats.
    """

    values: list[tuple[int, int]]
    scratch: list[tuple[int, int]]
    size: int


def scratch_size(stage: Stage) -> int:
    """Floats that a stage needs beside what it reads and writes: a window of its input, and one pixel's sums."""
    if stage.dot is None:
        return stage.inner.channels if stage.pool is not None else 0
    window = 0 if in_place(stage) else int(np.prod(stage.dot.weight.shape[1:]))
    return window + (stage.inner.channels if stage.pool is not None else 0)


def in_place(stage: Stage) -> bool:
    """Whether the dot reads its source directly: a kernel of one pixel, all channels, nothing outside of the map."""
    dot = stage.dot
    return dot is not None and dot.weight.shape[1:3] == (1, 1) and dot.groups == 1 and dot.padding == (0, 0)


def place(stages: list[Stage]) -> Memory:
    """Offsets such that no two values that are needed at one time overlap, each as low as possible."""
    last = {source: number for number, stage in enumerate(stages) for source in stage.sources}
    values: list[tuple[int, int]] = []
    scratch: list[tuple[int, int]] = []
    for number, stage in enumerate(stages):
        alive = [values[old] for old in range(number) if last[old] >= number]
        reuse = next((old for old in stage.sources if last[old] == number), None)
        if number == len(stages) - 1:
            values.append((0, 0))
        elif stage.kind in ("add", "pixel") and stage.pool is None and reuse is not None:
            values.append(values[reuse])  # element by element: it may overwrite what it reads
        else:
            values.append(_lowest(alive, stage.shape.size))
        scratch.append(_lowest([*alive, values[-1]], scratch_size(stage)))
    return Memory(values, scratch, max(offset + length for offset, length in (*values, *scratch)))


def _lowest(alive: list[tuple[int, int]], length: int) -> tuple[int, int]:
    """The first gap that is long enough."""
    offset = 0
    for start, size in sorted(alive):
        if size and length and start < offset + length:
            offset = max(offset, start + size)
    return offset, length
