// What a CUDA kernel of the lab is compiled with to run on a CPU: see attention_gpu_on_cpu.cpp.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define blockIdx emulator::block()
#define threadIdx emulator::thread()
using std::max;
using std::min;
using cudaError_t = int;
using cudaStream_t = void*;
constexpr int cudaSuccess = 0, cudaFuncAttributeMaxDynamicSharedMemorySize = 0, cudaDevAttrComputeCapabilityMajor = 0, cudaErrorNoKernelImageForDevice = 209;
template <typename F>
int cudaFuncSetAttribute(F, int, int) { return 0; }
inline int cudaGetLastError() { return 0; }
void cudaGetDevice(int* device);
void cudaDeviceGetAttribute(int* value, int attribute, int device);

// Of the driver: tensor maps, which describe an array to the copy engine.
using CUresult = int;
using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;
using cudaDriverEntryPointQueryResult = int;
struct alignas(64) CUtensorMap { uint64_t opaque[16]; };
constexpr int CUDA_ERROR_NOT_FOUND = 500, cudaEnableDefault = 0;
constexpr int CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9, CU_TENSOR_MAP_INTERLEAVE_NONE = 0;
constexpr int CU_TENSOR_MAP_SWIZZLE_128B = 3, CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0;
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, int type, uint32_t rank, void* array, const uint64_t* sizes, const uint64_t* strides, const uint32_t* box,
                                const uint32_t* steps, int interleave, int swizzle, int promotion, int fill);
int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version, unsigned long long flags, int* answer);

struct uint4 { uint32_t x, y, z, w; };
struct Index { unsigned x; };
struct __half {};
struct __nv_bfloat16 {};
struct alignas(4) __half2 { uint16_t low, high; };
struct alignas(4) __nv_bfloat162 { uint16_t low, high; };
__half2 __floats2half2_rn(float low, float high);
__nv_bfloat162 __floats2bfloat162_rn(float low, float high);

uint64_t __cvta_generic_to_shared(const void* p);
void __syncthreads();
void __syncwarp();
float __shfl_xor_sync(unsigned lanes, float value, int mask);
unsigned __shfl_sync(unsigned lanes, unsigned value, int lane);

namespace emulator {

Index thread();
Index block();
void launch(std::function<void()> kernel, int grid, int block, int bytes, cudaStream_t);
void* shared_begin();
template <typename T>
T* shared() { return static_cast<T*>(shared_begin()); }

struct Operand { void* at; uint64_t bits; };  // a register of this thread, and what it held when the instruction was issued
template <typename T>
Operand in(const T& x) {
    Operand operand{const_cast<T*>(&x), 0};
    std::memcpy(&operand.bits, &x, sizeof(T));
    return operand;
}
template <typename T>
Operand both(T& x) { return in(x); }
template <typename T>
Operand out(T& x) { return {&x, 0}; }

using Instruction = std::function<void(Operand*)>;
Instruction decode(const char* text);  // of an asm statement

}  // namespace emulator
