// Fused scaled dot-product attention, forward, float16 or bfloat16, on tensor cores (sm_80 on), with the online softmax.
//
// q, k, v and out are heads x seq x dim, contiguous (`heads` counts batch x heads); dim is 64 or 128. With `causal`, query i sees keys 0..i;
// a query all of whose scores are -inf sees none, and answers 0.
// A block owns 128 queries of one head, a warp two strips of 16; keys and values pass through shared memory 64 at a time.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps, kStrips = 2, kQueries = 16 * kStrips * kWarps, kKeys = 64;
constexpr int kPadding = 16;  // elements behind each row of a tile in shared memory
constexpr float kLog2e = 1.4426950408889634f;

// ---- The instructions, one function each ----

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* shared) {
    const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void* shared) {
    const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

template <typename T>
struct Type;

template <>
struct Type<__half> {
    static __device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        const __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&pair);
    }
};

template <>
struct Type<__nv_bfloat16> {
    static __device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&pair);
    }
};

// ---- Tiles ----

// Words (pairs of elements) from one row of a tile to the next.
template <int dim>
constexpr int kStride = (dim + kPadding) / 2;

// Copies rows first..first+rows-1 of a head into a tile; rows past the end of the sequence become zero.
template <int dim, int rows>
__device__ __forceinline__ void fetch(uint32_t* tile, const uint32_t* head, int first, int seq) {
    constexpr int words = dim / 2;
    const int start = threadIdx.x / words, word = threadIdx.x % words;
#pragma unroll
    for (int row = start; row < start + rows; row += kThreads / words) {
        tile[row * kStride<dim> + word] = first + row < seq ? head[static_cast<size_t>(first + row) * words + word] : 0;
    }
}

// ---- The kernel ----

// 16 queries of a warp. Of each accumulator of 8 columns a lane holds four values: e = 0, 1 of query `lane / 4` and e = 2, 3 of the one 8 below.
template <int dim>
struct Strip {
    float s[kKeys / 8][4], o[dim / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};

    // Scores become weights relative to the largest score so far, and what was summed before shrinks likewise. `key` and `query` are the first of this
    // tile and strip.
    __device__ __forceinline__ void weigh(int key, int query, int seq, int causal, float scale) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = query + lane / 4 + half * 8;
            float high = top[half];
#pragma unroll
            for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; ++e) {
                    const int column = key + j * 8 + lane % 4 * 2 + e % 2;
                    if (column < seq && (!causal || column <= row)) high = fmaxf(high, s[j][e]);
                }
            }
            high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 1));
            high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 2));
            const float shift = high == -INFINITY ? 0.0f : high * scale;
            const float decay = exp2f(top[half] * scale - shift);
            top[half] = high;
            sum[half] *= decay;
#pragma unroll
            for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; ++e) {
                    const int column = key + j * 8 + lane % 4 * 2 + e % 2;
                    if (column < seq && (!causal || column <= row)) {
                        s[j][e] = exp2f(s[j][e] * scale - shift);
                        sum[half] += s[j][e];
                    } else {
                        s[j][e] = 0.0f;
                    }
                }
            }
#pragma unroll
            for (int d = 0; d < dim / 8; ++d) {
                o[d][2 * half] *= decay;
                o[d][2 * half + 1] *= decay;
            }
        }
    }
};

template <typename T, int dim>
__global__ void __launch_bounds__(kThreads) attention_kernel(const uint32_t* q, const uint32_t* k, const uint32_t* v, uint32_t* out, int seq, int causal, float scale) {
    extern __shared__ __align__(128) char shared[];
    uint32_t* const queries = reinterpret_cast<uint32_t*>(shared);
    uint32_t* const keys = queries + kQueries * kStride<dim>;
    uint32_t* const values = keys + kKeys * kStride<dim>;

    const int blocks = (seq + kQueries - 1) / kQueries;
    const int first = static_cast<int>(blockIdx.x) % blocks * kQueries;
    const size_t head = static_cast<size_t>(blockIdx.x / blocks) * seq * dim / 2;
    const int local = threadIdx.x / 32 * 16 * kStrips, last = first + local + 16 * kStrips - 1;  // this warp's first query in the block; its last
    const int lane = threadIdx.x % 32;
    const int eight = lane / 8, within = lane % 8;  // which of ldmatrix's four matrices this lane points into, and at which row

    fetch<dim, kQueries>(queries, q + head, first, seq);
    Strip<dim> strips[kStrips];

    for (int key = 0; key < seq; key += kKeys) {
        __syncthreads();
        fetch<dim, kKeys>(keys, k + head, key, seq);
        fetch<dim, kKeys>(values, v + head, key, seq);
        __syncthreads();
        if (causal && key > last) continue;  // this warp's queries see none of these keys

#pragma unroll
        for (int m = 0; m < kStrips; ++m) {
#pragma unroll
            for (int i = 0; i < kKeys / 2; ++i) strips[m].s[i / 4][i % 4] = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < dim / 16; ++i) {
            uint32_t a[kStrips][4], b[4];
#pragma unroll
            for (int m = 0; m < kStrips; ++m)
                load_matrices(a[m], queries + (local + m * 16 + eight % 2 * 8 + within) * kStride<dim> + (i * 2 + eight / 2) * 4);
#pragma unroll
            for (int j = 0; j < kKeys / 16; ++j) {
                load_matrices(b, keys + (j * 16 + eight / 2 * 8 + within) * kStride<dim> + (i * 2 + eight % 2) * 4);
#pragma unroll
                for (int m = 0; m < kStrips; ++m) {
                    Type<T>::multiply_add(strips[m].s[2 * j], a[m], b[0], b[1]);
                    Type<T>::multiply_add(strips[m].s[2 * j + 1], a[m], b[2], b[3]);
                }
            }
        }

#pragma unroll
        for (int m = 0; m < kStrips; ++m) strips[m].weigh(key, first + local + m * 16, seq, causal, scale);

#pragma unroll
        for (int i = 0; i < kKeys / 16; ++i) {
            uint32_t p[kStrips][4], b[4];
#pragma unroll
            for (int m = 0; m < kStrips; ++m) {
                const float(&s)[kKeys / 8][4] = strips[m].s;
#pragma unroll
                for (int e = 0; e < 4; ++e) p[m][e] = Type<T>::pack(s[2 * i + e / 2][e % 2 * 2], s[2 * i + e / 2][e % 2 * 2 + 1]);
            }
#pragma unroll
            for (int d = 0; d < dim / 16; ++d) {
                load_matrices_transposed(b, values + (i * 16 + eight % 2 * 8 + within) * kStride<dim> + (d * 2 + eight / 2) * 4);
#pragma unroll
                for (int m = 0; m < kStrips; ++m) {
                    Type<T>::multiply_add(strips[m].o[2 * d], p[m], b[0], b[1]);
                    Type<T>::multiply_add(strips[m].o[2 * d + 1], p[m], b[2], b[3]);
                }
            }
        }
    }

#pragma unroll
    for (int m = 0; m < kStrips; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float sum = strips[m].sum[half];
            sum += __shfl_xor_sync(0xffffffff, sum, 1);
            sum += __shfl_xor_sync(0xffffffff, sum, 2);
            const float share = sum > 0.0f ? 1.0f / sum : 0.0f;
            const int row = first + local + m * 16 + lane / 4 + half * 8;
            if (row < seq) {
#pragma unroll
                for (int d = 0; d < dim / 8; ++d) {
                    const float* const o = strips[m].o[d] + 2 * half;
                    out[head + static_cast<size_t>(row) * (dim / 2) + d * 4 + lane % 4] = Type<T>::pack(o[0] * share, o[1] * share);
                }
            }
        }
    }
}

template <typename T, int dim>
cudaError_t launch(const uint32_t* q, const uint32_t* k, const uint32_t* v, uint32_t* out, int heads, int seq, int causal, cudaStream_t stream) {
    constexpr int bytes = (kQueries + 2 * kKeys) * kStride<dim> * 4;
    const cudaError_t status = cudaFuncSetAttribute(attention_kernel<T, dim>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    const int blocks = (seq + kQueries - 1) / kQueries;
    const float scale = kLog2e / sqrtf(static_cast<float>(dim));
    attention_kernel<T, dim><<<heads * blocks, kThreads, bytes, stream>>>(q, k, v, out, seq, causal, scale);
    return cudaGetLastError();
}

}  // namespace

extern "C" int attention_forward(const uint32_t* q, const uint32_t* k, const uint32_t* v, uint32_t* out, int heads, int seq, int dim, int causal, int bf16, void* stream) {
    const auto s = static_cast<cudaStream_t>(stream);
    if (dim == 64) return bf16 ? launch<__nv_bfloat16, 64>(q, k, v, out, heads, seq, causal, s) : launch<__half, 64>(q, k, v, out, heads, seq, causal, s);
    return bf16 ? launch<__nv_bfloat16, 128>(q, k, v, out, heads, seq, causal, s) : launch<__half, 128>(q, k, v, out, heads, seq, causal, s);
}
