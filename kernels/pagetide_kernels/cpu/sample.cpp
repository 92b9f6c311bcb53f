// One token a row by temperature, top-k, min-p and top-p, without sorting the vocabulary.
//
// All tokens race: each has an exponential variable of its own, and the least variable over weight wins (the same as adding
// Gumbel noise). A winner outside top-p is left out with all less likely tokens, and the others race again. A row is read
// from memory once; behind that the largest of each block tells what of it need not be looked at again.

#include <functional>
#include <vector>

#include "panels.h"

namespace {

constexpr int64_t BLOCK = 256;
// Logarithms of the least variable, 2^-32, a little less; and of weights that no float32 sum over a vocabulary notices.
constexpr double LEAST = -22.2, UNSEEN = -40;

// A logit and its place. Larger ones come first, of equal ones the first place.
struct Token {
    float value;
    int64_t place;

    bool operator<(const Token& other) const {
        return value > other.value || (value == other.value && place < other.place);
    }
};

struct Row {
    const float* x;  // [n]
    int64_t n, top_k;
    double heat, top_p, min_p;
    const int32_t *first, *second;  // [n], random numbers of 31 bits
    float* tops;                    // [blocks], the largest of each block
    Token top;                      // NaN where there is one

    int64_t blocks() const { return (n + BLOCK - 1) / BLOCK; }
    int64_t size_of(int64_t block) const { return std::min(BLOCK, n - block * BLOCK); }

    // Uniform in (0, 1).
    float chance(int64_t i) const {
        const float u = (float(first[i] ^ second[i]) + .5f) * 0x1p-31f;
        return u < 1 - 0x1p-24f ? u : 1 - 0x1p-24f;
    }
    double speed(double weight, int64_t i) const { return weight / -std::log1p(-double(chance(i))); }

    // exp((x - largest) / temperature) of a block, 0 below min_p.
    void weigh(int64_t block, float* weights) const {
        const float *from = x + block * BLOCK, cool = float(1 / heat), least = float(min_p), most = top.value;
        const int64_t count = size_of(block);
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            const float weight = exponential((from[i] - most) * cool);
            weights[i] = weight < least ? 0.f : weight;
        }
    }
};

void find_top(Row& r) {
    int32_t broken = 0;
    Token top{NEVER, 0};
    for (int64_t block = 0; block < r.blocks(); block++) {
        const float* x = r.x + block * BLOCK;
        const int64_t count = r.size_of(block);
        float most = NEVER;
#pragma omp simd reduction(max : most) reduction(| : broken)
        for (int64_t i = 0; i < count; i++) {
            most = x[i] > most ? x[i] : most;
            broken |= x[i] != x[i];
        }
        r.tops[block] = most;
        if (most > top.value) top = {most, block * BLOCK};
    }
    while (!broken && r.x[top.place] != top.value) top.place++;
    r.top = broken ? Token{NAN, 0} : top;
}

// The winner among the tokens before `end`; adds the weights of all tokens to *mass, if there is one.
Token race(const Row& r, const Token& end, double* mass) {
    float weights[BLOCK], chances[BLOCK];
    Token winner = r.top;
    double best = r.speed(1, winner.place);
    // What is less can neither win nor be seen in the mass.
    const float slowest = std::max(end.value, float(r.top.value + r.heat * (std::log(best) + LEAST)));
    const float lowest = mass ? std::min(slowest, float(r.top.value + r.heat * UNSEEN)) : slowest;
    for (int64_t block = 0; block < r.blocks(); block++) {
        if (!(r.tops[block] >= lowest)) continue;
        const int64_t from = block * BLOCK, count = r.size_of(block);
        r.weigh(block, weights);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++) sum += weights[i];
        if (mass) *mass += sum;
        if (r.tops[block] < slowest) continue;
        // -log(1 - u) is at least u: few tokens are left of which it must be computed.
        const float bound = float(best * .9999);
        int32_t hits = 0;
#pragma omp simd reduction(+ : hits)
        for (int64_t i = 0; i < count; i++) {
            chances[i] = r.chance(from + i);
            hits += weights[i] > bound * chances[i];
        }
        for (int64_t i = 0; hits && i < count; i++) {
            const Token token{r.x[from + i], from + i};
            if (!(weights[i] > bound * chances[i]) || !(token < end)) continue;
            const double speed = r.speed(weights[i], token.place);
            if (speed > best) best = speed, winner = token;
        }
    }
    return winner;
}

// The weights of all tokens before `end`.
double mass_before(const Row& r, const Token& end) {
    float weights[BLOCK];
    double mass = 0;
    for (int64_t block = 0; block < r.blocks(); block++) {
        if (!(r.tops[block] >= end.value)) continue;
        const int64_t from = block * BLOCK, count = r.size_of(block);
        r.weigh(block, weights);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++) sum += Token{r.x[from + i], from + i} < end ? weights[i] : 0.f;
        mass += sum;
    }
    return mass;
}

int64_t draw_of_all(const Row& r) {
    double mass = 0;
    Token winner = race(r, {NEVER, r.n}, r.top_p < 1 ? &mass : nullptr);
    if (r.top_p >= 1) return winner.place;
    // This ends: fewer tokens are left each time, and nothing is before the likeliest.
    for (;;) {
        const double before = mass_before(r, winner);
        if (!(before > 0 && before >= r.top_p * mass)) return winner.place;
        winner = race(r, winner, nullptr);
    }
}

// The top_k first tokens, in order. Throws std::bad_alloc.
std::vector<Token> leading(const Row& r) {
    // So many tokens are no less than the k-th of the blocks' largest, and few more; of a large k than the k-th itself.
    std::vector<float> some = r.top_k <= r.blocks() ? std::vector<float>(r.tops, r.tops + r.blocks())
                                                    : std::vector<float>(r.x, r.x + r.n);
    std::nth_element(some.begin(), some.begin() + r.top_k - 1, some.end(), std::greater<float>());
    const float floor = some[r.top_k - 1];
    std::vector<Token> tokens;
    for (int64_t block = 0; block < r.blocks(); block++)
        for (int64_t i = block * BLOCK; r.tops[block] >= floor && i < block * BLOCK + r.size_of(block); i++)
            if (r.x[i] >= floor) tokens.push_back({r.x[i], i});
    std::nth_element(tokens.begin(), tokens.begin() + r.top_k - 1, tokens.end());
    tokens.resize(r.top_k);
    std::sort(tokens.begin(), tokens.end());
    return tokens;
}

int64_t draw_of_leading(const Row& r) {
    const std::vector<Token> tokens = leading(r);
    std::vector<double> weights(tokens.size());
    double mass = 0, before = 0, best = 0;
    for (size_t i = 0; i < tokens.size(); i++) {
        const double weight = std::exp((double(tokens[i].value) - r.top.value) / r.heat);
        mass += weights[i] = weight < r.min_p ? 0 : weight;
    }
    int64_t winner = r.top.place;
    for (size_t i = 0; i < tokens.size() && (!i || before < r.top_p * mass); i++) {
        const double speed = r.speed(weights[i], tokens[i].place);
        if (speed > best) best = speed, winner = tokens[i].place;
        before += weights[i];
    }
    return winner;
}

// Sets r.top; a row whose largest is not finite is not drawn from. Throws std::bad_alloc.
int64_t sample(Row& r) {
    static thread_local Buffer space;
    r.tops = space.fit(r.blocks());
    find_top(r);
    if (r.top_k == 1 || !(std::fabs(r.top.value) <= std::numeric_limits<float>::max())) return r.top.place;
    return r.top_k > 0 && r.top_k < r.n ? draw_of_leading(r) : draw_of_all(r);
}

}  // namespace

// places and values [rows]. sizes: rows, n, stride of x. shapes [rows, 3]: temperature, top_p, min_p. starts [rows, 2].
// Returns 0, or 1 where memory ran out.
extern "C" int pagetide_sample(const float* x, const int64_t* sizes, const double* shapes, const int64_t* top_ks,
                               const int32_t* first, const int32_t* second, const int64_t* starts, int64_t* places,
                               float* values, int threads) {
    try {
        in_parallel(sizes[0], 1, int(std::max<int64_t>(1, std::min<int64_t>(threads, sizes[0]))), [&](int64_t i) {
            const double* shape = shapes + 3 * i;
            Row r{x + i * sizes[2], sizes[1], top_ks[i], shape[0], shape[1], shape[2], first + starts[2 * i],
                  second + starts[2 * i + 1], nullptr, {}};
            places[i] = sample(r);
            values[i] = r.top.value;
        });
    } catch (const std::bad_alloc&) { return 1; }
    return 0;
}
