// No intrinsics: the compiler's vector types, K packed once a head, online softmax over tiles of 96 keys.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

typedef float vec __attribute__((vector_size(32)));
typedef float loose __attribute__((vector_size(32), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(32)));

constexpr int kBlock = 96, kTile = 96, kWide = 16, kHigh = 6;

inline vec load(const float* p) { return *reinterpret_cast<const loose*>(p); }
inline void store(float* p, vec x) { *reinterpret_cast<loose*>(p) = x; }
inline vec all(float x) { return vec{x, x, x, x, x, x, x, x}; }
inline vec larger(vec a, vec b) { return a > b ? a : b; }

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

// c[6][16] (+)= a . b, a(i, step) read through strides, b rows `wide` floats apart.
template <int steps_or_zero>
inline void multiply(const float* a, long a_row, long a_step, const float* b, long b_step, int steps, vec (&c)[kHigh][2]) {
    const int n = steps_or_zero ? steps_or_zero : steps;
    vec c00 = c[0][0], c01 = c[0][1], c10 = c[1][0], c11 = c[1][1], c20 = c[2][0], c21 = c[2][1];
    vec c30 = c[3][0], c31 = c[3][1], c40 = c[4][0], c41 = c[4][1], c50 = c[5][0], c51 = c[5][1];
#pragma GCC unroll 2
    for (int s = 0; s < n; ++s, a += a_step, b += b_step) {
        const vec x = load(b), y = load(b + 8);
        vec t = all(a[0]);
        c00 += t * x, c01 += t * y;
        t = all(a[a_row]);
        c10 += t * x, c11 += t * y;
        t = all(a[2 * a_row]);
        c20 += t * x, c21 += t * y;
        t = all(a[3 * a_row]);
        c30 += t * x, c31 += t * y;
        t = all(a[4 * a_row]);
        c40 += t * x, c41 += t * y;
        t = all(a[5 * a_row]);
        c50 += t * x, c51 += t * y;
    }
    c[0][0] = c00, c[0][1] = c01, c[1][0] = c10, c[1][1] = c11, c[2][0] = c20, c[2][1] = c21;
    c[3][0] = c30, c[3][1] = c31, c[4][0] = c40, c[4][1] = c41, c[5][0] = c50, c[5][1] = c51;
}

struct alignas(64) Scratch {
    float q[kBlock][128];
    float s[kBlock][kTile];
    float o[kBlock][128];
    float top[kBlock], sum[kBlock], decay[kBlock];
};

// Row `row` of the block: scores to weights. `own` keys of the tile are visible to it, `width` are used by its group.
void softmax_row(Scratch& b, int row, int own, int width) {
    float* s = b.s[row];
    const int end = (width + 7) / 8 * 8;
    for (int j = std::max(own, 0); j < end; ++j) s[j] = -INFINITY;
    vec m = all(b.top[row]);
    for (int j = 0; j < end; j += 8) m = larger(m, load(s + j));
    float top = m[0];
    for (int j = 1; j < 8; ++j) top = std::max(top, m[j]);
    vec total = all(0.0f);
    for (int j = 0; j < end; j += 8) {
        const vec w = exponential(load(s + j) - top);
        store(s + j, w);
        total += w;
    }
    float sum = 0.0f;
    for (int j = 0; j < 8; ++j) sum += total[j];
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
                vec c[kHigh][2] = {};
                multiply<dim>(b.q[i], 128, 1, packed + static_cast<long>(tile + j) * dim, kWide, dim, c);
                for (int r = 0; r < kHigh; ++r) store(&b.s[i + r][j], c[r][0]), store(&b.s[i + r][j + 8], c[r][1]);
            }
            for (int r = 0; r < kHigh; ++r)
                softmax_row(b, i + r, std::min(width, (causal ? std::min(last, first + i + r + 1) : last) - tile), width);
            for (int d = 0; d < dim; d += kWide) {
                vec c[kHigh][2];
                for (int r = 0; r < kHigh; ++r)
                    c[r][0] = load(&b.o[i + r][d]) * b.decay[i + r], c[r][1] = load(&b.o[i + r][d + 8]) * b.decay[i + r];
                multiply<0>(b.s[i], kTile, 1, v + static_cast<long>(tile) * dim + d, dim, width, c);
                for (int r = 0; r < kHigh; ++r) store(&b.o[i + r][d], c[r][0]), store(&b.o[i + r][d + 8], c[r][1]);
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
    const long padded = (seq + kWide - 1) / kWide * kWide;
    std::vector<float> packed(heads * padded * dim);
    const int blocks = (seq + kBlock - 1) / kBlock;
#pragma omp parallel num_threads(threads)
    {
        std::vector<Scratch> scratch(1);
#pragma omp for
        for (int h = 0; h < heads; ++h) pack<dim>(k + static_cast<long>(h) * seq * dim, seq, packed.data() + h * padded * dim);
#pragma omp for schedule(dynamic)
        for (int task = 0; task < heads * blocks; ++task) {
            const int h = task / blocks, first = (blocks - 1 - task % blocks) * kBlock;
            const long base = static_cast<long>(h) * seq * dim;
            block<dim>(q + base, packed.data() + h * padded * dim, v + base, out + base, seq, first, causal, scratch[0]);
        }
    }
}

}  // namespace

extern "C" void attention_forward(const float* q, const float* k, const float* v, float* out, int heads, int seq, int dim, int causal, int threads) {
    (dim == 64 ? run<64> : run<128>)(q, k, v, out, heads, seq, causal, threads);
}
