// Scaled dot-product attention, forward, float16 or bfloat16, with mma.sync: for GPUs below compute capability 9.0, which have no wgmma.
//
//   scores   S = Q Kᵀ    for a tile of keys, kept in registers, where they become weights P
//   sums     O += P V    the registers that hold scores are those that the second product wants its left operand in
//
// A block owns 128 queries of one head, a warp two strips of 16, which use each fragment of keys and values twice. Tiles of 64 keys arrive by cp.async
// while the sums of the last one are computed, values while the scores are. They lie in panels of 64 columns, rows of 128 bytes, swizzled: ldmatrix meets
// no bank conflict. Hidden tiles are skipped, by the block and by each warp; only tiles on the diagonal or past the end are masked.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps, kStrips = 2, kQueries = 16 * kStrips * kWarps, kKeys = 64;
constexpr int kRowBytes = 128;  // of a panel
constexpr float kLog2e = 1.4426950408889634f;

// ---- The instructions, one function each ----

__device__ __forceinline__ uint32_t shared_address(const void* shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(shared)); }

__device__ __forceinline__ void copy_async(void* shared, const void* global, bool inside) {  // 16 bytes; zeros where `inside` is false
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(inside ? 16 : 0) : "memory");
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int pending>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared))
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void* shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared))
                 : "memory");
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// d += a b for a warp: 16 rows, 8 columns, 16 summed.
#define PRODUCT(type) \
    static __device__ __forceinline__ void add_product(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)); \
    }

template <typename T>
struct Type;

template <>
struct Type<__half> {
    PRODUCT("f16")
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        const __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&pair);
    }
};

template <>
struct Type<__nv_bfloat16> {
    PRODUCT("bf16")
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&pair);
    }
};

// ---- Tiles ----

// Where 16-byte chunk `chunk` of row `row` lies in a tile of `rows` rows.
template <int rows>
__device__ __forceinline__ int place(int row, int chunk) {
    return (chunk / 8 * rows + row) * kRowBytes + ((chunk % 8) ^ (row % 8)) * 16;
}

// Starts copying rows first..first+rows-1 of a head into a tile; rows past the end of the sequence become zero. A thread's rows are as far apart as
// makes their swizzle the same: they lie at fixed distances in the tile.
template <int dim, int rows>
__device__ __forceinline__ void fetch(char* tile, const char* head, int first, int seq) {
    constexpr int chunks = dim / 8, step = kThreads / chunks;
    static_assert(step % 8 == 0);
    const int start = threadIdx.x / chunks, chunk = threadIdx.x % chunks;
    char* const to = tile + place<rows>(start, chunk);
#pragma unroll
    for (int i = 0; i < (rows + step - 1) / step; ++i) {
        const int row = first + start + i * step, from = min(row, seq - 1);
        if (start + i * step < rows) copy_async(to + i * step * kRowBytes, head + (static_cast<size_t>(from) * chunks + chunk) * 16, row < seq);
    }
}

// Tiles of keys that the queries before `end` see.
__device__ __forceinline__ int tiles_seen(int end, int seq, int causal) { return ((causal ? min(seq, end) : seq) + kKeys - 1) / kKeys; }

// ---- The online softmax ----

// 16 queries of a warp. Of each accumulator of 8 columns a lane holds four values: two of query `lane / 4` and two of the one 8 below.
template <int dim>
struct Strip {
    float s[kKeys / 8][4], o[dim / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {}, decay[2];

    __device__ __forceinline__ void clear_scores() {
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) s[i / 4][i % 4] = 0.0f;
    }

    // Scores of keys that a query must not see become -inf. `key` and `query` are the first ones of this tile and strip.
    __device__ __forceinline__ void hide(int key, int query, int seq, int causal) {
        if (key + kKeys <= seq && !(causal && key + kKeys - 1 > query)) return;
        const int lane = threadIdx.x % 32, start = key + lane % 4 * 2, row = query + lane / 4;
        const int own = (causal ? min(seq, row + 1) : seq) - start, other = (causal ? min(seq, row + 9) : seq) - start;  // so many keys are seen
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                if (j * 8 + e % 2 >= (e < 2 ? own : other)) s[j][e] = -INFINITY;
            }
        }
    }

    // Scores become weights relative to the largest score so far; `decay` is what earlier weights shrink by.
    __device__ __forceinline__ void weigh(float scale) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float high = top[half];
#pragma unroll
            for (int j = 0; j < kKeys / 8; ++j) high = fmaxf(high, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
            high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 1));
            high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 2));
            const float shift = high == -INFINITY ? 0.0f : high * scale;  // a query that has seen no key yet
            decay[half] = exp2_fast(top[half] * scale - shift);
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
            sum[half] = sum[half] * decay[half] + total;  // this lane's share: the four lanes of a row are added up at the end
        }
    }

    // What was summed so far, relative to the new largest score. Doing it once more would change nothing.
    __device__ __forceinline__ void shrink() {
#pragma unroll
        for (int i = 0; i < dim / 2; ++i) o[i / 4][i % 4] *= decay[i % 4 / 2];
        decay[0] = decay[1] = 1.0f;
    }

    // Weights of 16 keys as the left operand of the second product: two accumulators of 8 columns.
    template <typename T>
    __device__ __forceinline__ void pack(uint32_t (&p)[4], int i) const {
#pragma unroll
        for (int e = 0; e < 4; ++e) p[e] = Type<T>::pack(s[2 * i + e / 2][e % 2 * 2], s[2 * i + e / 2][e % 2 * 2 + 1]);
    }

    // The answers leave by way of the strip's own rows of the query tile, from `local` on, in whole 16-byte chunks.
    template <typename T, int rows>
    __device__ __forceinline__ void store(char* out, char* tile, int local, int left) {
        constexpr int chunks = dim / 8;
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 1);
            sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 2);
            const float share = sum[half] > 0.0f ? 1.0f / sum[half] : 0.0f;  // a query that sees no key answers 0
#pragma unroll
            for (int d = 0; d < chunks; ++d) {
                const uint32_t pair = Type<T>::pack(o[d][2 * half] * share, o[d][2 * half + 1] * share);
                *reinterpret_cast<uint32_t*>(tile + place<rows>(local + half * 8 + lane / 4, d) + lane % 4 * 4) = pair;
            }
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 16 * chunks / 32; ++i) {
            const int row = local + (i * 32 + lane) / chunks, chunk = (i * 32 + lane) % chunks;
            if (row < left)
                *reinterpret_cast<uint4*>(out + (static_cast<size_t>(row) * chunks + chunk) * 16) =
                    *reinterpret_cast<const uint4*>(tile + place<rows>(row, chunk));
        }
    }
};

// ---- The kernel ----

template <typename T, int dim>
__global__ void __launch_bounds__(kThreads, 2) attention_kernel(const char* q, const char* k, const char* v, char* out, int seq, int causal, float scale) {
    extern __shared__ __align__(128) char shared[];
    char* const queries = shared;
    char* const keys = queries + kQueries * dim * 2;
    char* const values = keys + kKeys * dim * 2;

    const int blocks = (seq + kQueries - 1) / kQueries;
    const int first = (blocks - 1 - static_cast<int>(blockIdx.x) % blocks) * kQueries;  // under the mask the last queries have most keys: first
    const size_t head = static_cast<size_t>(blockIdx.x / blocks) * seq * dim * 2;
    const int local = threadIdx.x / 32 * 16 * kStrips;                  // this warp's first query in the block
    const int eight = threadIdx.x % 32 / 8, within = threadIdx.x % 8;  // which of ldmatrix's four matrices this lane points into, and at which row
    const int tiles = tiles_seen(first + kQueries, seq, causal), seen = tiles_seen(first + local + 16 * kStrips, seq, causal);

    fetch<dim, kQueries>(queries, q + head, first, seq);
    fetch<dim, kKeys>(keys, k + head, 0, seq);
    copy_commit();
    Strip<dim> strips[kStrips];

    for (int tile = 0; tile < tiles; ++tile) {
        const int key = tile * kKeys;
        copy_wait<0>();
        __syncthreads();  // this tile's keys are there, and nobody reads the last one's values any more
        fetch<dim, kKeys>(values, v + head, key, seq);
        copy_commit();
        if (tile < seen) {
#pragma unroll
            for (int m = 0; m < kStrips; ++m) strips[m].clear_scores();
#pragma unroll
            for (int i = 0; i < dim / 16; ++i) {
                uint32_t a[kStrips][4], b[4];
#pragma unroll
                for (int m = 0; m < kStrips; ++m)
                    load_matrices(a[m], queries + place<kQueries>(local + m * 16 + eight % 2 * 8 + within, i * 2 + eight / 2));
#pragma unroll
                for (int j = 0; j < kKeys / 16; ++j) {
                    load_matrices(b, keys + place<kKeys>(j * 16 + eight / 2 * 8 + within, i * 2 + eight % 2));
#pragma unroll
                    for (int m = 0; m < kStrips; ++m) {
                        Type<T>::add_product(strips[m].s[2 * j], a[m], b[0], b[1]);
                        Type<T>::add_product(strips[m].s[2 * j + 1], a[m], b[2], b[3]);
                    }
                }
            }
#pragma unroll
            for (int m = 0; m < kStrips; ++m) {
                strips[m].hide(key, first + local + m * 16, seq, causal);
                strips[m].weigh(scale);
                strips[m].shrink();
            }
        }

        copy_wait<0>();
        __syncthreads();  // the same for the values
        if (tile + 1 < tiles) fetch<dim, kKeys>(keys, k + head, key + kKeys, seq);
        copy_commit();
        if (tile < seen) {
#pragma unroll
            for (int i = 0; i < kKeys / 16; ++i) {
                uint32_t p[kStrips][4], b[4];
#pragma unroll
                for (int m = 0; m < kStrips; ++m) strips[m].template pack<T>(p[m], i);
#pragma unroll
                for (int d = 0; d < dim / 16; ++d) {
                    load_matrices_transposed(b, values + place<kKeys>(i * 16 + eight % 2 * 8 + within, d * 2 + eight / 2));
#pragma unroll
                    for (int m = 0; m < kStrips; ++m) {
                        Type<T>::add_product(strips[m].o[2 * d], p[m], b[0], b[1]);
                        Type<T>::add_product(strips[m].o[2 * d + 1], p[m], b[2], b[3]);
                    }
                }
            }
        }
    }

#pragma unroll
    for (int m = 0; m < kStrips; ++m)
        strips[m].template store<T, kQueries>(out + head + static_cast<size_t>(first) * dim * 2, queries, local + m * 16, seq - first);
}

template <typename T, int dim>
cudaError_t launch(const char* q, const char* k, const char* v, char* out, int heads, int seq, int causal, cudaStream_t stream) {
    constexpr int bytes = (kQueries + 2 * kKeys) * dim * 2;
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
