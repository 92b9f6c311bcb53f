// Matrix products over weights of 8 bits with a scale for every GROUP numbers of a row of weights.

#include "int8_product.h"
#include "ops.h"

namespace {

// One group of row j of a panel.
template <typename T>
inline void quantize_group(const T* from, int64_t count, uint8_t* panel, int64_t j, float* scale) {
    float most = 0;
    bool finite = true;
    for (int64_t i = 0; i < count; i++) {
        const float size = std::fabs(to_float(from[i]));
        finite = finite && size <= std::numeric_limits<float>::max();
        most = std::max(most, size);
    }
    *scale = finite ? most / 127.f : NAN;  // a broken weight must show, not count as 0
    if (!finite || !(most > 0)) return;
    for (int64_t i = 0; i < count; i++)
        panel[i / QUAD * NR * QUAD + j * QUAD + i % QUAD] = uint8_t(128 + int(std::nearbyint(to_float(from[i]) / most * 127.f)));
}

template <typename T>
void quantize(const T* rows, int64_t n, int64_t k, uint8_t* to, float* scales, int threads) {
    const int64_t groups = groups_of(k);
#pragma omp parallel for num_threads(threads)
    for (int64_t panel = 0; panel < panels_of(n); panel++) {
        uint8_t* made = to + panel * NR * padded(k);
        float* made_scales = scales + panel * NR * groups;
        std::fill(made, made + NR * padded(k), uint8_t(128));
        std::fill(made_scales, made_scales + NR * groups, 0.f);
        for (int64_t j = 0; j < std::min(NR, n - panel * NR); j++)
            for (int64_t g = 0; g < groups; g++)
                quantize_group(rows + (panel * NR + j) * k + g * GROUP, std::min(GROUP, k - g * GROUP), made + g * GROUP * NR, j,
                               made_scales + g * NR + j);
    }
}

}  // namespace

// Bytes of a row of k weights, and its scales.
extern "C" int64_t pagetide_padded(int64_t k) { return padded(k); }
extern "C" int64_t pagetide_groups(int64_t k) { return groups_of(k); }

extern "C" int pagetide_linear_int8(const float* x, const void* weights, const float* scales, const float* bias, float* y,
                                    const int64_t* sizes, int threads) {
    try {
        const Product p{x, bias, y, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
        multiply(p, Int8Product{p, round_left(p, threads), (const uint8_t*)weights, scales}, threads);
    } catch (const std::bad_alloc&) { return 1; }
    return 0;
}

extern "C" int pagetide_look_up_int8(const uint8_t* weights, const float* scales, int64_t n, int64_t k, const int64_t* ids,
                                     int64_t count, float* to, int threads) {
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= n) return 1;
#pragma omp parallel for num_threads(threads) if (count * k > WORTH_SHARING)
    for (int64_t i = 0; i < count; i++) {
        const int64_t panel = ids[i] / NR * NR, j = ids[i] % NR;
        const uint8_t* from = weights + panel * padded(k) + j * QUAD;
        const float* scale = scales + panel * groups_of(k) + j;
        for (int64_t d = 0; d < k; d++)
            to[i * k + d] = scale[d / GROUP * NR] * (int(from[d / QUAD * NR * QUAD + d % QUAD]) - 128);
    }
    return 0;
}

#define QUANTIZE(name, type)                                                                                               \
    extern "C" void pagetide_quantize_##name(const void* rows, int64_t n, int64_t k, void* to, float* scales, int threads) { \
        quantize((const type*)rows, n, k, (uint8_t*)to, scales, threads);                                                  \
    }
QUANTIZE(float32, float)
QUANTIZE(float16, float16)
QUANTIZE(bfloat16, bfloat16)
