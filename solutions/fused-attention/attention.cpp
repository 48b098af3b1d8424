// Scaled dot-product attention, forward, float32, for CPUs with vector registers: sixteen floats each with AVX-512, else eight.
//
// Scores are computed transposed: lanes hold queries, registers hold keys. So K and V are read as they lie, only the
// small Q block is transposed (once for all its keys), and the softmax needs no horizontal step: maximum and sum of a
// query stay in its own lane.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

namespace {

#ifdef __AVX512F__
constexpr int kLanes = 16, kKeysAtOnce = 8, kColumns = 4;  // of 32 registers 24 are accumulators
#else
constexpr int kLanes = 8, kKeysAtOnce = 4, kColumns = 2;  // of 16 registers 12
#endif
constexpr int kPanel = 3 * kLanes;  // queries whose scores with kKeysAtOnce keys are accumulated in registers
constexpr int kRows = 6;            // queries whose outputs in kColumns * kLanes columns are
constexpr int kQueries = 96;        // queries a block
constexpr int kKeys = 64;           // keys a tile: their scores with a panel stay in L1 until they are used
static_assert(kQueries % kPanel == 0 && kPanel % kRows == 0, "a block is whole panels, a panel whole rows");
constexpr float kLog2e = 1.4426950408889634f;

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef float Unaligned __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));

inline Vec load(const float* p) { return *reinterpret_cast<const Unaligned*>(p); }
inline void store(float* p, Vec x) { *reinterpret_cast<Unaligned*>(p) = x; }
inline Vec all(float x) { return x - Vec{}; }
inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }

struct Scratch {  // one a thread
    alignas(64) float queries[kQueries / kPanel][128 * kPanel];  // transposed Q, scaled: [panel][dim][kPanel]
    alignas(64) float weights[kKeys * kPanel];                   // scores, then exp(scores), of a panel: [key][kPanel]
    alignas(64) float out[kQueries * 128];
    alignas(64) float top[kQueries];    // running maximum of a query's scores, in units of log2
    alignas(64) float sum[kQueries];
    alignas(64) float decay[kQueries];  // what the sums so far must be multiplied with
};

// 2^x for x <= 0, and 0 from -127 down. Splits x = n + f with |f| <= 1/2; 2^f by a degree-5 minimax polynomial (relative error 9e-8), n goes into
// the exponent bits: at exactly -127 these and the mantissa are all zero.
inline Vec exp2_negative(Vec x) {
    x = larger(x, all(-127.0f));
    const Vec shifted = x + 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const Vec f = x - (shifted - 12582912.0f);
    Vec p = 1.32647e-3f * f + 9.67151e-3f;
    p = p * f + 5.5507340e-2f;
    p = p * f + 2.4022242e-1f;
    p = p * f + 6.9314698e-1f;
    p = p * f + 1.0f;
    return reinterpret_cast<Vec>(reinterpret_cast<Ints>(p) + (reinterpret_cast<Ints>(shifted) << 23));
}

// to[kLanes][kLanes] = scale * from[kLanes][kLanes]ᵀ: rows of `from` are `dim` floats apart, those of `to` kPanel. Interleaving the first half of the
// rows with the second, log2(kLanes) times over, transposes.
inline void transpose_square(const float* from, int dim, float scale, float* to) {
    Ints low, high;
    for (int i = 0; i < kLanes; ++i) low[i] = i / 2 + i % 2 * kLanes, high[i] = low[i] + kLanes / 2;
    Vec rows[kLanes], turned[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) rows[i] = scale * load(from + i * dim);
#pragma GCC unroll 4
    for (int done = 1; done < kLanes; done *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < kLanes / 2; ++i) {
            turned[2 * i] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], low);
            turned[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], high);
        }
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) rows[i] = turned[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) store(to + i * kPanel, rows[i]);
}

// queries[dim][kPanel] = scale * q[kPanel][dim]; rows from `count` on are zero.
void transpose_panel(const float* q, int count, int dim, float scale, float* queries) {
    for (int first = 0; first < kPanel; first += kLanes) {
        if (first + kLanes <= count) {
            for (int d = 0; d < dim; d += kLanes) transpose_square(q + first * dim + d, dim, scale, queries + d * kPanel + first);
        } else {
            for (int d = 0; d < dim; ++d)
                for (int i = first; i < first + kLanes; ++i) queries[d * kPanel + i] = i < count ? q[i * dim + d] * scale : 0.0f;
        }
    }
}

// weights[kKeysAtOnce][vectors of queries] = keys[kKeysAtOnce][dim] . queries[dim][vectors]
template <int dim, int vectors>
inline void score_tile(const float* const (&keys)[kKeysAtOnce], const float* queries, float* weights) {
    Vec c[kKeysAtOnce][vectors] = {};
#pragma GCC unroll 2
    for (int d = 0; d < dim; ++d) {
        Vec q[vectors];
#pragma GCC unroll 3
        for (int j = 0; j < vectors; ++j) q[j] = load(queries + d * kPanel + j * kLanes);
#pragma GCC unroll 8
        for (int i = 0; i < kKeysAtOnce; ++i)
#pragma GCC unroll 3
            for (int j = 0; j < vectors; ++j) c[i][j] += keys[i][d] * q[j];
    }
#pragma GCC unroll 8
    for (int i = 0; i < kKeysAtOnce; ++i)
#pragma GCC unroll 3
        for (int j = 0; j < vectors; ++j) store(weights + i * kPanel + j * kLanes, c[i][j]);
}

// The scores of keys behind a query's own position become -inf.
void mask_panel(float* weights, int keys, int first_key, int first_query) {
    for (int k = 0; k < keys; ++k) {
        const int hidden = std::min(kPanel, first_key + k - first_query);
        for (int i = 0; i < hidden; ++i) weights[k * kPanel + i] = -INFINITY;
    }
}

// Online softmax over one panel: weights become 2^(score - new maximum); maximum, sum and decay are brought up to date.
template <int vectors>
inline void softmax_panel(float* weights, int keys, float* top, float* sum, float* decay) {
    Vec m[vectors], l[vectors];
#pragma GCC unroll 3
    for (int j = 0; j < vectors; ++j) m[j] = load(top + kLanes * j);
    for (int k = 0; k < keys; ++k)
#pragma GCC unroll 3
        for (int j = 0; j < vectors; ++j) m[j] = larger(m[j], load(weights + k * kPanel + kLanes * j));
#pragma GCC unroll 3
    for (int j = 0; j < vectors; ++j) {
        const Vec a = exp2_negative(load(top + kLanes * j) - m[j]);
        l[j] = load(sum + kLanes * j) * a;
        store(decay + kLanes * j, a);
        store(top + kLanes * j, m[j]);
    }
    for (int k = 0; k < keys; ++k)
#pragma GCC unroll 3
        for (int j = 0; j < vectors; ++j) {
            const Vec w = exp2_negative(load(weights + k * kPanel + kLanes * j) - m[j]);
            l[j] += w;
            store(weights + k * kPanel + kLanes * j, w);
        }
#pragma GCC unroll 3
    for (int j = 0; j < vectors; ++j) store(sum + kLanes * j, l[j]);
}

// out[kRows][kColumns] = decay[kRows] * out[kRows][kColumns] + weights[keys][kRows]ᵀ . v[keys][kColumns]
template <int dim>
inline void output_rows(const float* weights, const float* v, int keys, const float* decay, float* out) {
    Vec c[kRows][kColumns];
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < kColumns; ++j) c[i][j] = decay[i] * load(out + i * dim + j * kLanes);
#pragma GCC unroll 2
    for (int k = 0; k < keys; ++k) {
        Vec value[kColumns];
#pragma GCC unroll 4
        for (int j = 0; j < kColumns; ++j) value[j] = load(v + k * dim + j * kLanes);
#pragma GCC unroll 6
        for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < kColumns; ++j) c[i][j] += weights[k * kPanel + i] * value[j];
    }
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < kColumns; ++j) store(out + i * dim + j * kLanes, c[i][j]);
}

// One panel of queries, of which `count` (at most vectors * kLanes) exist, against one tile of keys. Positions are those of the panel's first query and
// the tile's first key.
template <int dim, int vectors>
void panel(const float* k, const float* v, int keys, int count, int query, int key, bool causal, int first, Scratch& s) {
    const int at = query - first;  // in the block
    const float* queries = s.queries[at / kPanel];
    for (int i = 0; i < keys; i += kKeysAtOnce) {
        const float* rows[kKeysAtOnce];  // past the last key the last is read again, and its scores are never used
#pragma GCC unroll 8
        for (int r = 0; r < kKeysAtOnce; ++r) rows[r] = k + std::min(i + r, keys - 1) * dim;
        score_tile<dim, vectors>(rows, queries, s.weights + i * kPanel);
    }
    if (causal && key + keys > query + 1) mask_panel(s.weights, keys, key, query);
    softmax_panel<vectors>(s.weights, keys, s.top + at, s.sum + at, s.decay + at);
    for (int column = 0; column < dim; column += kColumns * kLanes)
        for (int row = 0; row < count; row += kRows) {
            const int seen = causal ? std::min(keys, query + row + kRows - key) : keys;
            output_rows<dim>(s.weights + row, v + column, std::max(seen, 0), s.decay + at + row, s.out + (at + row) * dim + column);
        }
}

template <int dim>
void block(const float* q, const float* k, const float* v, float* out, int seq, int first, bool causal, Scratch& s) {
    const int count = std::min(kQueries, seq - first);
    const float scale = kLog2e / std::sqrt(static_cast<float>(dim));
    for (int at = 0; at < count; at += kPanel)
        transpose_panel(q + static_cast<long>(first + at) * dim, std::min(kPanel, count - at), dim, scale, s.queries[at / kPanel]);
    std::fill(s.out, s.out + (count + kRows - 1) / kRows * kRows * dim, 0.0f);
    std::fill(s.top, s.top + kQueries, -1e30f);  // finite: -inf minus -inf would be NaN
    std::fill(s.sum, s.sum + kQueries, 0.0f);

    const int last = causal ? first + count : seq;  // keys from here on are hidden from the whole block
    for (int tile = 0; tile < last; tile += kKeys)
        for (int at = 0; at < count; at += kPanel) {
            const int queries = std::min(kPanel, count - at), query = first + at;
            const int keys = std::min(std::min(kKeys, last - tile), causal ? query + queries - tile : kKeys);
            if (keys <= 0) continue;
            const auto run = queries > 2 * kLanes ? panel<dim, 3> : queries > kLanes ? panel<dim, 2> : panel<dim, 1>;
            run(k + static_cast<long>(tile) * dim, v + static_cast<long>(tile) * dim, keys, queries, query, tile, causal, first, s);
        }
    for (int i = 0; i < count; ++i) {
        const float share = s.sum[i] > 0.0f ? 1.0f / s.sum[i] : 0.0f;  // a query that sees no key answers 0
        for (int d = 0; d < dim; ++d) out[static_cast<long>(first + i) * dim + d] = s.out[i * dim + d] * share;
    }
}

}  // namespace

extern "C" void attention_forward(const float* q, const float* k, const float* v, float* out, int heads, int seq, int dim, int causal, int threads) {
    const int blocks = (seq + kQueries - 1) / kQueries;
#pragma omp parallel num_threads(threads)
    {
        const std::unique_ptr<Scratch> scratch(new Scratch());
#pragma omp for schedule(dynamic)
        for (int task = 0; task < heads * blocks; ++task) {
            const long head = static_cast<long>(task / blocks) * seq * dim;
            const int first = (blocks - 1 - task % blocks) * kQueries;  // under the mask the last blocks are the longest: first
            if (dim == 64) block<64>(q + head, k + head, v + head, out + head, seq, first, causal, *scratch);
            else block<128>(q + head, k + head, v + head, out + head, seq, first, causal, *scratch);
        }
    }
}
