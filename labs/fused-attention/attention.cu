// Fused scaled dot-product attention, forward, in float16 or bfloat16 on tensor cores (sm_80 on),
// with the online softmax.
//
// q, k, v and out are heads x seq x dim, contiguous (`heads` counts batch x heads); dim is 64 or
// 128. With `causal`, query i sees keys 0..i. A query all of whose scores are -inf sees none, and
// answers 0.
//
// A block owns kBlockQueries queries of one head, a warp kStrips strips of 16; keys and values pass
// through shared memory kTileKeys at a time.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace {

// One tensor-core instruction (mma.m16n8k16): 16 x 16 times 16 x 8.
constexpr int kMmaRows = 16, kMmaColumns = 8, kMmaDepth = 16;

constexpr int kWarpLanes = 32, kWarps = 4, kThreads = kWarpLanes * kWarps;
constexpr int kStrips = 2;  // of kMmaRows queries each, per warp
constexpr int kWarpQueries = kMmaRows * kStrips, kBlockQueries = kWarpQueries * kWarps;
constexpr int kTileKeys = 64;
constexpr int kPadding = 16;  // elements behind each row of a tile in shared memory
constexpr unsigned kAllLanes = 0xffffffff;
constexpr float kLog2e = 1.4426950408889634f;

// ---- The instructions, one function each ----

// Four 8 x 8 matrices from shared memory. Each lane points at one row: see Lane.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* shared) {
    const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void* shared) {
    const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

template <typename T>
struct Type;

template <>
struct Type<__half> {
    static __device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4],
                                                        uint32_t b0, uint32_t b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
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
    static __device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4],
                                                        uint32_t b0, uint32_t b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
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

// Copies rows first..first+rows-1 of a head into a tile; rows past the sequence's end become zero.
template <int dim, int rows>
__device__ __forceinline__ void fetch(uint32_t* tile, const uint32_t* head, int first, int seq) {
    constexpr int words = dim / 2;
    const int start = threadIdx.x / words, word = threadIdx.x % words;
#pragma unroll
    for (int row = start; row < start + rows; row += kThreads / words) {
        const size_t source = static_cast<size_t>(first + row) * words + word;
        tile[row * kStride<dim> + word] = first + row < seq ? head[source] : 0;
    }
}

// ---- The kernel ----

// Sums and maxima of a query are spread over the four lanes that hold its columns.
__device__ __forceinline__ float max_of_four_lanes(float value) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
    return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}

__device__ __forceinline__ float sum_of_four_lanes(float value) {
    value += __shfl_xor_sync(kAllLanes, value, 1);
    return value + __shfl_xor_sync(kAllLanes, value, 2);
}

// 16 queries of a warp. Of each accumulator of 8 columns a lane holds four values: elements 0 and 1
// belong to query `lane / 4`, elements 2 and 3 to the one 8 below (`half` 1).
template <int dim>
struct Strip {
    float scores[kTileKeys / kMmaColumns][4];
    float accumulated[dim / kMmaColumns][4] = {};
    float row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {};

    // Turns scores into weights relative to the largest score so far, and rescales what was
    // accumulated before. `first_key` and `first_query` begin this tile and this strip.
    __device__ __forceinline__ void online_softmax(int first_key, int first_query, int seq,
                                                   int causal, float scale) {
        const int lane = threadIdx.x % kWarpLanes;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int query = first_query + lane / 4 + half * 8;
            float new_max = row_max[half];
#pragma unroll
            for (int j = 0; j < kTileKeys / kMmaColumns; ++j) {
#pragma unroll
                for (int element = 2 * half; element < 2 * half + 2; ++element) {
                    const int key = first_key + j * kMmaColumns + lane % 4 * 2 + element % 2;
                    if (key < seq && (!causal || key <= query))
                        new_max = fmaxf(new_max, scores[j][element]);
                }
            }
            new_max = max_of_four_lanes(new_max);
            // A query that has seen no key yet has no maximum: -inf - -inf is not a number.
            const float shift = new_max == -INFINITY ? 0.0f : new_max * scale;
            const float rescale = exp2f(row_max[half] * scale - shift);
            row_max[half] = new_max;
            row_sum[half] *= rescale;
#pragma unroll
            for (int j = 0; j < kTileKeys / kMmaColumns; ++j) {
#pragma unroll
                for (int element = 2 * half; element < 2 * half + 2; ++element) {
                    const int key = first_key + j * kMmaColumns + lane % 4 * 2 + element % 2;
                    float& score = scores[j][element];
                    if (key < seq && (!causal || key <= query)) {
                        score = exp2f(score * scale - shift);
                        row_sum[half] += score;
                    } else {
                        score = 0.0f;
                    }
                }
            }
#pragma unroll
            for (int d = 0; d < dim / kMmaColumns; ++d) {
                accumulated[d][2 * half] *= rescale;
                accumulated[d][2 * half + 1] *= rescale;
            }
        }
    }
};

template <typename T, int dim>
__global__ void __launch_bounds__(kThreads)
    attention_kernel(const uint32_t* q, const uint32_t* k, const uint32_t* v, uint32_t* out,
                     int seq, int causal, float scale) {
    extern __shared__ __align__(128) char shared[];
    uint32_t* const queries = reinterpret_cast<uint32_t*>(shared);
    uint32_t* const keys = queries + kBlockQueries * kStride<dim>;
    uint32_t* const values = keys + kTileKeys * kStride<dim>;

    const int blocks = (seq + kBlockQueries - 1) / kBlockQueries;
    const int block_first = static_cast<int>(blockIdx.x) % blocks * kBlockQueries;
    const size_t head = static_cast<size_t>(blockIdx.x / blocks) * seq * dim / 2;
    const int warp_first = threadIdx.x / kWarpLanes * kWarpQueries;  // in the block
    const int warp_last = block_first + warp_first + kWarpQueries - 1;
    const int lane = threadIdx.x % kWarpLanes;
    // Which of ldmatrix's four 8 x 8 matrices this lane points into, and at which row.
    const int matrix = lane / 8, matrix_row = lane % 8;

    fetch<dim, kBlockQueries>(queries, q + head, block_first, seq);
    Strip<dim> strips[kStrips];

    for (int first_key = 0; first_key < seq; first_key += kTileKeys) {
        __syncthreads();
        fetch<dim, kTileKeys>(keys, k + head, first_key, seq);
        fetch<dim, kTileKeys>(values, v + head, first_key, seq);
        __syncthreads();
        if (causal && first_key > warp_last) continue;  // this warp's queries see none of these

        // Scores: queries times keys.
#pragma unroll
        for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
            for (int i = 0; i < kTileKeys / 2; ++i) strips[strip].scores[i / 4][i % 4] = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < dim / kMmaDepth; ++i) {
            uint32_t query_part[kStrips][4], key_part[4];
#pragma unroll
            for (int strip = 0; strip < kStrips; ++strip) {
                const int row = warp_first + strip * kMmaRows + matrix % 2 * 8 + matrix_row;
                const int word = (i * 2 + matrix / 2) * 4;
                load_matrices(query_part[strip], queries + row * kStride<dim> + word);
            }
#pragma unroll
            for (int j = 0; j < kTileKeys / 16; ++j) {
                const int row = j * 16 + matrix / 2 * 8 + matrix_row;
                const int word = (i * 2 + matrix % 2) * 4;
                load_matrices(key_part, keys + row * kStride<dim> + word);
#pragma unroll
                for (int strip = 0; strip < kStrips; ++strip) {
                    auto& scores = strips[strip].scores;
                    const auto& part = query_part[strip];
                    Type<T>::multiply_add(scores[2 * j], part, key_part[0], key_part[1]);
                    Type<T>::multiply_add(scores[2 * j + 1], part, key_part[2], key_part[3]);
                }
            }
        }

#pragma unroll
        for (int strip = 0; strip < kStrips; ++strip) {
            const int first_query = block_first + warp_first + strip * kMmaRows;
            strips[strip].online_softmax(first_key, first_query, seq, causal, scale);
        }

        // Weights times values. The layout of the scores is the one that the next product takes.
#pragma unroll
        for (int i = 0; i < kTileKeys / kMmaDepth; ++i) {
            uint32_t weights[kStrips][4], value_part[4];
#pragma unroll
            for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
                for (int part = 0; part < 4; ++part) {
                    const float* pair = strips[strip].scores[2 * i + part / 2] + part % 2 * 2;
                    weights[strip][part] = Type<T>::pack(pair[0], pair[1]);
                }
            }
#pragma unroll
            for (int d = 0; d < dim / 16; ++d) {
                const int row = i * kMmaDepth + matrix % 2 * 8 + matrix_row;
                const int word = (d * 2 + matrix / 2) * 4;
                load_matrices_transposed(value_part, values + row * kStride<dim> + word);
#pragma unroll
                for (int strip = 0; strip < kStrips; ++strip) {
                    auto& sums = strips[strip].accumulated;
                    const auto& part = weights[strip];
                    Type<T>::multiply_add(sums[2 * d], part, value_part[0], value_part[1]);
                    Type<T>::multiply_add(sums[2 * d + 1], part, value_part[2], value_part[3]);
                }
            }
        }
    }

#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float row_sum = sum_of_four_lanes(strips[strip].row_sum[half]);
            const float inverse = row_sum > 0.0f ? 1.0f / row_sum : 0.0f;
            const int row = block_first + warp_first + strip * kMmaRows + lane / 4 + half * 8;
            if (row < seq) {
                uint32_t* const out_row = out + head + static_cast<size_t>(row) * (dim / 2);
#pragma unroll
                for (int d = 0; d < dim / kMmaColumns; ++d) {
                    const float* const pair = strips[strip].accumulated[d] + 2 * half;
                    out_row[d * 4 + lane % 4] = Type<T>::pack(pair[0] * inverse, pair[1] * inverse);
                }
            }
        }
    }
}

template <typename T, int dim>
cudaError_t launch(const uint32_t* q, const uint32_t* k, const uint32_t* v, uint32_t* out,
                   int heads, int seq, int causal, cudaStream_t stream) {
    constexpr int bytes = (kBlockQueries + 2 * kTileKeys) * kStride<dim> * 4;
    const cudaError_t status = cudaFuncSetAttribute(
        attention_kernel<T, dim>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    const int grid = heads * ((seq + kBlockQueries - 1) / kBlockQueries);
    // exp2f is one instruction: the scale turns e^x into 2^x.
    const float scale = kLog2e / sqrtf(static_cast<float>(dim));
    attention_kernel<T, dim><<<grid, kThreads, bytes, stream>>>(q, k, v, out, seq, causal, scale);
    return cudaGetLastError();
}

template <typename T>
cudaError_t launch(const uint32_t* q, const uint32_t* k, const uint32_t* v, uint32_t* out,
                   int heads, int seq, int dim, int causal, cudaStream_t stream) {
    if (dim == 64) return launch<T, 64>(q, k, v, out, heads, seq, causal, stream);
    return launch<T, 128>(q, k, v, out, heads, seq, causal, stream);
}

}  // namespace

extern "C" int attention_forward(const uint32_t* q, const uint32_t* k, const uint32_t* v,
                                 uint32_t* out, int heads, int seq, int dim, int causal, int bf16,
                                 void* stream) {
    const auto queue = static_cast<cudaStream_t>(stream);
    if (bf16) return launch<__nv_bfloat16>(q, k, v, out, heads, seq, dim, causal, queue);
    return launch<__half>(q, k, v, out, heads, seq, dim, causal, queue);
}
