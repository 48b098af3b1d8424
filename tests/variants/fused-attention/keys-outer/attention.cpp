// Keys outside, queries inside: a tile of K (transposed) and V stays in the cache while every query of a strip passes by,
// six at a time, whose scores never leave L1.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

#ifdef __AVX512F__
constexpr int kLanes = 16, kVectors = 4;
#else
constexpr int kLanes = 8, kVectors = 2;
#endif
constexpr int kPanel = kVectors * kLanes;  // keys, or columns of the output, side by side
constexpr int kTile = 384;                 // keys a tile
constexpr int kStrip = 768;                // queries a task
constexpr int kRows = 6;
static_assert(kTile % kPanel == 0 && kStrip % kRows == 0, "the last panel and the last rows are written whole");

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef float Loose __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));

inline Vec load(const float* p) { return *reinterpret_cast<const Loose*>(p); }
inline void store(float* p, Vec x) { *reinterpret_cast<Loose*>(p) = x; }
inline Vec all(float x) { return x - Vec{}; }
inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }

struct alignas(64) Scratch {
    float keys[kTile * 128];       // [panel][dim][kPanel]
    float scores[kRows][kTile];
    float out[kStrip * 128];
    float top[kStrip], sum[kStrip];
};

// The upper half of the lanes combined with the lower, until one is left.
template <int left = kLanes / 2, typename Combine>
inline float reduce(Vec x, Combine combine) {
    if constexpr (left > 0) {
        Ints upper;
        for (int i = 0; i < kLanes; ++i) upper[i] = i | left;
        return reduce<left / 2>(combine(x, __builtin_shuffle(x, upper)), combine);
    }
    return x[0];
}

// 2^x for x <= 0, and 0 from -127 down, where all bits are zero: eighths of the exponent from a table held in a register, the rest (|r| <= 1/16) by a cubic.
inline Vec exp2_table(Vec x) {
    const float eighth[8] = {1.0f, 1.0905077f, 1.1892071f, 1.2968396f, 1.4142136f, 1.5422108f, 1.6817928f, 1.8340081f};
    Vec table;
    for (int i = 0; i < kLanes; ++i) table[i] = eighth[i % 8];
    x = larger(x, all(-127.0f));
    const Vec shifted = x + 1572864.0f;  // 1.5 * 2^20: rounds to eighths
    const Vec r = x - (shifted - 1572864.0f);
    const Ints eighths = reinterpret_cast<Ints>(shifted), exponent = eighths << 12 >> 15 << 23;
    const Vec base = reinterpret_cast<Vec>(reinterpret_cast<Ints>(__builtin_shuffle(table, eighths)) + exponent);
    const Vec p = (0.05550411f * r + 0.24022651f) * r + 0.69314718f;
    return p * r * base + base;
}

template <int dim>
void pack_keys(const float* k, int count, float* keys) {
    for (int panel = 0; panel < count; panel += kPanel, keys += kPanel * dim)
        for (int i = 0; i < kPanel; ++i) {
            const float* row = k + std::min(panel + i, count - 1) * dim;
            for (int d = 0; d < dim; ++d) keys[d * kPanel + i] = row[d];
        }
}

template <int dim>
inline void score(const float* const (&q)[kRows], const float* keys, float scale, float (*scores)[kTile], int panel) {
    Vec c[kRows][kVectors] = {};
#pragma GCC unroll 2
    for (int d = 0; d < dim; ++d) {
        Vec k[kVectors];
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) k[j] = load(keys + d * kPanel + j * kLanes);
#pragma GCC unroll 6
        for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < kVectors; ++j) c[i][j] += q[i][d] * k[j];
    }
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) store(&scores[i][panel + j * kLanes], c[i][j] * scale);
}

// One row: scores become weights; returns what earlier sums are worth under the new maximum.
inline float softmax(float* scores, int count, float& top, float& sum) {
    const int padded = (count + kLanes - 1) / kLanes * kLanes;
    for (int i = count; i < padded; ++i) scores[i] = -INFINITY;
    Vec m = all(top);
    for (int i = 0; i < padded; i += kLanes) m = larger(m, load(scores + i));
    const float high = reduce(m, larger);
    Vec total = {};
    for (int i = 0; i < padded; i += kLanes) {
        const Vec w = exp2_table(load(scores + i) - high);
        store(scores + i, w);
        total += w;
    }
    const float decay = exp2_table(all(top - high))[0];
    top = high;
    sum = sum * decay + reduce(total, [](Vec a, Vec b) { return a + b; });
    return decay;
}

template <int dim>
inline void add_values(const float (*scores)[kTile], const float* v, int count, const float (&decay)[kRows], float* out) {
    for (int column = 0; column < dim; column += kPanel) {
        Vec c[kRows][kVectors];
#pragma GCC unroll 6
        for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < kVectors; ++j) c[i][j] = decay[i] * load(out + i * dim + column + j * kLanes);
#pragma GCC unroll 2
        for (int k = 0; k < count; ++k) {
            Vec value[kVectors];
#pragma GCC unroll 4
            for (int j = 0; j < kVectors; ++j) value[j] = load(v + k * dim + column + j * kLanes);
#pragma GCC unroll 6
            for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
                for (int j = 0; j < kVectors; ++j) c[i][j] += scores[i][k] * value[j];
        }
#pragma GCC unroll 6
        for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < kVectors; ++j) store(out + i * dim + column + j * kLanes, c[i][j]);
    }
}

template <int dim>
void strip(const float* q, const float* k, const float* v, float* out, int seq, int first, bool causal, Scratch& s) {
    const int count = std::min(kStrip, seq - first);
    const float scale = 1.44269504f / std::sqrt(static_cast<float>(dim));
    std::memset(s.out, 0, sizeof(float) * kStrip * dim);
    std::fill(s.top, s.top + kStrip, -1e30f);
    std::fill(s.sum, s.sum + kStrip, 0.0f);
    const int last = causal ? first + count : seq;
    for (int tile = 0; tile < last; tile += kTile) {
        const int keys = std::min(kTile, last - tile);
        pack_keys<dim>(k + static_cast<long>(tile) * dim, keys, s.keys);
        const int start = causal ? std::max(0, tile - first) / kRows * kRows : 0;
        for (int row = start; row < count; row += kRows) {
            const float* queries[kRows];
            for (int i = 0; i < kRows; ++i) queries[i] = q + static_cast<long>(first + std::min(row + i, count - 1)) * dim;
            const int seen = causal ? std::min(keys, first + row + kRows - tile) : keys;
            for (int panel = 0; panel < seen; panel += kPanel) score<dim>(queries, s.keys + panel * dim, scale, s.scores, panel);
            float decay[kRows];
            for (int i = 0; i < kRows; ++i) {
                const int own = causal ? std::min(seen, first + row + i + 1 - tile) : seen;
                if (own <= 0) {
                    std::fill(s.scores[i], s.scores[i] + seen, 0.0f);
                    decay[i] = 1.0f;
                    continue;
                }
                decay[i] = softmax(s.scores[i], own, s.top[row + i], s.sum[row + i]);
                for (int j = own; j < seen; ++j) s.scores[i][j] = 0.0f;
            }
            add_values<dim>(s.scores, v + static_cast<long>(tile) * dim, seen, decay, s.out + row * dim);
        }
    }
    for (int i = 0; i < count; ++i) {
        const float share = s.sum[i] > 0.0f ? 1.0f / s.sum[i] : 0.0f;
        for (int d = 0; d < dim; ++d) out[static_cast<long>(first + i) * dim + d] = s.out[i * dim + d] * share;
    }
}

}  // namespace

extern "C" void attention_forward(const float* q, const float* k, const float* v, float* out, int heads, int seq, int dim, int causal, int threads) {
    const int strips = (seq + kStrip - 1) / kStrip;
#pragma omp parallel num_threads(threads)
    {
        std::vector<Scratch> scratch(1);
#pragma omp for schedule(dynamic)
        for (int task = 0; task < heads * strips; ++task) {
            const long base = static_cast<long>(task / strips) * seq * dim;
            const int first = (strips - 1 - task % strips) * kStrip;
            if (dim == 64) strip<64>(q + base, k + base, v + base, out + base, seq, first, causal, scratch[0]);
            else strip<128>(q + base, k + base, v + base, out + base, seq, first, causal, scratch[0]);
        }
    }
}
