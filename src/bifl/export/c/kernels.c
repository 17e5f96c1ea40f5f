/* The loops that generated C consists of. A network gets those that it needs, at the head of its model.c, from the marks on. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* kernel */
/* All 16 sums of four inputs: bit j of a sum's number is the sign of input j, 1 for -. */
static void sums_of_four(float table[16], const float *x)
{
    const float low[4] = {x[0] + x[1], -x[0] + x[1], x[0] - x[1], -x[0] - x[1]};
    const float high[4] = {x[2] + x[3], -x[2] + x[3], x[2] - x[3], -x[2] - x[3]};
    for (int i = 0; i < 16; i++)
        table[i] = low[i & 3] + high[i >> 2];
}

/* Adds eight inputs to sums[o], each as +x or -x: bits shift to shift + 7 of bits[o] are their signs. The sums of four are computed
   once for all outputs, which look two of them up. There is no multiplication, and one order, so that all processors get the
   same bits. */
static void add_eight(float *restrict sums, const uint32_t *restrict bits, int shift, const float *restrict x, int outputs)
{
    float first[16], second[16];
    sums_of_four(first, x);
    sums_of_four(second, x + 4);
    for (int o = 0; o < outputs; o++) {
        const uint32_t word = bits[o] >> shift;
        sums[o] += first[word & 15] + second[word >> 4 & 15];
    }
}

/* What is left after the last eight of the inputs. */
static inline void add_rest(float *restrict sums, const uint32_t *restrict bits, int shift, const float *restrict x, int rest,
                            int outputs)
{
    if (rest == 1) { /* as after the 3x3 pixels of a grey image */
        for (int o = 0; o < outputs; o++)
            sums[o] += bits[o] >> shift & 1 ? -x[0] : x[0];
    } else if (rest > 0) {
        float eight[8] = {0};
        memcpy(eight, x, (size_t)rest * sizeof *x);
        add_eight(sums, bits, shift, eight, outputs);
    }
}

/* Adds to sums[o] all inputs, each as +x or -x: bit j of bits[g * outputs + o] is the sign of input 32 g + j. */
static inline void add_signs(float *restrict sums, const uint32_t *restrict bits, const float *restrict x, int inputs, int outputs)
{
    int i = 0;
    for (; i + 8 <= inputs; i += 8)
        add_eight(sums, bits + i / 32 * outputs, i % 32, x + i, outputs);
    add_rest(sums, bits + i / 32 * outputs, i % 32, x + i, inputs - i, outputs);
}

/* kernel */
/* Adds to sums[o] the sum of all weights[i * outputs + o] * x[i]: a layer that is not binary. */
static inline void add_products(float *restrict sums, const float *restrict weights, const float *restrict x, int inputs,
                                int outputs)
{
    for (int i = 0; i < inputs; i++, weights += outputs)
        for (int o = 0; o < outputs; o++)
            sums[o] += weights[o] * x[i];
}

/* kernel */
/* What a convolution's kernel sees of a map of (height, width, channels). */
struct window {
    int height, width, channels; /* of the map */
    int rows, columns, depth;    /* of the kernel; the depth is the channels of one group */
    int stride_y, stride_x, top, left, step_y, step_x;
};

/* Copies what the kernel sees at output pixel (y, x), zeros where it reaches over the edge. */
static inline void take_window(float *restrict window, const float *restrict map, const struct window *w, int y, int x)
{
    const int left = x * w->stride_x - w->left, right = left + (w->columns - 1) * w->step_x;
    const int whole = w->step_x == 1 && w->depth == w->channels && left >= 0 && right < w->width;
    for (int i = 0; i < w->rows; i++) {
        const int row = y * w->stride_y - w->top + i * w->step_y;
        int at = (row * w->width + left) * w->channels;
        if (row >= 0 && row < w->height && whole) { /* neighbours in memory too */
            for (int c = 0; c < w->columns * w->depth; c++)
                *window++ = map[at + c];
            continue;
        }
        for (int j = 0; j < w->columns; j++, at += w->step_x * w->channels) {
            const int column = left + j * w->step_x;
            const int inside = row >= 0 && row < w->height && column >= 0 && column < w->width;
            for (int c = 0; c < w->depth; c++)
                *window++ = inside ? map[at + c] : 0.0f;
        }
    }
}

/* kernel */
static inline void fill(float *v, float value, int count)
{
    for (int i = 0; i < count; i++)
        v[i] = value;
}

/* kernel */
static inline void scale_and_shift(float *restrict v, const float *restrict scale, const float *restrict shift, int count)
{
    for (int i = 0; i < count; i++)
        v[i] = v[i] * scale[i] + shift[i];
}

/* kernel */
static inline void keep_larger(float *restrict best, const float *restrict v, int count)
{
    for (int i = 0; i < count; i++)
        best[i] = v[i] > best[i] ? v[i] : best[i];
}

/* kernel */
static inline void add_to(float *restrict sums, const float *restrict v, int count)
{
    for (int i = 0; i < count; i++)
        sums[i] += v[i];
}

static inline void divide(float *v, float by, int count)
{
    for (int i = 0; i < count; i++)
        v[i] /= by;
}

/* kernel */
/* tanh to 4e-7, by a quotient of polynomials: faster than the library's, and the same bits on every processor. */
static inline void activate_tanh(float *v, int count)
{
    for (int i = 0; i < count; i++) {
        float x = v[i];
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        const uint32_t size = bits & 0x7fffffffu, nine = 0x41100000u; /* within -9 to 9, by the bits: there is no branch then */
        bits = (bits & 0x80000000u) | (size < nine ? size : nine);
        memcpy(&x, &bits, sizeof x);
        const float s = x * x;
        float p = s * -2.76076847742355e-16f + 2.00018790482477e-13f;
        p = p * s + -8.60467152213735e-11f;
        p = p * s + 5.12229709037114e-08f;
        p = p * s + 1.48572235717979e-05f;
        p = p * s + 6.37261928875436e-04f;
        p = p * s + 4.89352455891786e-03f;
        float q = s * 1.19825839466702e-06f + 1.18534705686654e-04f;
        q = q * s + 2.26843463243900e-03f;
        q = q * s + 4.89352518554385e-03f;
        v[i] = x * p / q;
    }
}

/* kernel */
static inline void activate_relu(float *v, int count)
{
    for (int i = 0; i < count; i++)
        v[i] = v[i] > 0.0f ? v[i] : 0.0f;
}

/* kernel */
static inline void activate_gelu(float *v, int count)
{
    for (int i = 0; i < count; i++)
        v[i] = 0.5f * v[i] * (1.0f + erff(v[i] * 0.70710678f));
}

/* kernel */
static inline void activate_gelu_tanh(float *v, int count)
{
    for (int i = 0; i < count; i++) {
        float inner = 0.79788456f * (v[i] + 0.044715f * v[i] * v[i] * v[i]);
        activate_tanh(&inner, 1);
        v[i] = 0.5f * v[i] * (1.0f + inner);
    }
}
