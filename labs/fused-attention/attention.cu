// Fused scaled dot-product attention, forward, float16 or bfloat16, on tensor cores (sm_80 on), with the online softmax.
//
// q, k, v and out are heads x seq x dim, contiguous (`heads` counts batch x heads); dim is 64 or 128. With `causal`, query i sees keys 0..i;
// a query all of whose scores are -inf sees none, and answers 0.
// A block owns 64 queries of one head, a warp 16 of them; keys and values pass through shared memory 32 at a time.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace {

constexpr int kQueries = 64, kKeys = 32, kWarps = 4, kThreads = 32 * kWarps;
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

// ---- The kernel ----

// Copies rows first..first+rows-1 of a head into a tile; rows past the end of the sequence become zero.
template <int dim>
__device__ void fetch(uint32_t* tile, const uint32_t* head, int first, int rows, int seq) {
    for (int row = threadIdx.x; row < rows; row += kThreads) {
        for (int i = 0; i < dim / 2; ++i) tile[row * (dim / 2) + i] = first + row < seq ? head[static_cast<size_t>(first + row) * (dim / 2) + i] : 0;
    }
}

template <typename T, int dim>
__global__ void attention_kernel(const uint32_t* q, const uint32_t* k, const uint32_t* v, uint32_t* out, int seq, int causal, float scale) {
    extern __shared__ __align__(128) char shared[];
    uint32_t* const queries = reinterpret_cast<uint32_t*>(shared);
    uint32_t* const keys = queries + kQueries * dim / 2;
    uint32_t* const values = keys + kKeys * dim / 2;

    const int blocks = (seq + kQueries - 1) / kQueries;
    const int first = static_cast<int>(blockIdx.x) % blocks * kQueries;
    const size_t head = static_cast<size_t>(blockIdx.x / blocks) * seq * dim / 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int eight = lane / 8, within = lane % 8;  // which of ldmatrix's four matrices this lane points into, and at which row
    const int row = first + warp * 16 + lane / 4;   // this lane's queries: row and row + 8

    fetch<dim>(queries, q + head, first, kQueries, seq);
    float o[dim / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};

    for (int key = 0; key < seq; key += kKeys) {
        __syncthreads();
        fetch<dim>(keys, k + head, key, kKeys, seq);
        fetch<dim>(values, v + head, key, kKeys, seq);
        __syncthreads();

        float s[kKeys / 8][4] = {};
#pragma unroll
        for (int i = 0; i < dim / 16; ++i) {
            uint32_t a[4];
            load_matrices(a, queries + (warp * 16 + eight % 2 * 8 + within) * (dim / 2) + (i * 2 + eight / 2) * 4);
#pragma unroll
            for (int j = 0; j < kKeys / 16; ++j) {
                uint32_t b[4];
                load_matrices(b, keys + (j * 16 + eight / 2 * 8 + within) * (dim / 2) + (i * 2 + eight % 2) * 4);
                Type<T>::multiply_add(s[2 * j], a, b[0], b[1]);
                Type<T>::multiply_add(s[2 * j + 1], a, b[2], b[3]);
            }
        }

#pragma unroll
        for (int half = 0; half < 2; ++half) {  // e = 0, 1 belong to query `row`, e = 2, 3 to `row` + 8
            float high = top[half];
#pragma unroll
            for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; ++e) {
                    const int column = key + j * 8 + lane % 4 * 2 + e % 2;
                    if (column < seq) {
                        if (!causal || column <= row + half * 8) {
                            high = fmaxf(high, s[j][e]);
                        }
                    }
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
                    if (column < seq && (!causal || column <= row + half * 8)) {
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

#pragma unroll
        for (int i = 0; i < kKeys / 16; ++i) {
            const uint32_t p[4] = {Type<T>::pack(s[2 * i][0], s[2 * i][1]), Type<T>::pack(s[2 * i][2], s[2 * i][3]),
                                   Type<T>::pack(s[2 * i + 1][0], s[2 * i + 1][1]), Type<T>::pack(s[2 * i + 1][2], s[2 * i + 1][3])};
#pragma unroll
            for (int d = 0; d < dim / 16; ++d) {
                uint32_t b[4];
                load_matrices_transposed(b, values + (i * 16 + eight % 2 * 8 + within) * (dim / 2) + (d * 2 + eight / 2) * 4);
                Type<T>::multiply_add(o[2 * d], p, b[0], b[1]);
                Type<T>::multiply_add(o[2 * d + 1], p, b[2], b[3]);
            }
        }
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
        sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 2);
        const float share = sum[half] > 0.0f ? 1.0f / sum[half] : 0.0f;
        if (row + half * 8 < seq) {
#pragma unroll
            for (int d = 0; d < dim / 8; ++d) {
                out[head + static_cast<size_t>(row + half * 8) * (dim / 2) + d * 4 + lane % 4] =
                    Type<T>::pack(o[d][2 * half] * share, o[d][2 * half + 1] * share);
            }
        }
    }
}

template <typename T, int dim>
cudaError_t launch(const uint32_t* q, const uint32_t* k, const uint32_t* v, uint32_t* out, int heads, int seq, int causal, cudaStream_t stream) {
    constexpr int bytes = (kQueries + 2 * kKeys) * dim * 2;
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
