// What lies between the matrix products of a decoder layer: norms, rotary positions, gated activations. All in float32.

#include "ops.h"
#include "vectors.h"

namespace {

inline float inverse_root(const float* x, int64_t n, float eps) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return 1.f / std::sqrt(sum / n + eps);
}

inline void norm_row(const float* x, const float* weight, int64_t n, float eps, float* to) {
    const float factor = inverse_root(x, n, eps);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = x[i] * factor * weight[i];
}

// hidden += x, or += norm(x) where x has a norm of its own; then to = norm(hidden), if wanted.
inline void add_norm_row(float* hidden, const float* x, const float* own, const float* next, int64_t n, float eps, float* to) {
    const float factor = own ? inverse_root(x, n, eps) : 1.f;
    if (own) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) hidden[i] += x[i] * factor * own[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) hidden[i] += x[i];
    }
    if (next) norm_row(hidden, next, n, eps, to);
}

inline float silu(float x) { return x / (1.f + exponential(-x)); }
// (1 + tanh y) / 2 is 1 / (1 + e^-2y), which loses no digits where tanh is near -1.
inline float gelu_tanh(float x) { return x / (1.f + exponential(-1.5957691216057308f * (x + .044715f * x * x * x))); }

inline void gate_row(const float* gate, int64_t n, bool gelu, float* to) {
    const float* up = gate + n;
    if (gelu) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = gelu_tanh(gate[i]) * up[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = silu(gate[i]) * up[i];
    }
}

struct Heads {
    int64_t tokens, heads, kv_heads, dim, rotated, angle_stride, cache_slots;
    const float *cos, *sin, *query_norm, *key_norm;
    float eps;
};

inline void turn(const Heads& h, int64_t token, const float* norm, float* head) {
    if (norm) norm_row(head, norm, h.dim, h.eps, head);
    const float *cos = h.cos + token * h.angle_stride, *sin = h.sin + token * h.angle_stride;
    float* other = head + h.rotated;
#pragma omp simd
    for (int64_t i = 0; i < h.rotated; i++) {
        const float a = head[i], b = other[i];
        head[i] = a * cos[i] - b * sin[i];
        other[i] = b * cos[i] + a * sin[i];
    }
}

// Queries and keys of qkv [tokens, (heads + 2 kv_heads) dim] get RoPE in place; keys and values go to the cache. Returns
// whether all slots exist; if not, nothing is changed.
template <typename T>
bool rotate_and_cache(const Heads& h, float* qkv, T* keys, T* values, const int64_t* slots, int threads) {
    for (int64_t t = 0; t < h.tokens; t++)
        if (slots[t] < 0 || slots[t] >= h.cache_slots) return false;
    const int64_t width = (h.heads + 2 * h.kv_heads) * h.dim, cached = h.kv_heads * h.dim;
#pragma omp parallel for num_threads(threads) if (h.tokens * width > WORTH_SHARING)
    for (int64_t t = 0; t < h.tokens; t++) {
        float *row = qkv + t * width, *key = row + h.heads * h.dim, *value = key + cached;
        for (int64_t i = 0; i < h.heads; i++) turn(h, t, h.query_norm, row + i * h.dim);
        for (int64_t i = 0; i < h.kv_heads; i++) turn(h, t, h.key_norm, key + i * h.dim);
        for (int64_t i = 0; i < cached; i++) from_float(key[i], keys + slots[t] * cached + i);
        for (int64_t i = 0; i < cached; i++) from_float(value[i], values + slots[t] * cached + i);
    }
    return true;
}

}  // namespace

// to [m, n] = norm of hidden [m, n].
extern "C" void pagetide_rms_norm(const float* hidden, const float* weight, float* to, int64_t m, int64_t n, float eps,
                                  int threads) {
#pragma omp parallel for num_threads(threads) if (m * n > WORTH_SHARING)
    for (int64_t r = 0; r < m; r++) norm_row(hidden + r * n, weight, n, eps, to + r * n);
}

// See add_norm_row; `own`, and `next` together with `to`, may be null.
extern "C" void pagetide_add_norm(float* hidden, const float* x, const float* own, const float* next, float* to, int64_t m,
                                  int64_t n, float eps, int threads) {
#pragma omp parallel for num_threads(threads) if (m * n > WORTH_SHARING)
    for (int64_t r = 0; r < m; r++) add_norm_row(hidden + r * n, x + r * n, own, next, n, eps, to + r * n);
}

// to [m, n] = activation(first half) * second half of gate_up [m, 2 n].
extern "C" void pagetide_gated(const float* gate_up, float* to, int64_t m, int64_t n, int gelu, int threads) {
#pragma omp parallel for num_threads(threads) if (m * n > WORTH_SHARING)
    for (int64_t r = 0; r < m; r++) gate_row(gate_up + r * 2 * n, n, gelu, to + r * n);
}

// sizes: tokens, heads, kv_heads, dim, pairs that are rotated, stride of cos and sin, slots of the caches. The norms may be
// null. Returns 0, or 1 where a token's slot does not exist.
#define ROTATE(name, type)                                                                                                  \
    extern "C" int pagetide_rotate_and_cache_##name(float* qkv, const float* cos, const float* sin,                         \
                                                    const float* query_norm, const float* key_norm, void* keys,             \
                                                    void* values, const int64_t* slots, const int64_t* sizes, float eps,    \
                                                    int threads) {                                                          \
        const Heads heads{sizes[0], sizes[1], sizes[2], sizes[3],   sizes[4], sizes[5],                                     \
                          sizes[6], cos,      sin,      query_norm, key_norm, eps};                                         \
        return !rotate_and_cache(heads, qkv, (type*)keys, (type*)values, slots, threads);                                   \
    }
ROTATE(float32, float)
ROTATE(float16, float16)
ROTATE(bfloat16, bfloat16)
