// Stands in for the CUDA runtime, so that a kernel's host code runs without a GPU: each launch is told to `seen`, and nothing is launched.
//
// Linked into the library of the kernel. The calls that nvcc generates for <<<...>>> are those of crt/host_runtime.h, old and new.
#include <stddef.h>

typedef struct { unsigned x, y, z; } dim3;
typedef void (*seen_t)(const char* kernel, const unsigned* grid_and_block, void** arguments, size_t shared_bytes);

enum { kMostKernels = 1024, kMajor = 75, kMinor = 76, kMultiprocessors = 16, kSharedBytes = 97 };

static struct { const void* host; const char* name; } kernels[kMostKernels];
static int known = 0, capability = 90;
static seen_t seen = 0;
static dim3 grid, block;
static size_t shared;
static void* stream;

void lab_follow(seen_t callback, int compute_capability) {
    seen = callback;
    capability = compute_capability;
}

static const char* name_of(const void* host) {
    for (int i = 0; i < known; ++i)
        if (kernels[i].host == host) return kernels[i].name;
    return "";
}

void** __cudaRegisterFatBinary(void* binary) { return (void**)binary; }
void __cudaRegisterFatBinaryEnd(void** handle) {}
void __cudaUnregisterFatBinary(void** handle) {}
void __cudaRegisterVar(void** handle, char* host, char* address, const char* name, int ext, size_t size, int constant, int global) {}
void __cudaRegisterFunction(void** handle, const char* host, char* fun, const char* name, int limit, void* a, void* b, void* c, void* d, int* e) {
    if (known < kMostKernels) {
        kernels[known].host = host;
        kernels[known++].name = name;
    }
}

unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t bytes, void* on) {
    grid = g, block = b, shared = bytes, stream = on;
    return 0;
}
int __cudaPopCallConfiguration(dim3* g, dim3* b, size_t* bytes, void* on) {
    *g = grid, *b = block, *bytes = shared, *(void**)on = stream;
    return 0;
}
int cudaLaunchKernel(const void* host, dim3 g, dim3 b, void** arguments, size_t bytes, void* on) {
    const unsigned shape[6] = {g.x, g.y, g.z, b.x, b.y, b.z};
    if (seen) seen(name_of(host), shape, arguments, bytes);
    return 0;
}
int __cudaGetKernel(void** kernel, const void* host) {
    *kernel = (void*)host;
    return 0;
}
int __cudaLaunchKernel(void* kernel, dim3 g, dim3 b, void** arguments, size_t bytes, void* on) { return cudaLaunchKernel(kernel, g, b, arguments, bytes, on); }

int cudaFuncSetAttribute(const void* host, int attribute, int value) { return 0; }
// Host code asks the driver for what encodes Hopper's tensor maps; a map stays as it was.
static int encode(void) { return 0; }
int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version, unsigned long long flags, int* answer) {
    *function = (void*)encode;
    return 0;
}
int cudaGetLastError(void) { return 0; }
int cudaPeekAtLastError(void) { return 0; }
const char* cudaGetErrorString(int error) { return "no error"; }
int cudaGetDevice(int* device) { return *device = 0; }
int cudaDeviceGetAttribute(int* value, int attribute, int device) {
    *value = attribute == kMajor ? capability / 10 : attribute == kMinor ? capability % 10 : attribute == kMultiprocessors ? 132 : attribute == kSharedBytes ? 227 << 10 : 0;
    return 0;
}
