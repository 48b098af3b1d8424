// Keys outside, queries inside: a tile of K (transposed) and V stays in the cache while every query of a strip passes by,
// six at a time, whose scores never leave L1.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace {

constexpr int kTile = 96;     // keys a tile, 6 panels of 16
constexpr int kStrip = 384;   // queries a task
constexpr int kRows = 6;

struct alignas(64) Scratch {
    float keys[kTile * 128];       // [panel of 16 keys][dim][16]
    float scores[kRows][kTile];
    float out[kStrip * 128];
    float top[kStrip], sum[kStrip];
};

float reduce_max(__m256 x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

float reduce_add(__m256 x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

// 2^x for x <= 0, and 0 from -127 down, where all bits are zero: eighths of the exponent from a table held in a register, the rest (|r| <= 1/16) by a cubic.
inline __m256 exp2_table(__m256 x) {
    const __m256 table = _mm256_setr_ps(1.0f, 1.0905077f, 1.1892071f, 1.2968396f, 1.4142136f, 1.5422108f, 1.6817928f, 1.8340081f);
    const __m256 magic = _mm256_set1_ps(1572864.0f);  // 1.5 * 2^20: rounds to eighths
    x = _mm256_max_ps(x, _mm256_set1_ps(-127.0f));
    const __m256 shifted = _mm256_add_ps(x, magic);
    const __m256 r = _mm256_sub_ps(x, _mm256_sub_ps(shifted, magic));
    const __m256i eighths = _mm256_castps_si256(shifted);
    const __m256i exponent = _mm256_slli_epi32(_mm256_srai_epi32(_mm256_slli_epi32(eighths, 12), 15), 23);
    const __m256 base = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(_mm256_permutevar8x32_ps(table, eighths)), exponent));
    __m256 p = _mm256_set1_ps(0.05550411f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.24022651f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.69314718f));
    return _mm256_fmadd_ps(_mm256_mul_ps(p, r), base, base);
}

inline void transpose8(const float* from, long stride, float* to, int step) {
    __m256 r[8], t[8];
    for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * stride);
    for (int i = 0; i < 4; ++i) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
        r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(to + i * step, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * step, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

template <int dim>
void pack_keys(const float* k, int count, float* keys) {
    for (int panel = 0; panel < count; panel += 16, keys += 16 * dim)
        for (int half = 0; half < 16; half += 8) {
            const int first = panel + half;
            if (first + 8 <= count) {
                for (int d = 0; d < dim; d += 8) transpose8(k + first * dim + d, dim, keys + d * 16 + half, 16);
            } else {
                for (int d = 0; d < dim; ++d)
                    for (int i = 0; i < 8; ++i) keys[d * 16 + half + i] = first + i < count ? k[(first + i) * dim + d] : 0.0f;
            }
        }
}

template <int dim>
inline void score(const float* const q[kRows], const float* keys, float scale, float (*scores)[kTile], int panel) {
    __m256 c[kRows][2];
    for (auto& row : c) row[0] = row[1] = _mm256_setzero_ps();
#pragma GCC unroll 2
    for (int d = 0; d < dim; ++d) {
        const __m256 k0 = _mm256_load_ps(keys + d * 16), k1 = _mm256_load_ps(keys + d * 16 + 8);
#pragma GCC unroll 6
        for (int i = 0; i < kRows; ++i) {
            const __m256 a = _mm256_broadcast_ss(q[i] + d);
            c[i][0] = _mm256_fmadd_ps(a, k0, c[i][0]);
            c[i][1] = _mm256_fmadd_ps(a, k1, c[i][1]);
        }
    }
    const __m256 s = _mm256_set1_ps(scale);
    for (int i = 0; i < kRows; ++i) {
        _mm256_store_ps(&scores[i][panel], _mm256_mul_ps(c[i][0], s));
        _mm256_store_ps(&scores[i][panel + 8], _mm256_mul_ps(c[i][1], s));
    }
}

// One row: scores become weights; returns what earlier sums are worth under the new maximum.
inline float softmax(float* scores, int count, float& top, float& sum) {
    const int padded = (count + 7) & ~7;
    for (int i = count; i < padded; ++i) scores[i] = -INFINITY;
    __m256 m = _mm256_set1_ps(top);
    for (int i = 0; i < padded; i += 8) m = _mm256_max_ps(m, _mm256_load_ps(scores + i));
    const float high = reduce_max(m);
    const __m256 h = _mm256_set1_ps(high);
    __m256 total = _mm256_setzero_ps();
    for (int i = 0; i < padded; i += 8) {
        const __m256 w = exp2_table(_mm256_sub_ps(_mm256_load_ps(scores + i), h));
        _mm256_store_ps(scores + i, w);
        total = _mm256_add_ps(total, w);
    }
    const float decay = _mm256_cvtss_f32(exp2_table(_mm256_set1_ps(top - high)));
    top = high;
    sum = sum * decay + reduce_add(total);
    return decay;
}

template <int dim>
inline void add_values(const float (*scores)[kTile], const float* v, int count, const float decay[kRows], float* out) {
    for (int column = 0; column < dim; column += 16) {
        __m256 c[kRows][2];
#pragma GCC unroll 6
        for (int i = 0; i < kRows; ++i) {
            const __m256 a = _mm256_set1_ps(decay[i]);
            c[i][0] = _mm256_mul_ps(a, _mm256_load_ps(out + i * dim + column));
            c[i][1] = _mm256_mul_ps(a, _mm256_load_ps(out + i * dim + column + 8));
        }
#pragma GCC unroll 2
        for (int k = 0; k < count; ++k) {
            const __m256 v0 = _mm256_loadu_ps(v + k * dim + column), v1 = _mm256_loadu_ps(v + k * dim + column + 8);
#pragma GCC unroll 6
            for (int i = 0; i < kRows; ++i) {
                const __m256 w = _mm256_broadcast_ss(&scores[i][k]);
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
            for (int panel = 0; panel < seen; panel += 16) score<dim>(queries, s.keys + panel * dim, scale, s.scores, panel);
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
