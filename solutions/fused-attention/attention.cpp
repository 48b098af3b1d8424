// Scaled dot-product attention, forward, float32, for CPUs with AVX2 and FMA.
//
// Scores are computed transposed: lanes hold queries, registers hold keys. So K and V are read as they lie, only the
// small Q block is transposed (once for all its keys), and the softmax needs no horizontal step: maximum and sum of a
// query stay in its own lane.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

namespace {

constexpr int kQueries = 96;  // queries a block: 4 panels of 24 (scores) and 16 groups of 6 (output)
constexpr int kKeys = 64;     // keys a tile: 64 x 96 scores are 24 KB, and stay in L1/L2 until they are used
constexpr int kPanel = 24;    // 3 registers of queries x 4 keys = 12 accumulators of the 16 registers
constexpr int kRows = 6;      // 6 queries x 2 registers of the head dimension = 12 accumulators again
constexpr float kLog2e = 1.4426950408889634f;

struct Scratch {                       // one a thread
    alignas(64) float queries[4][128 * kPanel];   // transposed Q, scaled: [panel][dim][24]
    alignas(64) float weights[4][kKeys * kPanel]; // scores, then exp(scores): [panel][key][24]
    alignas(64) float out[kQueries * 128];
    alignas(64) float top[kQueries];    // running maximum of a query's scores, in units of log2
    alignas(64) float sum[kQueries];
    alignas(64) float decay[kQueries];  // what the sums so far must be multiplied with
};

// 2^x for x <= 0, and 0 from -127 down. Splits x = n + f with |f| <= 1/2; 2^f by a degree-5 minimax polynomial (relative error 9e-8), n goes into
// the exponent bits: at exactly -127 these and the mantissa are all zero.
inline __m256 exp2_negative(__m256 x) {
    const __m256 magic = _mm256_set1_ps(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    x = _mm256_max_ps(x, _mm256_set1_ps(-127.0f));
    const __m256 shifted = _mm256_add_ps(x, magic);
    const __m256 f = _mm256_sub_ps(x, _mm256_sub_ps(shifted, magic));
    __m256 p = _mm256_set1_ps(1.32647e-3f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(9.67151e-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(5.5507340e-2f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(2.4022242e-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(6.9314698e-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
}

// to[8][8] = scale * from[8][8]ᵀ, in registers: rows of `from` are `dim` floats apart, those of `to` kPanel.
inline void transpose_8(const float* from, int dim, __m256 scale, float* to) {
    __m256 r[8], t[8];
    for (int i = 0; i < 8; ++i) r[i] = _mm256_mul_ps(scale, _mm256_loadu_ps(from + i * dim));
    for (int i = 0; i < 8; i += 2) t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]), t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; ++j) {
            r[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
            r[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
        }
    for (int i = 0; i < 4; ++i) {
        _mm256_store_ps(to + i * kPanel, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_store_ps(to + (i + 4) * kPanel, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

// queries[dim][24] = scale * q[24][dim]; rows from `count` on are zero.
void transpose_panel(const float* q, int count, int dim, float scale, float* queries) {
    const __m256 s = _mm256_set1_ps(scale);
    for (int first = 0; first < kPanel; first += 8) {
        if (first + 8 <= count) {
            for (int d = 0; d < dim; d += 8) transpose_8(q + first * dim + d, dim, s, queries + d * kPanel + first);
        } else {
            for (int d = 0; d < dim; ++d)
                for (int i = first; i < first + 8; ++i) queries[d * kPanel + i] = i < count ? q[i * dim + d] * scale : 0.0f;
        }
    }
}

// weights[4][24] = k[4][dim] . queries[dim][24]
template <int dim>
inline void score_tile(const float* k0, const float* k1, const float* k2, const float* k3, const float* queries, float* weights) {
    __m256 c[4][3];
    for (auto& row : c) row[0] = row[1] = row[2] = _mm256_setzero_ps();
#pragma GCC unroll 4
    for (int d = 0; d < dim; ++d) {
        const __m256 q0 = _mm256_load_ps(queries + d * kPanel);
        const __m256 q1 = _mm256_load_ps(queries + d * kPanel + 8);
        const __m256 q2 = _mm256_load_ps(queries + d * kPanel + 16);
        const float* keys[4] = {k0, k1, k2, k3};
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const __m256 key = _mm256_broadcast_ss(keys[i] + d);
            c[i][0] = _mm256_fmadd_ps(key, q0, c[i][0]);
            c[i][1] = _mm256_fmadd_ps(key, q1, c[i][1]);
            c[i][2] = _mm256_fmadd_ps(key, q2, c[i][2]);
        }
    }
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 3; ++j) _mm256_store_ps(weights + i * kPanel + 8 * j, c[i][j]);
}

// The scores of keys behind a query's own position become -inf.
void mask_panel(float* weights, int keys, int first_key, int first_query) {
    for (int k = 0; k < keys; ++k) {
        const int hidden = std::min(kPanel, first_key + k - first_query);
        for (int i = 0; i < hidden; ++i) weights[k * kPanel + i] = -INFINITY;
    }
}

// Online softmax over one panel: weights become 2^(score - new maximum); maximum, sum and decay are brought up to date.
void softmax_panel(float* weights, int keys, float* top, float* sum, float* decay) {
    __m256 m[3], l[3];
    for (int j = 0; j < 3; ++j) m[j] = _mm256_load_ps(top + 8 * j);
    for (int k = 0; k < keys; ++k)
        for (int j = 0; j < 3; ++j) m[j] = _mm256_max_ps(m[j], _mm256_load_ps(weights + k * kPanel + 8 * j));
    for (int j = 0; j < 3; ++j) {
        const __m256 a = exp2_negative(_mm256_sub_ps(_mm256_load_ps(top + 8 * j), m[j]));
        l[j] = _mm256_mul_ps(_mm256_load_ps(sum + 8 * j), a);
        _mm256_store_ps(decay + 8 * j, a);
        _mm256_store_ps(top + 8 * j, m[j]);
    }
    for (int k = 0; k < keys; ++k)
        for (int j = 0; j < 3; ++j) {
            const __m256 w = exp2_negative(_mm256_sub_ps(_mm256_load_ps(weights + k * kPanel + 8 * j), m[j]));
            l[j] = _mm256_add_ps(l[j], w);
            _mm256_store_ps(weights + k * kPanel + 8 * j, w);
        }
    for (int j = 0; j < 3; ++j) _mm256_store_ps(sum + 8 * j, l[j]);
}

// out[6][dim] = decay[6] * out[6][dim] + weights[keys][6]ᵀ . v[keys][dim]
template <int dim>
inline void output_rows(const float* weights, const float* v, int keys, const float* decay, float* out) {
    for (int column = 0; column < dim; column += 16) {
        __m256 c[kRows][2];
#pragma GCC unroll 6
        for (int i = 0; i < kRows; ++i) {
            const __m256 a = _mm256_broadcast_ss(decay + i);
            c[i][0] = _mm256_mul_ps(a, _mm256_load_ps(out + i * dim + column));
            c[i][1] = _mm256_mul_ps(a, _mm256_load_ps(out + i * dim + column + 8));
        }
        const float* value = v + column;
#pragma GCC unroll 2
        for (int k = 0; k < keys; ++k, value += dim) {
            const __m256 v0 = _mm256_loadu_ps(value), v1 = _mm256_loadu_ps(value + 8);
#pragma GCC unroll 6
            for (int i = 0; i < kRows; ++i) {
                const __m256 w = _mm256_broadcast_ss(weights + k * kPanel + i);
                c[i][0] = _mm256_fmadd_ps(w, v0, c[i][0]);
                c[i][1] = _mm256_fmadd_ps(w, v1, c[i][1]);
            }
        }
#pragma GCC unroll 6
        for (int i = 0; i < kRows; ++i) {
            _mm256_store_ps(out + i * dim + column, c[i][0]);
            _mm256_store_ps(out + i * dim + column + 8, c[i][1]);
        }
    }
}

template <int dim>
void block(const float* q, const float* k, const float* v, float* out, int seq, int first, bool causal, Scratch& s) {
    const int count = std::min(kQueries, seq - first);
    const int panels = (count + kPanel - 1) / kPanel;
    const float scale = kLog2e / std::sqrt(static_cast<float>(dim));
    for (int p = 0; p < panels; ++p)
        transpose_panel(q + (first + p * kPanel) * dim, std::min(kPanel, count - p * kPanel), dim, scale, s.queries[p]);
    std::fill(s.out, s.out + (count + kRows - 1) / kRows * kRows * dim, 0.0f);
    std::fill(s.top, s.top + kQueries, -1e30f);  // finite: -inf minus -inf would be NaN
    std::fill(s.sum, s.sum + kQueries, 0.0f);

    const int last = causal ? first + count : seq;  // keys from here on are hidden from the whole block
    for (int tile = 0; tile < last; tile += kKeys) {
        const int keys = std::min(kKeys, last - tile);
        for (int i = 0; i < keys; i += 4) {
            const float* row = k + static_cast<long>(tile + i) * dim;
            const int rest = keys - i - 1;  // rows past the last key are read as the last, and their scores are never used
            const int seeing = causal ? std::max(0, (tile + i - first) / kPanel) : 0;  // earlier panels see none of these keys
            for (int p = seeing; p < panels; ++p)
                score_tile<dim>(row, row + std::min(1, rest) * dim, row + std::min(2, rest) * dim, row + std::min(3, rest) * dim,
                                s.queries[p], s.weights[p] + i * kPanel);
        }
        for (int p = 0; p < panels; ++p) {
            const int query = first + p * kPanel;
            const int seen = causal ? std::min(keys, query + kPanel - tile) : keys;
            if (seen <= 0) continue;
            if (causal && tile + seen > query + 1) mask_panel(s.weights[p], seen, tile, query);
            softmax_panel(s.weights[p], seen, s.top + p * kPanel, s.sum + p * kPanel, s.decay + p * kPanel);
        }
        for (int row = 0; row < count; row += kRows) {
            const int seen = causal ? std::min(keys, first + row + kRows - tile) : keys;
            if (seen <= 0) continue;
            output_rows<dim>(s.weights[row / kPanel] + row % kPanel, v + static_cast<long>(tile) * dim, seen, s.decay + row, s.out + row * dim);
        }
    }
    for (int i = 0; i < count; ++i) {
        const float share = s.sum[i] > 0.0f ? 1.0f / s.sum[i] : 0.0f;  // a query that sees no key answers 0
        for (int d = 0; d < dim; ++d) out[(first + i) * dim + d] = s.out[i * dim + d] * share;
    }
}

}  // namespace

extern "C" void attention_forward(const float* q, const float* k, const float* v, float* out, int heads, int seq, int dim, int causal, int threads) {
    const int blocks = (seq + kQueries - 1) / kQueries;
#pragma omp parallel num_threads(threads)
    {
        const std::unique_ptr<Scratch> scratch(new Scratch);
#pragma omp for schedule(dynamic)
        for (int task = 0; task < heads * blocks; ++task) {
            const long head = static_cast<long>(task / blocks) * seq * dim;
            const int first = (blocks - 1 - task % blocks) * kQueries;  // under the mask the last blocks are the longest: first
            if (dim == 64) block<64>(q + head, k + head, v + head, out + head, seq, first, causal, *scratch);
            else block<128>(q + head, k + head, v + head, out + head, seq, first, causal, *scratch);
        }
    }
}
