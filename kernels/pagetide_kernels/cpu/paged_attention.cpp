// Paged attention for a CPU: reads keys and values of 32 or 16 bits through the block table, copies no context.
// Queries, sums and results are float32.
//
// Vectors are the compiler's own (GCC and Clang), as wide as the flags allow; nothing here is written for one processor.
// A row of a sequence with one query row ("decode") is cut into parts of PART positions, which are merged at the end,
// so that one long sequence keeps all threads busy. The parts lie at fixed positions: what a row computes depends
// neither on its batch mates nor on the number of threads. Other rows ("chunk") are taken in tiles of about TILE rows,
// one KV head at a time, over tiles of KEYS keys with the online softmax (Milakov and Gimelshein, 2018).

#include <vector>

#include "ops.h"
#include "vectors.h"

namespace {

constexpr int ROWS = W == 16 ? 4 : 2;  // Rows whose sums fit into the registers together.
constexpr int WIDE = 4;                // Vectors of one row that are summed up at once.
constexpr int64_t PART = 256, TILE = 64, KEYS = 64;
constexpr float NEVER = -std::numeric_limits<float>::infinity();

typedef float quad __attribute__((vector_size(16)));

inline quad fold(vec v) {  // W / 4 quads added up
    quad part[W / 4];
    memcpy(part, &v, sizeof v);
    quad sum = part[0];
    for (int i = 1; i < W / 4; i++) sum += part[i];
    return sum;
}

#if defined(__clang__) || __GNUC__ >= 12
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t places __attribute__((vector_size(16)));
#define PICK(a, b, ...) __builtin_shuffle(a, b, (places){__VA_ARGS__})
#endif

inline quad sums_of(quad a, quad b, quad c, quad d) {  // of each quad its sum
    quad ab = PICK(a, b, 0, 4, 1, 5) + PICK(a, b, 2, 6, 3, 7), cd = PICK(c, d, 0, 4, 1, 5) + PICK(c, d, 2, 6, 3, 7);
    return PICK(ab, cd, 0, 1, 4, 5) + PICK(ab, cd, 2, 3, 6, 7);
}

// out[r * out_stride + t] = rows[r] . keys[t] for R rows and 4 keys.
template <int R, typename T>
inline void dots(const float* rows, int64_t stride, const T* const keys[4], int64_t dim, float* out, int64_t out_stride) {
    vec sum[R][4] = {};
    int64_t d = 0;
    for (; d + W <= dim; d += W) {
        vec k[4];
        for (int t = 0; t < 4; t++) k[t] = load(keys[t] + d);
        for (int r = 0; r < R; r++) {
            vec q = load(rows + r * stride + d);
            for (int t = 0; t < 4; t++) sum[r][t] += q * k[t];
        }
    }
    for (int r = 0; r < R; r++) {
        quad a = fold(sum[r][0]), b = fold(sum[r][1]), c = fold(sum[r][2]), e = fold(sum[r][3]);
        quad total = sums_of(a, b, c, e);
        for (int t = 0; t < 4; t++)
            for (int64_t i = d; i < dim; i++) total[t] += rows[r * stride + i] * to_float(keys[t][i]);
        memcpy(out + r * out_stride, &total, sizeof total);
    }
}

template <typename T>
void all_dots(int64_t count, const float* rows, int64_t stride, const T* const keys[4], int64_t dim, float* out,
              int64_t out_stride) {
    int64_t r = 0;
    for (; r + ROWS <= count; r += ROWS) dots<ROWS>(rows + r * stride, stride, keys, dim, out + r * out_stride, out_stride);
    for (; r < count; r++) dots<1>(rows + r * stride, stride, keys, dim, out + r * out_stride, out_stride);
}

// sums[r][0..dim] += weights[r][0] * values[0] + ... for R rows and `count` values.
template <int R, int N, typename T>
inline void add_columns(const float* weights, int64_t stride, const T* const* values, int64_t count, int64_t d, int64_t dim,
                        float* sums) {
    vec sum[R][N];
    for (int r = 0; r < R; r++)
        for (int n = 0; n < N; n++) sum[r][n] = load(sums + r * dim + d + n * W);
    for (int64_t t = 0; t < count; t++)
        for (int n = 0; n < N; n++) {
            vec v = load(values[t] + d + n * W);
            for (int r = 0; r < R; r++) sum[r][n] += weights[r * stride + t] * v;
        }
    for (int r = 0; r < R; r++)
        for (int n = 0; n < N; n++) store(sums + r * dim + d + n * W, sum[r][n]);
}

template <int R, typename T>
inline void add(const float* weights, int64_t stride, const T* const* values, int64_t count, int64_t dim, float* sums) {
    int64_t d = 0;
    for (; d + WIDE * W <= dim; d += WIDE * W) add_columns<R, WIDE>(weights, stride, values, count, d, dim, sums);
    for (; d + W <= dim; d += W) add_columns<R, 1>(weights, stride, values, count, d, dim, sums);
    for (; d < dim; d++)
        for (int r = 0; r < R; r++)
            for (int64_t t = 0; t < count; t++) sums[r * dim + d] += weights[r * stride + t] * to_float(values[t][d]);
}

template <typename T>
void add_all(int64_t rows, const float* weights, int64_t stride, const T* const* values, int64_t count, int64_t dim,
             float* sums) {
    int64_t r = 0;
    for (; r + ROWS <= rows; r += ROWS) add<ROWS>(weights + r * stride, stride, values, count, dim, sums + r * dim);
    for (; r < rows; r++) add<1>(weights + r * stride, stride, values, count, dim, sums + r * dim);
}

inline void scale_and_cap(float* scores, int64_t count, float scale, float cap) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) scores[i] *= scale;
    if (cap > 0) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) scores[i] = cap * hyperbolic_tangent(scores[i] / cap);
    }
}

inline float largest(const float* scores, int64_t count, float least) {
#pragma omp simd reduction(max : least)
    for (int64_t i = 0; i < count; i++) least = scores[i] > least ? scores[i] : least;
    return least;
}

// Scores become weights e^(score - top); returns their sum.
inline float weigh(float* scores, int64_t count, float top) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        scores[i] = exponential(scores[i] - top);
        sum += scores[i];
    }
    return sum;
}

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
    int64_t slot(int64_t sequence, int64_t position) const {
        return int64_t(tables[sequence * table_width + position / block_size]) * block_size + position % block_size;
    }
    const T* key(int64_t s, int64_t position) const { return keys + slot(s, position) * kv_heads * key_dim; }
    const T* value(int64_t s, int64_t position) const { return values + slot(s, position) * kv_heads * value_dim; }
    void copy_query(int64_t row, int64_t head, float* to) const {
        memcpy(to, query + row * row_stride + head * head_stride, key_dim * sizeof(float));
    }
    void write(int64_t row, int64_t head, const float* sums, float weight) const {
        float* to = out + (row * heads + head) * value_dim;
        for (int64_t d = 0; d < value_dim; d++) to[d] = sums[d] / weight;
    }
};

// Keys low..high of one query row.
struct Part { int64_t sequence, row, low, high; };
// `count` query rows of a chunk from row `first`, which stands at `position`.
struct Tile { int64_t sequence, first, count, position, kv_head; };

// What one thread works in.
struct Space { Buffer query, scores, sums, keys, values, tops, totals; };

// Sums of one part, all heads: sums [heads, value_dim], tops and totals [heads].
template <typename T>
void compute_part(const Call<T>& call, const Part& part, Space& space, float* sums, float* tops, float* totals) {
    const int64_t group = call.group(), dim = call.key_dim, value_dim = call.value_dim, count = part.high - part.low;
    float *query = space.query.fit(call.heads * dim), *scores = space.scores.fit(call.heads * PART);
    for (int64_t h = 0; h < call.heads; h++) call.copy_query(part.row, h, query + h * dim);
    // All heads of a few positions before the next positions: that is the order in which the cache lies in memory.
    for (int64_t t = 0; t < count; t += 4) {
        const T *keys[4], *mine[4];
        for (int64_t i = 0; i < 4; i++) keys[i] = call.key(part.sequence, part.low + std::min(t + i, count - 1));
        for (int64_t h = 0; h < call.kv_heads; h++) {
            for (int i = 0; i < 4; i++) mine[i] = keys[i] + h * dim;
            all_dots(group, query + h * group * dim, dim, mine, dim, scores + h * group * PART + t, PART);
        }
    }
    for (int64_t h = 0; h < call.heads; h++) {
        scale_and_cap(scores + h * PART, count, call.scale, call.cap);
        tops[h] = largest(scores + h * PART, count, NEVER);
        totals[h] = weigh(scores + h * PART, count, tops[h]);
    }
    std::fill(sums, sums + call.heads * value_dim, 0.f);
    for (int64_t t = 0; t < count; t += 4) {
        const T *values[4], *mine[4];
        const int64_t n = std::min<int64_t>(4, count - t);
        for (int64_t i = 0; i < n; i++) values[i] = call.value(part.sequence, part.low + t + i);
        for (int64_t h = 0; h < call.kv_heads; h++) {
            for (int64_t i = 0; i < n; i++) mine[i] = values[i] + h * value_dim;
            add_all(group, scores + h * group * PART + t, PART, mine, n, value_dim, sums + h * group * value_dim);
        }
    }
}

// The parts of one row, in order, become its output; the first part's sums are overwritten.
template <typename T>
void merge(const Call<T>& call, int64_t row, int64_t parts, float* sums, const float* tops, const float* totals) {
    const int64_t heads = call.heads, dim = call.value_dim;
    for (int64_t h = 0; h < heads; h++) {
        float top = NEVER, total = 0;
        for (int64_t p = 0; p < parts; p++) top = std::max(top, tops[p * heads + h]);
        float* into = sums + h * dim;
        for (int64_t p = 0; p < parts; p++) {
            const float* from = sums + (p * heads + h) * dim;
            // (Scores that are all NaN have no top. Their weight may be 0, but their total is NaN, and stays so.)
            const float weight = parts == 1 ? 1.f : exponential(tops[p * heads + h] - top);
            total += weight * totals[p * heads + h];
            for (int64_t d = 0; d < dim; d++) into[d] = p ? into[d] + weight * from[d] : weight * from[d];
        }
        call.write(row, h, into, total);
    }
}

template <typename T>
void compute_tile(const Call<T>& call, const Tile& tile, Space& space) {
    const int64_t group = call.group(), rows = tile.count * group, dim = call.key_dim, value_dim = call.value_dim;
    float *query = space.query.fit(rows * dim), *scores = space.scores.fit(rows * KEYS);
    float *key_tile = space.keys.fit(KEYS * dim), *value_tile = space.values.fit(KEYS * value_dim);
    float *sums = space.sums.fit(rows * value_dim), *tops = space.tops.fit(rows), *totals = space.totals.fit(rows);
    std::fill(tops, tops + rows, NEVER);
    std::fill(totals, totals + rows, 0.f);
    std::fill(sums, sums + rows * value_dim, 0.f);
    for (int64_t r = 0; r < rows; r++)
        call.copy_query(tile.first + r / group, tile.kv_head * group + r % group, query + r * dim);
    const float* value_rows[KEYS];
    for (int64_t t = 0; t < KEYS; t++) value_rows[t] = value_tile + t * value_dim;
    const int64_t end = tile.position + tile.count;
    for (int64_t low = call.first_seen(tile.position); low < end; low += KEYS) {
        const int64_t count = std::min(KEYS, end - low);
        for (int64_t t = 0; t < count; t++) {
            const T* key = call.key(tile.sequence, low + t) + tile.kv_head * dim;
            const T* value = call.value(tile.sequence, low + t) + tile.kv_head * value_dim;
            for (int64_t d = 0; d < dim; d++) key_tile[t * dim + d] = to_float(key[d]);
            for (int64_t d = 0; d < value_dim; d++) value_tile[t * value_dim + d] = to_float(value[d]);
        }
        for (int64_t t = 0; t < count; t += 4) {
            const float* keys[4];
            for (int64_t i = 0; i < 4; i++) keys[i] = key_tile + std::min(t + i, count - 1) * dim;
            all_dots(rows, query, dim, keys, dim, scores + t, KEYS);
        }
        for (int64_t r = 0; r < rows; r++) {
            const int64_t position = tile.position + r / group;
            const int64_t from = std::min(count, std::max<int64_t>(0, call.first_seen(position) - low));
            const int64_t to = std::max(from, std::min(count, position + 1 - low));
            float* mine = scores + r * KEYS;
            std::fill(mine, mine + from, 0.f);
            std::fill(mine + to, mine + count, 0.f);
            if (from == to) continue;
            scale_and_cap(mine + from, to - from, call.scale, call.cap);
            const float top = largest(mine + from, to - from, tops[r]);
            if (top > tops[r]) {
                const float shrink = exponential(tops[r] - top);
                totals[r] *= shrink;
                for (int64_t d = 0; d < value_dim; d++) sums[r * value_dim + d] *= shrink;
                tops[r] = top;
            }
            totals[r] += weigh(mine + from, to - from, top);
        }
        add_all(rows, scores, KEYS, value_rows, count, value_dim, sums);
    }
    for (int64_t r = 0; r < rows; r++)
        call.write(tile.first + r / group, tile.kv_head * group + r % group, sums + r * value_dim, totals[r]);
}

// Whether all that the call reads lies within the caches.
template <typename T>
bool is_sound(const Call<T>& call, int64_t rows, int64_t blocks) {
    if (call.starts[0] != 0 || call.starts[call.sequences] != rows) return false;
    for (int64_t s = 0; s < call.sequences; s++) {
        const int64_t count = call.starts[s + 1] - call.starts[s], context = call.contexts[s];
        if (count < 0 || context < count || context > call.table_width * call.block_size) return false;
        if (count == 0) continue;
        const int64_t last = (context - 1) / call.block_size;
        for (int64_t b = call.first_seen(context - count) / call.block_size; b <= last; b++) {
            const int64_t block = call.tables[s * call.table_width + b];
            if (block < 0 || block >= blocks) return false;
        }
    }
    return true;
}

template <typename T>
void plan(const Call<T>& call, std::vector<Part>& parts, std::vector<int64_t>& row_parts, std::vector<Tile>& tiles) {
    const int64_t tile_rows = std::max<int64_t>(1, TILE / call.group());
    for (int64_t s = 0; s < call.sequences; s++) {
        const int64_t first = call.starts[s], count = call.starts[s + 1] - first, context = call.contexts[s];
        if (count == 0) continue;
        if (count == 1) {
            row_parts.push_back(parts.size());
            for (int64_t low = call.first_seen(context - 1); low < context;) {
                const int64_t high = std::min(context, (low / PART + 1) * PART);
                parts.push_back({s, first, low, high});
                low = high;
            }
            continue;
        }
        // The last tiles see the most keys; taken first, they do not keep one thread busy at the end.
        for (int64_t tile = (count - 1) / tile_rows; tile >= 0; tile--)
            for (int64_t h = 0; h < call.kv_heads; h++) {
                const int64_t row = tile * tile_rows;
                tiles.push_back({s, first + row, std::min(tile_rows, count - row), context - count + row, h});
            }
    }
    row_parts.push_back(parts.size());
}

template <typename T>
void run(const Call<T>& call, int threads) {
    std::vector<Part> parts;
    std::vector<int64_t> row_parts;
    std::vector<Tile> tiles;
    plan(call, parts, row_parts, tiles);
    const int64_t num_parts = parts.size(), num_tiles = tiles.size(), rows = row_parts.size() - 1;
    const int64_t per_part = call.heads * call.value_dim;
    Space parts_space;
    float* sums = parts_space.sums.fit(num_parts * per_part);
    float *tops = parts_space.tops.fit(num_parts * call.heads), *totals = parts_space.totals.fit(num_parts * call.heads);
    bool failed = false;
    threads = int(std::max<int64_t>(1, std::min<int64_t>(threads, num_parts + num_tiles)));
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Space space;
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < num_tiles + num_parts; i++) {
            try {
                if (i < num_tiles) {
                    compute_tile(call, tiles[i], space);
                } else {
                    const int64_t p = i - num_tiles;
                    compute_part(call, parts[p], space, sums + p * per_part, tops + p * call.heads, totals + p * call.heads);
                }
            } catch (const std::bad_alloc&) {  // no exception may leave a parallel region
#pragma omp atomic write
                failed = true;
            }
        }
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++) {
            const int64_t p = row_parts[r];
            merge(call, parts[p].row, row_parts[r + 1] - p, sums + p * per_part, tops + p * call.heads, totals + p * call.heads);
        }
    }
    if (failed) throw std::bad_alloc();
}

template <typename T>
int guarded(const float* query, const void* keys, const void* values, float* out, const int32_t* tables,
            const int32_t* contexts, const int32_t* starts, const int64_t* sizes, float scale, float cap, int threads) {
    Call<T> call{query,    (const T*)keys, (const T*)values, out,      tables,   contexts, starts,   sizes[0], sizes[1],
                 sizes[2], sizes[3],       sizes[4],         sizes[5], sizes[6], sizes[7], sizes[8], scale,    cap,
                 sizes[9]};
    if (!is_sound(call, sizes[10], sizes[11])) return 2;
    try {
        run(call, threads);
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}

}  // namespace

// sizes: sequences, width of the tables, heads, kv_heads, key_dim, value_dim, block_size, query's strides of a row and of
// a head (in elements), sliding window (0: none), query rows, blocks of the caches. cap 0: none. query's last stride is 1,
// all else is contiguous. Returns 0; 1 where memory ran out; 2 where tables, contexts and starts do not fit the caches.
#define ATTENTION(name, type)                                                                                             \
    extern "C" int pagetide_attention_##name(const float* query, const void* keys, const void* values, float* out,        \
                                             const int32_t* tables, const int32_t* contexts, const int32_t* starts,       \
                                             const int64_t* sizes, float scale, float cap, int threads) {                 \
        return guarded<type>(query, keys, values, out, tables, contexts, starts, sizes, scale, cap, threads);             \
    }
ATTENTION(float32, float)
ATTENTION(float16, float16)
ATTENTION(bfloat16, bfloat16)
