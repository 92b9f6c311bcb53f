// The ops as Python and decoder_layers.cpp call them; each is described where it is defined, by a file that includes this.

#pragma once

#include <cstdint>

#define DECLARE(name)                                                                                                      \
    extern "C" int pagetide_linear_##name(const float* x, const void* weights, const float* bias, float* y,                \
                                          const int64_t* sizes, int threads);                                              \
    extern "C" int pagetide_rotate_and_cache_##name(float* qkv, const float* cos, const float* sin,                        \
                                                    const float* query_norm, const float* key_norm, void* keys,            \
                                                    void* values, const int64_t* slots, const int64_t* sizes, float eps,   \
                                                    int threads);                                                          \
    extern "C" int pagetide_attention_##name(const float* query, const void* keys, const void* values, float* out,         \
                                             const int32_t* tables, const int32_t* contexts, const int32_t* starts,        \
                                             const int64_t* sizes, float scale, float cap, int threads);
DECLARE(float32)
DECLARE(float16)
DECLARE(bfloat16)
#undef DECLARE

extern "C" int pagetide_linear_int8(const float* x, const void* weights, const float* scales, const float* bias, float* y,
                                    const int64_t* sizes, int threads);
extern "C" void pagetide_rms_norm(const float* hidden, const float* weight, float* to, int64_t m, int64_t n, float eps,
                                  int threads);
extern "C" void pagetide_add_norm(float* hidden, const float* x, const float* own, const float* next, float* to, int64_t m,
                                  int64_t n, float eps, int threads);
extern "C" void pagetide_gated(const float* gate_up, float* to, int64_t m, int64_t n, int gelu, int threads);
