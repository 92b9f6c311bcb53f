// Attention of a sequence with one query row ("decode"): all heads of a position before the next position, in parts of
// PART positions, which are merged at the end, so that one long sequence keeps all threads busy. The parts lie at fixed
// positions: what a row computes depends neither on its batch mates nor on the number of threads.

#pragma once

#include "attention_call.h"

namespace {

constexpr int ROWS = W == 16 ? 4 : 2;  // Rows whose sums fit into the registers together.
constexpr int WIDE = 4;                // Vectors of one row that are summed up at once.
constexpr int64_t PART = 256;

inline quad fold(vec v) {  // W / 4 quads added up
    quad part[W / 4];
    memcpy(part, &v, sizeof v);
    quad sum = part[0];
    for (int i = 1; i < W / 4; i++) sum += part[i];
    return sum;
}

inline quad sums_of(quad a, quad b, quad c, quad d) {  // of each quad its sum
    quad ab = PICK(a, b, 0, 4, 1, 5) + PICK(a, b, 2, 6, 3, 7), cd = PICK(c, d, 0, 4, 1, 5) + PICK(c, d, 2, 6, 3, 7);
    return PICK(ab, cd, 0, 1, 4, 5) + PICK(ab, cd, 2, 3, 6, 7);
}

// out[r * out_stride + t] = rows[r] . keys[t] for R rows and 4 keys.
template <int R, typename T>
inline void dots(const float* rows, int64_t stride, const T* const keys[4], int64_t dim, float* out, int64_t out_stride) {
    vec sum[R][4] = {};
    int64_t d = 0;
    for (; d + W <= dim; d += W) {
        vec k[4];
        for (int t = 0; t < 4; t++) k[t] = load(keys[t] + d);
        for (int r = 0; r < R; r++) {
            vec q = load(rows + r * stride + d);
            for (int t = 0; t < 4; t++) sum[r][t] += q * k[t];
        }
    }
    for (int r = 0; r < R; r++) {
        quad a = fold(sum[r][0]), b = fold(sum[r][1]), c = fold(sum[r][2]), e = fold(sum[r][3]);
        quad total = sums_of(a, b, c, e);
        for (int t = 0; t < 4; t++)
            for (int64_t i = d; i < dim; i++) total[t] += rows[r * stride + i] * to_float(keys[t][i]);
        memcpy(out + r * out_stride, &total, sizeof total);
    }
}

template <typename T>
void all_dots(int64_t count, const float* rows, int64_t stride, const T* const keys[4], int64_t dim, float* out,
              int64_t out_stride) {
    int64_t r = 0;
    for (; r + ROWS <= count; r += ROWS) dots<ROWS>(rows + r * stride, stride, keys, dim, out + r * out_stride, out_stride);
    for (; r < count; r++) dots<1>(rows + r * stride, stride, keys, dim, out + r * out_stride, out_stride);
}

// sums[r][0..dim] += weights[r][0] * values[0] + ... for R rows and `count` values.
template <int R, int N, typename T>
inline void add_columns(const float* weights, int64_t stride, const T* const* values, int64_t count, int64_t d, int64_t dim,
                        float* sums) {
    vec sum[R][N];
    for (int r = 0; r < R; r++)
        for (int n = 0; n < N; n++) sum[r][n] = load(sums + r * dim + d + n * W);
    for (int64_t t = 0; t < count; t++)
        for (int n = 0; n < N; n++) {
            vec v = load(values[t] + d + n * W);
            for (int r = 0; r < R; r++) sum[r][n] += weights[r * stride + t] * v;
        }
    for (int r = 0; r < R; r++)
        for (int n = 0; n < N; n++) store(sums + r * dim + d + n * W, sum[r][n]);
}

template <int R, typename T>
inline void add(const float* weights, int64_t stride, const T* const* values, int64_t count, int64_t dim, float* sums) {
    int64_t d = 0;
    for (; d + WIDE * W <= dim; d += WIDE * W) add_columns<R, WIDE>(weights, stride, values, count, d, dim, sums);
    for (; d + W <= dim; d += W) add_columns<R, 1>(weights, stride, values, count, d, dim, sums);
    for (; d < dim; d++)
        for (int r = 0; r < R; r++)
            for (int64_t t = 0; t < count; t++) sums[r * dim + d] += weights[r * stride + t] * to_float(values[t][d]);
}

template <typename T>
void add_all(int64_t rows, const float* weights, int64_t stride, const T* const* values, int64_t count, int64_t dim,
             float* sums) {
    int64_t r = 0;
    for (; r + ROWS <= rows; r += ROWS) add<ROWS>(weights + r * stride, stride, values, count, dim, sums + r * dim);
    for (; r < rows; r++) add<1>(weights + r * stride, stride, values, count, dim, sums + r * dim);
}

inline float largest(const float* scores, int64_t count, float least) {
#pragma omp simd reduction(max : least)
    for (int64_t i = 0; i < count; i++) least = scores[i] > least ? scores[i] : least;
    return least;
}

// Scores become weights e^(score - top); returns their sum.
inline float weigh(float* scores, int64_t count, float top) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        scores[i] = exponential(scores[i] - top);
        sum += scores[i];
    }
    return sum;
}

// Keys low..high of one query row.
struct Part { int64_t sequence, row, low, high; };

struct PartSpace { Buffer query, scores; };

// Sums of one part, all heads: sums [heads, value_dim], tops and totals [heads].
template <typename T>
void compute_part(const Call<T>& call, const Part& part, PartSpace& space, float* sums, float* tops, float* totals) {
    const int64_t group = call.group(), dim = call.key_dim, value_dim = call.value_dim, count = part.high - part.low;
    float *query = space.query.fit(call.heads * dim), *scores = space.scores.fit(call.heads * PART);
    for (int64_t h = 0; h < call.heads; h++) memcpy(query + h * dim, call.query_row(part.row, h), dim * sizeof(float));
    // All heads of a few positions before the next positions: that is the order in which the cache lies in memory.
    for (int64_t t = 0; t < count; t += 4) {
        const T *keys[4], *mine[4];
        for (int64_t i = 0; i < 4; i++) keys[i] = call.key(part.sequence, part.low + std::min(t + i, count - 1));
        for (int64_t h = 0; h < call.kv_heads; h++) {
            for (int i = 0; i < 4; i++) mine[i] = keys[i] + h * dim;
            all_dots(group, query + h * group * dim, dim, mine, dim, scores + h * group * PART + t, PART);
        }
    }
    for (int64_t h = 0; h < call.heads; h++) {
        scale_and_cap(scores + h * PART, count, call.scale, call.cap);
        tops[h] = largest(scores + h * PART, count, NEVER);
        totals[h] = weigh(scores + h * PART, count, finite_top(tops[h]));
    }
    std::fill(sums, sums + call.heads * value_dim, 0.f);
    for (int64_t t = 0; t < count; t += 4) {
        const T *values[4], *mine[4];
        const int64_t n = std::min<int64_t>(4, count - t);
        for (int64_t i = 0; i < n; i++) values[i] = call.value(part.sequence, part.low + t + i);
        for (int64_t h = 0; h < call.kv_heads; h++) {
            for (int64_t i = 0; i < n; i++) mine[i] = values[i] + h * value_dim;
            add_all(group, scores + h * group * PART + t, PART, mine, n, value_dim, sums + h * group * value_dim);
        }
    }
}

// The parts of one row, in order, become its output; the first part's sums are overwritten.
template <typename T>
void merge(const Call<T>& call, int64_t row, int64_t parts, float* sums, const float* tops, const float* totals) {
    const int64_t heads = call.heads, dim = call.value_dim;
    for (int64_t h = 0; h < heads; h++) {
        float top = NEVER, total = 0;
        for (int64_t p = 0; p < parts; p++) top = std::max(top, tops[p * heads + h]);
        float* into = sums + h * dim;
        for (int64_t p = 0; p < parts; p++) {
            const float* from = sums + (p * heads + h) * dim;
            // (Scores that are all NaN have no top. Their weight may be 0, but their total is NaN, and stays so.)
            const float weight = parts == 1 ? 1.f : exponential(tops[p * heads + h] - top);
            total += weight * totals[p * heads + h];
            for (int64_t d = 0; d < dim; d++) into[d] = p ? into[d] + weight * from[d] : weight * from[d];
        }
        call.write(row, h, into, total);
    }
}

}  // namespace
