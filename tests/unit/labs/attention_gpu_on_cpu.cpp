// Runs the lab's CUDA kernels on a CPU, thread by thread, so that their indexing, masking, synchronisation and rounding can be tested without a GPU.
//
// Every CUDA thread is a fiber. The kernel's source is compiled as it is, with the header beside this file for CUDA's and each asm statement as a call
// of `decode`, which reads the PTX text and does what the PTX manual says: register fragments, matrix descriptors, swizzles and all.
//
// A collective (ldmatrix, mma, shuffle, __syncthreads) waits until all its fibers have come. Shared memory starts as NaN. What is asynchronous (cp.async,
// bulk tensor copies, wgmma) happens either when it is issued or as late as its wait allows, and the fibers run in either order, so a missing wait or barrier
// changes the result in one of these ways. wgmma sees shared memory as it was when the threads that wrote it last fenced the async proxy. What no program may do is
// kept as the first fault.
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention_gpu_on_cpu.hpp"

namespace emulator {

// ---- Threads ----

struct Copy { char* to; const char* from; bool inside; };
using Product = std::function<void()>;
struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[kStackBytes]};
    bool done, ordered;                           // ordered: a wgmma.fence came after the last wait
    std::vector<std::vector<Copy>> copies;        // committed groups of cp.async, the last one still open
    std::vector<std::vector<Product>> products;   // the same of wgmma
    std::vector<char*> written;                   // 16 bytes each of shared memory, since this thread's last fence of the async proxy
    static constexpr int kStackBytes = 256 << 10;
};
struct Gate { int arrived = 0; long generation = 0; };
struct BoxCopy { uint64_t to; const char* map; int column, row, head; };
struct Barrier {  // of the kind `mbarrier`
    int expected, pending, owner;  // owner: the thread that initialised it
    bool visible = false;          // to the copy engine: its owner has fenced the async proxy
    long bytes = 0, phase = 0;     // bytes that are still to come
    std::vector<BoxCopy> copies;   // that have not happened yet
};

std::vector<std::unique_ptr<Fiber>> fibers;
int threads = 0, current = 0, major = 9, block_index = 0;
ucontext_t scheduler;
Gate block_gate;
std::vector<Gate> warp_gates, named_gates;
std::map<uint64_t, Barrier> barriers;  // by their address in shared memory
long events = 0;                       // whatever may let some thread go on
std::vector<std::vector<char>> slots;  // [warp][generation parity][lane][64 bytes]
std::function<void()> body;
bool eager_copies = false, eager_products = false, backwards = false;
long conflicts = 0;
std::string first_fault;
std::vector<std::pair<const char*, const char*>> readable;

Fiber& self() { return *fibers[current]; }
void fault(const std::string& what) {
    if (first_fault.empty()) first_fault = what;
}
Index thread() { return {static_cast<unsigned>(current)}; }
Index block() { return {static_cast<unsigned>(block_index)}; }
void yield() { swapcontext(&self().context, &scheduler); }

void arrive(Gate& gate, int members) {
    ++events;
    if (++gate.arrived < members) return;
    gate.arrived = 0;
    ++gate.generation;
}

void meet(Gate& gate, int members) {
    const long generation = gate.generation;
    arrive(gate, members);
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

// ---- Memory ----

constexpr uint32_t kWindow = 1024, kSkew = 128;  // a block's shared memory begins at kWindow + kSkew: aligned as asked for and no better
std::vector<char> shared_memory, published;  // as threads see it, and as wgmma does

void clear_shared(int bytes) {
    shared_memory.assign(kSkew + bytes, static_cast<char>(0xff));
    published = shared_memory;
}
void* shared_begin() { return shared_memory.data() + kSkew; }
uint32_t address_of(const void* p) { return kWindow + static_cast<uint32_t>(static_cast<const char*>(p) - shared_memory.data()); }
char* at(uint64_t address, int bytes, std::vector<char>& memory) {
    if (address >= kWindow + kSkew && address + bytes <= kWindow + memory.size()) return memory.data() + address - kWindow;
    fault("shared memory is accessed outside of it");
    return memory.data();
}

bool may_read(const char* p) {
    return std::any_of(readable.begin(), readable.end(), [p](auto range) { return p >= range.first && p + 16 <= range.second; });
}

void run_copy(const Copy& copy) {
    if (copy.inside) std::memcpy(copy.to, copy.from, 16);
    else std::memset(copy.to, 0, 16);
    self().written.push_back(copy.to);
}

void publish() {
    for (char* const p : self().written) std::memcpy(published.data() + (p - shared_memory.data()), p, 16);
    self().written.clear();
    for (auto& [address, barrier] : barriers) barrier.visible |= barrier.owner == current;
}

// ---- Formats ----

uint16_t to_half(float x) {
    const auto value = static_cast<_Float16>(x);
    uint16_t bits;
    std::memcpy(&bits, &value, 2);
    return bits;
}

uint16_t to_bfloat(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (std::isnan(x)) return 0x7fff;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename Decode>
std::vector<float> table(Decode decode) {
    std::vector<float> values(1 << 16);
    for (uint32_t bits = 0; bits < values.size(); ++bits) values[bits] = decode(bits);
    return values;
}

const std::vector<float> kHalf = table([](uint32_t bits) {
    _Float16 value;
    std::memcpy(&value, &bits, 2);
    return static_cast<float>(value);
});
const std::vector<float> kBfloat = table([](uint32_t bits) {
    float value;
    bits <<= 16;
    std::memcpy(&value, &bits, 4);
    return value;
});

// ---- PTX ----

struct Argument {  // %n, or a number in the text
    int operand;
    uint64_t literal;
    uint64_t value(const Operand* r) const { return operand < 0 ? literal : r[operand].bits; }
};
struct Text {
    std::string name;
    std::vector<std::vector<Argument>> arguments;  // each has one, or as many as stand in braces
    bool is(const char* prefix) const { return name.rfind(prefix, 0) == 0; }
    bool has(const char* part) const { return name.find(part) != std::string::npos; }
    uint64_t value(size_t i, const Operand* r) const { return arguments.at(i).at(0).value(r); }
};

Text read(const std::string& text) {
    Text found;
    size_t i = std::min(text.find_first_of(" ;"), text.size());
    found.name = text.substr(0, i);
    for (bool braces = false; i < text.size(); ++i) {
        if (text[i] == '{') found.arguments.emplace_back();
        if (text[i] == '{' || text[i] == '}') braces = !braces;
        const bool operand = text[i] == '%';
        if (!operand && !std::isdigit(text[i])) continue;
        char* end;
        const uint64_t number = std::strtoul(text.c_str() + i + operand, &end, 10);
        if (!braces) found.arguments.emplace_back();
        found.arguments.back().push_back({operand ? static_cast<int>(number) : -1, number});
        i = end - text.c_str() - 1;
    }
    return found;
}

// What is read of one matrix in ldmatrix: 16-byte rows that start in the same group of four banks are read one after the other.
void count_conflicts(const uint64_t* rows) {
    for (int matrix = 0; matrix < 4; ++matrix) {
        int used[8] = {};
        for (int r = 0; r < 8; ++r) ++used[rows[matrix * 8 + r] / 16 % 8];
        if (current % 32 == 0) conflicts += *std::max_element(used, used + 8) - 1;
    }
}

// ldmatrix .x4: lane 8i + r points at row r of matrix i; register i of lane l gets elements 2(l % 4) and the next of row l / 4, or with .trans of column l / 4.
void load_matrices(const Text& text, Operand* r) {
    const uint64_t* const rows = exchange(text.value(1, r));
    count_conflicts(rows);
    const int lane = current % 32;
    for (int i = 0; i < 4; ++i) {
        auto* const to = static_cast<char*>(r[text.arguments[0][i].operand].at);
        for (int e = 0; e < 2; ++e) {
            const int row = text.has(".trans") ? lane % 4 * 2 + e : lane / 4, column = text.has(".trans") ? lane / 4 : lane % 4 * 2 + e;
            std::memcpy(to + 2 * e, at(rows[i * 8 + row], 16, shared_memory) + 2 * column, 2);
        }
    }
}

float element(const std::vector<float>& format, uint32_t pair, int which) { return format[static_cast<uint16_t>(pair >> 16 * which)]; }

// Left operand of 16 x 16: element (row, k) of a warp's registers. mma.m16n8k16 and wgmma have the same layout.
using Fragment = std::array<uint32_t, 4>;
float left(const std::vector<float>& format, const Fragment* lanes, int row, int k) {
    return element(format, lanes[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2);
}

// mma.m16n8k16: which lane and register hold an element is from the PTX manual, "Matrix Fragments for mma.m16n8k16".
void multiply_add(const Text& text, Operand* r) {
    struct Operands { Fragment a; uint32_t b[2]; } mine;
    for (int i = 0; i < 4; ++i) mine.a[i] = text.arguments[1][i].value(r);
    for (int i = 0; i < 2; ++i) mine.b[i] = text.arguments[2][i].value(r);
    const Operands* const all = exchange(mine);
    std::array<Fragment, 32> a;
    for (int lane = 0; lane < 32; ++lane) a[lane] = all[lane].a;
    const auto& format = text.has(".bf16") ? kBfloat : kHalf;
    const int lane = current % 32;
    for (int e = 0; e < 4; ++e) {
        float& c = *static_cast<float*>(r[text.arguments[0][e].operand].at);
        const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        for (int k = 0; k < 16; ++k) c += left(format, a.data(), row, k) * element(format, all[column * 4 + k % 8 / 2].b[k / 8], k % 2);
    }
}

// An operand of wgmma in shared memory, as the PTX manual's "Matrix Descriptor Format" and "Canonical Layouts" have it for the 128-byte swizzle and
// elements of 2 bytes: patterns of 8 rows of 128 bytes, in which bits 4-6 of an address are exclusive-ored with bits 7-9.
struct Matrix {
    uint64_t start, leading, stride;
    bool mn_major;
    const std::vector<float>* format;

    Matrix(uint64_t bits, bool mn_major, const std::vector<float>& format)
        : start((bits & 0x3fff) << 4), leading((bits >> 16 & 0x3fff) << 4), stride((bits >> 32 & 0x3fff) << 4), mn_major(mn_major), format(&format) {
        if (bits >> 62 != 1) fault("wgmma: only the 128-byte swizzle is emulated");
        if (bits & 0x3fffc000c000c000) fault("wgmma: a descriptor with bits where there are none, or a base offset");
    }
    // The element in row (left operand) or column (right operand) mn, at k of what is summed over.
    float operator()(int mn, int k) const {
        const uint64_t rows = mn_major ? mn / 64 * leading + k / 8 * stride + k % 8 * 128 + mn % 64 * 2 : mn / 8 * stride + mn % 8 * 128 + k * 2;
        const uint64_t address = start + rows;
        uint16_t bits;
        std::memcpy(&bits, at(address ^ (address >> 7 & 7) << 4, 2, published), 2);
        return (*format)[bits];
    }
};

// wgmma.mma_async.m64nNk16: D, A, B, scale-d, imm-scale-a, imm-scale-b, (imm-trans-a where A is in shared memory,) imm-trans-b. Warp w of the group has
// rows 16w to 16w + 15; four accumulators in a row belong to 8 columns, laid out as in mma.m16n8k16.
Product product(const Text& text, Operand* r) {
    const bool registers = text.arguments[1].size() == 4;
    const auto& format = text.has(".bf16") ? kBfloat : kHalf;
    std::vector<float*> d;
    for (const Argument& argument : text.arguments[0]) d.push_back(static_cast<float*>(r[argument.operand].at));
    std::array<const uint32_t*, 4> a{};
    for (int i = 0; registers && i < 4; ++i) a[i] = static_cast<const uint32_t*>(r[text.arguments[1][i].operand].at);
    const uint64_t descriptor_a = text.value(1, r), descriptor_b = text.value(2, r);
    const bool add = text.value(3, r), mn_major_a = !registers && text.value(6, r), mn_major_b = text.value(registers ? 6 : 7, r);
    const int n = std::stoi(text.name.substr(text.name.find(".m64n") + 5));
    if (static_cast<int>(d.size()) != n / 2 || text.value(4, r) != 1 || text.value(5, r) != 1) fault("wgmma: operands do not fit " + text.name);
    return [=, &format] {
        Fragment mine{};
        for (int i = 0; registers && i < 4; ++i) mine[i] = *a[i];  // read when the product is computed, not when it is queued
        const Fragment* const lanes = registers ? exchange(mine) : nullptr;
        const int lane = current % 32, warp = current / 32 % 4;
        float rows[2][16];
        for (int half = 0; half < 2; ++half) {
            for (int k = 0; k < 16; ++k) {
                const int row = half * 8 + lane / 4;
                rows[half][k] = registers ? left(format, lanes, row, k) : Matrix(descriptor_a, mn_major_a, format)(warp * 16 + row, k);
            }
        }
        const Matrix b(descriptor_b, mn_major_b, format);
        for (int column = lane % 4 * 2; column < n; column += column % 2 ? 7 : 1) {
            float values[16];
            for (int k = 0; k < 16; ++k) values[k] = b(column, k);
            for (int half = 0; half < 2; ++half) {
                float& c = *d[column / 8 * 4 + half * 2 + column % 2];
                float sum = add ? c : 0.0f;
                for (int k = 0; k < 16; ++k) sum += rows[half][k] * values[k];
                c = sum;
            }
        }
    };
}

template <typename Group, typename Run>
void wait_for(std::vector<Group>& groups, uint64_t pending, Run run) {
    while (groups.size() - 1 > pending) {
        const Group done = std::move(groups.front());
        groups.erase(groups.begin());
        for (const auto& one : done) run(one);
    }
}

void copy_async(const Text& text, Operand* r) {
    const Copy copy{at(text.value(0, r), 16, shared_memory), reinterpret_cast<const char*>(text.value(1, r)), text.value(3, r) == 16};
    if (!may_read(copy.from)) fault("global memory is read outside of q, k and v");
    if (eager_copies) run_copy(copy);
    else self().copies.back().push_back(copy);
}

// ---- Barriers in shared memory, and the copy engine ----

struct TensorMap { const char* array; uint64_t sizes[3], strides[2]; uint32_t box[3]; };
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

Barrier& barrier_at(uint64_t address) {
    at(address, 8, shared_memory);
    const auto [found, fresh] = barriers.try_emplace(address, Barrier{});
    if (fresh) fault("a barrier is used before it is initialised");
    return found->second;
}

void complete(Barrier& barrier) {
    ++events;
    if (barrier.pending < 0) fault("more threads arrive at a barrier than it expects");
    if (barrier.pending || barrier.bytes) return;
    ++barrier.phase;
    barrier.pending = barrier.expected;
}

void arrive_at(uint64_t address, long bytes) {
    Barrier& barrier = barrier_at(address);
    barrier.bytes += bytes;
    --barrier.pending;
    complete(barrier);
}

// A box of a tensor map in the 128-byte swizzle, as the PTX manual has it: rows of 128 bytes, in which bits 4-6 of an address are exclusive-ored with
// bits 7-9. What lies outside of the array becomes zero, and counts as bytes all the same.
void run_box(const BoxCopy& copy, Barrier& barrier) {
    TensorMap map;
    std::memcpy(&map, copy.map, sizeof map);
    for (uint32_t row = 0; row < map.box[1]; ++row) {
        for (uint32_t chunk = 0; chunk < map.box[0] / 8; ++chunk) {
            const uint64_t column = copy.column + 8 * chunk, down = copy.row + row, address = copy.to + row * 128 + chunk * 16;
            const char* const from = map.array + column * 2 + down * map.strides[0] + copy.head * map.strides[1];
            const bool inside = column < map.sizes[0] && down < map.sizes[1] && static_cast<uint64_t>(copy.head) < map.sizes[2];
            if (inside && !may_read(from)) fault("global memory is read outside of q, k and v");
            for (auto* const memory : {&shared_memory, &published}) {
                char* const to = at(address ^ (address >> 7 & 7) << 4, 16, *memory);
                if (inside) std::memcpy(to, from, 16);
                else std::memset(to, 0, 16);
            }
        }
    }
    barrier.bytes -= map.box[0] * map.box[1] * 2;
    complete(barrier);
}

void copy_box(const Text& text, Operand* r) {
    Barrier& barrier = barrier_at(text.value(3, r));
    if (!barrier.visible) fault("the copy engine cannot see the barrier yet");
    const auto& where = text.arguments.at(2);
    const auto number = [&](int i) { return static_cast<int>(where.at(i).value(r)); };
    const BoxCopy copy{text.value(0, r), reinterpret_cast<const char*>(text.value(1, r)), number(0), number(1), number(2)};
    if (eager_copies) run_box(copy, barrier);
    else barrier.copies.push_back(copy);
}

// Operands: whether the phase of this parity is over, the barrier, the parity.
void try_wait(Operand* r) {
    Barrier& barrier = barrier_at(r[1].bits);
    if (!barrier.pending)
        for (const BoxCopy& copy : std::exchange(barrier.copies, {})) run_box(copy, barrier);
    const uint32_t over = (barrier.phase & 1) != static_cast<long>(r[2].bits);
    std::memcpy(r[0].at, &over, sizeof over);
    if (!over) yield();
}

void queue_product(const Text& text, Operand* r) {
    if (!self().ordered) fault("wgmma.mma_async without wgmma.fence before it");
    if (eager_products) product(text, r)();
    else self().products.back().push_back(product(text, r));
}

Instruction decode(const char* source) {
    const Text text = read(source);
    if (text.name.empty()) return [](Operand*) {};  // an empty statement, which only stops the compiler
    if (text.is("cp.async.cg.shared.global")) return [text](Operand* r) { copy_async(text, r); };
    if (text.is("cp.async.commit_group")) return [](Operand*) { self().copies.emplace_back(); };
    if (text.is("cp.async.wait_group")) return [text](Operand* r) { wait_for(self().copies, text.value(0, r), run_copy); };
    if (std::strstr(source, "mbarrier.try_wait.parity")) return try_wait;
    if (text.is("mbarrier.init")) return [text](Operand* r) {
        const int arrivals = text.value(1, r);
        barriers[text.value(0, r)] = Barrier{arrivals, arrivals, current};
    };
    if (text.is("mbarrier.arrive.expect_tx")) return [text](Operand* r) { arrive_at(text.value(0, r), text.value(1, r)); };
    if (text.is("mbarrier.arrive.shared")) return [text](Operand* r) { arrive_at(text.value(0, r), 0); };
    if (text.is("cp.async.bulk.tensor.3d.shared::cluster.global")) return [text](Operand* r) { copy_box(text, r); };
    if (text.is("bar.sync")) return [text](Operand* r) { meet(named_gates.at(text.value(0, r)), text.value(1, r)); };
    if (text.is("bar.arrive")) return [text](Operand* r) { arrive(named_gates.at(text.value(0, r)), text.value(1, r)); };
    if (text.is("setmaxnreg")) return [](Operand*) {};
    if (text.is("ldmatrix.sync.aligned.m8n8.x4")) return [text](Operand* r) { load_matrices(text, r); };
    if (text.is("mma.sync.aligned.m16n8k16.row.col")) return [text](Operand* r) { multiply_add(text, r); };
    if (text.is("ex2.approx.ftz.f32")) return [](Operand* r) { *static_cast<float*>(r[0].at) = std::exp2(*static_cast<float*>(r[1].at)); };
    if (text.is("fence.proxy.async.shared::cta")) return [](Operand*) { publish(); };
    if (text.is("wgmma.fence.sync.aligned")) return [](Operand*) { self().ordered = true; };
    if (text.is("wgmma.mma_async.sync.aligned.m64n")) return [text](Operand* r) { queue_product(text, r); };
    if (text.is("wgmma.commit_group.sync.aligned")) return [](Operand*) { self().products.emplace_back(); };
    if (text.is("wgmma.wait_group.sync.aligned")) return [text](Operand* r) {
        self().ordered = false;
        wait_for(self().products, text.value(0, r), [](const Product& product) { product(); });
    };
    return [text](Operand*) { fault("not emulated: " + text.name); };
}

// ---- Launching ----

void start() {
    body();
    for (const auto& group : self().products)
        if (!group.empty()) fault("a kernel ends before its wgmma");
    self().done = true;
    ++events;
    swapcontext(&self().context, &scheduler);
}

void prepare_fiber(Fiber& fiber) {
    fiber.done = fiber.ordered = false;
    fiber.copies.assign(1, {});
    fiber.products.assign(1, {});
    fiber.written.clear();
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = Fiber::kStackBytes;
    makecontext(&fiber.context, start, 0);
}

void launch(std::function<void()> kernel, int grid, int block, int bytes, cudaStream_t) {
    body = std::move(kernel);
    threads = block;
    while (static_cast<int>(fibers.size()) < threads) fibers.push_back(std::make_unique<Fiber>());
    for (block_index = 0; block_index < grid; ++block_index) {
        clear_shared(bytes);
        block_gate = {};
        warp_gates.assign(threads / 32, {});
        named_gates.assign(16, {});
        barriers.clear();
        slots.assign(threads / 32, std::vector<char>(2 * 32 * 64));
        for (int i = 0; i < threads; ++i) prepare_fiber(*fibers[i]);
        for (bool alive = true; alive;) {
            alive = false;
            const long before = events;
            for (int i = 0; i < threads; ++i) {
                current = backwards ? threads - 1 - i : i;
                if (self().done) continue;
                alive = true;
                swapcontext(&scheduler, &self().context);
            }
            if (alive && events == before) {
                fault("every thread waits for another one");
                break;
            }
        }
    }
}

}  // namespace emulator

uint64_t __cvta_generic_to_shared(const void* p) { return emulator::address_of(p); }
void __syncthreads() { emulator::meet(emulator::block_gate, emulator::threads); }
void __syncwarp() { emulator::meet(emulator::warp_gates[emulator::current / 32], 32); }
float __shfl_xor_sync(unsigned, float value, int mask) { return emulator::exchange(value)[emulator::current % 32 ^ mask]; }
unsigned __shfl_sync(unsigned, unsigned value, int lane) { return emulator::exchange(value)[lane]; }
__half2 __floats2half2_rn(float low, float high) { return {emulator::to_half(low), emulator::to_half(high)}; }
__nv_bfloat162 __floats2bfloat162_rn(float low, float high) { return {emulator::to_bfloat(low), emulator::to_bfloat(high)}; }
void cudaGetDevice(int* device) { *device = 0; }
void cudaDeviceGetAttribute(int* value, int, int) { *value = emulator::major; }
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, int, uint32_t rank, void* array, const uint64_t* sizes, const uint64_t* strides, const uint32_t* box,
                                const uint32_t* steps, int, int swizzle, int, int) {
    if (rank != 3 || swizzle != CU_TENSOR_MAP_SWIZZLE_128B || box[0] * 2 > 128 || box[2] != 1 || steps[0] != 1 || steps[1] != 1 || steps[2] != 1) return 1;
    const emulator::TensorMap made{static_cast<const char*>(array), {sizes[0], sizes[1], sizes[2]}, {strides[0], strides[1]}, {box[0], box[1], box[2]}};
    std::memcpy(map, &made, sizeof made);
    return 0;
}
int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long, int*) {
    *function = std::strcmp(name, "cuTensorMapEncodeTiled") ? nullptr : reinterpret_cast<void*>(cuTensorMapEncodeTiled);
    return 0;
}

// `eager`: 1 copies, 2 products happen when they are issued.
extern "C" void emulator_set(int major, int eager, int backwards, const char* const* starts, const long* sizes, int count) {
    emulator::major = major, emulator::eager_copies = eager & 1, emulator::eager_products = eager & 2, emulator::backwards = backwards;
    emulator::conflicts = 0;
    emulator::first_fault.clear();
    emulator::readable.clear();
    for (int i = 0; i < count; ++i) emulator::readable.emplace_back(starts[i], starts[i] + sizes[i]);
}
extern "C" long emulator_conflicts() { return emulator::conflicts; }
extern "C" const char* emulator_fault() { return emulator::first_fault.c_str(); }
