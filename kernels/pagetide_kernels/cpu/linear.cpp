// Matrix products y = x w^T + b over weights in panels of float32, float16 or bfloat16; computed in float32.

#include "float_product.h"
#include "ops.h"

namespace {

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
bool look_up(const T* weights, int64_t n, int64_t k, const int64_t* ids, int64_t count, float* to, int threads) {
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= n) return false;
#pragma omp parallel for num_threads(threads) if (count * k > WORTH_SHARING)
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
            const Product p{x, bias, y, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};                                      \
            multiply(p, FloatProduct<type>{p, (const type*)weights}, threads);                                              \
        } catch (const std::bad_alloc&) { return 1; }                                                                      \
        return 0;                                                                                                          \
    }                                                                                                                      \
    extern "C" int pagetide_look_up_##name(const void* weights, int64_t n, int64_t k, const int64_t* ids, int64_t count,   \
                                           float* to, int threads) {                                                       \
        return !look_up((const type*)weights, n, k, ids, count, to, threads);                                              \
    }
LINEAR(float32, float)
LINEAR(float16, float16)
LINEAR(bfloat16, bfloat16)
