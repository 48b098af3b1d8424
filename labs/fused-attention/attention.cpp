// Fused scaled dot-product attention, forward, float32, with the online softmax: the scores never reach memory as a whole.
//
// q, k, v and out are heads x seq x dim, contiguous (`heads` counts batch x heads); dim is 64 or 128. With `causal`, query i sees keys 0..i;
// a query all of whose scores are -inf sees none, and answers 0.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

#ifdef __AVX512F__
constexpr int kLanes = 16;  // floats in a vector register
#else
constexpr int kLanes = 8;
#endif
constexpr int kRows = 4;      // queries computed side by side
constexpr int kQueries = 64;  // queries a block
constexpr int kKeys = 64;     // keys a tile
constexpr int kMaxDim = 128;
static_assert(kQueries % kRows == 0 && kKeys % kLanes == 0, "a block is whole rows and lanes");

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef float Unaligned __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

inline Vec load(const float* p) { return *reinterpret_cast<const Unaligned*>(p); }
inline void store(float* p, Vec x) { *reinterpret_cast<Unaligned*>(p) = x; }

struct Block {
    alignas(64) float keys[kMaxDim][kKeys];      // the tile of K, transposed
    alignas(64) float weights[kQueries][kKeys];  // scores, then their exponentials
    alignas(64) float out[kQueries][kMaxDim];
    float top[kQueries];    // largest score of a query so far, in units of log2
    float sum[kQueries];    // sum of its weights so far
    float decay[kQueries];  // what both sums must be multiplied with under the new maximum
};

// 2^x for x <= 0, and 0 from -127 down: x = n + f with |f| <= 1/2; 2^f by a polynomial, n goes into the exponent bits.
inline float exp2_negative(float x) {
    x = std::max(x, -127.0f);
    const float shifted = x + 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const float f = x - (shifted - 12582912.0f);
    float p = 1.32647e-3f * f + 9.67151e-3f;
    p = p * f + 5.5507340e-2f;
    p = p * f + 2.4022242e-1f;
    p = p * f + 6.9314698e-1f;
    p = p * f + 1.0f;
    int32_t bits, exponent;
    std::memcpy(&bits, &p, sizeof(bits));
    std::memcpy(&exponent, &shifted, sizeof(exponent));
    bits += exponent << 23;
    std::memcpy(&p, &bits, sizeof(p));
    return p;
}

// A tile of K with a column for each key; columns past the last key are zero.
void transpose(const float* k, int keys, int dim, Block& b) {
    for (int j = 0; j < kKeys; ++j) {
        for (int d = 0; d < dim; ++d) b.keys[d][j] = j < keys ? k[j * dim + d] : 0.0f;
    }
}

// weights[queries][kKeys] = scale * q . keys
void score(const float* q, int queries, int dim, Block& b) {
    const float scale = 1.4426950408889634f / std::sqrt(static_cast<float>(dim));
    for (int i = 0; i < queries; i += kRows) {
        const float* row[kRows];
        for (int r = 0; r < kRows; ++r) row[r] = q + std::min(i + r, queries - 1) * dim;
        for (int j = 0; j < kKeys; j += kLanes) {
            Vec sum[kRows] = {};
            for (int d = 0; d < dim; ++d) {
                const Vec key = load(&b.keys[d][j]);
                for (int r = 0; r < kRows; ++r) sum[r] += row[r][d] * key;
            }
            for (int r = 0; r < kRows; ++r) store(&b.weights[i + r][j], sum[r] * scale);
        }
    }
}

// Brings the running maximum and sum up to date and turns scores into weights; a score that its query may not see weighs nothing.
void weigh(int queries, int keys, int first_query, int first_key, bool causal, Block& b) {
    for (int i = 0; i < queries; ++i) {
        float* weights = b.weights[i];
        for (int j = 0; j < kKeys; ++j) {
            if (j >= keys || (causal && first_key + j > first_query + i)) weights[j] = -INFINITY;
        }
        float top = b.top[i], sum = 0.0f;
#pragma omp simd reduction(max : top)
        for (int j = 0; j < kKeys; ++j) top = weights[j] > top ? weights[j] : top;
#pragma omp simd reduction(+ : sum)
        for (int j = 0; j < kKeys; ++j) {
            weights[j] = exp2_negative(weights[j] - top);
            sum += weights[j];
        }
        b.decay[i] = exp2_negative(b.top[i] - top);
        b.sum[i] = b.sum[i] * b.decay[i] + sum;
        b.top[i] = top;
    }
}

// out[queries][dim] = decay * out + weights . v
void add_values(const float* v, int queries, int keys, int dim, Block& b) {
    for (int i = 0; i < queries; i += kRows) {
        for (int d = 0; d < dim; d += kLanes) {
            Vec sum[kRows];
            for (int r = 0; r < kRows; ++r) sum[r] = b.decay[i + r] * load(&b.out[i + r][d]);
            for (int j = 0; j < keys; ++j) {
                const Vec value = load(v + j * dim + d);
                for (int r = 0; r < kRows; ++r) sum[r] += b.weights[i + r][j] * value;
            }
            for (int r = 0; r < kRows; ++r) store(&b.out[i + r][d], sum[r]);
        }
    }
}

void attend(const float* q, const float* k, const float* v, float* out, int first, int queries, int seq, int dim, bool causal) {
    Block b = {};
    std::fill(b.top, b.top + kQueries, -1e30f);
    for (int key = 0; key < seq; key += kKeys) {
        const int keys = std::min(kKeys, seq - key);
        transpose(k + static_cast<long>(key) * dim, keys, dim, b);
        score(q, queries, dim, b);
        weigh(queries, keys, first, key, causal, b);
        add_values(v + static_cast<long>(key) * dim, queries, keys, dim, b);
    }
    for (int i = 0; i < queries; ++i) {
        for (int d = 0; d < dim; ++d) out[i * dim + d] = b.sum[i] > 0.0f ? b.out[i][d] / b.sum[i] : 0.0f;
    }
}

}  // namespace

extern "C" void attention_forward(const float* q, const float* k, const float* v, float* out, int heads, int seq, int dim, int causal, int threads) {
    const int blocks = (seq + kQueries - 1) / kQueries;
#pragma omp parallel for num_threads(threads)
    for (int task = 0; task < heads * blocks; ++task) {
        const long head = static_cast<long>(task / blocks) * seq * dim;
        const int first = task % blocks * kQueries;
        const long row = head + static_cast<long>(first) * dim;
        attend(q + row, k + head, v + head, out + row, first, std::min(kQueries, seq - first), seq, dim, causal);
    }
}
