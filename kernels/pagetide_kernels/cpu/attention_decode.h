// Attention of a sequence with one query row ("decode"): all heads of a position before the next position, in parts of
// PART positions, which are merged at the end, so that one long sequence keeps all threads busy. The parts lie at fixed
// positions: what a row computes depends neither on other requests in the batch nor on the threads.

#pragma once

#include "attention_call.h"

namespace {

constexpr int ROWS = W == 16 ? 4 : 2;  // Rows whose sums fit into the registers together.
constexpr int WIDE = 4;                // Vectors of one row that are summed up at once.
constexpr int64_t PART = 256;
constexpr int64_t NEAR = 8 << 10;      // Bytes of keys or values that are fetched before they are needed,
constexpr int64_t MOST = 16;           // and the most positions that these may be.

inline vec halved(vec a, vec b) { return low_halves(a, b) + high_halves(a, b); }

inline quad sums_of(const vec* v) {  // of each of 4 vectors its sum
    const vec sums = halved(halved(v[0], v[2]), halved(v[1], v[3]));
    quad part[W / 4];
    memcpy(part, &sums, sizeof sums);
    for (int i = 1; i < W / 4; i++) part[0] += part[i];
    return part[0];
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
        quad total = sums_of(sum[r]);
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

// Positions of whose keys or values, `numbers` of type T each, all heads take NEAR bytes.
template <typename T>
inline int64_t near(int64_t numbers) { return std::clamp<int64_t>(NEAR / (numbers * sizeof(T)), 4, MOST); }

// Has `numbers` of each of the positions first..end fetched. They lie in turn but for the blocks, which no processor knows.
template <typename T>
inline void fetch(const T* cache, const int64_t* slots, int64_t first, int64_t end, int64_t numbers) {
    for (int64_t t = first; t < end; t++)
        for (int64_t d = 0; d < numbers; d += 64 / sizeof(T)) __builtin_prefetch(cache + slots[t] * numbers + d);
}

// Scores [heads][PART] of the keys at `slots`, all heads of a few positions before the next positions: that is the order in
// which the cache lies in memory.
template <typename T>
void score_part(const Call<T>& call, const int64_t* slots, int64_t count, const float* query, float* scores) {
    const int64_t group = call.group(), dim = call.key_dim, ahead = near<T>(call.kv_heads * dim);
    for (int64_t t = 0; t < count; t += 4) {
        fetch(call.keys, slots, t + ahead, std::min(count, t + ahead + 4), call.kv_heads * dim);
        const T* keys[4];
        for (int64_t h = 0; h < call.kv_heads; h++) {
            for (int64_t i = 0; i < 4; i++) keys[i] = call.key(slots[std::min(t + i, count - 1)], h);
            all_dots(group, query + h * group * dim, dim, keys, dim, scores + h * group * PART + t, PART);
        }
    }
}

// sums [heads][value_dim] += weights [heads][PART] . the values at `slots`, in the same order.
template <typename T>
void add_part(const Call<T>& call, const int64_t* slots, int64_t count, const float* weights, float* sums) {
    const int64_t group = call.group(), dim = call.value_dim, at_once = near<T>(call.kv_heads * dim);
    for (int64_t t = 0; t < count; t += at_once) {
        const int64_t n = std::min(at_once, count - t);
        fetch(call.values, slots, t + n, std::min(count, t + n + at_once), call.kv_heads * dim);
        const T* values[MOST];
        for (int64_t h = 0; h < call.kv_heads; h++) {
            for (int64_t i = 0; i < n; i++) values[i] = call.value(slots[t + i], h);
            add_all(group, weights + h * group * PART + t, PART, values, n, dim, sums + h * group * dim);
        }
    }
}

// Sums of one part, all heads: sums [heads, value_dim], tops and totals [heads].
template <typename T>
void compute_part(const Call<T>& call, const Part& part, PartSpace& space, float* sums, float* tops, float* totals) {
    const int64_t dim = call.key_dim, count = part.high - part.low;
    float *query = space.query.fit(call.heads * dim), *scores = space.scores.fit(call.heads * PART);
    for (int64_t h = 0; h < call.heads; h++) memcpy(query + h * dim, call.query_row(part.row, h), dim * sizeof(float));
    int64_t slots[PART];
    call.slots(part.sequence, part.low, part.high, slots);
    score_part(call, slots, count, query, scores);
    for (int64_t h = 0; h < call.heads; h++) {
        scale_and_cap(scores + h * PART, count, call.scale, call.cap);
        tops[h] = largest(scores + h * PART, count, NEVER);
        totals[h] = weigh(scores + h * PART, count, finite_top(tops[h]));
    }
    std::fill(sums, sums + call.heads * call.value_dim, 0.f);
    add_part(call, slots, count, scores, sums);
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
