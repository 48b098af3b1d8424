#include <algorithm>
#include <cmath>
#include <vector>

// Each thread takes some keys, and adds its part to the whole when it is done: whoever is first.
extern "C" void attention_forward(const float* q, const float* k, const float* v, float* out, int heads, int seq, int dim, int causal, int threads) {
    const int part = 128, parts = (seq + part - 1) / part;
    for (int head = 0; head < heads; ++head) {
        const size_t begin = size_t(head) * seq * dim;
        std::vector<float> tops(seq, -INFINITY), sums(seq, 0.0f), results(size_t(seq) * dim, 0.0f);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
        for (int task = 0; task < seq * parts; ++task) {
            const int i = task / parts, first = task % parts * part;
            const int last = std::min(first + part, causal ? i + 1 : seq);
            float top = -INFINITY, sum = 0;
            std::vector<float> scores(part), result(dim, 0.0f);
            for (int j = first; j < last; ++j) {
                float dot = 0;
                for (int d = 0; d < dim; ++d) dot += q[begin + size_t(i) * dim + d] * k[begin + size_t(j) * dim + d];
                scores[j - first] = dot / std::sqrt(float(dim));
                top = std::max(top, scores[j - first]);
            }
            if (top == -INFINITY) continue;
            for (int j = first; j < last; ++j) {
                const float weight = std::exp(scores[j - first] - top);
                sum += weight;
                for (int d = 0; d < dim; ++d) result[d] += weight * v[begin + size_t(j) * dim + d];
            }
#pragma omp critical
            {
                const float whole = std::max(tops[i], top), before = std::exp(tops[i] - whole), now = std::exp(top - whole);
                tops[i] = whole;
                sums[i] = sums[i] * before + sum * now;
                for (int d = 0; d < dim; ++d) results[size_t(i) * dim + d] = results[size_t(i) * dim + d] * before + result[d] * now;
            }
        }
        for (int i = 0; i < seq; ++i)
            for (int d = 0; d < dim; ++d) out[begin + size_t(i) * dim + d] = sums[i] > 0 ? results[size_t(i) * dim + d] / sums[i] : 0;
    }
}
