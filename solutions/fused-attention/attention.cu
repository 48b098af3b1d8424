// Scaled dot-product attention, forward, float16 or bfloat16, for tensor cores from sm_80 on.
//
// A block owns 128 queries of one head, a warp 16 of them. Tiles of 64 keys and values arrive by cp.async, one tile ahead of the arithmetic, in
// shared memory that is swizzled so that ldmatrix meets no bank conflict. Scores, weights and sums stay in registers: the accumulator layout of
// the first product is the operand layout of the second. Hidden tiles are skipped; only tiles on the diagonal or past the end are masked.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace {

constexpr int kQueries = 128, kKeys = 64, kWarps = 8, kThreads = 32 * kWarps;
constexpr float kLog2e = 1.4426950408889634f;

// ---- The instructions, one function each ----

__device__ __forceinline__ void copy_async(void* shared, const void* global, bool inside) {  // 16 bytes; zeros where `inside` is false
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(inside ? 16 : 0) : "memory");
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int pending>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* shared) {
    const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void* shared) {
    const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
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

// Where 16-byte chunk `chunk` of row `row` lies in a tile of rows of `dim` halves: 8 consecutive rows use 8 different groups of banks.
template <int dim>
__device__ __forceinline__ int place(int row, int chunk) {
    return (row * (dim / 8) + (chunk ^ (row & 7))) * 16;
}

// Starts copying rows first..first+rows-1 of a head into a tile; rows past the end of the sequence become zero.
template <int dim, int rows>
__device__ __forceinline__ void fetch(char* tile, const char* head, int first, int seq) {
    constexpr int chunks = dim / 8;
#pragma unroll
    for (int i = 0; i < rows * chunks / kThreads; ++i) {
        const int index = i * kThreads + threadIdx.x, row = index / chunks, chunk = index % chunks;
        const int from = min(first + row, seq - 1);
        copy_async(tile + place<dim>(row, chunk), head + (static_cast<size_t>(from) * chunks + chunk) * 16, first + row < seq);
    }
}

template <typename T, int dim>
__global__ void __launch_bounds__(kThreads, dim == 64 ? 2 : 1)
    attention_kernel(const char* q, const char* k, const char* v, char* out, int seq, int causal, float scale) {
    extern __shared__ __align__(128) char shared[];
    constexpr int key_bytes = kKeys * dim * 2, query_bytes = kQueries * dim * 2;
    char* const queries = shared;
    char* const keys = shared + query_bytes;
    char* const values = keys + 2 * key_bytes;

    const int blocks = (seq + kQueries - 1) / kQueries;
    const int first = (blocks - 1 - static_cast<int>(blockIdx.x) % blocks) * kQueries;  // under the mask the last queries have most keys: first
    const size_t head = static_cast<size_t>(blockIdx.x / blocks) * seq * dim * 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int eight = lane / 8, within = lane % 8;      // which of ldmatrix's four matrices this lane points into, and at which row
    const int row = first + warp * 16 + lane / 4;       // this lane's queries: row and row + 8
    const int last = causal ? min(seq, first + kQueries) : seq;
    const int tiles = (last + kKeys - 1) / kKeys;

    fetch<dim, kQueries>(queries, q + head, first, seq);
    fetch<dim, kKeys>(keys, k + head, 0, seq);
    copy_commit();
    fetch<dim, kKeys>(values, v + head, 0, seq);
    copy_commit();

    uint32_t a[dim / 16][4];
    float o[dim / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};

    for (int tile = 0; tile < tiles; ++tile) {
        const int key = tile * kKeys;
        const bool hidden = causal && key > first + warp * 16 + 15;                             // from all of this warp's queries
        const bool ragged = key + kKeys > seq || (causal && key + kKeys - 1 > first + warp * 16);  // from some of them
        copy_wait<1>();
        __syncthreads();  // this tile's keys are there, and nobody reads the buffer of the next ones any more
        if (tile + 1 < tiles) fetch<dim, kKeys>(keys + (tile + 1) % 2 * key_bytes, k + head, key + kKeys, seq);
        copy_commit();
        if (tile == 0) {
#pragma unroll
            for (int i = 0; i < dim / 16; ++i)
                load_matrices(a[i], queries + place<dim>(warp * 16 + eight % 2 * 8 + within, i * 2 + eight / 2));
        }

        float s[kKeys / 8][4] = {};
        if (!hidden) {
            const char* const tile_keys = keys + tile % 2 * key_bytes;
#pragma unroll
            for (int i = 0; i < dim / 16; ++i) {
#pragma unroll
                for (int j = 0; j < kKeys / 16; ++j) {
                    uint32_t b[4];
                    load_matrices(b, tile_keys + place<dim>(j * 16 + eight / 2 * 8 + within, i * 2 + eight % 2));
                    Type<T>::multiply_add(s[2 * j], a[i], b[0], b[1]);
                    Type<T>::multiply_add(s[2 * j + 1], a[i], b[2], b[3]);
                }
            }
            if (ragged) {
                const int start = key + lane % 4 * 2;  // of the keys before `own` (`other`) this lane's first (second) query sees all
                const int own = (causal ? min(seq, row + 1) : seq) - start, other = (causal ? min(seq, row + 9) : seq) - start;
#pragma unroll
                for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        if (j * 8 + e % 2 >= (e < 2 ? own : other)) s[j][e] = -INFINITY;
                    }
                }
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {  // e = 0, 1 belong to query `row`, e = 2, 3 to `row` + 8
                float high = top[half];
#pragma unroll
                for (int j = 0; j < kKeys / 8; ++j) high = fmaxf(high, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
                high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 1));
                high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 2));
                const float shift = high == -INFINITY ? 0.0f : high * scale;  // a query that has seen no key yet
                const float decay = exp2_fast(top[half] * scale - shift);
                top[half] = high;
                float total = 0.0f;
#pragma unroll
                for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; ++e) {
                        s[j][e] = exp2_fast(s[j][e] * scale - shift);
                        total += s[j][e];
                    }
                }
                sum[half] = sum[half] * decay + total;  // this lane's share: the four lanes of a row are added up at the end
#pragma unroll
                for (int d = 0; d < dim / 8; ++d) {
                    o[d][2 * half] *= decay;
                    o[d][2 * half + 1] *= decay;
                }
            }
        }

        copy_wait<1>();
        __syncthreads();  // the same for the values
        if (tile + 1 < tiles) fetch<dim, kKeys>(values + (tile + 1) % 2 * key_bytes, v + head, key + kKeys, seq);
        copy_commit();
        if (!hidden) {
            const char* const tile_values = values + tile % 2 * key_bytes;
#pragma unroll
            for (int i = 0; i < kKeys / 16; ++i) {
                const uint32_t p[4] = {Type<T>::pack(s[2 * i][0], s[2 * i][1]), Type<T>::pack(s[2 * i][2], s[2 * i][3]),
                                       Type<T>::pack(s[2 * i + 1][0], s[2 * i + 1][1]), Type<T>::pack(s[2 * i + 1][2], s[2 * i + 1][3])};
#pragma unroll
                for (int d = 0; d < dim / 16; ++d) {
                    uint32_t b[4];
                    load_matrices_transposed(b, tile_values + place<dim>(i * 16 + eight % 2 * 8 + within, d * 2 + eight / 2));
                    Type<T>::multiply_add(o[2 * d], p, b[0], b[1]);
                    Type<T>::multiply_add(o[2 * d + 1], p, b[2], b[3]);
                }
            }
        }
    }

    // The warp's own rows of the query tile carry the result, so that it leaves in whole 16-byte chunks.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 2);
        const float share = sum[half] > 0.0f ? 1.0f / sum[half] : 0.0f;  // a query that sees no key answers 0
        const int local = warp * 16 + half * 8 + lane / 4;
#pragma unroll
        for (int d = 0; d < dim / 8; ++d)
            *reinterpret_cast<uint32_t*>(queries + place<dim>(local, d) + lane % 4 * 4) = Type<T>::pack(o[d][2 * half] * share, o[d][2 * half + 1] * share);
    }
    __syncwarp();
    constexpr int chunks = dim / 8;
#pragma unroll
    for (int i = 0; i < 16 * chunks / 32; ++i) {
        const int local = warp * 16 + (i * 32 + lane) / chunks, chunk = (i * 32 + lane) % chunks;
        if (first + local < seq)
            *reinterpret_cast<uint4*>(out + head + (static_cast<size_t>(first + local) * chunks + chunk) * 16) =
                *reinterpret_cast<const uint4*>(queries + place<dim>(local, chunk));
    }
}

template <typename T, int dim>
cudaError_t launch(const char* q, const char* k, const char* v, char* out, int heads, int seq, int causal, cudaStream_t stream) {
    constexpr int bytes = (kQueries + 4 * kKeys) * dim * 2;
    const cudaError_t status = cudaFuncSetAttribute(attention_kernel<T, dim>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    const int blocks = (seq + kQueries - 1) / kQueries;
    const float scale = kLog2e / sqrtf(static_cast<float>(dim));
    attention_kernel<T, dim><<<heads * blocks, kThreads, bytes, stream>>>(q, k, v, out, seq, causal, scale);
    return cudaGetLastError();
}

}  // namespace

extern "C" int attention_forward(const char* q, const char* k, const char* v, char* out, int heads, int seq, int dim, int causal, int bf16, void* stream) {
    const auto s = static_cast<cudaStream_t>(stream);
    if (dim == 64) return bf16 ? launch<__nv_bfloat16, 64>(q, k, v, out, heads, seq, causal, s) : launch<__half, 64>(q, k, v, out, heads, seq, causal, s);
    return bf16 ? launch<__nv_bfloat16, 128>(q, k, v, out, heads, seq, causal, s) : launch<__half, 128>(q, k, v, out, heads, seq, causal, s);
}
