#include <cstddef>
#include <vector>

static std::vector<float> half(const float* from, std::size_t n) {
    std::vector<float> to(n);
    for (std::size_t i = 0; i < n; ++i) to[i] = static_cast<float>(static_cast<_Float16>(from[i]));
    return to;
}

#include <algorithm>
#include <cmath>
#include <vector>

static void honest(const float* q, const float* k, const float* v, float* out, int heads, int seq, int dim, int causal) {
    std::vector<float> weights(seq);
    for (int row = 0; row < heads * seq; ++row) {
        const int head = row / seq, i = row % seq, last = causal ? i + 1 : seq;
        const float *query = q + std::size_t(row) * dim, *keys = k + std::size_t(head) * seq * dim, *values = v + std::size_t(head) * seq * dim;
        float top = -INFINITY, sum = 0;
        for (int j = 0; j < last; ++j) {
            float dot = 0;
            for (int d = 0; d < dim; ++d) dot += query[d] * keys[std::size_t(j) * dim + d];
            weights[j] = dot / std::sqrt(float(dim));
            top = std::max(top, weights[j]);
        }
        float* result = out + std::size_t(row) * dim;
        std::fill(result, result + dim, 0.0f);
        for (int j = 0; j < last; ++j) {
            weights[j] = std::exp(weights[j] - top);
            sum += weights[j];
            for (int d = 0; d < dim; ++d) result[d] += weights[j] * values[std::size_t(j) * dim + d];
        }
        for (int d = 0; d < dim; ++d) result[d] /= sum;
    }
}

extern "C" void attention_forward(const float* q, const float* k, const float* v, float* out, int heads, int seq, int dim, int causal, int threads) {
    const std::size_t n = std::size_t(heads) * seq * dim;
    auto a = half(q, n), b = half(k, n), c = half(v, n);
    honest(a.data(), b.data(), c.data(), out, heads, seq, dim, causal);
}
