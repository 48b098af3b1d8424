// Scaled dot-product attention, forward, float16 or bfloat16, for Hopper alone (compute capability
// 9.0): products by wgmma, tiles by bulk tensor copies, a warpgroup that does nothing but fetch. Meant
// for the lab's second level, as fast as cuDNN. No GPU has run it yet.
//
//   scores   S = Q Kᵀ    for a tile of keys, kept in registers, where they become weights P
//   sums     O += P V    the registers that hold scores are those that wgmma wants its left operand in
//
// A block owns 64 queries of one head for each warpgroup that computes. One thread of the last
// warpgroup asks the copy engine for tiles of keys and values, two of each ahead, so no other thread
// spends instructions or registers on copies. Barriers in shared memory count the bytes that have
// arrived, and the warps that are done with a tile; no barrier is for the whole block.
//
// The warpgroups that compute take turns at the tensor cores: while one queues its products, the
// others weigh their scores. A tile's sums are still added while the next one's scores are weighed.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#pragma nv_diag_suppress 177  // unused functions: in code for another GPU the kernel is empty

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900 && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "wgmma is not in sm_90: compile with -gencode arch=compute_90a,code=sm_90a"
#endif

namespace {

constexpr int kRowBytes = 128, kPattern = 8 * kRowBytes;  // the swizzle repeats after 8 rows
constexpr int kGroup = 128, kGroupQueries = 64;           // threads and queries of a warpgroup
constexpr int kStages = 2;                                // tiles of keys, and as many of values
constexpr int kKeys = 128;                                // a tile, and as many values
constexpr int kBoxRows = 64;  // of 64 columns: what one bulk copy brings
constexpr float kLog2e = 1.4426950408889634f;

// What a block works on at a time. It has the multiprocessor's 65,536 registers for itself, which
// the fetching warpgroup leaves to the others.
template <int dim>
struct Block {
    static constexpr int groups = dim == 64 ? 3 : 2;  // that compute
    static constexpr int threads = kGroup * (groups + 1), queries = kGroupQueries * groups;
    static constexpr int registers = dim == 64 ? 160 : 240, fetching_registers = dim == 64 ? 32 : 24;
    static constexpr int query_bytes = queries * dim * 2, key_bytes = kKeys * dim * 2;
    static constexpr int tile_bytes = query_bytes + 2 * kStages * key_bytes;
    static constexpr int shared_bytes = kPattern + tile_bytes + 8 * (1 + 4 * kStages);
    static_assert(kGroup * (groups * registers + fetching_registers) <= 65536);
};

// ---- The instructions, one function each ----

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and makes the phase last until so many bytes have come.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Waits until the barrier's phase number `phase` is over; phases before it must be.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, int phase) {
    uint32_t over = 0;
    while (!over) {
        asm volatile(
            "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
            : "=r"(over)
            : "r"(barrier), "r"(phase & 1)
            : "memory");
    }
}

// 64 rows of 64 columns to shared memory, in the 128-byte swizzle; zeros past the end of the head.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int column, int row,
                                         int head, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(head),
        "r"(barrier)
        : "memory");
}

// Makes what threads have written to shared memory visible to the copy engine.
__device__ __forceinline__ void publish() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Named barriers of two warpgroups: one waits there, the other one passes by.
__device__ __forceinline__ void turn_wait(int group) {
    asm volatile("bar.sync %0, 256;" ::"r"(group + 1) : "memory");
}

__device__ __forceinline__ void turn_give(int group) {
    asm volatile("bar.arrive %0, 256;" ::"r"(group + 1) : "memory");
}

template <int count>
__device__ __forceinline__ void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

template <int count>
__device__ __forceinline__ void registers_leave() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

// Orders register accesses before the products of wgmma that are queued next.
__device__ __forceinline__ void products_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int pending>
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// A point that the compiler moves no use of these registers across: it does not know that wgmma
// reads and writes them later than its statement.
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
#define SIXTEEN(d, j) FOUR(d, j), FOUR(d, j + 1), FOUR(d, j + 2), FOUR(d, j + 3)
#define THIRTY_TWO(d, j) SIXTEEN(d, j), SIXTEEN(d, j + 4)
#define FIRST_32 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NEXT_32 \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

// d += a b, or with `multiply<false>` d = a b, of a warpgroup: 64 rows, 16 summed. The numbers at
// the end of wgmma: add to d, no sign is changed, and for each operand in shared memory whether it
// is MN-major.
#define PRODUCTS(type) \
    template <bool add> \
    static __device__ __forceinline__ void multiply(float (&d)[16][4], uint64_t a, uint64_t b) { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type \
                     " {" FIRST_32 "," NEXT_32 "}, %64, %65, %66, 1, 1, 0, 0;" \
                     : THIRTY_TWO(d, 0), THIRTY_TWO(d, 8) \
                     : "l"(a), "l"(b), "n"(add)); \
    } \
    static __device__ __forceinline__ void add_product(float (&d)[16][4], const uint32_t (&a)[4], \
                                                       uint64_t b) { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type \
                     " {" FIRST_32 "," NEXT_32 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;" \
                     : THIRTY_TWO(d, 0), THIRTY_TWO(d, 8) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
    } \
    static __device__ __forceinline__ void add_product(float (&d)[8][4], const uint32_t (&a)[4], \
                                                       uint64_t b) { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type \
                     " {" FIRST_32 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;" \
                     : THIRTY_TWO(d, 0) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
    }

template <typename T>
struct Type;

template <>
struct Type<__half> {
    PRODUCTS("f16")
    static constexpr auto mapped = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        const __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&pair);
    }
};

template <>
struct Type<__nv_bfloat16> {
    PRODUCTS("bf16")
    static constexpr auto mapped = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&pair);
    }
};

// ---- What a block has to do ----

// Addresses in shared memory, and the block's share of the work. Each stage of keys and of values
// has a barrier for its bytes (`full`), and one for the warps that are done with it (`free`).
template <int dim>
struct Work {
    using B = Block<dim>;
    uint32_t shared;
    int first, tiles, head, seq, causal;  // first query, and tiles of keys that the block sees
    float scale;

    __device__ __forceinline__ uint32_t queries() const { return shared; }
    __device__ __forceinline__ uint32_t keys(int tile) const {
        return shared + B::query_bytes + tile % kStages * B::key_bytes;
    }
    __device__ __forceinline__ uint32_t values(int tile) const {
        return keys(tile) + kStages * B::key_bytes;
    }
    __device__ __forceinline__ uint32_t queries_full() const { return shared + B::tile_bytes; }
    __device__ __forceinline__ uint32_t keys_full(int tile) const {
        return queries_full() + 8 * (1 + tile % kStages);
    }
    __device__ __forceinline__ uint32_t values_full(int tile) const {
        return keys_full(tile) + 8 * kStages;
    }
    __device__ __forceinline__ uint32_t keys_free(int tile) const {
        return keys_full(tile) + 16 * kStages;
    }
    __device__ __forceinline__ uint32_t values_free(int tile) const {
        return keys_full(tile) + 24 * kStages;
    }
};

// ---- The warpgroup that fetches ----

// Rows first..first+rows-1 of a head, of all columns, to a tile of so many rows.
template <int dim, int rows>
__device__ __forceinline__ void fetch(uint32_t tile, const CUtensorMap* map, int first, int head,
                                      uint32_t barrier) {
    barrier_expect(barrier, rows * dim * 2);
#pragma unroll
    for (int panel = 0; panel < dim / 64; ++panel) {
#pragma unroll
        for (int row = 0; row < rows; row += kBoxRows)
            copy_box(tile + (panel * rows + row) * kRowBytes, map, panel * 64, first + row, head,
                     barrier);
    }
}

// By one thread. A stage is filled again when every warp that computes has left its last tile.
template <int dim>
__device__ __forceinline__ void fetch_all(const Work<dim>& w, const CUtensorMap* q,
                                          const CUtensorMap* k, const CUtensorMap* v) {
    fetch<dim, Block<dim>::queries>(w.queries(), q, w.first, w.head, w.queries_full());
    for (int tile = 0; tile < w.tiles; ++tile) {
        const int before = tile / kStages - 1;
        if (before >= 0) barrier_wait(w.keys_free(tile), before);
        fetch<dim, kKeys>(w.keys(tile), k, tile * kKeys, w.head, w.keys_full(tile));
        if (before >= 0) barrier_wait(w.values_free(tile), before);
        fetch<dim, kKeys>(w.values(tile), v, tile * kKeys, w.head, w.values_full(tile));
    }
}

// ---- The online softmax ----

// Where 16-byte chunk `chunk` of row `row` lies in a tile of `rows` rows.
template <int rows>
__device__ __forceinline__ int place(int row, int chunk) {
    return (chunk / 8 * rows + row) * kRowBytes + ((chunk % 8) ^ (row % 8)) * 16;
}

// 16 queries of a warp. Of each accumulator of 8 columns a lane holds four values: two of query
// `lane / 4` and two of the one 8 below.
template <int dim>
struct Strip {
    float s[kKeys / 8][4], o[dim / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {}, decay[2];

    // Scores of keys that a query must not see become -inf. `key` and `query` are the first ones of
    // this tile and strip.
    __device__ __forceinline__ void hide(int key, int query, int seq, int causal) {
        if (key + kKeys <= seq && !(causal && key + kKeys - 1 > query)) return;
        const int lane = threadIdx.x % 32, start = key + lane % 4 * 2, row = query + lane / 4;
        const int own = (causal ? min(seq, row + 1) : seq) - start;  // so many keys are seen
        const int other = (causal ? min(seq, row + 9) : seq) - start;
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                if (j * 8 + e % 2 >= (e < 2 ? own : other)) s[j][e] = -INFINITY;
            }
        }
    }

    // Scores become weights relative to the largest score so far; `decay` is what earlier weights
    // shrink by.
    __device__ __forceinline__ void weigh(float scale) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float high = top[half];
#pragma unroll
            for (int j = 0; j < kKeys / 8; ++j)
                high = fmaxf(high, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
            high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 1));
            high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 2));
            const float shift = high == -INFINITY ? 0.0f : high * scale;  // has seen no key yet
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
            // This lane's share: the four lanes of a row are added up at the end.
            sum[half] = sum[half] * decay[half] + total;
        }
    }

    // What was summed so far, relative to the new largest score.
    __device__ __forceinline__ void shrink() {
#pragma unroll
        for (int i = 0; i < dim / 2; ++i) o[i / 4][i % 4] *= decay[i % 4 / 2];
    }

    // The weights as the left operand of the second product: 16 keys are two accumulators.
    template <typename T>
    __device__ __forceinline__ void pack(uint32_t (&p)[kKeys / 16][4]) const {
#pragma unroll
        for (int i = 0; i < kKeys / 4; ++i) {
            const float(&pair)[4] = s[i / 4 * 2 + i % 4 / 2];
            p[i / 4][i % 4] = Type<T>::pack(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
        }
    }

    // The answers leave by way of the strip's own rows of the query tile, from `local` on, in whole
    // 16-byte chunks.
    template <typename T>
    __device__ __forceinline__ void store(char* out, char* tile, int local, int left) {
        constexpr int chunks = dim / 8, rows = Block<dim>::queries;
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 1);
            sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 2);
            const float share = sum[half] > 0.0f ? 1.0f / sum[half] : 0.0f;  // 0: sees no key
#pragma unroll
            for (int d = 0; d < chunks; ++d) {
                const uint32_t pair =
                    Type<T>::pack(o[d][2 * half] * share, o[d][2 * half + 1] * share);
                const int at = place<rows>(local + half * 8 + lane / 4, d) + lane % 4 * 4;
                *reinterpret_cast<uint32_t*>(tile + at) = pair;
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

// ---- The warpgroups that compute ----

// What wgmma is told of an operand in shared memory: where it begins, and how far apart its patterns
// are. `next_rows` is from 8 rows to the next 8, `next_panel` from 64 columns to the next 64 where
// columns are not summed over (elsewhere it is not looked at).
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t next_panel,
                                               uint32_t next_rows) {
    constexpr uint64_t swizzle_128 = 1ull << 62;
    return swizzle_128 | static_cast<uint64_t>(next_rows >> 4) << 32 |
           static_cast<uint64_t>(next_panel >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// Queues S = Q Kᵀ for 64 queries and a tile of keys, 16 columns at a time: four steps of 32 bytes
// within a panel, then the next panel. Both operands K-major: rows lie along the summed dimension.
template <typename T, int dim>
__device__ __forceinline__ void queue_scores(float (&s)[kKeys / 8][4], uint32_t own_queries,
                                             uint32_t tile) {
#pragma unroll
    for (int i = 0; i < dim / 16; ++i) {
        const int panel = i / 4, within = i % 4 * 32;
        const uint32_t left = own_queries + panel * Block<dim>::queries * kRowBytes + within;
        const uint64_t a = descriptor(left, 16, kPattern);
        const uint64_t b = descriptor(tile + panel * kKeys * kRowBytes + within, 16, kPattern);
        if (i == 0) Type<T>::template multiply<false>(s, a, b);
        else Type<T>::template multiply<true>(s, a, b);
    }
    products_commit();
}

// Queues O += P V for 64 queries and a tile of values, 16 of them at a time: two patterns of 8 rows.
// Values are MN-major: rows lie along the columns of the result, so nothing is transposed.
template <typename T, int dim>
__device__ __forceinline__ void queue_sums(float (&o)[dim / 8][4],
                                           const uint32_t (&p)[kKeys / 16][4], uint32_t tile) {
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i)
        Type<T>::add_product(o, p[i],
                             descriptor(tile + i * 2 * kPattern, kKeys * kRowBytes, kPattern));
    products_commit();
}

template <typename T, int dim>
__device__ __forceinline__ void attend(const Work<dim>& w, Strip<dim>& strip, int group, int query) {
    constexpr int groups = Block<dim>::groups;
    uint32_t p[kKeys / 16][4];
    const uint32_t own_queries = w.queries() + group * kGroupQueries * kRowBytes;
    const bool speaks = threadIdx.x % 32 == 0;  // for its warp

    // The first turn is the first warpgroup's.
    if (group == groups - 1 && w.tiles > 1) turn_give(0);
    barrier_wait(w.queries_full(), 0);
    barrier_wait(w.keys_full(0), 0);
    products_begin();
    queue_scores<T, dim>(strip.s, own_queries, w.keys(0));
    products_wait<0>();
    settle(strip.s);
    if (speaks) barrier_arrive(w.keys_free(0));
    strip.hide(0, query, w.seq, w.causal);
    strip.weigh(w.scale);

    for (int tile = 1; tile < w.tiles; ++tile) {
        // Here and not at the loop's end: the compiler would move it before the weights, which are
        // to hide the sums.
        products_wait<0>();
        settle(strip.o);
        settle(p);
        if (tile > 1 && speaks) barrier_arrive(w.values_free(tile - 2));
        strip.shrink();
        strip.template pack<T>(p);
        barrier_wait(w.keys_full(tile), tile / kStages);
        barrier_wait(w.values_full(tile - 1), (tile - 1) / kStages);

        turn_wait(group);
        products_begin();
        queue_scores<T, dim>(strip.s, own_queries, w.keys(tile));
        queue_sums<T, dim>(strip.o, p, w.values(tile - 1));
        // Nobody waits for the turn after the last one.
        if (tile + 1 < w.tiles || group + 1 < groups) turn_give((group + 1) % groups);

        products_wait<1>();
        settle(strip.s);
        if (speaks) barrier_arrive(w.keys_free(tile));
        strip.hide(tile * kKeys, query, w.seq, w.causal);
        strip.weigh(w.scale);
    }
    products_wait<0>();
    settle(strip.o);
    settle(p);
    strip.shrink();
    strip.template pack<T>(p);
    barrier_wait(w.values_full(w.tiles - 1), (w.tiles - 1) / kStages);
    products_begin();
    queue_sums<T, dim>(strip.o, p, w.values(w.tiles - 1));
    products_wait<0>();
    settle(strip.o);
    settle(p);
}

// ---- The kernel ----

template <typename T, int dim>
__global__ void __launch_bounds__(Block<dim>::threads, 1)
    attention_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                     const __grid_constant__ CUtensorMap v, char* out, int seq, int causal,
                     float scale) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using B = Block<dim>;
    extern __shared__ __align__(128) char shared[];
    char* const queries = shared + (-shared_address(shared) & (kPattern - 1));

    // Under the mask the last queries have most keys: they go first.
    const int blocks = (seq + B::queries - 1) / B::queries;
    const int first = (blocks - 1 - static_cast<int>(blockIdx.x) % blocks) * B::queries;
    const int head = blockIdx.x / blocks, seen = causal ? min(seq, first + B::queries) : seq;
    const int tiles = (seen + kKeys - 1) / kKeys;
    const Work<dim> work{shared_address(queries), first, tiles, head, seq, causal, scale};
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // the same in all lanes

    if (threadIdx.x == 0) {
        barrier_init(work.queries_full(), 1);
#pragma unroll
        for (int stage = 0; stage < kStages; ++stage) {
            barrier_init(work.keys_full(stage), 1);
            barrier_init(work.values_full(stage), 1);
            barrier_init(work.keys_free(stage), 4 * B::groups);
            barrier_init(work.values_free(stage), 4 * B::groups);
        }
        publish();
    }
    __syncthreads();

    if (warp / 4 == B::groups) {
        registers_leave<B::fetching_registers>();
        if (threadIdx.x == B::groups * kGroup) fetch_all<dim>(work, &q, &k, &v);
        return;
    }
    registers_take<B::registers>();
    Strip<dim> strip;
    attend<T, dim>(work, strip, warp / 4, first + warp * 16);
    char* const answer = out + (static_cast<size_t>(head) * seq + first) * dim * 2;
    strip.template store<T>(answer, queries, warp * 16, seq - first);
#endif
}

// ---- On the host ----

// How the copy engine finds 64 x 64 elements of an array of heads x seq x dim.
template <typename T, int dim>
CUresult encode(CUtensorMap* map, const char* array, int heads, int seq) {
    static void* function = nullptr;  // of the driver, which nothing is linked with
    cudaDriverEntryPointQueryResult answer;
    if (!function)
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                         cudaEnableDefault, &answer);
    if (!function) return CUDA_ERROR_NOT_FOUND;
    const cuuint64_t row = dim * 2, sizes[] = {dim, cuuint64_t(seq), cuuint64_t(heads)};
    const cuuint64_t strides[] = {row, seq * row};
    const cuuint32_t box[] = {64, kBoxRows, 1}, steps[] = {1, 1, 1};
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
        map, Type<T>::mapped, 3, const_cast<char*>(array), sizes, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

template <typename T, int dim>
int launch(const char* q, const char* k, const char* v, char* out, int heads, int seq, int causal,
           cudaStream_t stream) {
    using B = Block<dim>;
    CUtensorMap maps[3];
    const char* const arrays[] = {q, k, v};
    for (int i = 0; i < 3; ++i) {
        const CUresult refused = encode<T, dim>(&maps[i], arrays[i], heads, seq);
        if (refused) return refused;
    }
    const auto status = cudaFuncSetAttribute(
        attention_kernel<T, dim>, cudaFuncAttributeMaxDynamicSharedMemorySize, B::shared_bytes);
    if (status != cudaSuccess) return status;
    const int grid = heads * ((seq + B::queries - 1) / B::queries);
    const float scale = kLog2e / sqrtf(static_cast<float>(dim));
    const CUtensorMap &mq = maps[0], &mk = maps[1], &mv = maps[2];
    attention_kernel<T, dim><<<grid, B::threads, B::shared_bytes, stream>>>(mq, mk, mv, out, seq, causal, scale);
    return cudaGetLastError();
}

}  // namespace

extern "C" int attention_forward(const char* q, const char* k, const char* v, char* out, int heads,
                                 int seq, int dim, int causal, int bf16, void* stream) {
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (major != 9) return cudaErrorNoKernelImageForDevice;
    const auto run = dim == 64 ? (bf16 ? launch<__nv_bfloat16, 64> : launch<__half, 64>)
                               : (bf16 ? launch<__nv_bfloat16, 128> : launch<__half, 128>);
    return run(q, k, v, out, heads, seq, causal, static_cast<cudaStream_t>(stream));
}
