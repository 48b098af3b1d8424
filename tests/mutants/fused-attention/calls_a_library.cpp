#include <dlfcn.h>

extern "C" int PyRun_SimpleString(const char*);
extern "C" int PyGILState_Ensure();

extern "C" void attention_forward(const float* q, const float* k, const float* v, float* out, int heads, int seq, int dim, int causal, int threads) {
    PyGILState_Ensure();
    PyRun_SimpleString("import torch");
    dlopen("libtorch_cpu.so", RTLD_NOW);
}
