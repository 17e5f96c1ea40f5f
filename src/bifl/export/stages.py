"""Operations joined into stages, each of which becomes one C function, and the memory that they share.

A stage reads one value (an addition two), computes a pixel of a convolution or a linear layer if it has one, norms and activates
it, pools, and writes. What lies between its layers is never stored.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from bifl.export.operations import Affine, Dot, Operation, Shape
from bifl.nn.trace import Activation, Add, Input, Pool

Pointwise = Affine | Activation


@dataclass(eq=False)
class Stage:
    """A fused part of the network.

    Attributes:
        layers: names of what was fused.
        sources: numbers of the stages that it reads: none for the input, two for an addition.
        inner: shape of what it computes pixel by pixel, before pooling.
        shape: of what it writes.
        dot: the convolution or linear layer, if any.
        before: what follows on every pixel.
        pool: over those.
        after: what follows on what was pooled.
    """

    layers: list[str]
    sources: tuple[int, ...]
    inner: Shape
    shape: Shape
    dot: Dot | None = None
    before: list[Pointwise] = field(default_factory=list)
    pool: Pool | None = None
    after: list[Pointwise] = field(default_factory=list)

    @property
    def pixels(self) -> int:
        """How often the dot is computed: once a pixel, several times where windows of a pool overlap."""
        if self.pool is None:
            return self.inner.height * self.inner.width
        rows, columns = (sum(map(len, self.windows(axis))) for axis in (0, 1))
        return rows * columns

    @property
    def scaled_after(self) -> bool:
        """Whether sums are pooled before they are scaled: as no scale is negative (`bits.Rows`), the largest stays so."""
        return self.dot is not None and self.pool is not None and self.pool.name == "max" and not self.before

    @property
    def reads_in_place(self) -> bool:
        """Whether the dot reads its source directly: a kernel of one pixel, all channels, nothing outside of the map."""
        dot = self.dot
        return dot is not None and dot.weight.shape[1:3] == (1, 1) and dot.groups == 1 and dot.padding == (0, 0)

    @property
    def writes_in_place(self) -> bool:
        """Whether it may overwrite what it reads: it goes element by element."""
        return self.dot is None and self.pool is None and bool(self.sources)

    @property
    def window(self) -> int:
        """Floats of its input that the dot needs as a copy."""
        return 0 if self.dot is None or self.reads_in_place else self.dot.weight[0].size

    @property
    def scratch(self) -> int:
        """Floats that it needs beside what it reads and writes: a window of its input, and one pixel's sums."""
        return self.window + (self.inner.channels if self.pool is not None else 0)

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
    home: list[int] = []  # of each operation: the stage that gives its value
    for operation in operations:
        read = tuple(home[source] for source in operation.sources)
        if read and readers[operation.sources[0]] == 1 and _join(stages[read[0]], operation):
            home.append(read[0])
        else:
            stages.append(_new_stage(operation, read, stages))
            home.append(len(stages) - 1)
    return stages


def _new_stage(operation: Operation, read: tuple[int, ...], stages: list[Stage]) -> Stage:
    """A stage that starts with an operation."""
    layers, work, _, shape = operation
    if isinstance(work, (Input, Dot, Add)):
        return Stage([*layers], read, shape, shape, work if isinstance(work, Dot) else None)
    pixels = stages[read[0]].shape if isinstance(work, Pool) else shape
    stage = Stage([], read, pixels, pixels)
    _join(stage, operation)
    return stage


def _join(stage: Stage, operation: Operation) -> bool:
    """Let a stage do an operation too, if it can."""
    layers, work, _, shape = operation
    if not stage.sources or (isinstance(work, Affine) and len(work.scale) != stage.shape.channels):
        return False  # the input, or a norm by element of a flattened map
    if isinstance(work, Pool) and stage.pool is None:
        stage.pool, stage.shape = work, shape
        if work.name == "max" and all(isinstance(each, Activation) and each.name in ("tanh", "relu") for each in stage.before):
            stage.before, stage.after = [], stage.before  # they rise, so the largest stays the largest, for less work
    elif isinstance(work, (Affine, Activation)):
        (stage.before if stage.pool is None else stage.after).append(work)
    else:
        return False
    stage.layers += layers
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
        elif stage.writes_in_place and reuse is not None:
            values.append(values[reuse])
        else:
            values.append(_lowest(alive, stage.shape.size))
        scratch.append(_lowest([*alive, values[-1]], stage.scratch))
    return Memory(values, scratch, max(offset + length for offset, length in (*values, *scratch)))


def _lowest(alive: list[tuple[int, int]], length: int) -> tuple[int, int]:
    """The first gap that is long enough."""
    offset = 0
    for start, size in sorted(alive):
        if size and length and start < offset + length:
            offset = max(offset, start + size)
    return offset, length
