// The argmax of each row of a product x w^T and its value, without writing the product.
//
// With an int8 pre-filter the result is the same, but few of the weights are read: the filter holds them in 8 bits, a fourth
// of float32. The product with the filter and a bound of its error (Cauchy-Schwarz) show of most columns that they cannot be
// the largest; the others are computed from the weights themselves, by the same operations in the same order as in a
// whole product.

#include <vector>

#include <omp.h>

#include "float_product.h"
#include "int8_product.h"

namespace {

// A row of which more than one column in so many may be the largest is computed whole: each column costs a vector of
// weights a step, and the memory to note it.
constexpr int64_t FLAT = 32;
constexpr float LEAST_NORMAL = std::numeric_limits<float>::min(), LOST = 1e-30f;  // LOST: what sums lose by underflow.

// The first of the largest; the first NaN, if there is one.
struct Best {
    float value = NEVER;
    int64_t place = std::numeric_limits<int64_t>::max();

    void see(float other, int64_t at) {
        const bool is_more = value == value && (other != other || other > value);
        const bool is_equal = other == value || (other != other && value != value);
        if (is_more || (is_equal && at < place)) *this = {other, at};
    }
    void see(const Best& other) { see(other.value, other.place); }
};

// Of every row of p the best, into best[0..m]; `product` as in `multiply`. Throws std::bad_alloc.
template <typename Sums>
void find(const Product& p, const Sums& product, int threads, Best* best) {
    std::vector<std::vector<Best>> of_thread(threads, std::vector<Best>(p.m));
    share(p, threads, [&](int64_t panel, int64_t first, int64_t rows) {
        Best* mine = of_thread[omp_get_thread_num()].data() + first;
        const float* sums = product.sums(panel, first, rows);
        const int64_t column = panel * NR, count = std::min(NR, p.n - column);
        for (int64_t r = 0; r < rows; r++, sums += NR) {
            int32_t hits = 0;
#pragma omp simd reduction(+ : hits)
            for (int64_t i = 0; i < count; i++) hits += !(sums[i] < mine[r].value);
            for (int64_t i = 0; hits && i < count; i++) mine[r].see(sums[i], column + i);
        }
    });
    for (int64_t r = 0; r < p.m; r++) {
        best[r] = {};
        for (const auto& found : of_thread) best[r].see(found[r]);
    }
}

// Weights in 8 bits. errors and sizes [n]: of each row of weights the norms of what 8 bits lack of it, and of
// what they hold; no less than they are.
struct Screen {
    const uint8_t* numbers;
    const float *scales, *errors, *sizes;
};

// Of a row of x: no less than its norm, and the norm of what 8 bits lack of it, with all that float32 rounds on the way.
struct Reach { float size, error; };

Reach reach_of(const Product& p, const Left& left, int64_t row) {
    const float *x = p.x + row * p.x_stride, *scales = left.scales + row * groups_of(p.k);
    const int8_t* numbers = left.numbers + row * padded(p.k);
    double size = 0, error = 0;
    for (int64_t i = 0; i < p.k; i++) {
        const double lacks = double(x[i]) - double(scales[i / GROUP]) * numbers[i];
        size += double(x[i]) * x[i];
        error += lacks * lacks;
    }
    // Both sums of k products, and the few roundings of a bound, are off by less than this part of the norms' product.
    const double rounded = (2 * p.k + 64) * 0x1p-24, size_of_row = std::sqrt(size);
    return {float(size_of_row * 1.0001) + LEAST_NORMAL,
            float((std::sqrt(error) + rounded * size_of_row) * 1.0001) + LEAST_NORMAL};
}

struct Candidate {
    int64_t row, place;
    float upper, value;
};

// What one thread found.
struct Found {
    int64_t limit;               // Candidates of a row that are noted; one with more is computed whole.
    std::vector<float> floor;    // [m]: the largest value is no less.
    std::vector<int64_t> count;  // [m]: candidates of a row.
    std::vector<Candidate> candidates;

    Found(int64_t rows, int64_t limit) : limit(limit), floor(rows, NEVER), count(rows) {}
};

void screen_panel(const Product& p, const Screen& screen, const std::vector<Reach>& reach, int64_t panel, int64_t first,
                  int64_t rows, const float* sums, Found& found) {
    const int64_t column = panel * NR, count = std::min(NR, p.n - column);
    const float *errors = screen.errors + column, *sizes = screen.sizes + column;
    for (int64_t r = first; r < first + rows; r++, sums += NR) {
        const Reach of = reach[r];
        float upper[NR], floor = found.floor[r];
        int32_t hits = 0;
#pragma omp simd reduction(max : floor)
        for (int64_t i = 0; i < count; i++) {
            // No part of either sum is larger. Where one might be infinite, this makes the bound NaN, which rules nothing out.
            const float most = 4 * (errors[i] + sizes[i]) * (of.size + of.error);
            const float off = errors[i] * of.size + sizes[i] * of.error + LOST + (most - most), lower = sums[i] - off;
            upper[i] = sums[i] + off;
            floor = lower > floor ? lower : floor;
        }
        found.floor[r] = floor;
#pragma omp simd reduction(+ : hits)
        for (int64_t i = 0; i < count; i++) hits += !(upper[i] < floor);
        if (!hits || (found.count[r] += hits) > found.limit) continue;
        for (int64_t i = 0; i < count; i++)
            if (!(upper[i] < floor)) found.candidates.push_back({r, column + i, upper[i], 0});
    }
}

// The value of one column, as the whole product has it.
template <typename T>
float value_at(const Product& p, const T* weights, int64_t row, int64_t place) {
    const T* column = weights + place / NR * NR * p.k + place % NR / W * W;
    vec sum{};
    for (int64_t i = 0; i < p.k; i++) sum = fused(all(p.x[row * p.x_stride + i]), load(column + i * NR), sum);
    return sum[place % W];
}

// Computes the rows `which` whole. Throws std::bad_alloc.
template <typename T>
void find_whole(const Product& p, const T* weights, const std::vector<int64_t>& which, int threads, Best* best) {
    const int64_t count = which.size();
    Buffer space;
    float* x = space.fit(count * p.k);
    for (int64_t i = 0; i < count; i++) memcpy(x + i * p.k, p.x + which[i] * p.x_stride, p.k * 4);
    const Product part{x, nullptr, nullptr, count, p.n, p.k, p.k, 0};
    std::vector<Best> found(count);
    find(part, FloatProduct<T>{part, weights}, threads, found.data());
    for (int64_t i = 0; i < count; i++) best[which[i]] = found[i];
}

// Notes what the filter does not rule out. Throws std::bad_alloc.
std::vector<Found> screened(const Product& p, const Screen& screen, int threads) {
    const Left& left = round_left(p, threads);
    std::vector<Reach> reach(p.m);
    in_parallel(p.m, 1, std::min<int64_t>(threads, p.m), [&](int64_t r) { reach[r] = reach_of(p, left, r); });
    std::vector<Found> found(threads, Found(p.m, p.n / FLAT / threads + NR));
    const Int8Product product{p, left, screen.numbers, screen.scales};
    share(p, threads, [&](int64_t panel, int64_t first, int64_t rows) {
        screen_panel(p, screen, reach, panel, first, rows, product.sums(panel, first, rows), found[omp_get_thread_num()]);
    });
    return found;
}

// As `find`. Throws std::bad_alloc.
template <typename T>
void find_screened(const Product& p, const T* weights, const Screen& screen, int threads, Best* best) {
    if (!p.m) return;
    const std::vector<Found> found = screened(p, screen, threads);
    std::vector<float> floor(p.m, NEVER);
    std::vector<char> is_flat(p.m);
    for (const Found& each : found)
        for (int64_t r = 0; r < p.m; r++) {
            floor[r] = std::max(floor[r], each.floor[r]);
            is_flat[r] |= each.count[r] > each.limit;
        }
    std::vector<Candidate> candidates;
    for (const Found& each : found)
        for (const Candidate& c : each.candidates)
            if (!is_flat[c.row] && !(c.upper < floor[c.row])) candidates.push_back(c);
    const int64_t count = candidates.size();
    in_parallel(count, std::max<int64_t>(1, count / (threads * 8)), threads, [&](int64_t i) {
        candidates[i].value = value_at(p, weights, candidates[i].row, candidates[i].place);
    });
    std::fill(best, best + p.m, Best{});
    for (const Candidate& c : candidates) best[c.row].see(c.value, c.place);
    std::vector<int64_t> flat;
    for (int64_t r = 0; r < p.m; r++)
        if (is_flat[r]) flat.push_back(r);
    find_whole(p, weights, flat, threads, best);
}

void tell(const std::vector<Best>& best, int64_t* places, float* values) {
    for (size_t r = 0; r < best.size(); r++) {
        places[r] = best[r].place;
        values[r] = best[r].value;
    }
}

}  // namespace

// places and values [m]. sizes: m, n, k, stride of x. Each returns 0, or 1 where memory ran out.
#define ARGMAX(name, type)                                                                                               \
    extern "C" int pagetide_argmax_##name(const float* x, const void* weights, int64_t* places, float* values,           \
                                          const int64_t* sizes, int threads) {                                           \
        try {                                                                                                            \
            const Product p{x, nullptr, nullptr, sizes[0], sizes[1], sizes[2], sizes[3], 0};                             \
            std::vector<Best> best(p.m);                                                                                 \
            find(p, FloatProduct<type>{p, (const type*)weights}, threads, best.data());                                  \
            tell(best, places, values);                                                                                  \
        } catch (const std::bad_alloc&) { return 1; }                                                                    \
        return 0;                                                                                                        \
    }                                                                                                                    \
    extern "C" int pagetide_screened_argmax_##name(const float* x, const void* weights, const void* numbers,             \
                                                   const float* scales, const float* errors, const float* sizes_of,        \
                                                   int64_t* places, float* values, const int64_t* sizes, int threads) {  \
        try {                                                                                                            \
            const Product p{x, nullptr, nullptr, sizes[0], sizes[1], sizes[2], sizes[3], 0};                             \
            std::vector<Best> best(p.m);                                                                                 \
            find_screened(p, (const type*)weights, Screen{(const uint8_t*)numbers, scales, errors, sizes_of}, threads,      \
                          best.data());                                                                                  \
            tell(best, places, values);                                                                                  \
        } catch (const std::bad_alloc&) { return 1; }                                                                    \
        return 0;                                                                                                        \
    }
ARGMAX(float32, float)
ARGMAX(float16, float16)
ARGMAX(bfloat16, bfloat16)

extern "C" int pagetide_argmax_int8(const float* x, const void* weights, const float* scales, int64_t* places, float* values,
                                    const int64_t* sizes, int threads) {
    try {
        const Product p{x, nullptr, nullptr, sizes[0], sizes[1], sizes[2], sizes[3], 0};
        std::vector<Best> best(p.m);
        find(p, Int8Product{p, round_left(p, threads), (const uint8_t*)weights, scales}, threads, best.data());
        tell(best, places, values);
    } catch (const std::bad_alloc&) { return 1; }
    return 0;
}
