/* Trust ratios on Adam's direction for float32 tensors in the memory of a CPU; see native.py.

   Two passes over the tensors of a bucket. advance() moves the moments and takes the sizes of weights and directions,
   apply() scales the directions by the ratios and adds them to the weights. Rows of matrices take a single loop in
   advance(), so that arithmetic and memory overlap; all else goes in chunks of consecutive entries, whose directions
   stay in the first-level cache. apply() takes the last strip first: what advance() touched last is still in a cache;
   within a strip it goes forwards, as prefetching expects.

   Largest absolute values are taken of the bit patterns without the sign. As integers they are ordered like the numbers
   they stand for, with NaN above infinity, so NaN survives a maximum, and loops over integers become vector
   instructions without leave to reorder floating point. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { CHUNK = 2048, STRIP = 65536, LANES = 16 };
/* Bit patterns: all but the sign, infinity, the largest number, 1. */
enum { MAGNITUDE = 0x7fffffff, INFINITE = 0x7f800000, GREATEST = 0x7f7fffff, ONE = 0x3f800000 };

typedef int32_t bits __attribute__((may_alias));

/* Tensors of one shape, one after the other in the vectors of the bucket. Sizes: `count` of whole tensors; then, if
   `lines`, `rows * depth` for each tensor and `columns * depth` for each tensor. */
typedef struct {
    int64_t count, rows, columns, depth, lines, start, sizes;
} stack;

/* d = scale * m / (sqrt(v) + eps) + decay * w; the moments move by `enter1` and `enter2` to the gradient and its square. */
typedef struct {
    float enter1, keep2, enter2, scale, eps, decay;
} adam;

typedef struct {
    /* The size of weights is clamped to [low, high]; the ratio where either size is 0 is `blank`. */
    float lr, clip, low, high, blank;
    /* scaled: there are ratios; by_max: sizes are largest entries, else Euclidean norms of whole tensors; floor: the
       ratio of the whole tensor bounds the others from below; mend: a ratio that is NaN is 1 and an infinite one the
       largest number; zero: weights of size 0 have ratio 0, which counts as NaN for a whole tensor. */
    int32_t scaled, by_max, floor, mend, zero;
} rule;

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int32_t most(int32_t a, int32_t b) { return a > b ? a : b; }

static inline float as_float(int32_t pattern) {
    float number;
    memcpy(&number, &pattern, sizeof number);
    return number;
}

static inline int32_t as_bits(float number) {
    int32_t pattern;
    memcpy(&pattern, &number, sizeof pattern);
    return pattern;
}

static inline __attribute__((always_inline)) void direct(
    const adam *a, int moves, int decays, const float *restrict w, const float *restrict g, float *restrict m,
    float *restrict v, float *restrict d, int64_t n) {
    const float enter1 = a->enter1, keep2 = a->keep2, enter2 = a->enter2, scale = a->scale, eps = a->eps;
    const float decay = a->decay;
    for (int64_t i = 0; i < n; i++) {
        float mean = m[i], square = v[i];
        if (moves) {
            mean += enter1 * (g[i] - mean);
            square = keep2 * square + enter2 * (g[i] * g[i]);
            m[i] = mean;
            v[i] = square;
        }
        float direction = scale * mean / (sqrtf(square) + eps);
        d[i] = decays ? direction + decay * w[i] : direction;
    }
}

/* The directions of n entries; g is NULL where the moments have moved. */
static void directions(
    const adam *a, const float *w, const float *g, float *m, float *v, float *d, int64_t n) {
    if (g && a->decay != 0.0f)
        direct(a, 1, 1, w, g, m, v, d, n);
    else if (g)
        direct(a, 1, 0, w, g, m, v, d, n);
    else if (a->decay != 0.0f)
        direct(a, 0, 1, w, g, m, v, d, n);
    else
        direct(a, 0, 0, w, g, m, v, d, n);
}

static double sum_of_squares(const float *restrict x, int64_t n) {
    double lanes[LANES] = {0}, sum = 0.0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) lanes[k] += (double)x[i + k] * (double)x[i + k];
    for (; i < n; i++) sum += (double)x[i] * (double)x[i];
    for (int k = 0; k < LANES; k++) sum += lanes[k];
    return sum;
}

static int32_t largest(const bits *restrict x, int64_t n) {
    int32_t size = 0;
    for (int64_t i = 0; i < n; i++) size = most(size, x[i] & MAGNITUDE);
    return size;
}

static inline __attribute__((always_inline)) void advance_row(
    const adam *a, int decays, int keeps, const float *restrict w, const float *restrict g, float *restrict m,
    float *restrict v, float *restrict d, bits *restrict row_w, bits *restrict row_d, bits *restrict column_w,
    bits *restrict column_d, int64_t n) {
    const float enter1 = a->enter1, keep2 = a->keep2, enter2 = a->enter2, scale = a->scale, eps = a->eps;
    const float decay = a->decay;
    int32_t size_w = 0, size_d = 0;
    for (int64_t i = 0; i < n; i++) {
        const float mean = m[i] + enter1 * (g[i] - m[i]);
        const float square = keep2 * v[i] + enter2 * (g[i] * g[i]);
        float direction = scale * mean / (sqrtf(square) + eps);
        if (decays) direction += decay * w[i];
        const int32_t entry_w = as_bits(w[i]) & MAGNITUDE, entry_d = as_bits(direction) & MAGNITUDE;
        m[i] = mean;
        v[i] = square;
        if (keeps) d[i] = direction;
        size_w = most(size_w, entry_w);
        size_d = most(size_d, entry_d);
        column_w[i] = most(column_w[i], entry_w);
        column_d[i] = most(column_d[i], entry_d);
    }
    *row_w = size_w;
    *row_d = size_d;
}

/* All rows of a matrix: what directions() and maxima_of_part() do, in one loop; d may be NULL. The sizes of directions
   come `total` after those of weights. */
static void advance_rows(
    const adam *a, const float *w, const float *g, float *m, float *v, float *d, bits *rows, bits *columns,
    int64_t total, int64_t height, int64_t width) {
    const int decays = a->decay != 0.0f;
    for (int64_t r = 0; r < height; r++, w += width, g += width, m += width, v += width, d = d ? d + width : 0) {
        bits *row_d = rows + total + r, *column_d = columns + total;
        if (decays && d)
            advance_row(a, 1, 1, w, g, m, v, d, rows + r, row_d, columns, column_d, width);
        else if (decays)
            advance_row(a, 1, 0, w, g, m, v, d, rows + r, row_d, columns, column_d, width);
        else if (d)
            advance_row(a, 0, 1, w, g, m, v, d, rows + r, row_d, columns, column_d, width);
        else
            advance_row(a, 0, 0, w, g, m, v, d, rows + r, row_d, columns, column_d, width);
    }
}

/* Part of a row: entries that start at index `inner` of the dimensions from the third on, of `depth` entries. */
static void maxima_of_part(
    const bits *restrict x, int64_t n, int64_t inner, int64_t depth, bits *restrict row, bits *restrict column) {
    while (n > 0) {
        int64_t run = least(n, depth - inner);
        for (int64_t i = 0; i < run; i++) {
            int32_t entry = x[i] & MAGNITUDE;
            row[inner + i] = most(row[inner + i], entry);
            column[i] = most(column[i], entry);
        }
        x += run, column += run, n -= run, inner = 0;
    }
}

/* w <- w - lr * clip(s * d) with s the larger of a row's and a column's ratio. */
static inline __attribute__((always_inline)) void add_by_line(
    float *restrict w, const float *restrict d, const bits *restrict row, int64_t step, const bits *restrict column,
    int64_t n, int32_t bound, const rule *r) {
    const float lr = r->lr, clip = r->clip;
    for (int64_t i = 0; i < n; i++) {
        int32_t s = most(most(row[i * step] & MAGNITUDE, bound), column[i] & MAGNITUDE);
        s = s > INFINITE ? ONE : s > GREATEST ? GREATEST : s;
        float update = as_float(s) * d[i];
        update = clip < update ? clip : update;
        update = -clip > update ? -clip : update;
        w[i] -= lr * update;
    }
}

/* A chunk that starts at entry `at` of its tensor. */
static void add_by_lines(
    float *w, const float *d, const bits *rows, const bits *columns, int64_t at, int64_t n, int64_t width,
    int64_t depth, int32_t bound, const rule *r) {
    int64_t row = at / width, column = at % width;
    for (int64_t i = 0, run; i < n; i += run) {
        const int64_t inner = column % depth;
        const bits *from = rows + row * depth + inner;
        if (depth == 1) {
            const bits only = *from;
            run = least(n - i, width - column);
            add_by_line(w + i, d + i, &only, 0, columns + column, run, bound, r);
        } else {
            run = least(n - i, depth - inner);
            add_by_line(w + i, d + i, from, 1, columns + column, run, bound, r);
        }
        column += run;
        if (column == width) row++, column = 0;
    }
}

static void add_whole(float *restrict w, const float *restrict d, int64_t n, float s, const rule *r) {
    const float lr = r->lr, clip = r->clip;
    for (int64_t i = 0; i < n; i++) {
        float update = s * d[i];
        update = clip < update ? clip : update;
        update = -clip > update ? -clip : update;
        w[i] -= lr * update;
    }
}

/* Moves the moments; sizes of weights (the first `total`) and directions (the others), largest absolute values if
   `by_max`, else Euclidean norms of whole tensors. `kept`: room for all directions, or NULL. */
static void advance(
    const stack *stacks, int64_t number, const adam *a, int32_t by_max, float *const *weights,
    float *const *gradients, float *mean, float *square, float *kept, float *sizes, int64_t total) {
    float room[CHUNK] __attribute__((aligned(64)));
    memset(sizes, 0, 2 * total * sizeof *sizes);
    for (const stack *s = stacks; s < stacks + number; s++) {
        const int64_t width = s->columns * s->depth, entries = s->rows * width, height = s->rows * s->depth;
        for (int64_t t = 0; t < s->count; t++) {
            const float *w = *weights++, *g = *gradients++;
            const int64_t start = s->start + t * entries;
            bits *whole = (bits *)sizes + s->sizes + t;
            bits *rows = (bits *)sizes + s->sizes + s->count + t * height;
            bits *columns = (bits *)sizes + s->sizes + s->count * (1 + height) + t * width;
            double squares[2] = {0};
            int64_t row = 0, column = 0;
            const int matrix = by_max && s->lines && s->depth == 1;
            if (matrix)
                advance_rows(a, w, g, mean + start, square + start, kept ? kept + start : 0, rows, columns, total,
                             height, width);
            for (int64_t at = 0; at < entries && !matrix; at += CHUNK) {
                const int64_t n = least(CHUNK, entries - at);
                float *d = kept ? kept + start + at : room;
                directions(a, w + at, g + at, mean + start + at, square + start + at, d, n);
                if (!by_max) {
                    squares[0] += sum_of_squares(w + at, n);
                    squares[1] += sum_of_squares(d, n);
                    continue;
                }
                if (!s->lines) {
                    whole[0] = most(whole[0], largest((const bits *)(w + at), n));
                    whole[total] = most(whole[total], largest((const bits *)d, n));
                    continue;
                }
                for (int64_t i = 0, run; i < n; i += run) {
                    run = least(n - i, width - column);
                    bits *r = rows + row * s->depth, *c = columns + column;
                    const int64_t inner = column % s->depth;
                    maxima_of_part((const bits *)(w + at + i), run, inner, s->depth, r, c);
                    maxima_of_part((const bits *)(d + i), run, inner, s->depth, r + total, c + total);
                    column += run;
                    if (column == width) row++, column = 0;
                }
            }
            if (!by_max) {
                whole[0] = as_bits((float)sqrt(squares[0]));
                whole[total] = as_bits((float)sqrt(squares[1]));
            } else if (s->lines) {
                whole[0] = largest(rows, height);
                whole[total] = largest(rows + total, height);
            }
        }
    }
}

static void compare(const rule *r, const float *sizes, float *ratios, int64_t total) {
    for (int64_t i = 0; i < total; i++) {
        float w = sizes[i], d = sizes[total + i];
        w = w < r->low ? r->low : w;
        w = w > r->high ? r->high : w;
        /* A size that is NaN is no reason to ignore the other. */
        const int blank = r->zero ? d == 0.0f : (w == 0.0f && d == d) || (d == 0.0f && w == w);
        ratios[i] = blank ? r->blank : w / d;
    }
}

/* Adds the directions, times their ratios, to the weights. `gradients`: as in advance() where that was not called, else
   NULL. `kept`: all directions, or NULL to compute them again. `ratios`: laid out like sizes. */
static void apply(
    const stack *stacks, int64_t number, const adam *a, const rule *r, float *const *weights, float *const *gradients,
    float *mean, float *square, const float *kept, const float *ratios) {
    float room[CHUNK] __attribute__((aligned(64)));
    int64_t index = 0;
    for (const stack *s = stacks; s < stacks + number; s++) index += s->count;
    for (const stack *s = stacks + number - 1; s >= stacks; s--) {
        const int64_t width = s->columns * s->depth, entries = s->rows * width, height = s->rows * s->depth;
        for (int64_t t = s->count - 1; t >= 0; t--) {
            index--;
            float *w = weights[index];
            const int64_t start = s->start + t * entries;
            const bits *sizes = (const bits *)ratios + s->sizes;
            const bits *rows = sizes + s->count + t * height;
            const bits *columns = sizes + s->count * (1 + height) + t * width;
            int32_t whole = r->scaled ? sizes[t] : ONE;
            if (r->zero && whole == 0) whole = MAGNITUDE;
            if (r->mend) whole &= MAGNITUDE;
            const int lines = r->scaled && s->lines;
            /* Without a lower bound a tensor that is all 0 still has ratio 1 everywhere. */
            const int32_t bound = r->floor || whole > INFINITE ? whole : 0;
            if (r->mend) whole = whole > INFINITE ? ONE : whole > GREATEST ? GREATEST : whole;
            for (int64_t strip = (entries - 1) / STRIP * STRIP; strip >= 0; strip -= STRIP) {
                const int64_t end = least(strip + STRIP, entries);
                for (int64_t at = strip; at < end; at += CHUNK) {
                    const int64_t n = least(CHUNK, end - at);
                    const float *d = kept ? kept + start + at : room;
                    if (!kept)
                        directions(a, w + at, gradients ? gradients[index] + at : 0, mean + start + at,
                                   square + start + at, room, n);
                    if (lines)
                        add_by_lines(w + at, d, rows, columns, at, n, width, s->depth, bound, r);
                    else
                        add_whole(w + at, d, n, as_float(whole), r);
                }
            }
        }
    }
}

/* One update of all tensors. `kept`: room for all directions, or NULL; `sizes`: room for 2 * total sizes, `ratios` for
   total. */
void update(
    const stack *stacks, int64_t number, const adam *a, const rule *r, float *const *weights, float *const *gradients,
    float *mean, float *square, float *kept, float *sizes, float *ratios, int64_t total) {
    if (r->scaled) {
        advance(stacks, number, a, r->by_max, weights, gradients, mean, square, kept, sizes, total);
        compare(r, sizes, ratios, total);
    }
    apply(stacks, number, a, r, weights, r->scaled ? 0 : gradients, mean, square, r->scaled ? kept : 0, ratios);
}
