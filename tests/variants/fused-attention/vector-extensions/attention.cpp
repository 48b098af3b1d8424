// No intrinsics: the compiler's vector types, K packed, a head at a time, online softmax over tiles of 384 keys.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

#ifdef __AVX512F__
constexpr int kLanes = 16, kVectors = 4;
#else
constexpr int kLanes = 8, kVectors = 2;
#endif
constexpr int kBlock = 96, kWide = kVectors * kLanes, kTile = 384, kHigh = 6;
static_assert(kTile % kWide == 0 && kBlock % kHigh == 0, "the last of each is written whole");

typedef float vec __attribute__((vector_size(4 * kLanes)));
typedef float loose __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * kLanes)));

inline vec load(const float* p) { return *reinterpret_cast<const loose*>(p); }
inline void store(float* p, vec x) { *reinterpret_cast<loose*>(p) = x; }
inline vec all(float x) { return x - vec{}; }
inline vec larger(vec a, vec b) { return a > b ? a : b; }

// All lanes combined into one: every step combines each with the one `step` further on.
template <int step = kLanes / 2, typename Combine>
inline float across(vec x, Combine combine) {
    if constexpr (step > 0) {
        ivec other;
        for (int i = 0; i < kLanes; ++i) other[i] = (i + step) % kLanes;
        return across<step / 2>(combine(x, __builtin_shuffle(x, other)), combine);
    }
    return x[0];
}

// e^x for x <= 0, and 0 from -87 down, after Cody and Waite: x = n ln 2 + r, Taylor to the sixth power in r.
inline vec exponential(vec x) {
    const ivec counts = x > -87.0f;
    x = larger(x, all(-87.0f));
    const vec shifted = x * 1.44269504f + 12582912.0f;
    const vec n = shifted - 12582912.0f;
    vec r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    vec p = all(1.0f / 720.0f);
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return reinterpret_cast<vec>(counts & (reinterpret_cast<ivec>(p) + (reinterpret_cast<ivec>(shifted) << 23)));
}

template <int dim>
void pack(const float* k, int seq, float* packed) {
    for (int first = 0; first < seq; first += kWide, packed += kWide * dim)
        for (int i = 0; i < kWide; ++i) {
            const float* row = k + static_cast<long>(std::min(first + i, seq - 1)) * dim;
            for (int d = 0; d < dim; ++d) packed[d * kWide + i] = row[d];
        }
}

typedef vec Sums[kHigh][kVectors];

// c[6][kWide] += a . b: rows of a are `a_row` floats apart, those of b `b_row`.
inline void multiply(const float* a, long a_row, const float* b, long b_row, int steps, Sums& c) {
#pragma GCC unroll 2
    for (int s = 0; s < steps; ++s, ++a, b += b_row) {
        vec x[kVectors];
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) x[j] = load(b + j * kLanes);
#pragma GCC unroll 6
        for (int i = 0; i < kHigh; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < kVectors; ++j) c[i][j] += a[i * a_row] * x[j];
    }
}

inline void put(const Sums& c, float* to, long row) {
#pragma GCC unroll 6
    for (int i = 0; i < kHigh; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) store(to + i * row + j * kLanes, c[i][j]);
}

struct alignas(64) Scratch {
    float q[kBlock][128];
    float s[kHigh][kTile];
    float o[kBlock][128];
    float top[kBlock], sum[kBlock], decay[kBlock];
};

// Row `row` of the block: scores to weights. `own` keys of the tile are visible to it, `width` are used by its group.
void softmax_row(Scratch& b, int row, int own, int width) {
    float* s = b.s[row % kHigh];
    const int end = (width + kLanes - 1) / kLanes * kLanes;
    for (int j = std::max(own, 0); j < end; ++j) s[j] = -INFINITY;
    vec m = all(b.top[row]);
    for (int j = 0; j < end; j += kLanes) m = larger(m, load(s + j));
    const float top = across(m, larger);
    vec total = all(0.0f);
    for (int j = 0; j < end; j += kLanes) {
        const vec w = exponential(load(s + j) - top);
        store(s + j, w);
        total += w;
    }
    const float sum = across(total, [](vec a, vec b) { return a + b; });
    b.decay[row] = exponential(all(b.top[row] - top))[0];
    b.sum[row] = b.sum[row] * b.decay[row] + sum;
    b.top[row] = top;
}

template <int dim>
void block(const float* q, const float* packed, const float* v, float* out, int seq, int first, bool causal, Scratch& b) {
    const int rows = std::min(kBlock, seq - first), padded = (rows + kHigh - 1) / kHigh * kHigh;
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    for (int i = 0; i < padded; ++i) {
        for (int d = 0; d < dim; ++d) b.q[i][d] = q[static_cast<long>(first + std::min(i, rows - 1)) * dim + d] * scale;
        std::fill(b.o[i], b.o[i] + dim, 0.0f);
        b.top[i] = -1e30f;
        b.sum[i] = 0.0f;
    }
    const int last = causal ? first + rows : seq;
    for (int tile = 0; tile < last; tile += kTile) {
        for (int i = 0; i < padded; i += kHigh) {
            const int width = std::min(kTile, (causal ? std::min(last, first + i + kHigh) : last) - tile);
            if (width <= 0) continue;
            for (int j = 0; j < width; j += kWide) {
                Sums c = {};
                multiply(b.q[i], 128, packed + static_cast<long>(tile + j) * dim, kWide, dim, c);
                put(c, &b.s[0][j], kTile);
            }
            for (int r = 0; r < kHigh; ++r)
                softmax_row(b, i + r, std::min(width, (causal ? std::min(last, first + i + r + 1) : last) - tile), width);
            for (int d = 0; d < dim; d += kWide) {
                Sums c;
#pragma GCC unroll 6
                for (int r = 0; r < kHigh; ++r)
#pragma GCC unroll 4
                    for (int j = 0; j < kVectors; ++j) c[r][j] = load(&b.o[i + r][d + j * kLanes]) * b.decay[i + r];
                multiply(b.s[0], kTile, v + static_cast<long>(tile) * dim + d, dim, width, c);
                put(c, &b.o[i][d], 128);
            }
        }
    }
    for (int i = 0; i < rows; ++i) {
        const float share = b.sum[i] > 0.0f ? 1.0f / b.sum[i] : 0.0f;
        for (int d = 0; d < dim; ++d) out[static_cast<long>(first + i) * dim + d] = b.o[i][d] * share;
    }
}

template <int dim>
void run(const float* q, const float* k, const float* v, float* out, int heads, int seq, bool causal, int threads) {
    const int padded = (seq + kWide - 1) / kWide * kWide;
#pragma omp parallel num_threads(threads)
    {
        std::vector<Scratch> scratch(1);
        std::vector<float> packed(padded * dim);
#pragma omp for schedule(dynamic)
        for (int h = 0; h < heads; ++h) {
            const long base = static_cast<long>(h) * seq * dim;
            pack<dim>(k + base, seq, packed.data());
            for (int first = 0; first < seq; first += kBlock)
                block<dim>(q + base, packed.data(), v + base, out + base, seq, first, causal, scratch[0]);
        }
    }
}

}  // namespace

extern "C" void attention_forward(const float* q, const float* k, const float* v, float* out, int heads, int seq, int dim, int causal, int threads) {
    (dim == 64 ? run<64> : run<128>)(q, k, v, out, heads, seq, causal, threads);
}
