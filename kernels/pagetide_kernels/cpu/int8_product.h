// The sums of a product over panels of 8 bits with a scale for every GROUP numbers of a row of weights.
//
// The left matrix is rounded to 8 bits in the same way, so that products within a group are sums of whole numbers: exact,
// and four times as fast as float32 where the processor has VNNI. Weights are kept as unsigned bytes, 128 too large:
// that is the form in which VNNI wants one side; a group starts at -128 times the sum of its left numbers, which makes up
// for it.

#pragma once

#include "panels.h"

namespace {

constexpr int64_t GROUP = 32;
constexpr int QUAD = 4;  // Steps of the inner dimension in one element of a vector.
constexpr float LEAST = 1e-30f;  // A group of smaller left numbers counts as zeros: 127 / x must not overflow.
typedef int32_t int_vec __attribute__((vector_size(4 * W)));

inline int_vec load_bytes(const uint8_t* p) { int_vec v; memcpy(&v, p, sizeof v); return v; }

// Adds to each element of sum its four weights times the four left numbers that every element of x holds.
#if defined(__AVX512VNNI__)
constexpr int OFFSET = 128;
inline int_vec add_quads(int_vec sum, int_vec w, int_vec x) { return (int_vec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x); }
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
constexpr int OFFSET = 128;
inline int_vec add_quads(int_vec sum, int_vec w, int_vec x) { return (int_vec)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, (__m256i)x); }
#elif defined(__AVX2__) && !defined(__AVX512F__)
constexpr int OFFSET = 0;
// The sum of two products of 8 bits each fits into 16, since neither side is ever -128.
inline int_vec add_quads(int_vec sum, int_vec w, int_vec x) {
    const __m256i left = (__m256i)x, right = _mm256_xor_si256((__m256i)w, _mm256_set1_epi8(-128));
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(left), _mm256_sign_epi8(right, left));
    return sum + (int_vec)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
#else
constexpr int OFFSET = 128;
inline int_vec add_quads(int_vec sum, int_vec w, int_vec x) {
    for (int i = 0; i < 4; i++) sum += (int_vec)((bits_vec)w << (24 - 8 * i) >> 24) * (x << (24 - 8 * i) >> 24);
    return sum;
}
#endif

inline int64_t padded(int64_t k) { return (k + QUAD - 1) / QUAD * QUAD; }
inline int64_t groups_of(int64_t k) { return (k + GROUP - 1) / GROUP; }

// The left matrix in 8 bits: numbers [m, padded k], and of each group its scale and what its sums start at [m, groups].
struct Left {
    Buffer numbers_space, scales_space, starts_space;
    int8_t* numbers;
    float* scales;
    int32_t* starts;

    void fit(int64_t m, int64_t k) {
        numbers = (int8_t*)numbers_space.fit(m * padded(k) / 4);
        scales = scales_space.fit(m * groups_of(k));
        starts = (int32_t*)starts_space.fit(m * groups_of(k));
    }
};

inline void round_group(const float* x, int64_t count, int8_t* to, float* scale, int32_t* start) {
    float most = 0;
    int32_t not_finite = 0;  // Any makes all of the group NaN.
#pragma omp simd reduction(max : most) reduction(+ : not_finite)
    for (int64_t i = 0; i < count; i++) {
        most = std::fabs(x[i]) > most ? std::fabs(x[i]) : most;
        not_finite += !(std::fabs(x[i]) <= std::numeric_limits<float>::max());
    }
    const float inverse = most >= LEAST ? 127.f / most : 0.f;
    int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        const int8_t number = int8_t(as<int32_t>(x[i] * inverse + ROUNDING) - as<int32_t>(ROUNDING));
        to[i] = number;
        sum += number;  // small for NaN, too: any number will do beside a scale of NaN, but no sum may overflow
    }
    for (int64_t i = count; i < padded(count); i++) to[i] = 0;
    *scale = not_finite ? NAN : most / 127.f;
    *start = -OFFSET * sum;
}

inline void round_row(const Product& p, int64_t row, Left& left) {
    const int64_t groups = groups_of(p.k);
    for (int64_t g = 0; g < groups; g++)
        round_group(p.x + row * p.x_stride + g * GROUP, std::min(GROUP, p.k - g * GROUP),
                    left.numbers + row * padded(p.k) + g * GROUP, left.scales + row * groups + g, left.starts + row * groups + g);
}

// Without this GCC leaves the sums in memory, where their number is no constant to it.
#define UNROLL _Pragma("GCC unroll 8")

// sums[r][0..NR] (+)= x[r] . panel for one group of R rows.
template <int R>
inline void add_group(const int8_t* x, int64_t stride, const uint8_t* panel, const float* panel_scales, int64_t quads,
                      const float* scales, const int32_t* starts, int64_t groups, bool fresh, float* sums, Fetch fetch) {
    int_vec sum[R][NV];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < NV; v++) sum[r][v] = starts[r * groups] - int_vec{};
    for (int64_t i = 0; i < quads; i++) {
        int_vec w[NV];
        UNROLL for (int v = 0; v < NV; v++) w[v] = load_bytes(panel + i * NR * QUAD + v * W * QUAD);
        fetch(i);
        UNROLL for (int r = 0; r < R; r++) {
            int32_t quad;
            memcpy(&quad, x + r * stride + i * QUAD, sizeof quad);
            const int_vec numbers = quad - int_vec{};
            UNROLL for (int v = 0; v < NV; v++) sum[r][v] = add_quads(sum[r][v], w[v], numbers);
        }
    }
    UNROLL for (int v = 0; v < NV; v++) {
        const vec panel_scale = load(panel_scales + v * W);
        UNROLL for (int r = 0; r < R; r++) {
            float* to = sums + r * NR + v * W;
            const vec scale = panel_scale * all(scales[r * groups]);
            store(to, fused(__builtin_convertvector(sum[r][v], vec), scale, fresh ? vec{} : load(to)));
        }
    }
}

template <int R>
void add_tile(const Product& p, const Left& left, int64_t row, const uint8_t* panel, const float* scales, float* sums,
              Fetch fetch) {
    const int64_t groups = groups_of(p.k), stride = padded(p.k);
    for (int64_t g = 0; g < groups; g++)
        add_group<R>(left.numbers + row * stride + g * GROUP, stride, panel + g * GROUP * NR, scales + g * NR,
                     padded(std::min(GROUP, p.k - g * GROUP)) / QUAD, left.scales + row * groups + g,
                     left.starts + row * groups + g, groups, !g, sums, Fetch{fetch.from + g * GROUP / QUAD * fetch.a_step, fetch.a_step});
}

// x [m, k] times panels of 8 bits and their scales; see `share`. Throws std::bad_alloc.
struct Int8Product {
    const Product& p;
    const Left& left;
    const uint8_t* weights;
    const float* scales;

    // [rows, NR] of rows from `first` and one panel; this thread's next call overwrites them.
    const float* sums(int64_t panel, int64_t first, int64_t rows) const {
        static thread_local Buffer space;
        float* sums = space.fit(rows * NR);
        const int64_t quads = padded(p.k) / QUAD, bytes = quads * NR * QUAD;
        const uint8_t* w = weights + panel * bytes;
        const float* w_scales = scales + panel * NR * groups_of(p.k);
        const Ahead ahead(w + bytes, (panels_of(p.n) - panel - 1) * bytes, quads, NR * QUAD, rows);
        in_tiles(rows, [&](auto size, int64_t r) {
            add_tile<decltype(size)::value>(p, left, first + r, w, w_scales, sums + r * NR, ahead.part(r));
        });
        return sums;
    }
};

// The left matrix of a product, in memory that this thread uses again.
inline const Left& round_left(const Product& p, int threads) {
    static thread_local Left left;
    left.fit(p.m, p.k);
    Left& shared = left;
#pragma omp parallel for num_threads(threads) if (p.m > 4)
    for (int64_t row = 0; row < p.m; row++) round_row(p, row, shared);
    return left;
}

}  // namespace
