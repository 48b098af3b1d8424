// Scaled dot-product attention, forward, float16 or bfloat16, with the warpgroup instructions of Hopper (sm_90a).
//
// A block owns 64 queries of one head for each of its warpgroups. Tiles of 128 keys and values arrive by cp.async, one tile ahead of the arithmetic.
// All tiles lie in shared memory as wgmma's 128-byte swizzle has them: panels of 64 columns, rows of 128 bytes, 8 rows to a pattern of 1024 bytes.
//
//   scores   S = Q Kᵀ    both operands by descriptor: rows lie along the summed dimension (K-major)
//   sums     O += P V    weights P from registers, V by descriptor: rows lie along the columns of the result (MN-major), so nothing is transposed
//
// The scores of a tile and the sums of the one before it are queued together: while the tensor cores still add, this warpgroup weighs the new scores.
// Hidden tiles are skipped, by the block and by each warpgroup; only tiles on the diagonal or past the end are masked.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstdio>

namespace {

constexpr int kKeys = 128;
constexpr int kRowBytes = 128, kPattern = 8 * kRowBytes;  // a row of a panel; the 8 rows after which the swizzle repeats
constexpr float kLog2e = 1.4426950408889634f;

template <int dim>
struct Block {  // three warpgroups where their registers fit (168 a thread), else two (255)
    static constexpr int warpgroups = dim == 64 ? 3 : 2, threads = 128 * warpgroups, queries = 64 * warpgroups;
    static constexpr int query_bytes = queries * dim * 2, key_bytes = kKeys * dim * 2;
    static constexpr int shared_bytes = query_bytes + 4 * key_bytes + kPattern;  // two tiles of keys, two of values, and room to align them
};

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

// Makes what this thread has written to shared memory visible to wgmma, which reads it through another proxy.
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Orders register accesses before the products that are queued next.
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int pending>
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// A point that the compiler moves no use of these registers across: it does not know that wgmma reads and writes them later than its statement.
template <int n>
__device__ __forceinline__ void settle(float (&r)[n][4]) {
#pragma unroll
    for (int i = 0; i < 4 * n; ++i) asm volatile("" : "+f"(r[i / 4][i % 4])::"memory");
}

template <int n>
__device__ __forceinline__ void settle(uint32_t (&r)[n][4]) {
#pragma unroll
    for (int i = 0; i < 4 * n; ++i) asm volatile("" : "+r"(r[i / 4][i % 4])::"memory");
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#define FOUR(d, j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define THIRTY_TWO(d, j) FOUR(d, j), FOUR(d, j + 1), FOUR(d, j + 2), FOUR(d, j + 3), FOUR(d, j + 4), FOUR(d, j + 5), FOUR(d, j + 6), FOUR(d, j + 7)
#define FIRST_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NEXT_32 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

// The products of a warpgroup, 64 rows at a time, 16 summed. The numbers at the end: add to d (or overwrite it), no sign is changed, and for
// each operand in shared memory whether it is MN-major.
#define PRODUCTS(type) \
    template <bool add> \
    static __device__ __forceinline__ void multiply(float (&d)[16][4], uint64_t a, uint64_t b) { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" FIRST_32 "," NEXT_32 "}, %64, %65, %66, 1, 1, 0, 0;" \
                     : THIRTY_TWO(d, 0), THIRTY_TWO(d, 8) \
                     : "l"(a), "l"(b), "n"(add)); \
    } \
    static __device__ __forceinline__ void add_product(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b) { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" FIRST_32 "," NEXT_32 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;" \
                     : THIRTY_TWO(d, 0), THIRTY_TWO(d, 8) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
    } \
    static __device__ __forceinline__ void add_product(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" FIRST_32 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;" \
                     : THIRTY_TWO(d, 0) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
    }

template <typename T>
struct Type;

template <>
struct Type<__half> {
    PRODUCTS("f16")
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        const __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&pair);
    }
};

template <>
struct Type<__nv_bfloat16> {
    PRODUCTS("bf16")
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&pair);
    }
};

// ---- The kernel ----

// Where 16-byte chunk `chunk` of row `row` lies in a tile of `rows` rows.
template <int rows>
__device__ __forceinline__ int place(int row, int chunk) {
    return (chunk / 8 * rows + row) * kRowBytes + ((chunk % 8) ^ (row % 8)) * 16;
}

// What wgmma is told of an operand in shared memory: where it begins, and how far apart its patterns are. `next_rows` is from 8 rows to the next
// 8, `next_panel` from 64 columns to the next 64 where columns are not summed over (elsewhere it is not looked at).
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t next_panel, uint32_t next_rows) {
    constexpr uint64_t swizzle_128 = 1ull << 62;
    return swizzle_128 | static_cast<uint64_t>(next_rows >> 4) << 32 | static_cast<uint64_t>(next_panel >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// Starts copying rows first..first+rows-1 of a head into a tile; rows past the end of the sequence become zero.
template <int dim, int rows>
__device__ __forceinline__ void fetch(char* tile, const char* head, int first, int seq) {
    constexpr int chunks = dim / 8, threads = Block<dim>::threads;
#pragma unroll
    for (int i = 0; i < (rows * chunks + threads - 1) / threads; ++i) {
        const int index = i * threads + threadIdx.x, row = index / chunks, chunk = index % chunks, from = min(first + row, seq - 1);
        if (row < rows) copy_async(tile + place<rows>(row, chunk), head + (static_cast<size_t>(from) * chunks + chunk) * 16, first + row < seq);
    }
}

// Queues S = Q Kᵀ for 64 queries and a tile of keys, 16 columns at a time: four steps of 32 bytes within a panel, then the next panel.
template <typename T, int dim>
__device__ __forceinline__ void queue_scores(float (&s)[kKeys / 8][4], uint32_t queries, uint32_t keys) {
#pragma unroll
    for (int i = 0; i < dim / 16; ++i) {
        const int panel = i / 4, within = i % 4 * 32;
        const uint64_t a = descriptor(queries + panel * Block<dim>::queries * kRowBytes + within, 16, kPattern);
        const uint64_t b = descriptor(keys + panel * kKeys * kRowBytes + within, 16, kPattern);
        if (i == 0) Type<T>::template multiply<false>(s, a, b);
        else Type<T>::template multiply<true>(s, a, b);
    }
}

// Queues O += P V for 64 queries and a tile of values, 16 of them at a time: two patterns of 8 rows.
template <typename T, int dim>
__device__ __forceinline__ void queue_sums(float (&o)[dim / 8][4], const uint32_t (&p)[kKeys / 16][4], uint32_t values) {
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) Type<T>::add_product(o, p[i], descriptor(values + i * 2 * kPattern, kKeys * kRowBytes, kPattern));
}

// Scores of keys that a query must not see become -inf. `own` (`other`): so many keys from this lane's first on are seen by its first (second) query.
__device__ __forceinline__ void hide(float (&s)[kKeys / 8][4], int own, int other) {
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (j * 8 + e % 2 >= (e < 2 ? own : other)) s[j][e] = -INFINITY;
        }
    }
}

// Scores become weights relative to the largest score so far; `decay` is what earlier weights shrink by. Of each accumulator's four values the
// first two belong to this lane's first query, the others to its second.
__device__ __forceinline__ void weigh(float (&s)[kKeys / 8][4], float (&top)[2], float (&sum)[2], float (&decay)[2], float scale) {
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
template <int n>
__device__ __forceinline__ void shrink(float (&o)[n][4], float (&decay)[2]) {
#pragma unroll
    for (int i = 0; i < 4 * n; ++i) o[i / 4][i % 4] *= decay[i % 4 / 2];
    decay[0] = decay[1] = 1.0f;
}

// Weights as the left operand of the second product: the layout of two accumulators of 8 columns is that of one operand of 16.
template <typename T>
__device__ __forceinline__ void pack(uint32_t (&p)[kKeys / 16][4], const float (&s)[kKeys / 8][4]) {
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) p[i][e] = Type<T>::pack(s[2 * i + e / 2][e % 2 * 2], s[2 * i + e / 2][e % 2 * 2 + 1]);
    }
}

template <typename T, int dim>
__global__ void __launch_bounds__(Block<dim>::threads, 1)
    attention_kernel(const char* q, const char* k, const char* v, char* out, int seq, int causal, float scale) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // elsewhere the kernel is empty, and attention_forward says so
    using B = Block<dim>;
    extern __shared__ __align__(128) char shared[];
    char* const queries = shared + (-shared_address(shared) & (kPattern - 1));
    char* const keys = queries + B::query_bytes;
    char* const values = keys + 2 * B::key_bytes;

    const int blocks = (seq + B::queries - 1) / B::queries;
    const int first = (blocks - 1 - static_cast<int>(blockIdx.x) % blocks) * B::queries;  // under the mask the last queries have most keys: first
    const size_t head = static_cast<size_t>(blockIdx.x / blocks) * seq * dim * 2;
    const int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // the same in all lanes, as the compiler can see now
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = first + warp * 16 + lane / 4;  // this lane's queries: row and row + 8
    const int own_end = causal ? min(seq, row + 1) : seq, other_end = causal ? min(seq, row + 9) : seq;
    // Tiles that the block needs, and those that this warpgroup does: the same, or all but the last.
    const int tiles = ((causal ? min(seq, first + B::queries) : seq) + kKeys - 1) / kKeys;
    const int seen = ((causal ? min(seq, first + group * 64 + 64) : seq) + kKeys - 1) / kKeys;

    fetch<dim, B::queries>(queries, q + head, first, seq);
    fetch<dim, kKeys>(keys, k + head, 0, seq);
    copy_commit();
    fetch<dim, kKeys>(values, v + head, 0, seq);
    if (tiles > 1) fetch<dim, kKeys>(keys + B::key_bytes, k + head, kKeys, seq);
    copy_commit();

    const uint32_t own_queries = shared_address(queries) + group * 64 * kRowBytes;
    float s[kKeys / 8][4] = {}, o[dim / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f}, decay[2];
    uint32_t p[kKeys / 16][4];

    const auto weigh_tile = [&](int tile) {
        const int key = tile * kKeys, start = key + lane % 4 * 2;
        if (key + kKeys > seq || (causal && key + kKeys - 1 > first + group * 64)) hide(s, own_end - start, other_end - start);
        weigh(s, top, sum, decay, scale);
    };

    copy_wait<1>();
    publish();
    __syncthreads();  // queries and the first keys are there
    products_begin();
    queue_scores<T, dim>(s, own_queries, shared_address(keys));
    products_commit();
    products_wait<0>();
    settle(s);
    weigh_tile(0);

    for (int tile = 1; tile <= tiles; ++tile) {
        products_wait<0>();  // here and not at the loop's end: the compiler would move it before the weights, which are to hide the sums
        settle(o);
        settle(p);
        shrink(o, decay);
        pack<T>(p, s);
        copy_wait<0>();
        publish();
        __syncthreads();  // this tile's keys and the last one's values are there, and nobody reads the other buffers any more
        if (tile < tiles) fetch<dim, kKeys>(values + tile % 2 * B::key_bytes, v + head, tile * kKeys, seq);
        if (tile + 1 < tiles) fetch<dim, kKeys>(keys + (tile + 1) % 2 * B::key_bytes, k + head, (tile + 1) * kKeys, seq);
        copy_commit();
        if (tile >= seen) continue;

        products_begin();
        queue_scores<T, dim>(s, own_queries, shared_address(keys) + tile % 2 * B::key_bytes);
        products_commit();
        queue_sums<T, dim>(o, p, shared_address(values) + (tile - 1) % 2 * B::key_bytes);
        products_commit();
        products_wait<1>();
        settle(s);
        weigh_tile(tile);
    }
    products_begin();
    queue_sums<T, dim>(o, p, shared_address(values) + (seen - 1) % 2 * B::key_bytes);
    products_commit();
    products_wait<0>();
    settle(o);
    settle(p);

    // The warp's own rows of the query tile carry the result, so that it leaves in whole 16-byte chunks.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 2);
        const float share = sum[half] > 0.0f ? 1.0f / sum[half] : 0.0f;  // a query that sees no key answers 0
        const int local = warp * 16 + half * 8 + lane / 4;
#pragma unroll
        for (int d = 0; d < dim / 8; ++d) {
            const uint32_t pair = Type<T>::pack(o[d][2 * half] * share, o[d][2 * half + 1] * share);
            *reinterpret_cast<uint32_t*>(queries + place<B::queries>(local, d) + lane % 4 * 4) = pair;
        }
    }
    __syncwarp();
    constexpr int chunks = dim / 8;
#pragma unroll
    for (int i = 0; i < 16 * chunks / 32; ++i) {
        const int local = warp * 16 + (i * 32 + lane) / chunks, chunk = (i * 32 + lane) % chunks;
        if (first + local < seq)
            *reinterpret_cast<uint4*>(out + head + (static_cast<size_t>(first + local) * chunks + chunk) * 16) =
                *reinterpret_cast<const uint4*>(queries + place<B::queries>(local, chunk));
    }
#endif
}

template <typename T, int dim>
cudaError_t launch(const char* q, const char* k, const char* v, char* out, int heads, int seq, int causal, cudaStream_t stream) {
    using B = Block<dim>;
    const cudaError_t status = cudaFuncSetAttribute(attention_kernel<T, dim>, cudaFuncAttributeMaxDynamicSharedMemorySize, B::shared_bytes);
    if (status != cudaSuccess) return status;
    const int blocks = (seq + B::queries - 1) / B::queries;
    const float scale = kLog2e / sqrtf(static_cast<float>(dim));
    attention_kernel<T, dim><<<heads * blocks, B::threads, B::shared_bytes, stream>>>(q, k, v, out, seq, causal, scale);
    return cudaGetLastError();
}

}  // namespace

extern "C" int attention_forward(const char* q, const char* k, const char* v, char* out, int heads, int seq, int dim, int causal, int bf16, void* stream) {
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (major != 9) {
        fprintf(stderr, "attention.cu needs wgmma, of compute capability 9.0; this GPU has %d.x: take a kernel that uses mma.sync.\n", major);
        return cudaErrorNoKernelImageForDevice;
    }
    const auto s = static_cast<cudaStream_t>(stream);
    if (dim == 64) return bf16 ? launch<__nv_bfloat16, 64>(q, k, v, out, heads, seq, causal, s) : launch<__half, 64>(q, k, v, out, heads, seq, causal, s);
    return bf16 ? launch<__nv_bfloat16, 128>(q, k, v, out, heads, seq, causal, s) : launch<__half, 128>(q, k, v, out, heads, seq, causal, s);
}
