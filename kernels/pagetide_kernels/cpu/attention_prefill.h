// Attention of a sequence with several query rows ("chunk"): a tile of its rows, all heads of one KV head, over KEYS keys
// after KEYS keys with the online softmax (Milakov and Gimelshein, 2018).
//
// Both products are those of panels.h: keys are transposed into panels once a tile, so that scores lie side by side in
// vectors and need no sums across them; values are panels as they are. Keys are taken at fixed positions, and in the same
// order for any number of rows: with finite values, what a row computes depends neither on the other rows of its tile nor on
// where tiles begin. (Values of keys that it does not see are taken 0 times, which makes NaN of NaN and infinity.)

#pragma once

#include "attention_call.h"
#include "panels.h"

namespace {

constexpr int64_t KEYS = 64;  // Keys at a time.
static_assert(KEYS % NR == 0, "whole panels");
constexpr int64_t TILE = 256, LEAST_TILE = 64;  // Rows, each of one head.

// `count` query rows of a chunk from row `first`, which stands at `position`.
struct Tile { int64_t sequence, first, count, position, kv_head; };

// What one thread works in; the names are those of `Panels` and `Sums`.
struct TileSpace { Buffer keys, values, nothing, sums, tops, totals; };

// Keys and values of KEYS positions from `low`, of which the tile sees from..to (counted from `low`).
struct Panels {
    int64_t low, from, to;
    int64_t slots[KEYS];  // of from..to, in the caches
    float* keys;    // [KEYS / NR][key_dim][NR]; of vectors that the tile sees in part, the rest is 0
    float* values;  // [value panels][KEYS][NR], rows from..to; behind value_dim, up to whole vectors, 0
};

// Of each row of a tile what the keys so far sum up to.
struct Sums {
    int64_t stride;  // of a row: value_dim in whole vectors
    float *sums, *tops, *totals;  // [rows][stride], [rows], [rows][W]
};

inline int64_t vectors_of(int64_t n) { return (n + W - 1) / W; }

// W vectors of W numbers as a matrix. Each step moves one bit of a number's row into its column, and one of its column
// into its row.
inline void transpose(vec* rows) {
#pragma GCC unroll 4
    for (int step = 1; step < W; step *= 2) {
        vec next[W];
#pragma GCC unroll 8
        for (int i = 0; i < W / 2; i++) {
            next[2 * i] = low_halves(rows[i], rows[i + W / 2]);
            next[2 * i + 1] = high_halves(rows[i], rows[i + W / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < W; i++) rows[i] = next[i];
    }
}

template <typename T>
void pack_keys(const Call<T>& call, const Tile& tile, const Panels& panels, const T* nothing) {
    const int64_t dim = call.key_dim;
    for (int64_t t = panels.from / W * W; t < panels.to; t += W) {
        const T* keys[W];
        for (int64_t i = 0; i < W; i++) {
            const bool seen = t + i >= panels.from && t + i < panels.to;
            keys[i] = seen ? call.key(panels.slots[t + i], tile.kv_head) : nothing;
        }
        float* to = panels.keys + t / NR * NR * dim + t % NR;
        int64_t d = 0;
        for (; d + W <= dim; d += W) {
            vec rows[W];
            for (int i = 0; i < W; i++) rows[i] = load(keys[i] + d);
            transpose(rows);
            for (int i = 0; i < W; i++) store(to + (d + i) * NR, rows[i]);
        }
        for (; d < dim; d++)
            for (int i = 0; i < W; i++) to[d * NR + i] = to_float(keys[i][d]);
    }
}

template <typename T>
void pack_values(const Call<T>& call, const Tile& tile, const Panels& panels) {
    const int64_t dim = call.value_dim;
    for (int64_t t = panels.from; t < panels.to; t++) {
        const T* value = call.value(panels.slots[t], tile.kv_head);
        float* to = panels.values + t * NR;
        int64_t d = 0;
        for (; d + W <= dim; d += W) store(to + d / NR * NR * KEYS + d % NR, load(value + d));
        if (d == dim) continue;
        float* rest = to + d / NR * NR * KEYS + d % NR;
        for (int i = 0; i < W; i++) rest[i] = d + i < dim ? to_float(value[d + i]) : 0.f;
    }
}

// scores[r][0..N * W] = rows[r] . keys of N vectors of a panel, for R rows.
template <int R, int N>
inline void score(const float* const* rows, int64_t dim, const float* panel, float* scores) {
    vec sum[R][N] = {};
    for (int64_t d = 0; d < dim; d++) {
        vec k[N];
        for (int v = 0; v < N; v++) k[v] = load(panel + d * NR + v * W);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < N; v++) sum[r][v] = fused(all(rows[r][d]), k[v], sum[r][v]);
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < N; v++) store(scores + r * KEYS + v * W, sum[r][v]);
}

// sums[r] = sums[r] * factors[r] + weights[r][from..to] . values, of N vectors of a panel, for R rows.
template <int R, int N>
inline void add_values(const float* weights, const float* factors, const float* panel, int64_t from, int64_t to, float* sums,
                       int64_t stride) {
    vec sum[R][N];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < N; v++) sum[r][v] = load(sums + r * stride + v * W) * factors[r];
    for (int64_t t = from; t < to; t++) {
        vec value[N];
        for (int v = 0; v < N; v++) value[v] = load(panel + t * NR + v * W);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < N; v++) sum[r][v] = fused(all(weights[r * KEYS + t]), value[v], sum[r][v]);
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < N; v++) store(sums + r * stride + v * W, sum[r][v]);
}

// Calls work(N) for N = count vectors of a panel; N is a constant, for the compiler to unroll.
template <typename Work>
inline void with_vectors(int64_t count, Work work) {
    static_assert(NV == 2 || NV == 4, "a case for every count");
    if (count == NV) return work(std::integral_constant<int, NV>{});
    if constexpr (NV == 4) {
        if (count == 3) return work(std::integral_constant<int, 3>{});
        if (count == 2) return work(std::integral_constant<int, 2>{});
    }
    work(std::integral_constant<int, 1>{});
}

inline float largest(vec v) {
    quad part[W / 4];
    memcpy(part, &v, sizeof v);
    for (int i = 1; i < W / 4; i++) part[0] = part[i] > part[0] ? part[i] : part[0];
    return std::max(std::max(part[0][0], part[0][1]), std::max(part[0][2], part[0][3]));
}

// The scores of one row and `count` vectors of keys become weights, 0 for NEVER. Updates the row's top and total; returns
// what its sums so far shrink by. (NaN is no top, but makes the total NaN.)
inline float weigh(float* scores, int64_t count, float& top, float* total) {
    vec most = all(NEVER);
    for (int64_t v = 0; v < count; v++) {
        const vec x = load(scores + v * W);
        most = x > most ? x : most;
    }
    const float before = top;
    top = std::max(top, largest(most));
    const float shrink = top > before ? exponential(before - top) : 1.f;
    const vec shift = all(finite_top(top));
    vec sum = load(total) * shrink;
    for (int64_t v = 0; v < count; v++) {
        const vec weight = exponential(load(scores + v * W) - shift);
        sum += weight;
        store(scores + v * W, weight);
    }
    store(total, sum);
    return shrink;
}

// Rows first..first + R of a tile over the keys of `panels`.
template <int R, typename T>
void attend_rows(const Call<T>& call, const Tile& tile, const Panels& panels, int64_t first, const Sums& sums) {
    const int64_t group = call.group(), value_vectors = vectors_of(call.value_dim);
    auto position = [&](int64_t r) { return tile.position + (first + r) / group; };
    auto first_key = [&](int64_t r) { return std::max(panels.from, call.first_seen(position(r)) - panels.low); };
    auto last_key = [&](int64_t r) { return std::min(panels.to, position(r) + 1 - panels.low); };
    const int64_t from = first_key(0), to = last_key(R - 1);
    if (from >= to) return;
    const float* rows[R];
    for (int r = 0; r < R; r++)
        rows[r] = call.query_row(tile.first + (first + r) / group, tile.kv_head * group + (first + r) % group);
    alignas(64) float scores[R * KEYS];
    const int64_t begin = from / W, end = vectors_of(to);
    for (int64_t v = begin; v < end;) {
        const int64_t count = std::min(end, (v / NV + 1) * NV) - v;
        const float* panel = panels.keys + v / NV * NR * call.key_dim + v % NV * W;
        with_vectors(count, [&](auto n) { score<R, decltype(n)::value>(rows, call.key_dim, panel, scores + v * W); });
        v += count;
    }
    float factors[R];
    for (int r = 0; r < R; r++) {
        float* mine = scores + r * KEYS;
        scale_and_cap(mine + begin * W, (end - begin) * W, call.scale, call.cap);
        const int64_t low = std::min(end * W, first_key(r)), high = std::max(low, last_key(r));
        std::fill(mine + begin * W, mine + low, NEVER);
        std::fill(mine + high, mine + end * W, NEVER);
        factors[r] = weigh(mine + begin * W, end - begin, sums.tops[first + r], sums.totals + (first + r) * W);
    }
    for (int64_t v = 0; v < value_vectors; v += NV) {
        const float* panel = panels.values + v * W * KEYS;
        float* out = sums.sums + first * sums.stride + v * W;
        with_vectors(std::min<int64_t>(NV, value_vectors - v), [&](auto n) {
            add_values<R, decltype(n)::value>(scores, factors, panel, from, to, out, sums.stride);
        });
    }
}

template <typename T>
void compute_tile(const Call<T>& call, const Tile& tile, TileSpace& space) {
    const int64_t group = call.group(), rows = tile.count * group;
    const int64_t value_panels = panels_of(call.value_dim), stride = vectors_of(call.value_dim) * W;
    Sums sums{stride, space.sums.fit(rows * stride), space.tops.fit(rows), space.totals.fit(rows * W)};
    Panels panels{0, 0, 0, {}, space.keys.fit(KEYS * call.key_dim), space.values.fit(KEYS * value_panels * NR)};
    float* nothing = space.nothing.fit(call.key_dim);
    memset(nothing, 0, call.key_dim * sizeof(float));  // (Read as a T, so not written as a float.)
    std::fill(sums.sums, sums.sums + rows * stride, 0.f);
    std::fill(sums.tops, sums.tops + rows, NEVER);
    std::fill(sums.totals, sums.totals + rows * W, 0.f);
    const int64_t begin = call.first_seen(tile.position), end = tile.position + tile.count;
    for (panels.low = begin / KEYS * KEYS; panels.low < end; panels.low += KEYS) {
        panels.from = std::max<int64_t>(0, begin - panels.low);
        panels.to = std::min(KEYS, end - panels.low);
        call.slots(tile.sequence, panels.low + panels.from, panels.low + panels.to, panels.slots + panels.from);
        pack_keys(call, tile, panels, (const T*)nothing);
        pack_values(call, tile, panels);
        in_tiles(rows, [&](auto size, int64_t r) { attend_rows<decltype(size)::value>(call, tile, panels, r, sums); });
    }
    for (int64_t r = 0; r < rows; r++) {
        float total = 0;
        for (int i = 0; i < W; i++) total += sums.totals[r * W + i];
        call.write(tile.first + r / group, tile.kv_head * group + r % group, sums.sums + r * stride, total);
    }
}

}  // namespace
