// No online softmax: all scores of three vectors of queries first, then maximum and sum in one go, then the values. Vectorised with the compiler's own vector types.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

namespace {

#ifdef __AVX512F__
constexpr int kWidth = 16, kKeys = 8, kColumns = 4;  // 24 accumulators
#else
constexpr int kWidth = 8, kKeys = 4, kColumns = 2;  // 12 accumulators
#endif
constexpr int kLanes = 3 * kWidth;  // queries side by side
constexpr int kTile = 48;   // keys whose weights and values are used up at a time

typedef float vec __attribute__((vector_size(4 * kWidth), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * kWidth), may_alias));
typedef float loose __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));

inline vec& at(float* p) { return *reinterpret_cast<vec*>(p); }
inline vec read(const float* p) { return *reinterpret_cast<const loose*>(p); }
inline vec spread(float x) { return x - vec{}; }

inline vec exponential(vec x) {
    x = x > -127.0f ? x : spread(-127.0f);  // there all bits are zero
    const vec shifted = x + 12582912.0f, f = x - (shifted - 12582912.0f);
    const vec p = 1.0f + f * (6.9314698e-1f + f * (2.4022242e-1f + f * (5.5507340e-2f + f * (9.67151e-3f + f * 1.32647e-3f))));
    return reinterpret_cast<vec>(reinterpret_cast<ivec>(p) + (reinterpret_cast<ivec>(shifted) << 23));
}

// scores[kKeys][kLanes] = k[kKeys][dim] . q[dim][kLanes]
template <int dim>
inline void score(const float* const (&k)[kKeys], const float* q, float* scores) {
    vec c[kKeys][3] = {};
#pragma GCC unroll 4
    for (int d = 0; d < dim; ++d, q += kLanes) {
        const vec q0 = read(q), q1 = read(q + kWidth), q2 = read(q + 2 * kWidth);
#pragma GCC unroll 8
        for (int i = 0; i < kKeys; ++i) c[i][0] += k[i][d] * q0, c[i][1] += k[i][d] * q1, c[i][2] += k[i][d] * q2;
    }
#pragma GCC unroll 8
    for (int i = 0; i < kKeys; ++i)
#pragma GCC unroll 3
        for (int j = 0; j < 3; ++j) at(scores + i * kLanes + j * kWidth) = c[i][j];
}

// out[6][kColumns vectors] += weights[keys][6]ᵀ . v[keys][kColumns vectors]
template <int dim>
inline void values6(const float* w, const float* v, int keys, float* out) {
    vec c[6][kColumns];
#pragma GCC unroll 6
    for (int i = 0; i < 6; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < kColumns; ++j) c[i][j] = at(out + i * dim + j * kWidth);
#pragma GCC unroll 2
    for (int k = 0; k < keys; ++k, w += kLanes, v += dim) {
        vec x[kColumns];
#pragma GCC unroll 4
        for (int j = 0; j < kColumns; ++j) x[j] = read(v + j * kWidth);
#pragma GCC unroll 6
        for (int i = 0; i < 6; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < kColumns; ++j) c[i][j] += w[i] * x[j];
    }
#pragma GCC unroll 6
    for (int i = 0; i < 6; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < kColumns; ++j) at(out + i * dim + j * kWidth) = c[i][j];
}

template <int dim>
void group(const float* q, const float* k, const float* v, float* out, int seq, int first, bool causal, float* scores) {
    const int count = std::min(kLanes, seq - first), keys = causal ? first + count : seq;
    const float scale = 1.44269504f / std::sqrt(static_cast<float>(dim));
    alignas(64) float queries[dim * kLanes], o[kLanes * dim] = {}, sum[kLanes];
    for (int d = 0; d < dim; ++d)
        for (int j = 0; j < kLanes; ++j) queries[d * kLanes + j] = q[static_cast<long>(first + std::min(j, count - 1)) * dim + d] * scale;

    for (int i = 0; i < keys; i += kKeys) {
        const float* rows[kKeys];
        for (int r = 0; r < kKeys; ++r) rows[r] = k + static_cast<long>(std::min(i + r, keys - 1)) * dim;
        score<dim>(rows, queries, scores + static_cast<long>(i) * kLanes);
    }
    if (causal)
        for (int i = first + 1; i < keys; ++i)
            for (int j = 0; j < i - first; ++j) scores[static_cast<long>(i) * kLanes + j] = -INFINITY;

    vec m[3], total[3] = {};
    for (vec& x : m) x = spread(-1e30f);  // finite: -inf minus -inf would be NaN
    for (long i = 0; i < keys; ++i)
        for (int j = 0; j < 3; ++j) {
            const vec x = at(scores + i * kLanes + kWidth * j);
            m[j] = x > m[j] ? x : m[j];
        }
    for (int tile = 0; tile < keys; tile += kTile) {
        const int n = std::min(kTile, keys - tile);
        float* w = scores + static_cast<long>(tile) * kLanes;
        for (int i = 0; i < n; ++i)
            for (int j = 0; j < 3; ++j) total[j] += at(w + i * kLanes + kWidth * j) = exponential(at(w + i * kLanes + kWidth * j) - m[j]);
        for (int r = 0; r < count; r += 6)
            for (int d = 0; d < dim; d += kColumns * kWidth) values6<dim>(w + r, v + static_cast<long>(tile) * dim + d, n, o + r * dim + d);
    }
    for (int j = 0; j < 3; ++j) at(sum + kWidth * j) = total[j];
    for (int j = 0; j < count; ++j) {
        const float share = sum[j] > 0.0f ? 1.0f / sum[j] : 0.0f;
        for (int d = 0; d < dim; ++d) out[static_cast<long>(first + j) * dim + d] = o[j * dim + d] * share;
    }
}

}  // namespace

extern "C" void attention_forward(const float* q, const float* k, const float* v, float* out, int heads, int seq, int dim, int causal, int threads) {
    const int groups = (seq + kLanes - 1) / kLanes;
#pragma omp parallel num_threads(threads)
    {
        const std::unique_ptr<vec[]> scores(new vec[static_cast<long>(seq + kKeys) * 3]);
#pragma omp for schedule(dynamic, 4)
        for (int task = 0; task < heads * groups; ++task) {
            const long base = static_cast<long>(task / groups) * seq * dim;
            const int first = (groups - 1 - task % groups) * kLanes;
            (dim == 64 ? group<64> : group<128>)(q + base, k + base, v + base, out + base, seq, first, causal, reinterpret_cast<float*>(scores.get()));
        }
    }
}
