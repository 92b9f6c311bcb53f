// Weights in panels, and how a matrix product over them is shared among threads.
//
// A panel holds NR rows of a weight matrix, transposed: what one step along the inner dimension needs lies together, and
// a panel is read from memory once a step, from its first byte to its last. All sums run over the inner dimension in
// the same order whatever the number of rows: results are batch-invariant, and do not depend on the threads.

#pragma once

#include <type_traits>

#include "vectors.h"

namespace {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int NV = 4;  // Vectors in a panel's width; NV * MR sums fill the registers.
#else
constexpr int NV = 2;
#endif
constexpr int MR = 6;  // Rows whose sums are kept in registers together.
constexpr int64_t NR = NV * W;
constexpr int64_t STREAMED_BYTES = 32 << 20;  // Results above this are not in a cache when they are read again.
constexpr int64_t CHUNK_BYTES = 384 << 10;  // Of the left matrix, what shares a core's second-level cache with a panel.

inline int64_t panels_of(int64_t n) { return (n + NR - 1) / NR; }

struct Product {
    const float* x;     // [m, k], rows x_stride apart
    const float* bias;  // [n], or null
    float* y;           // [m, n], rows y_stride apart
    int64_t m, n, k, x_stride, y_stride;  // k is at least 1

    // Whether y had better not pass through the caches: it is larger than they are, and on the boundaries of vectors.
    bool is_streamed() const {
        return !bias && m * n * 4 > STREAMED_BYTES && (uintptr_t)y % sizeof(vec) == 0 && y_stride % W == 0;
    }

    // Rows of one piece of work.
    int64_t chunk() const { return std::min(m, std::max<int64_t>(8 * MR, CHUNK_BYTES / (4 * k) / MR * MR)); }
};

// The rows of a panel's sums become columns of y.
inline void write_panel(const Product& p, int64_t panel, int64_t first, int64_t rows, const float* sums) {
    const int64_t column = panel * NR, count = std::min(NR, p.n - column);
    if (count == NR && p.is_streamed()) {
        for (int64_t r = 0; r < rows; r++)
            for (int v = 0; v < NV; v++)
                stream(p.y + (first + r) * p.y_stride + column + v * W, load(sums + r * NR + v * W));
        return end_streams();
    }
    for (int64_t r = 0; r < rows; r++) {
        float* to = p.y + (first + r) * p.y_stride + column;
        const float* from = sums + r * NR;
        memcpy(to, from, count * 4);
        if (p.bias)
            for (int64_t i = 0; i < count; i++) to[i] += p.bias[column + i];
    }
}

// Calls tile(size, first) for rows in tiles of MR and one of what is left; `size` is a constant, for the compiler to unroll.
template <typename Tile>
inline void in_tiles(int64_t rows, Tile tile) {
    int64_t r = 0;
    for (; r + MR <= rows; r += MR) tile(std::integral_constant<int, MR>{}, r);
    static_assert(MR == 6, "a case for every rest");
    switch (rows - r) {
        case 5: return tile(std::integral_constant<int, 5>{}, r);
        case 4: return tile(std::integral_constant<int, 4>{}, r);
        case 3: return tile(std::integral_constant<int, 3>{}, r);
        case 2: return tile(std::integral_constant<int, 2>{}, r);
        case 1: return tile(std::integral_constant<int, 1>{}, r);
    }
}

// What one tile of rows fetches into the second-level cache of the weights that come next.
struct Fetch {
    const char* from;
    int64_t a_step;

    void operator()(int64_t step) const { __builtin_prefetch(from + step * a_step, 0, 2); }
};

// The weights behind those that are being multiplied: all tiles fetch parts of them, so that reading memory and computing
// overlap. By itself the processor reads them while the first tile passes, and not while the others do.
struct Ahead {
    const char* from;
    int64_t steps, a_step;

    // Of `left` bytes behind `from`, the end of what is multiplied, as many as that has: `bytes` for each of its `steps`,
    // shared among the tiles of so many rows; a step fetches a cache line at most. For few rows memory is read all the time,
    // best by the processor itself.
    Ahead(const void* from, int64_t left, int64_t steps, int64_t bytes, int64_t rows) : from((const char*)from), steps(steps) {
        a_step = rows > 2 * MR ? std::min<int64_t>(64, std::min(bytes, left / steps) * MR / (rows + MR - 1)) : 0;
    }

    // Of the tile whose first row is `row`.
    Fetch part(int64_t row) const { return {from + row / MR * steps * a_step, a_step}; }
};

// Calls work(i) for 0 <= i < count, each thread `at_once` of them in a row. Where memory runs out in one, std::bad_alloc
// is thrown when all have ended: an exception that left the parallel region would end the process.
template <typename Work>
void in_parallel(int64_t count, int64_t at_once, int threads, Work work) {
    bool failed = false;
#pragma omp parallel for schedule(dynamic, at_once) num_threads(threads)
    for (int64_t i = 0; i < count; i++) {
        try {
            work(i);
        } catch (const std::bad_alloc&) {
#pragma omp atomic write
            failed = true;
        }
    }
    if (failed) throw std::bad_alloc();
}

// Calls work(panel, first row, rows) for every piece, the panels of some rows before the next rows. Throws std::bad_alloc.
template <typename Work>
void share(const Product& p, int threads, Work work) {
    if (!p.m) return;  // an expert that no token chose
    const int64_t chunk = p.chunk(), panels = panels_of(p.n), pieces = (p.m + chunk - 1) / chunk * panels;
    in_parallel(pieces, std::max<int64_t>(1, pieces / (threads * 8)), threads, [&](int64_t i) {
        const int64_t first = i / panels * chunk;
        work(i % panels, first, std::min(chunk, p.m - first));
    });
}

// y = x w^T + bias, where `product` is a FloatProduct or Int8Product. Throws std::bad_alloc.
template <typename Sums>
void multiply(const Product& p, const Sums& product, int threads) {
    share(p, threads, [&](int64_t panel, int64_t first, int64_t rows) {
        write_panel(p, panel, first, rows, product.sums(panel, first, rows));
    });
}

}  // namespace
