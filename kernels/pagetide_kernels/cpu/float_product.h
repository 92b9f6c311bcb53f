// The sums of a product over panels of float32, float16 or bfloat16; computed in float32.

#pragma once

#include "panels.h"

namespace {

constexpr int64_t KC = 512;  // Steps of a panel, at most, that lie in a core's caches while rows pass by.

// sums[r][0..NR] (+)= x[r] . panel, for R rows and `steps` steps.
template <int R, typename T>
inline void add_tile(const float* x, int64_t stride, const T* panel, int64_t steps, bool fresh, float* sums, Fetch fetch) {
    vec sum[R][NV];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < NV; v++) sum[r][v] = fresh ? vec{} : load(sums + r * NR + v * W);
    for (int64_t i = 0; i < steps; i++) {
        vec w[NV];
        for (int v = 0; v < NV; v++) w[v] = load(panel + i * NR + v * W);
        fetch(i);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < NV; v++) sum[r][v] = fused(all(x[r * stride + i]), w[v], sum[r][v]);
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < NV; v++) store(sums + r * NR + v * W, sum[r][v]);
}

template <typename T>
void add_rows(const float* x, int64_t stride, int64_t rows, const T* panel, int64_t steps, bool fresh, float* sums,
              const Ahead& ahead) {
    in_tiles(rows, [&](auto size, int64_t r) {
        add_tile<decltype(size)::value>(x + r * stride, stride, panel, steps, fresh, sums + r * NR, ahead.part(r));
    });
}

inline const float* widened(const float* panel, int64_t, Buffer&) { return panel; }
template <typename T>
const float* widened(const T* panel, int64_t steps, Buffer& space) {
    float* to = space.fit(KC * NR);
    for (int64_t i = 0; i < steps * NR; i += W) store(to + i, load(panel + i));
    return to;
}

// x [m, k] times panels of T; see `share`.
template <typename T>
struct FloatProduct {
    const Product& p;
    const T* weights;

    // [rows, NR] of rows from `first` and one panel; this thread's next call overwrites them. Throws std::bad_alloc.
    const float* sums(int64_t panel, int64_t first, int64_t rows) const {
        static thread_local Buffer sum_space, wide_space;
        float* sums = sum_space.fit(rows * NR);
        const T *w = weights + panel * NR * p.k, *end = weights + panels_of(p.n) * NR * p.k;
        const float* x = p.x + first * p.x_stride;
        const int64_t pieces = (p.k + KC - 1) / KC, most = (p.k + pieces - 1) / pieces;
        for (int64_t at = 0; at < p.k; at += most) {
            const int64_t steps = std::min(most, p.k - at);
            const T* next = w + (at + steps) * NR;
            const Ahead ahead(next, (end - next) * sizeof(T), steps, NR * sizeof(T), rows);
            // Many rows: widen the weights once, not for each tile of rows.
            const bool wide = rows > 2 * MR;
            if (wide) add_rows(x + at, p.x_stride, rows, widened(w + at * NR, steps, wide_space), steps, !at, sums, ahead);
            else add_rows(x + at, p.x_stride, rows, w + at * NR, steps, !at, sums, ahead);
        }
        return sums;
    }
};

}  // namespace
