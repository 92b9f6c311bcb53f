// All decoder layers of a step in one call: between two ops of a small model Python would take longer than many an op.
//
// What is computed is in the ops' own files; here is their order, and the memory between them, which layers and steps
// share. Behind attention nothing that a row computes depends on other rows. So there it goes on by CHUNK rows, whose
// numbers stay in the cache, and in the last layer only with the rows that are wanted.

#include <new>

#include "ops.h"
#include "vectors.h"

namespace {

constexpr int NO_MEMORY = 1, UNSOUND = 2, NO_SLOT = 3, NO_ROW = 4;
constexpr int64_t CHUNK = 384;
enum Kind : int64_t { FLOAT32, FLOAT16, BFLOAT16, INT8 };

// A matrix product's right side: n rows of k numbers in panels of a kind; scales are of int8, the bias may be null.
struct Weights {
    const void* panels;
    const float *scales, *bias;
    int64_t n, k, kind;
};

// See `Layer` in decoder_layers.py. The norms behind attention and MLP, and those of heads, may be null.
struct Layer {
    Weights qkv, out, gate_up, down;
    const float *before_attention, *behind_attention, *before_mlp, *behind_mlp, *query_norm, *key_norm;
    void *keys, *values;
    int64_t heads, kv_heads, dim, first_angle, pairs, window, is_gelu;  // window 0: all keys
    float eps, scale, cap;                                             // cap 0: none
};

struct Network {
    const Layer* layers;
    int64_t count, size, block_size, blocks, cache_kind;
    const float* norm;  // behind the last layer
    float eps;
};

// See `DecoderLayers.run`: hidden [tokens, size] is changed, out is [wanted, size].
struct Step {
    float *hidden, *out;
    const float* angles;
    const int64_t *slots, *rows;
    const int32_t *tables, *contexts, *starts;
    int64_t tokens, wanted, angle_stride, sequences, table_width;
    int threads;
};

// What lies between the ops, as much of it as the largest step took.
struct Space { Buffer x, qkv, attended, chosen, gate_up, gated; };

#define OF_KIND(op, kind) \
    ((kind) == FLOAT16 ? pagetide_##op##_float16 : (kind) == BFLOAT16 ? pagetide_##op##_bfloat16 : pagetide_##op##_float32)

// y [m, n] = x [m, k] times the weights
void multiply(const Weights& w, const float* x, int64_t m, float* y, int threads) {
    const int64_t sizes[] = {m, w.n, w.k, w.k, w.n};
    const int failed = w.kind == INT8 ? pagetide_linear_int8(x, w.panels, w.scales, w.bias, y, sizes, threads)
                                      : OF_KIND(linear, w.kind)(x, w.panels, w.bias, y, sizes, threads);
    if (failed) throw std::bad_alloc();
}

int rotate_and_cache(const Network& net, const Layer& layer, const Step& step, float* qkv) {
    const int64_t sizes[] = {step.tokens, layer.heads, layer.kv_heads, layer.dim, layer.pairs, step.angle_stride,
                             net.blocks * net.block_size};
    const float* cos = step.angles + layer.first_angle;
    return OF_KIND(rotate_and_cache, net.cache_kind)(qkv, cos, cos + layer.pairs, layer.query_norm, layer.key_norm, layer.keys,
                                                     layer.values, step.slots, sizes, layer.eps, step.threads)
               ? NO_SLOT : 0;
}

// Of the rows of qkv the queries are read; to [tokens, heads dim].
int attend(const Network& net, const Layer& layer, const Step& step, const float* qkv, float* to) {
    const int64_t sizes[] = {step.sequences, step.table_width, layer.heads, layer.kv_heads, layer.dim,   layer.dim,
                             net.block_size, layer.qkv.n,      layer.dim,   layer.window,   step.tokens, net.blocks};
    const int failed = OF_KIND(attention, net.cache_kind)(qkv, layer.keys, layer.values, to, step.tables, step.contexts,
                                                          step.starts, sizes, layer.scale, layer.cap, step.threads);
    if (failed == 1) throw std::bad_alloc();
    return failed ? UNSOUND : 0;
}

// What follows attention: hidden [m, size] is changed by attended [m, heads dim].
void finish(const Layer& layer, int64_t size, float* hidden, const float* attended, int64_t m, Space& space, int threads) {
    const int64_t inner = layer.down.k;
    float *x = space.x.fit(m * size), *gate_up = space.gate_up.fit(m * 2 * inner), *gated = space.gated.fit(m * inner);
    multiply(layer.out, attended, m, x, threads);
    pagetide_add_norm(hidden, x, layer.behind_attention, layer.before_mlp, x, m, size, layer.eps, threads);
    multiply(layer.gate_up, x, m, gate_up, threads);
    pagetide_gated(gate_up, gated, m, inner, layer.is_gelu, threads);
    multiply(layer.down, gated, m, x, threads);
    pagetide_add_norm(hidden, x, layer.behind_mlp, nullptr, nullptr, m, size, layer.eps, threads);
}

void finish_in_chunks(const Layer& layer, int64_t size, float* hidden, const float* attended, int64_t m, Space& space,
                      int threads) {
    for (int64_t first = 0; first < m; first += CHUNK)
        finish(layer, size, hidden + first * size, attended + first * layer.out.k, std::min(CHUNK, m - first), space, threads);
}

// The wanted rows of from [., width] go to `to` [wanted, width].
void choose(const Step& step, const float* from, int64_t width, float* to) {
    for (int64_t r = 0; r < step.wanted; r++) memcpy(to + r * width, from + step.rows[r] * width, width * sizeof(float));
}

int run(const Network& net, const Step& step, Space& space) {
    for (int64_t r = 0; r < step.wanted; r++)
        if (step.rows[r] < 0 || step.rows[r] >= step.tokens) return NO_ROW;
    for (int64_t i = 0; i < net.count; i++) {
        const Layer& layer = net.layers[i];
        float *x = space.x.fit(step.tokens * net.size), *qkv = space.qkv.fit(step.tokens * layer.qkv.n);
        pagetide_rms_norm(step.hidden, layer.before_attention, x, step.tokens, net.size, layer.eps, step.threads);
        multiply(layer.qkv, x, step.tokens, qkv, step.threads);
        if (int failed = rotate_and_cache(net, layer, step, qkv)) return failed;
        const bool is_last = i + 1 == net.count;
        if (is_last && !step.wanted) break;  // a part of a prompt: its keys and values are all that is needed
        float* attended = space.attended.fit(step.tokens * layer.out.k);
        if (int failed = attend(net, layer, step, qkv, attended)) return failed;
        if (is_last) {
            float* chosen = space.chosen.fit(step.wanted * layer.out.k);
            choose(step, attended, layer.out.k, chosen);
            choose(step, step.hidden, net.size, step.out);
            finish_in_chunks(layer, net.size, step.out, chosen, step.wanted, space, step.threads);
        } else {
            finish_in_chunks(layer, net.size, step.hidden, attended, step.tokens, space, step.threads);
        }
    }
    pagetide_rms_norm(step.out, net.norm, step.out, step.wanted, net.size, net.eps, step.threads);
    return 0;
}

}  // namespace

// Returns 0; 1 where memory ran out; 2 where tables, contexts and starts do not fit the caches; 3 where a slot does not
// exist; 4 where a wanted row does not. The caches of the first layers may be written before that is found.
// `space` is changed: of the calls that share one, one runs at a time.
extern "C" int pagetide_decoder_layers(const Network* network, const Step* step, Space* space) {
    try {
        return run(*network, *step, *space);
    } catch (const std::bad_alloc&) { return NO_MEMORY; }
}

// Memory for calls of `pagetide_decoder_layers`, empty at first; null where there is none.
extern "C" Space* pagetide_make_space() { return new (std::nothrow) Space; }

extern "C" void pagetide_free_space(Space* space) { delete space; }
