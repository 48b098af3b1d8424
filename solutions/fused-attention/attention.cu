// Scaled dot-product attention, forward, float16 or bfloat16, on tensor cores: with wgmma on Hopper (compiled for sm_90a), with mma.sync on every
// other GPU from sm_80 on.
//
//   scores   S = Q Kᵀ    for a tile of keys, kept in registers, where they become weights P
//   sums     O += P V    the registers that hold scores are those that the second product wants its left operand in
//
// A block owns some queries of one head, a warp 16 or 32 of them. Tiles of keys and values arrive by cp.async while the tensor cores work. They lie in panels of
// 64 columns, rows of 128 bytes, swizzled: wgmma takes them so, and ldmatrix meets no bank conflict. Hidden tiles are skipped, by the block and by those
// warps that see none of their keys; only tiles on the diagonal or past the end are masked.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#pragma nv_diag_suppress 177  // unused functions: code for one GPU leaves the other's instructions alone

namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kWgmma = true;  // of the code for the GPU; on the host, attention_forward asks which GPU it is
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#error "wgmma is not in sm_90: compile with -gencode arch=compute_90a,code=sm_90a"
#else
constexpr bool kWgmma = false;
#endif

constexpr int kRowBytes = 128, kPattern = 8 * kRowBytes;  // a row of a panel; the 8 rows after which the swizzle repeats
constexpr float kLog2e = 1.4426950408889634f;

// What a block works on at a time. With wgmma it has three warpgroups where the registers allow (168 a thread), else two (255). With mma.sync each fragment
// of keys and values is used by both strips of a warp; the next keys arrive while the sums are computed, the next values while the scores are.
template <int dim, bool wgmma>
struct Block {
    static constexpr int warps = !wgmma ? 4 : dim == 64 ? 12 : 8;
    static constexpr int strips = wgmma ? 1 : 2;    // of 16 queries, a warp
    static constexpr int keys = wgmma ? 128 : 64;   // a tile, and as many values
    static constexpr int buffers = wgmma ? 2 : 1;   // for keys, and as many for values
    static constexpr int threads = 32 * warps, queries = 16 * strips * warps;
    static constexpr int query_bytes = queries * dim * 2, key_bytes = keys * dim * 2;
    static constexpr int shared_bytes = query_bytes + 2 * buffers * key_bytes + kPattern;  // with room to align the tiles
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

// Makes what this thread has written to shared memory visible to wgmma, which reads it through another proxy.
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Orders register accesses before the products of wgmma that are queued next.
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

// d += a b, or with `multiply<false>` d = a b: of a warp (16 rows) by mma.sync, of a warpgroup (64 rows) by wgmma, 16 summed. The numbers at the end of
// wgmma: add to d, no sign is changed, and for each operand in shared memory whether it is MN-major.
#define PRODUCTS(type) \
    static __device__ __forceinline__ void add_product(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)); \
    } \
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

// ---- Tiles ----

// Where 16-byte chunk `chunk` of row `row` lies in a tile of `rows` rows.
template <int rows>
__device__ __forceinline__ int place(int row, int chunk) {
    return (chunk / 8 * rows + row) * kRowBytes + ((chunk % 8) ^ (row % 8)) * 16;
}

// What a block has to do: the head whose keys and values it needs, its tiles in shared memory, its first query, and how many tiles of keys it sees.
struct Work {
    const char *k, *v;
    char *queries, *keys, *values;
    int first, tiles, seq, causal;
    float scale;
    int warp;  // of this thread
};

// Starts copying rows first..first+rows-1 of a head into a tile; rows past the end of the sequence become zero. A thread's rows are as far apart as
// makes their swizzle the same: they lie at fixed distances in the tile.
template <int dim, int rows>
__device__ __forceinline__ void fetch(char* tile, const char* head, int first, int seq) {
    constexpr int chunks = dim / 8, step = Block<dim, kWgmma>::threads / chunks;
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
template <int keys>
__device__ __forceinline__ int tiles_seen(int end, int seq, int causal) {
    return ((causal ? min(seq, end) : seq) + keys - 1) / keys;
}

// ---- The online softmax ----

// 16 queries of a warp. Of each accumulator of 8 columns a lane holds four values: two of query `lane / 4` and two of the one 8 below.
template <int dim, int keys>
struct Strip {
    float s[keys / 8][4], o[dim / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {}, decay[2];

    __device__ __forceinline__ void clear_scores() {
#pragma unroll
        for (int i = 0; i < keys / 2; ++i) s[i / 4][i % 4] = 0.0f;
    }

    // Scores of keys that a query must not see become -inf. `key` and `query` are the first ones of this tile and strip.
    __device__ __forceinline__ void hide(int key, int query, int seq, int causal) {
        if (key + keys <= seq && !(causal && key + keys - 1 > query)) return;
        const int lane = threadIdx.x % 32, start = key + lane % 4 * 2, row = query + lane / 4;
        const int own = (causal ? min(seq, row + 1) : seq) - start, other = (causal ? min(seq, row + 9) : seq) - start;  // so many keys are seen
#pragma unroll
        for (int j = 0; j < keys / 8; ++j) {
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
            for (int j = 0; j < keys / 8; ++j) high = fmaxf(high, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
            high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 1));
            high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 2));
            const float shift = high == -INFINITY ? 0.0f : high * scale;  // a query that has seen no key yet
            decay[half] = exp2_fast(top[half] * scale - shift);
            top[half] = high;
            float total = 0.0f;
#pragma unroll
            for (int j = 0; j < keys / 8; ++j) {
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

// ---- With mma.sync ----

template <typename T, int dim>
__device__ __forceinline__ void attend_mma_sync(const Work& w, Strip<dim, 64> (&strips)[2]) {
    using B = Block<dim, false>;
    const int eight = threadIdx.x % 32 / 8, within = threadIdx.x % 8;  // which of ldmatrix's four matrices this lane points into, and at which row
    const int local = w.warp * 32, seen = tiles_seen<B::keys>(w.first + local + 32, w.seq, w.causal);

    for (int tile = 0; tile < w.tiles; ++tile) {
        const int key = tile * B::keys;
        copy_wait<0>();
        __syncthreads();  // this tile's keys are there, and nobody reads the last one's values any more
        fetch<dim, B::keys>(w.values, w.v, key, w.seq);
        copy_commit();
        if (tile < seen) {
#pragma unroll
            for (int m = 0; m < 2; ++m) strips[m].clear_scores();
#pragma unroll
            for (int i = 0; i < dim / 16; ++i) {
                uint32_t a[2][4], b[4];
#pragma unroll
                for (int m = 0; m < 2; ++m)
                    load_matrices(a[m], w.queries + place<B::queries>(local + m * 16 + eight % 2 * 8 + within, i * 2 + eight / 2));
#pragma unroll
                for (int j = 0; j < B::keys / 16; ++j) {
                    load_matrices(b, w.keys + place<B::keys>(j * 16 + eight / 2 * 8 + within, i * 2 + eight % 2));
#pragma unroll
                    for (int m = 0; m < 2; ++m) {
                        Type<T>::add_product(strips[m].s[2 * j], a[m], b[0], b[1]);
                        Type<T>::add_product(strips[m].s[2 * j + 1], a[m], b[2], b[3]);
                    }
                }
            }
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                strips[m].hide(key, w.first + local + m * 16, w.seq, w.causal);
                strips[m].weigh(w.scale);
                strips[m].shrink();
            }
        }

        copy_wait<0>();
        __syncthreads();  // the same for the values
        if (tile + 1 < w.tiles) fetch<dim, B::keys>(w.keys, w.k, key + B::keys, w.seq);
        copy_commit();
        if (tile < seen) {
#pragma unroll
            for (int i = 0; i < B::keys / 16; ++i) {
                uint32_t p[2][4], b[4];
#pragma unroll
                for (int m = 0; m < 2; ++m) strips[m].template pack<T>(p[m], i);
#pragma unroll
                for (int d = 0; d < dim / 16; ++d) {
                    load_matrices_transposed(b, w.values + place<B::keys>(i * 16 + eight % 2 * 8 + within, d * 2 + eight / 2));
#pragma unroll
                    for (int m = 0; m < 2; ++m) {
                        Type<T>::add_product(strips[m].o[2 * d], p[m], b[0], b[1]);
                        Type<T>::add_product(strips[m].o[2 * d + 1], p[m], b[2], b[3]);
                    }
                }
            }
        }
    }
}

// ---- With wgmma ----

// What wgmma is told of an operand in shared memory: where it begins, and how far apart its patterns are. `next_rows` is from 8 rows to the next
// 8, `next_panel` from 64 columns to the next 64 where columns are not summed over (elsewhere it is not looked at).
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t next_panel, uint32_t next_rows) {
    constexpr uint64_t swizzle_128 = 1ull << 62;
    return swizzle_128 | static_cast<uint64_t>(next_rows >> 4) << 32 | static_cast<uint64_t>(next_panel >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// Queues S = Q Kᵀ for 64 queries and a tile of keys, 16 columns at a time: four steps of 32 bytes within a panel, then the next panel. Both operands
// by descriptor, K-major: rows lie along the summed dimension.
template <typename T, int dim, int keys>
__device__ __forceinline__ void queue_scores(float (&s)[keys / 8][4], uint32_t own_queries, uint32_t tile) {
#pragma unroll
    for (int i = 0; i < dim / 16; ++i) {
        const int panel = i / 4, within = i % 4 * 32;
        const uint64_t a = descriptor(own_queries + panel * Block<dim, true>::queries * kRowBytes + within, 16, kPattern);
        const uint64_t b = descriptor(tile + panel * keys * kRowBytes + within, 16, kPattern);
        if (i == 0) Type<T>::template multiply<false>(s, a, b);
        else Type<T>::template multiply<true>(s, a, b);
    }
}

// Queues O += P V for 64 queries and a tile of values, 16 of them at a time: two patterns of 8 rows. Weights from registers, values by descriptor,
// MN-major: rows lie along the columns of the result, so nothing is transposed.
template <typename T, int dim, int keys>
__device__ __forceinline__ void queue_sums(float (&o)[dim / 8][4], const uint32_t (&p)[keys / 16][4], uint32_t tile) {
#pragma unroll
    for (int i = 0; i < keys / 16; ++i) Type<T>::add_product(o, p[i], descriptor(tile + i * 2 * kPattern, keys * kRowBytes, kPattern));
}

// The scores of a tile and the sums of the one before it are queued together: while the tensor cores still add, the warps weigh the new scores. Meanwhile
// the next keys and this tile's values arrive.
template <typename T, int dim>
__device__ __forceinline__ void attend_wgmma(const Work& w, Strip<dim, 128> (&strips)[1]) {
    using B = Block<dim, true>;
    constexpr int keys = B::keys;
    Strip<dim, keys>& strip = strips[0];
    uint32_t p[keys / 16][4];
    const int group = w.warp / 4, query = w.first + w.warp * 16;
    const int seen = tiles_seen<keys>(w.first + group * 64 + 64, w.seq, w.causal);  // by this warpgroup: all of the block's tiles, or all but the last
    const uint32_t own_queries = shared_address(w.queries) + group * 64 * kRowBytes;

    fetch<dim, keys>(w.values, w.v, 0, w.seq);
    if (w.tiles > 1) fetch<dim, keys>(w.keys + B::key_bytes, w.k, keys, w.seq);
    copy_commit();
    copy_wait<1>();
    publish();
    __syncthreads();  // queries and the first keys are there
    products_begin();
    queue_scores<T, dim, keys>(strip.s, own_queries, shared_address(w.keys));
    products_commit();
    products_wait<0>();
    settle(strip.s);
    strip.hide(0, query, w.seq, w.causal);
    strip.weigh(w.scale);

    for (int tile = 1; tile <= w.tiles; ++tile) {
        products_wait<0>();  // here and not at the loop's end: the compiler would move it before the weights, which are to hide the sums
        settle(strip.o);
        settle(p);
        strip.shrink();
#pragma unroll
        for (int i = 0; i < keys / 16; ++i) strip.template pack<T>(p[i], i);
        copy_wait<0>();
        publish();
        __syncthreads();  // this tile's keys and the last one's values are there, and nobody reads the other buffers any more
        if (tile < w.tiles) fetch<dim, keys>(w.values + tile % 2 * B::key_bytes, w.v, tile * keys, w.seq);
        if (tile + 1 < w.tiles) fetch<dim, keys>(w.keys + (tile + 1) % 2 * B::key_bytes, w.k, (tile + 1) * keys, w.seq);
        copy_commit();
        if (tile >= seen) continue;

        products_begin();
        queue_scores<T, dim, keys>(strip.s, own_queries, shared_address(w.keys) + tile % 2 * B::key_bytes);
        products_commit();
        queue_sums<T, dim, keys>(strip.o, p, shared_address(w.values) + (tile - 1) % 2 * B::key_bytes);
        products_commit();
        products_wait<1>();
        settle(strip.s);
        strip.hide(tile * keys, query, w.seq, w.causal);
        strip.weigh(w.scale);
    }
    products_begin();
    queue_sums<T, dim, keys>(strip.o, p, shared_address(w.values) + (seen - 1) % 2 * B::key_bytes);
    products_commit();
    products_wait<0>();
    settle(strip.o);
    settle(p);
}

// ---- The kernel ----

template <typename T, int dim>
__global__ void __launch_bounds__(Block<dim, kWgmma>::threads, kWgmma ? 1 : 2)
    attention_kernel(const char* q, const char* k, const char* v, char* out, int seq, int causal, float scale) {
    using B = Block<dim, kWgmma>;
    extern __shared__ __align__(128) char shared[];
    char* const queries = shared + (-shared_address(shared) & (kPattern - 1));
    char* const keys = queries + B::query_bytes;
    char* const values = keys + B::buffers * B::key_bytes;

    const int blocks = (seq + B::queries - 1) / B::queries;
    const int first = (blocks - 1 - static_cast<int>(blockIdx.x) % blocks) * B::queries;  // under the mask the last queries have most keys: first
    const size_t head = static_cast<size_t>(blockIdx.x / blocks) * seq * dim * 2;
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // the same in all lanes, as the compiler can see now
    const int tiles = tiles_seen<B::keys>(first + B::queries, seq, causal);
    const Work work{k + head, v + head, queries, keys, values, first, tiles, seq, causal, scale, warp};

    fetch<dim, B::queries>(queries, q + head, first, seq);
    fetch<dim, B::keys>(keys, k + head, 0, seq);
    copy_commit();
    Strip<dim, B::keys> strips[B::strips];
    if constexpr (kWgmma) attend_wgmma<T>(work, strips);
    else attend_mma_sync<T>(work, strips);
#pragma unroll
    for (int m = 0; m < B::strips; ++m)
        strips[m].template store<T, B::queries>(out + head + static_cast<size_t>(first) * dim * 2, queries, (warp * B::strips + m) * 16, seq - first);
}

template <typename T, int dim, bool wgmma>
cudaError_t launch(const char* q, const char* k, const char* v, char* out, int heads, int seq, int causal, cudaStream_t stream) {
    using B = Block<dim, wgmma>;
    const cudaError_t status = cudaFuncSetAttribute(attention_kernel<T, dim>, cudaFuncAttributeMaxDynamicSharedMemorySize, B::shared_bytes);
    if (status != cudaSuccess) return status;
    const int blocks = (seq + B::queries - 1) / B::queries;
    const float scale = kLog2e / sqrtf(static_cast<float>(dim));
    attention_kernel<T, dim><<<heads * blocks, B::threads, B::shared_bytes, stream>>>(q, k, v, out, seq, causal, scale);
    return cudaGetLastError();
}

template <bool wgmma>
cudaError_t launch(const char* q, const char* k, const char* v, char* out, int heads, int seq, int dim, int causal, int bf16, cudaStream_t s) {
    if (dim == 64) return bf16 ? launch<__nv_bfloat16, 64, wgmma>(q, k, v, out, heads, seq, causal, s) : launch<__half, 64, wgmma>(q, k, v, out, heads, seq, causal, s);
    return bf16 ? launch<__nv_bfloat16, 128, wgmma>(q, k, v, out, heads, seq, causal, s) : launch<__half, 128, wgmma>(q, k, v, out, heads, seq, causal, s);
}

}  // namespace

extern "C" int attention_forward(const char* q, const char* k, const char* v, char* out, int heads, int seq, int dim, int causal, int bf16, void* stream) {
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    const auto run = major == 9 ? launch<true> : launch<false>;
    return run(q, k, v, out, heads, seq, dim, causal, bf16, static_cast<cudaStream_t>(stream));
}
