// Runs the lab's CUDA kernels on a CPU, thread by thread, so that their indexing, masking, synchronisation and rounding can be tested without a GPU.
//
// Every CUDA thread is a fiber. A collective (ldmatrix, mma, shuffle, __syncthreads) waits until all its fibers have come. The shared memory starts
// as NaN. cp.async copies either when it is issued or as late as its wait allows, and the fibers run in either order, so a missing wait or barrier
// changes the result in one of these ways. The section "The instructions" of the kernel's source is replaced by this file.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
using std::max;
using std::min;
using cudaError_t = int;
using cudaStream_t = void*;
constexpr int cudaSuccess = 0, cudaFuncAttributeMaxDynamicSharedMemorySize = 0;
template <typename F>
int cudaFuncSetAttribute(F, int, int) { return 0; }
inline int cudaGetLastError() { return 0; }
struct uint4 { uint32_t x, y, z, w; };
struct Index { unsigned x; };
struct __half {};
struct __nv_bfloat16 {};

namespace emulator {

struct Copy { void* to; const void* from; bool inside; };
struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(256 << 10);
    bool done = false;
    std::vector<std::vector<Copy>> groups{1};  // committed groups of cp.async, the last one still open
};
struct Gate { int arrived = 0; long generation = 0; };

inline std::vector<std::unique_ptr<Fiber>> fibers;
inline ucontext_t scheduler;
inline int current = 0;
inline std::vector<char> shared_memory;
inline Gate block_gate;
inline std::vector<Gate> warp_gates;
inline std::vector<std::vector<char>> slots;  // [warp][generation parity][lane][64 bytes]
inline std::function<void()> body;
inline bool eager = false, backwards = false;
inline long conflicts = 0, outside = 0;
inline std::vector<std::pair<const char*, const char*>> readable;

inline void yield() { swapcontext(&fibers[current]->context, &scheduler); }

inline void meet(Gate& gate, int members) {
    const long generation = gate.generation;
    if (++gate.arrived == members) {
        gate.arrived = 0;
        ++gate.generation;
    }
    while (gate.generation == generation) yield();
}

// Every lane gives a value; returns where all 32 lie, good until this warp's next collective but one.
template <typename V>
const V* exchange(const V& value) {
    static_assert(sizeof(V) <= 64);
    const int warp = current / 32;
    char* const base = slots[warp].data() + warp_gates[warp].generation % 2 * 32 * 64;
    std::memcpy(base + current % 32 * sizeof(V), &value, sizeof(V));
    meet(warp_gates[warp], 32);
    return reinterpret_cast<const V*>(base);
}

inline void run_copy(const Copy& copy) {
    if (copy.inside) std::memcpy(copy.to, copy.from, 16);
    else std::memset(copy.to, 0, 16);
}

inline void start() {
    body();
    fibers[current]->done = true;
    swapcontext(&fibers[current]->context, &scheduler);
}

inline Index block_index{0};

template <typename F>
void launch(F kernel, int grid, int threads, int bytes, cudaStream_t) {
    body = kernel;
    for (block_index.x = 0; static_cast<int>(block_index.x) < grid; ++block_index.x) {
        shared_memory.assign(bytes + 128, static_cast<char>(0xff));
        block_gate = {};
        warp_gates.assign(threads / 32, {});
        slots.assign(threads / 32, std::vector<char>(2 * 32 * 64));
        fibers.clear();
        for (int i = 0; i < threads; ++i) {
            fibers.push_back(std::make_unique<Fiber>());
            Fiber& fiber = *fibers.back();
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.data();
            fiber.context.uc_stack.ss_size = fiber.stack.size();
            makecontext(&fiber.context, start, 0);
        }
        for (bool alive = true; alive;) {
            alive = false;
            for (int i = 0; i < threads; ++i) {
                current = backwards ? threads - 1 - i : i;
                if (fibers[current]->done) continue;
                alive = true;
                swapcontext(&scheduler, &fibers[current]->context);
            }
        }
    }
}

template <typename T>
T* shared() {
    return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(shared_memory.data()) + 127) / 128 * 128);
}

inline bool may_read(const void* from) {
    const char* const p = static_cast<const char*>(from);
    return std::any_of(readable.begin(), readable.end(), [p](auto range) { return p >= range.first && p + 16 <= range.second; });
}

// 16-byte rows that start in the same group of four banks are read one after the other.
inline void count_conflicts(const void* const* rows) {
    for (int matrix = 0; matrix < 4; ++matrix) {
        int used[8] = {};
        for (int r = 0; r < 8; ++r) ++used[reinterpret_cast<uintptr_t>(rows[matrix * 8 + r]) / 16 % 8];
        if (current % 32 == 0) conflicts += *std::max_element(used, used + 8) - 1;
    }
}

inline float from_half(uint16_t bits) {
    _Float16 value;
    std::memcpy(&value, &bits, 2);
    return static_cast<float>(value);
}

inline uint16_t to_half(float x) {
    const auto value = static_cast<_Float16>(x);
    uint16_t bits;
    std::memcpy(&bits, &value, 2);
    return bits;
}

inline float from_bfloat(uint16_t bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

inline uint16_t to_bfloat(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (std::isnan(x)) return 0x7fff;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct Operands { uint32_t a[4], b[2]; };

// mma.m16n8k16: which lane and register hold an element is from the PTX manual, "Matrix Fragments for mma.m16n8k16".
template <typename Decode>
void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Decode decode) {
    const Operands* const all = exchange(Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}});
    const int lane = current % 32;
    for (int e = 0; e < 4; ++e) {
        const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        for (int k = 0; k < 16; ++k) {
            const uint32_t left = all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2], right = all[column * 4 + k % 8 / 2].b[k / 8];
            c[e] += decode(static_cast<uint16_t>(left >> k % 2 * 16)) * decode(static_cast<uint16_t>(right >> k % 2 * 16));
        }
    }
}

}  // namespace emulator

#define blockIdx emulator::block_index
#define threadIdx (Index{static_cast<unsigned>(emulator::current)})

inline void __syncthreads() { emulator::meet(emulator::block_gate, static_cast<int>(emulator::fibers.size())); }
inline void __syncwarp() { emulator::meet(emulator::warp_gates[emulator::current / 32], 32); }
inline float __shfl_xor_sync(unsigned, float value, int mask) { return emulator::exchange(value)[emulator::current % 32 ^ mask]; }

inline void copy_async(void* to, const void* from, bool inside) {
    if (!emulator::may_read(from)) ++emulator::outside;
    const emulator::Copy copy{to, from, inside};
    if (emulator::eager) emulator::run_copy(copy);
    else emulator::fibers[emulator::current]->groups.back().push_back(copy);
}
inline void copy_commit() { emulator::fibers[emulator::current]->groups.emplace_back(); }
template <int pending>
void copy_wait() {
    auto& groups = emulator::fibers[emulator::current]->groups;
    while (static_cast<int>(groups.size()) - 1 > pending) {
        for (const auto& copy : groups.front()) emulator::run_copy(copy);
        groups.erase(groups.begin());
    }
}

inline void load_matrices(uint32_t (&r)[4], const void* shared) {
    const void* const* rows = emulator::exchange(shared);
    emulator::count_conflicts(rows);
    const int lane = emulator::current % 32;
    for (int i = 0; i < 4; ++i) std::memcpy(&r[i], static_cast<const char*>(rows[i * 8 + lane / 4]) + lane % 4 * 4, 4);
}

inline void load_matrices_transposed(uint32_t (&r)[4], const void* shared) {
    const void* const* rows = emulator::exchange(shared);
    emulator::count_conflicts(rows);
    const int lane = emulator::current % 32;
    for (int i = 0; i < 4; ++i)
        for (int half = 0; half < 2; ++half)
            std::memcpy(reinterpret_cast<char*>(&r[i]) + 2 * half, static_cast<const char*>(rows[i * 8 + lane % 4 * 2 + half]) + lane / 4 * 2, 2);
}

inline float exp2_fast(float x) { return std::exp2(x); }

template <typename T>
struct Type;
template <>
struct Type<__half> {
    static void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { emulator::multiply_add(c, a, b0, b1, emulator::from_half); }
    static uint32_t pack(float low, float high) { return emulator::to_half(low) | static_cast<uint32_t>(emulator::to_half(high)) << 16; }
};
template <>
struct Type<__nv_bfloat16> {
    static void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { emulator::multiply_add(c, a, b0, b1, emulator::from_bfloat); }
    static uint32_t pack(float low, float high) { return emulator::to_bfloat(low) | static_cast<uint32_t>(emulator::to_bfloat(high)) << 16; }
};

extern "C" void emulator_set(int eager, int backwards, const char* const* starts, const long* sizes, int count) {
    emulator::eager = eager, emulator::backwards = backwards, emulator::conflicts = emulator::outside = 0;
    emulator::readable.clear();
    for (int i = 0; i < count; ++i) emulator::readable.emplace_back(starts[i], starts[i] + sizes[i]);
}
extern "C" long emulator_conflicts() { return emulator::conflicts; }
extern "C" long emulator_outside() { return emulator::outside; }
