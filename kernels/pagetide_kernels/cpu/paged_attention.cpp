// Paged attention for a CPU: reads keys and values of 32 or 16 bits through the block table, copies no context.
// Queries, sums and results are float32.
//
// Vectors are the compiler's own (GCC and Clang), as wide as the flags allow; nothing here is written for one processor.
// A sequence with one query row is cut into parts of its keys (attention_decode.h), others into tiles of their rows, one KV
// head at a time (attention_prefill.h).

#include <vector>

#include "attention_decode.h"
#include "attention_prefill.h"
#include "ops.h"

namespace {

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

// Positions of a tile: many, for its keys to be brought into panels seldom; fewer where threads would have nothing to do.
// (What a row computes does not depend on it.)
template <typename T>
int64_t rows_of_tile(const Call<T>& call, int threads) {
    int64_t rows = 0, size = TILE;
    for (int64_t s = 0; s < call.sequences; s++) {
        const int64_t count = call.starts[s + 1] - call.starts[s];
        if (count > 1) rows += count * call.heads;
    }
    while (size > LEAST_TILE && rows / size < 4 * threads) size /= 2;
    return std::max<int64_t>(1, size / call.group());
}

template <typename T>
void plan(const Call<T>& call, std::vector<Part>& parts, std::vector<int64_t>& row_parts, std::vector<Tile>& tiles, int threads) {
    const int64_t tile_rows = rows_of_tile(call, threads);
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
    plan(call, parts, row_parts, tiles, threads);
    const int64_t num_parts = parts.size(), num_tiles = tiles.size(), rows = row_parts.size() - 1;
    const int64_t per_part = call.heads * call.value_dim;
    Buffer sums_space, tops_space, totals_space;
    float* sums = sums_space.fit(num_parts * per_part);
    float *tops = tops_space.fit(num_parts * call.heads), *totals = totals_space.fit(num_parts * call.heads);
    bool failed = false;
    threads = int(std::max<int64_t>(1, std::min<int64_t>(threads, num_parts + num_tiles)));
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        TileSpace tile_space;
        PartSpace part_space;
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < num_tiles + num_parts; i++) {
            try {
                if (i < num_tiles) {
                    compute_tile(call, tiles[i], tile_space);
                } else {
                    const int64_t p = i - num_tiles;
                    compute_part(call, parts[p], part_space, sums + p * per_part, tops + p * call.heads, totals + p * call.heads);
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
