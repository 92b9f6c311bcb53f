// Matrix products y = x w^T + b over weights in panels of float32, float16 or bfloat16; computed in float32.

#include "ops.h"
#include "panels.h"

namespace {

constexpr int64_t KC = 512;  // Steps of a panel that lie in the first-level cache while rows pass by.

// sums[r][0..NR] (+)= x[r] . panel, for R rows and `steps` steps.
template <int R, typename T>
inline void add_tile(const float* x, int64_t stride, const T* panel, int64_t steps, bool fresh, float* sums) {
    vec sum[R][NV];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < NV; v++) sum[r][v] = fresh ? vec{} : load(sums + r * NR + v * W);
    for (int64_t i = 0; i < steps; i++) {
        vec w[NV];
        for (int v = 0; v < NV; v++) w[v] = load(panel + i * NR + v * W);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < NV; v++) sum[r][v] = fused(all(x[r * stride + i]), w[v], sum[r][v]);
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < NV; v++) store(sums + r * NR + v * W, sum[r][v]);
}

template <typename T>
void add_rows(const float* x, int64_t stride, int64_t rows, const T* panel, int64_t steps, bool fresh, float* sums) {
    in_tiles(rows, [&](auto size, int64_t r) {
        add_tile<decltype(size)::value>(x + r * stride, stride, panel, steps, fresh, sums + r * NR);
    });
}

inline const float* widened(const float* panel, int64_t, Buffer&) { return panel; }
template <typename T>
const float* widened(const T* panel, int64_t steps, Buffer& space) {
    float* to = space.fit(KC * NR);
    for (int64_t i = 0; i < steps * NR; i += W) store(to + i, load(panel + i));
    return to;
}

template <typename T>
void multiply(const Product& p, const T* weights, int threads) {
    share(p, threads, [&](int64_t panel, int64_t first, int64_t rows) {
        static thread_local Buffer sum_space, wide_space;
        float* sums = sum_space.fit(rows * NR);
        const T* w = weights + panel * NR * p.k;
        const float* x = p.x + first * p.x_stride;
        for (int64_t at = 0; at < p.k; at += KC) {
            const int64_t steps = std::min(KC, p.k - at);
            // Many rows: widen the weights once, not for each tile of rows.
            if (rows > 2 * MR) add_rows(x + at, p.x_stride, rows, widened(w + at * NR, steps, wide_space), steps, !at, sums);
            else add_rows(x + at, p.x_stride, rows, w + at * NR, steps, !at, sums);
        }
        write_panel(p, panel, first, rows, sums);
    });
}

// Panels of rows [n, k]; `to` may be `rows` itself where n is a multiple of NR. Throws std::bad_alloc.
template <typename T>
void pack(const T* rows, int64_t n, int64_t k, T* to, int threads) {
    in_parallel(panels_of(n), 1, threads, [&](int64_t panel) {
        Buffer space;
        T* made = (T*)space.fit((NR * k * sizeof(T) + 3) / 4);
        for (int64_t j = 0; j < NR; j++) {
            const int64_t row = panel * NR + j;
            for (int64_t i = 0; i < k; i++) made[i * NR + j] = row < n ? rows[row * k + i] : T{};
        }
        memcpy(to + panel * NR * k, made, NR * k * sizeof(T));
    });
}

// Row ids[i] of the weights, float32, into to[i]; returns whether all of them exist.
template <typename T>
bool look_up(const T* weights, int64_t n, int64_t k, const int64_t* ids, int64_t count, float* to) {
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= n) return false;
    for (int64_t i = 0; i < count; i++) {
        const T* from = weights + ids[i] / NR * NR * k + ids[i] % NR;
        for (int64_t d = 0; d < k; d++) to[i * k + d] = to_float(from[d * NR]);
    }
    return true;
}

}  // namespace

extern "C" int64_t pagetide_panel_rows() { return NR; }

// Each returns 0, or 1 where memory ran out (look_up: where an id has no row). sizes: m, n, k, strides of x and y.
#define LINEAR(name, type)                                                                                                 \
    extern "C" int pagetide_pack_##name(const void* rows, int64_t n, int64_t k, void* to, int threads) {                   \
        try {                                                                                                              \
            pack((const type*)rows, n, k, (type*)to, threads);                                                             \
        } catch (const std::bad_alloc&) { return 1; }                                                                      \
        return 0;                                                                                                          \
    }                                                                                                                      \
    extern "C" int pagetide_linear_##name(const float* x, const void* weights, const float* bias, float* y,                \
                                          const int64_t* sizes, int threads) {                                             \
        try {                                                                                                              \
            multiply(Product{x, bias, y, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]}, (const type*)weights, threads); \
        } catch (const std::bad_alloc&) { return 1; }                                                                      \
        return 0;                                                                                                          \
    }                                                                                                                      \
    extern "C" int pagetide_look_up_##name(const void* weights, int64_t n, int64_t k, const int64_t* ids, int64_t count,   \
                                           float* to) {                                                                    \
        return !look_up((const type*)weights, n, k, ids, count, to);                                                       \
    }
LINEAR(float32, float)
LINEAR(float16, float16)
LINEAR(bfloat16, bfloat16)
