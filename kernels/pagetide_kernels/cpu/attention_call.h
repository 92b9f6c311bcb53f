// What a call of paged attention reads and writes. For the files of that op.

#pragma once

#include "vectors.h"

namespace {

template <typename T>
struct Call {
    const float* query;
    const T *keys, *values;
    float* out;
    const int32_t *tables, *contexts, *starts;
    int64_t sequences, table_width, heads, kv_heads, key_dim, value_dim, block_size, row_stride, head_stride;
    float scale, cap;
    int64_t window;  // 0: all keys

    int64_t group() const { return heads / kv_heads; }
    int64_t first_seen(int64_t position) const {
        return window ? std::max<int64_t>(0, position - window + 1) : 0;
    }
    // Where the positions low..high of a sequence lie in the caches.
    void slots(int64_t sequence, int64_t low, int64_t high, int64_t* to) const {
        const int32_t* table = tables + sequence * table_width;
        for (int64_t block = low / block_size, position = low; position < high; block++) {
            const int64_t first = table[block] * block_size - block * block_size;
            for (const int64_t end = std::min(high, (block + 1) * block_size); position < end; position++)
                *to++ = first + position;
        }
    }
    const T* key(int64_t slot, int64_t kv_head) const { return keys + (slot * kv_heads + kv_head) * key_dim; }
    const T* value(int64_t slot, int64_t kv_head) const { return values + (slot * kv_heads + kv_head) * value_dim; }
    const float* query_row(int64_t row, int64_t head) const { return query + row * row_stride + head * head_stride; }
    void write(int64_t row, int64_t head, const float* sums, float weight) const {
        float* to = out + (row * heads + head) * value_dim;
        for (int64_t d = 0; d < value_dim; d++) to[d] = sums[d] / weight;
    }
};

inline void scale_and_cap(float* scores, int64_t count, float scale, float cap) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) scores[i] *= scale;
    if (cap > 0) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) scores[i] = cap * hyperbolic_tangent(scores[i] / cap);
    }
}

// What scores are compared with, so that a row of nothing but minus infinity gives weights of 0 and not NaN: keys that
// come later may yet have a say.
inline float finite_top(float top) { return top == NEVER ? 0.f : top; }

}  // namespace
