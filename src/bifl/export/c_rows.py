"""A convolution and its pooling for processors with vectors: rows of pixels at once, by tables of sums.

Every four inputs have 16 sums of +x and -x. They are computed once for all outputs, with a pixel in each lane of a vector; an
output then adds one of the 16 instead of four inputs. On a processor without vectors `add_eight` does the same for one pixel.
"""

from __future__ import annotations

from bifl.export.c_arrays import Packed
from bifl.export.operations import Affine
from bifl.export.stages import Stage, in_place

LEAST_WIDTH = 8  # of a row that is worth it: there are 16 lanes

ROWS = """\
#if MODEL_WIDE
/* A convolution and the largest of each 2x2 of its pixels, with a pixel in each lane of a vector. All sums of four inputs are
   computed once for all outputs, which look them up: a quarter of the additions, in the same order as anywhere else. */
#define LANES 16 /* neighbouring pixels */
typedef float lanes[LANES];

/* Copies rows of a map from (top, left) on, channel after channel, `span` columns each; zeros outside of the map. */
static inline void take_rows(float *restrict rows, const float *restrict map, const struct window *w, int top, int left, int count,
                             int span)
{
    for (int r = 0; r < count; r++)
        for (int i = 0; i < span; i++) {
            const int row = top + r, column = left + i;
            const int inside = row >= 0 && row < w->height && column >= 0 && column < w->width;
            for (int c = 0; c < w->channels; c++)
                rows[(r * w->channels + c) * span + i] = inside ? map[(row * w->width + column) * w->channels + c] : 0.0f;
        }
}

/* Where each input of the first lane's kernel stands in those rows; the other lanes' follow it. Zeros fill the last eight. */
static inline void point_at_inputs(const float **x, const float *rows, const struct window *w, int span)
{
    static const lanes zeros = {0};
    for (int i = 0; i < w->rows; i++)
        for (int j = 0; j < w->columns; j++)
            for (int c = 0; c < w->channels; c++)
                *x++ = rows + (i * w->step_y * w->channels + c) * span + j * w->step_x;
    for (int i = 0; i < 7; i++)
        *x++ = zeros;
}

/* All 16 sums of four inputs: bit j of a sum's number is the sign of input j. The last eight are the first, negated. */
static inline void tabulate(lanes *restrict table, const float *const *x)
{
    const float *const a = x[0], *const b = x[1], *const c = x[2], *const d = x[3];
    for (int p = 0; p < LANES; p++) {
        const float low[4] = {a[p] + b[p], b[p] - a[p], a[p] - b[p], -(a[p] + b[p])};
        const float high[2] = {c[p] + d[p], d[p] - c[p]};
        for (int i = 0; i < 8; i++) {
            const float sum = low[i & 3] + high[i >> 2];
            table[i][p] = sum;
            table[15 - i][p] = -sum;
        }
    }
}

/* Adds to sums[o][p] all inputs of lane p, each as +x or -x. */
static inline void add_signs_to_lanes(lanes *restrict sums, const uint32_t *restrict bits, const float *const *x, int inputs,
                                      int outputs)
{
    lanes first[16], second[16];
    int i = 0;
    for (; i + 4 < inputs; i += 8) {
        const uint32_t *restrict words = bits + i / 32 * outputs;
        tabulate(first, x + i);
        tabulate(second, x + i + 4);
        for (int o = 0; o < outputs; o++) {
            const uint32_t word = words[o] >> i % 32;
            const float *restrict one = first[word & 15], *restrict two = second[word >> 4 & 15];
            for (int p = 0; p < LANES; p++)
                sums[o][p] += one[p] + two[p];
        }
    }
    if (i < inputs) { /* four or fewer are left */
        tabulate(first, x + i);
        for (int o = 0; o < outputs; o++) {
            const float *restrict one = first[bits[i / 32 * outputs + o] >> i % 32 & 15];
            for (int p = 0; p < LANES; p++)
                sums[o][p] += one[p];
        }
    }
}

/* The largest of each 2x2 of two rows of sums, channel last again. `pooled` is memory for half a row. */
static inline void pool_lanes(float *restrict out, float *restrict pooled, const float *restrict sums, int outputs, int pixels)
{
    const float *restrict upper = sums, *restrict lower = sums + outputs * LANES;
    for (int i = 0; i < outputs * LANES / 2; i++) {
        const float one = upper[2 * i] > lower[2 * i] ? upper[2 * i] : lower[2 * i];
        const float two = upper[2 * i + 1] > lower[2 * i + 1] ? upper[2 * i + 1] : lower[2 * i + 1];
        pooled[i] = one > two ? one : two;
    }
    for (int p = 0; p < pixels; p++)
        for (int o = 0; o < outputs; o++)
            out[p * outputs + o] = pooled[o * (LANES / 2) + p];
}
#endif
"""


def in_rows(stage: Stage, kind: str) -> bool:
    """Whether a stage may be computed this way: bits, a step of one, and the largest of each 2x2 pixels."""
    dot, pool = stage.dot, stage.pool
    if dot is None or pool is None or not stage.scaled_after or any(isinstance(work, Affine) for work in stage.after):
        return False
    pooled = pool.size == pool.stride == (2, 2) and pool.padding == (0, 0)
    whole = all(2 * stage.shape[axis] <= stage.inner[axis] for axis in (1, 2))  # no window reaches over the edge
    plain = kind != "real" and dot.groups == 1 and dot.stride == (1, 1) and not in_place(stage)
    return pooled and whole and plain and stage.inner.width >= LEAST_WIDTH


def of_rows(name: str, stage: Stage, packed: Packed) -> list[str]:
    """The body of a stage's function: two rows of pixels after two others, which become one; then the scale."""
    dot = stage.dot
    assert dot is not None
    (outputs, height, width), (_, rows, columns, depth) = stage.shape, dot.weight.shape
    count, inputs = 2 + (rows - 1) * dot.dilation[0], dot.weight[0].size
    span, window = f"LANES + {(columns - 1) * dot.dilation[1]}", f"&{name}_window"
    return [
        f"    float rows[{count * depth} * ({span})], pooled[{outputs} * LANES / 2];",
        f"    const float *x[2][{inputs} + 7];",
        f"    lanes sums[2 * {outputs}];",
        "    (void)scratch, (void)take_window, (void)keep_larger; /* what processors without vectors need */",
        "    for (int v = 0; v < 2; v++)",
        f"        point_at_inputs(x[v], rows + v * {depth} * ({span}), {window}, {span});",
        f"    for (int y = 0; y < {height}; y++)",
        f"        for (int x0 = 0; x0 < {width}; x0 += LANES / 2) {{",
        f"            take_rows(rows, in, {window}, y * 2 - {dot.padding[0]}, x0 * 2 - {dot.padding[1]}, {count}, {span});",
        f"            fill(sums[0], 0.0f, 2 * {outputs} * LANES);",
        *(
            f"            add_signs_to_lanes(sums + {first}, {array.name}, x[{v}], {inputs}, {outputs});"
            for v, first in enumerate((0, outputs))
            for array in packed.weights
        ),
        f"            const int pixels = {width} - x0 < LANES / 2 ? {width} - x0 : LANES / 2;",
        f"            pool_lanes(out + (y * {width} + x0) * {outputs}, pooled, sums[0], {outputs}, pixels);",
        "        }",
        f"    for (int i = 0; i < {stage.shape.size}; i += {outputs})",
        f"        scale_and_shift(out + i, {name}_scale, {name}_shift, {outputs});",
    ]
