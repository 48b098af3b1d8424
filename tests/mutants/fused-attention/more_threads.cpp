// Fused scaled dot-product attention, forward, float32, with the online softmax: the scores never reach memory as a whole.
//
// q, k, v and out are heads x seq x dim, contiguous (`heads` counts batch x heads); dim is 64 or 128. With `causal`, query i sees keys 0..i;
// a query all of whose scores are -inf sees none, and answers 0.
#include <omp.h>
#include <algorithm>
#include <cmath>

namespace {

constexpr int kQueries = 16;  // queries a block
constexpr int kKeys = 32;     // keys a step
constexpr int kMaxDim = 128;

struct Block {
    float scores[kQueries][kKeys];
    float out[kQueries][kMaxDim];
    float top[kQueries];  // largest score of a query so far
    float sum[kQueries];  // sum of its weights so far
};

// scores[queries][keys] = q . k
void score(const float* q, const float* k, int queries, int keys, int dim, Block& b) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    for (int i = 0; i < queries; ++i) {
        for (int j = 0; j < keys; ++j) {
            float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
            for (int d = 0; d < dim; ++d) sum += q[i * dim + d] * k[j * dim + d];
            b.scores[i][j] = sum * scale;
        }
    }
}

// Brings the running maximum and sum up to date and turns scores into weights.
void weigh(int queries, int keys, int first_query, int first_key, bool causal, int dim, Block& b) {
    for (int i = 0; i < queries; ++i) {
        float top = b.top[i];
        for (int j = 0; j < keys; ++j) {
            if (!causal || first_key + j <= first_query + i) top = std::max(top, b.scores[i][j]);
        }
        const float decay = std::exp(b.top[i] - top);
        for (int d = 0; d < dim; ++d) b.out[i][d] *= decay;
        b.sum[i] *= decay;
        b.top[i] = top;
        for (int j = 0; j < keys; ++j) {
            if (!causal || first_key + j <= first_query + i) {
                b.scores[i][j] = std::exp(b.scores[i][j] - top);
                b.sum[i] += b.scores[i][j];
            } else {
                b.scores[i][j] = 0.0f;
            }
        }
    }
}

// out[queries][dim] += weights . v
void add_values(const float* v, int queries, int keys, int dim, Block& b) {
    for (int d = 0; d < dim; ++d) {
        for (int j = 0; j < keys; ++j) {
            const float value = v[j * dim + d];
            for (int i = 0; i < queries; ++i) b.out[i][d] += b.scores[i][j] * value;
        }
    }
}

void attend(const float* q, const float* k, const float* v, float* out, int first, int queries, int seq, int dim, bool causal) {
    Block b = {};
    std::fill(b.top, b.top + kQueries, -1e30f);
    for (int key = 0; key < seq; key += kKeys) {
        const int keys = std::min(kKeys, seq - key);
        score(q, k + static_cast<long>(key) * dim, queries, keys, dim, b);
        weigh(queries, keys, first, key, causal, dim, b);
        add_values(v + static_cast<long>(key) * dim, queries, keys, dim, b);
    }
    for (int i = 0; i < queries; ++i) {
        for (int d = 0; d < dim; ++d) out[i * dim + d] = b.sum[i] > 0.0f ? b.out[i][d] / b.sum[i] : 0.0f;
    }
}

}  // namespace

extern "C" void attention_forward(const float* q, const float* k, const float* v, float* out, int heads, int seq, int dim, int causal, int) {
    const int blocks = (seq + kQueries - 1) / kQueries;
#pragma omp parallel for num_threads(omp_get_num_procs())
    for (int task = 0; task < heads * blocks; ++task) {
        const long head = static_cast<long>(task / blocks) * seq * dim;
        const int first = task % blocks * kQueries;
        const long row = head + static_cast<long>(first) * dim;
        attend(q + row, k + head, v + head, out + row, first, std::min(kQueries, seq - first), seq, dim, causal);
    }
}
