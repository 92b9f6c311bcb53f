// Vectors of float, as wide as the flags allow, and the ways in and out of them. For all ops; each .cpp gets its own copy.
//
// They are the compiler's own (GCC and Clang); an intrinsic stands only where GCC finds the instruction by no other name.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

constexpr float NEVER = -std::numeric_limits<float>::infinity();
constexpr float ROUNDING = 12582912.f;  // 1.5 * 2^23: adding it rounds to a whole number, which the low bits then hold.
constexpr int64_t WORTH_SHARING = 1 << 15;  // Numbers below which waking other threads takes longer than it saves.

typedef float vec __attribute__((vector_size(4 * W)));
typedef float quad __attribute__((vector_size(16)));
typedef uint16_t half_vec __attribute__((vector_size(2 * W)));
typedef uint32_t bits_vec __attribute__((vector_size(4 * W)));

struct bfloat16 { uint16_t bits; };
struct float16 { uint16_t bits; };

template <typename To, typename From>
inline To as(From x) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}

// Through the processor's own conversion where the compiler has the type.
#if defined(__FLT16_MAX__) && (defined(__F16C__) || defined(__aarch64__))
inline float to_float(float16 x) { return float(as<_Float16>(x.bits)); }
#if defined(__AVX512F__)
inline vec load(const float16* p) { return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
#elif defined(__F16C__)
inline vec load(const float16* p) { return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
#else
typedef _Float16 native_half_vec __attribute__((vector_size(2 * W)));
inline vec load(const float16* p) { native_half_vec v; memcpy(&v, p, sizeof v); return __builtin_convertvector(v, vec); }
#endif
#else
inline float to_float(float16 x) {
    const uint32_t size = uint32_t(x.bits & 0x7fff) << 13, sign = uint32_t(x.bits & 0x8000) << 16;
    const bool finite = (x.bits & 0x7c00) != 0x7c00;
    // The factor moves the exponent's zero, and makes subnormal numbers whole.
    const uint32_t bits = finite ? as<uint32_t>(as<float>(size) * 0x1p112f) : size | 0x7f800000;
    return as<float>(bits | sign);
}
inline vec load(const float16* p) {
    vec v;
    for (int i = 0; i < W; i++) v[i] = to_float(p[i]);
    return v;
}
#endif

inline float to_float(float x) { return x; }
inline float to_float(bfloat16 x) { return as<float>(uint32_t(x.bits) << 16); }
inline vec load(const float* p) { vec v; memcpy(&v, p, sizeof v); return v; }
#if defined(__AVX512F__)  // (GCC widens in two halves.)
inline vec load(const bfloat16* p) {
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
}
#else
inline vec load(const bfloat16* p) {
    half_vec half;
    memcpy(&half, p, sizeof half);
    return (vec)(__builtin_convertvector(half, bits_vec) << 16);
}
#endif

// All to the nearest, ties to even; NaN stays NaN.
inline void from_float(float x, float* to) { *to = x; }
inline void from_float(float x, bfloat16* to) {
    const uint32_t bits = as<uint32_t>(x);
    to->bits = x != x ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline void from_float(float x, float16* to) {
    const uint32_t bits = as<uint32_t>(x), size = bits & 0x7fffffff;
    uint32_t half;
    if (x != x) half = 0x7e00;
    else if (size >= as<uint32_t>(65520.f)) half = 0x7c00;
    else if (size < as<uint32_t>(0x1p-14f)) half = uint32_t(std::nearbyint(as<float>(size) * 0x1p24f));
    else half = (size - (112u << 23) + 0xfff + ((size >> 13) & 1)) >> 13;
    to->bits = uint16_t(half | (bits >> 16 & 0x8000));
}
inline void store(float* p, vec v) { memcpy(p, &v, sizeof v); }

// To memory without reading what lies there, where the processor can; `p` on the boundary of a vector. Other threads see it
// behind `end_streams`.
#if defined(__AVX512F__)
inline void stream(float* p, vec v) { _mm512_stream_ps(p, (__m512)v); }
inline void end_streams() { _mm_sfence(); }
#elif defined(__AVX__)
inline void stream(float* p, vec v) { _mm256_stream_ps(p, (__m256)v); }
inline void end_streams() { _mm_sfence(); }
#else
inline void stream(float* p, vec v) { store(p, v); }
inline void end_streams() {}
#endif

inline vec all(float x) { return x - vec{}; }

// Numbers of two vectors of one type, by their places: those of `b` follow those of `a`.
#if defined(__clang__) || __GNUC__ >= 12
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (decltype((a) < (b))){__VA_ARGS__})
#endif

// The first halves of two vectors, and the second ones, number by number in turn.
#if defined(__AVX512F__)
#define LOW_HALVES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX__)
#define LOW_HALVES 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOW_HALVES 0, 4, 1, 5
#define HIGH_HALVES 2, 6, 3, 7
#endif
inline vec low_halves(vec a, vec b) { return PICK(a, b, LOW_HALVES); }
inline vec high_halves(vec a, vec b) { return PICK(a, b, HIGH_HALVES); }

// a * b + c with one rounding where the processor can, in every copy of a template alike: left to itself, the compiler
// fuses in some and not in others, and a row's result would depend on how many rows there are.
inline vec fused(vec a, vec b, vec c) {
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

// e^x within 2 units in the last place; 0 below -87, so for minus infinity too. A Taylor series on |x| <= ln 2 / 2.
inline float exponential(float x) {
    float bounded = x < -87.f ? -87.f : (x > 88.f ? 88.f : x);
    float shifted = bounded * 1.44269504f + ROUNDING;
    float n = shifted - ROUNDING;
    float r = bounded - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.f / 5040;
    p = p * r + 1.f / 720;
    p = p * r + 1.f / 120;
    p = p * r + 1.f / 24;
    p = p * r + 1.f / 6;
    p = p * r + .5f;
    p = p * r + 1.f;
    p = p * r + 1.f;
    float power = as<float>((as<uint32_t>(shifted) + 127) << 23);
    return x < -87.f ? 0.f : p * power;
}

// The same of each number.
inline vec exponential(vec x) {
    const vec shift = all(ROUNDING);
    const vec low = all(-87.f), high = all(88.f);
    vec bounded = x < low ? low : x;
    bounded = bounded > high ? high : bounded;
    const vec shifted = fused(bounded, all(1.44269504f), shift);
    const vec n = shifted - shift;
    const vec r = fused(n, all(2.12194440e-4f), fused(n, all(-0.693359375f), bounded));
    vec p = all(1.f / 5040);
    p = fused(p, r, all(1.f / 720));
    p = fused(p, r, all(1.f / 120));
    p = fused(p, r, all(1.f / 24));
    p = fused(p, r, all(1.f / 6));
    p = fused(p, r, all(.5f));
    p = fused(p, r, all(1.f));
    p = fused(p, r, all(1.f));
    const vec power = (vec)(((bits_vec)shifted + 127) << 23);
    return x < low ? vec{} : p * power;
}

// A Taylor series near 0, where 1 - 2 / (e^2x + 1) would lose digits.
inline float hyperbolic_tangent(float x) {
    float s = x * x;
    float near = x + x * s * (-1.f / 3 + s * (2.f / 15 + s * (-17.f / 315 + s * (62.f / 2835 + s * (-1382.f / 155925)))));
    float far = 1.f - 2.f / (exponential(2 * std::fabs(x)) + 1.f);
    return s < .09f ? near : std::copysign(far, x);
}

// Memory that grows and is not zeroed, on the boundary of a cache line.
class Buffer {
  public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { free(data_); }
    float* fit(int64_t count) {
        if (count > size_) {
            free(data_);
            size_ = 0;
            data_ = (float*)aligned_alloc(64, (count * 4 + 63) / 64 * 64);
            if (!data_) throw std::bad_alloc();
            size_ = count;
        }
        return data_;
    }

  private:
    float* data_ = nullptr;
    int64_t size_ = 0;
};

}  // namespace
