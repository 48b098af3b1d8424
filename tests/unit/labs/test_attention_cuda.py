"""The CUDA kernels of the attention lab, run on the CPU thread by thread: indexing, masks,
rounding, barriers and asynchronous copies.

It shows that the source computes attention with its own tiling, order and precision. It shows
nothing of speed, and is no run on a GPU.
"""

import ctypes
import hashlib
import itertools
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from ...modules import load_file

ROOT = Path(__file__).resolve().parents[3]
LAB = ROOT / "labs" / "fused-attention"
SOLUTION = ROOT / "solutions" / "fused-attention" / "attention.cu"
VARIANTS = ROOT / "tests" / "variants" / "fused-attention"
KERNELS = {
    "shipped": (LAB / "attention.cu", 8),
    "solution with mma.sync": (SOLUTION, 8),
    "solution with wgmma": (SOLUTION, 9),
    "variant with mma.sync": (VARIANTS / "mma-sync" / "attention.cu", 9),
    "variant with bulk copies": (VARIANTS / "bulk-copies" / "attention.cu", 9),
}
"""Each kernel's source, and the major compute capability of the GPU that it runs on here."""
EMULATOR = Path(__file__).with_name("attention_gpu_on_cpu.cpp")
COMPILER = ["g++", "-O1", "-std=c++17", "-fno-strict-aliasing", "-w", "-fPIC"]

BULK = "bulk copies"
MISTAKES = {
    "patterns of 8 rows half as far apart": (9, "next_rows >> 4", "next_rows >> 5"),
    "panels as near as patterns": (9, "next_panel >> 4", "next_rows >> 4"),
    "a descriptor without its swizzle": (9, "return swizzle_128", "return 0 * swizzle_128"),
    "tiles without their swizzle": (9, "((chunk % 8) ^ (row % 8))", "(chunk % 8)"),
    "steps twice as wide within a panel": (9, "i % 4 * 32", "i % 4 * 64"),
    "values that are read twice": (9, "i * 2 * kPattern", "i * kPattern"),
    "two registers of an operand exchanged": (9, "p[e] =", "p[e % 2 * 2 + e / 2] ="),
    "copies that wgmma cannot see": (9, "publish();", ""),
    "copies that nobody waited for": (9, "copy_wait<0>();", ""),
    "scores that nobody waited for": (9, "products_wait<1>();", ""),
    "sums that nobody waited for": (9, "products_wait<0>();  // here", "// here"),
    "no barrier between the tiles": (9, "__syncthreads();  // this tile's", "// this tile's"),
    "registers that are not ordered": (9, "products_begin();", ""),
    "values taken for K-major": (9, "1, 1, 1, 1;", "1, 1, 1, 0;"),
    "rows of a tile half as far apart": (8, "i * step * kRowBytes", "i * step / 2 * kRowBytes"),
    "the first strip's queries for both": (8, "local + m * 16 + eight", "local + eight"),
    "the mask of the first strip for both": (8, "w.first + local + m * 16", "w.first + local"),
    "weights of one strip with the other's": (8, "pack<T>(p[m], i)", "pack<T>(p[1 - m], i)"),
    "keys and values that nobody waited for": (8, "copy_wait<0>();", ""),
    "no barrier before the scores": (8, "__syncthreads();  // this tile's", "// this tile's"),
    "no barrier before the sums": (8, "__syncthreads();  // the same for", "// the same for"),
    "keys fetched over those in use": (BULK, "barrier_wait(w.keys_free(tile), before);", "{}"),
    "values fetched over those in use": (BULK, "barrier_wait(w.values_free(tile), before);", "{}"),
    "keys used before they are there": (
        BULK,
        "barrier_wait(w.keys_full(tile), tile / kStages);",
        "",
    ),
    "values used before they are there": (
        BULK,
        "barrier_wait(w.values_full(tile - 1), (tile - 1) / kStages);",
        "",
    ),
    "queries used before they are there": (BULK, "barrier_wait(w.queries_full(), 0);", ""),
    "half of the rows fetched": (BULK, "row += kBoxRows", "row += 2 * kBoxRows"),
    "the same columns in every panel": (BULK, "map, panel * 64,", "map, 0,"),
    "the first warpgroup's queries for all": (BULK, "+ group * kGroupQueries", "+ 0"),
    "barriers that the copy engine cannot see": (BULK, "        publish();\n", ""),
    "tiles left by half of the warps": (BULK, "4 * B::groups", "2 * B::groups"),
    "keys left while they are read": (
        BULK,
        "products_wait<1>();\n        settle(strip.s);\n        if (speaks)",
        "if (speaks)",
    ),
    "sums that are still added up": (BULK, "        products_wait<0>();\n", ""),
    "the phase before": (
        BULK,
        "barrier_wait(w.keys_full(tile), tile / kStages)",
        "barrier_wait(w.keys_full(tile), tile / kStages - 1)",
    ),
    "a turn that is never given": (BULK, "turn_give((group + 1) % groups);", "{}"),
}
"""What may be wrong with the solution on a GPU of a major compute capability, or with the variant
that fetches by bulk copies: text of the source, and what stands there then.
"""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to build the emulation"),
]


JUDGE = load_file(LAB / "judge.py", "attention_judge")


def statements(source: str) -> Iterator[tuple[int, int, list[str]]]:
    """Where each asm statement of a source begins and ends, and its parts: the text, outputs,
    inputs, clobbers.
    """
    for match in re.finditer(r"\basm(?: volatile)?\(", source):
        parts, depth, quoted, end = [""], 1, False, match.end()
        while depth:
            letter = source[end]
            quoted ^= letter == '"'
            depth += 0 if quoted else {"(": 1, ")": -1}.get(letter, 0)
            if letter == ":" and depth == 1 and not quoted:
                parts.append("")
            elif depth:
                parts[-1] += letter
            end += 1
        yield match.start(), end, parts


def emulated(source: str) -> str:
    """The kernel's source with the emulator in place of CUDA's headers, its launch, its shared
    memory and its asm statements.
    """
    for begin, end, (text, *operands) in reversed(list(statements(source))):
        registers = "".join(f"{part}," for part in operands[:2] if part.strip())
        call = (
            f"{{ static const auto ptx = emulator::decode({text}); emulator::Operand given[] ="
            f" {{{registers} {{}}}}; ptx(given); }}"
        )
        source = source[:begin] + call + source[end:]
    for constraint, name in (("[+][fr]", "both"), ("=[fr]", "out"), ("[frln]", "in")):
        source = re.sub(rf'"{constraint}"\(', f"emulator::{name}(", source)
    source = re.sub(r"#include <cuda\w*\.h>\n", "", source)
    source = re.sub(
        r"extern __shared__ __align__\(128\) (\w+) shared\[\];",
        r"\1* const shared = emulator::shared<\1>();",
        source,
    )
    source = re.sub(
        r"(attention_kernel<T, dim>)<<<(.+?)>>>\((.*?)\);",
        r"emulator::launch([=] { \1(\3); }, \2);",
        source,
    )
    return f'#include "{EMULATOR.with_suffix(".hpp")}"\n{source}'


@pytest.fixture(scope="module")
def emulator(libraries) -> Path:
    """The emulator, compiled once for all kernels."""
    return built(libraries / "emulator.o", EMULATOR.read_text(), "-c")


def built(target: Path, source: str, *options: str, objects: tuple[Path, ...] = ()) -> Path:
    """Compile a source that may include the emulator, unless that has been done before. Return the
    path: `target` with the content and the command in its name.
    """
    command = [*COMPILER, *options, "-I", EMULATOR.parent, "-x", "c++", "-", "-x", "none", *objects]
    texts = [source, EMULATOR.with_suffix(".hpp").read_text(), *map(str, command)]
    key = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]
    target = target.with_stem(f"{target.stem}-{key}")
    if not target.exists():
        with TemporaryDirectory(dir=target.parent) as scratch:
            fresh = Path(scratch) / target.name
            subprocess.run([*command, "-o", fresh], input=source.encode(), check=True, timeout=120)
            fresh.replace(target)  # whole: another process may be looking for it
    return target


def compiled(source: str, major: int, emulator: Path, *options: str) -> ctypes.CDLL:
    """A kernel's source as a library that runs on this machine's CPU, for a GPU of this major
    compute capability.
    """
    options = ("-D__CUDA_ARCH_FEAT_SM90_ALL", *options) if major == 9 else options
    target = emulator.with_name("kernel.so")
    library = ctypes.CDLL(
        str(built(target, emulated(source), *options, "-shared", objects=(emulator,)))
    )
    library.emulator_conflicts.restype, library.emulator_fault.restype = (
        ctypes.c_long,
        ctypes.c_char_p,
    )
    library.major = major
    return library


@pytest.fixture(scope="module", params=KERNELS)
def kernel(request, emulator):
    source, major = KERNELS[request.param]
    return request.param, compiled(source.read_text(), major, emulator)


def bits(array: np.ndarray, bf16: bool) -> np.ndarray:
    """The array as the kernel's 16-bit format, to nearest even."""
    if not bf16:
        return np.ascontiguousarray(array.astype(np.float16)).view(np.uint16)
    return JUDGE._coded(array, "bf16")


def values(array: np.ndarray, bf16: bool) -> np.ndarray:
    return (
        (array.astype(np.uint32) << 16).view(np.float32)
        if bf16
        else array.view(np.float16).astype(np.float32)
    )


def launch(library, q, k, v, *, causal, bf16, eager=0, backwards=0, entry="attention_forward"):
    """The kernel's answer, and what it did that no kernel may do (empty: nothing)."""
    heads, seq, dim = q.shape
    guarded = np.full(q.size + 512, 0x7FFF, np.uint16)
    out = guarded[256:-256]
    inputs = [q, k, v]
    starts = (ctypes.c_void_p * 3)(*(array.ctypes.data for array in inputs))
    sizes = (ctypes.c_long * 3)(*(array.nbytes for array in inputs))
    library.emulator_set(library.major, eager, backwards, starts, sizes, 3)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*inputs, out)]
    assert library[entry](*pointers, heads, seq, dim, int(causal), int(bf16), None) == 0
    outside = (guarded[:256] != 0x7FFF).any() or (guarded[-256:] != 0x7FFF).any()
    return out.reshape(q.shape).copy(), (
        "it writes outside of its output" if outside else library.emulator_fault().decode()
    )


def run(library, q, k, v, **how):
    """The answer of a kernel that does nothing forbidden."""
    answer, fault = launch(library, q, k, v, **how)
    assert fault == ""
    return answer


@pytest.mark.parametrize(
    ("seq", "dim", "causal", "bf16"),
    [
        (1, 64, True, False),
        (65, 64, False, True),
        (129, 128, True, False),
        (200, 64, True, True),
        (150, 128, False, True),
    ],
)
def test_answers_are_as_exact_as_the_format_allows(kernel, seq, dim, causal, bf16):
    rng = np.random.default_rng(seq)
    q, k, v = (bits(rng.standard_normal((2, seq, dim), dtype=np.float32), bf16) for _ in range(3))
    got = values(run(kernel[1], q, k, v, causal=causal, bf16=bf16), bf16)
    truth = JUDGE.exact(*(values(x, bf16) for x in (q, k, v)), causal)
    assert np.isfinite(got).all()
    assert (
        np.abs(got - truth).max()
        <= JUDGE.ERROR_FLOOR["bf16" if bf16 else "fp16"] * np.abs(values(v, bf16)).max() / 2
    )


@pytest.mark.parametrize("kind", JUDGE._KINDS)
def test_extreme_inputs(kernel, kind):
    shape = JUDGE.Shape(1, 1, 97, 64, True, 1, "fp16", 1)
    q, k, v = (
        bits(x.reshape(-1, 97, 64), False)
        for x in JUDGE._extreme(np.random.default_rng(5), kind, shape)
    )
    got = values(run(kernel[1], q, k, v, causal=True, bf16=False), False)
    truth = JUDGE.exact(*(values(x, False) for x in (q, k, v)), True)
    assert np.abs(got - truth).max() <= JUDGE.ERROR_FLOOR["fp16"] * np.abs(values(v, False)).max()


def test_no_barrier_and_no_wait_is_missing(kernel):
    """The order of threads and the moment of what is asynchronous change nothing, to the bit. Three
    tiles of keys: both buffers are used again.
    """
    name, library = kernel
    seq, modes = (
        (257, ((0, 0), (0, 1), (3, 0), (1, 1), (2, 1)))
        if name in ("solution with wgmma", "variant with bulk copies")
        else (161, ((0, 0), (0, 1), (1, 0), (1, 1)))
    )
    rng = np.random.default_rng(7)
    q, k, v = (bits(rng.standard_normal((1, seq, 64), dtype=np.float32), False) for _ in range(3))
    answers = [
        run(library, q, k, v, causal=True, bf16=False, eager=e, backwards=b).tobytes()
        for e, b in modes
    ]
    assert len(set(answers)) == 1


def test_shared_memory_conflicts_are_gone_in_the_solution(kernel):
    rng = np.random.default_rng(9)
    q, k, v = (bits(rng.standard_normal((1, 64, 128), dtype=np.float32), False) for _ in range(3))
    run(kernel[1], q, k, v, causal=False, bf16=False)
    name, library = kernel
    assert (library.emulator_conflicts() > 0) == (name == "shipped")


@pytest.fixture(scope="module")
def mistaken(emulator):
    """Each kernel for float16 and 128 columns: once with each mistake, and last as it is, in one
    library.
    """
    return {of: _mistaken(of, emulator) for of in (8, 9, BULK)}


def _mistaken(of: int | str, emulator: Path) -> ctypes.CDLL:
    file, begin, way = {
        8: (SOLUTION, "    int device = 0", ", false"),
        9: (SOLUTION, "    int device = 0", ", true"),
        BULK: (VARIANTS / "bulk-copies" / "attention.cu", "    int device = 0", ""),
    }[of]
    source = file.read_text()
    only = (
        f"    return launch<__half, 128{way}>(q, k, v, out, heads, seq, causal,"
        " static_cast<cudaStream_t>(stream));\n}\n"
    )
    source = source[: source.rindex(begin)] + only
    copies = []
    for number, right, wrong in [*_mistakes(of), (len(MISTAKES), "", "")]:
        assert right in source
        copy = source.replace(right, wrong) if right else source
        copies.append(
            f"namespace n{number}"
            f" {{\n{copy.replace('attention_forward', f'attention_forward_{number}')}}}\n"
        )
    return compiled("".join(copies), 8 if of == 8 else 9, emulator, "-O0")


def _mistakes(kernel: int | str) -> list[tuple[int, str, str]]:
    """(number, right text, wrong text) of the mistakes in a kernel."""
    return [
        (number, right, wrong)
        for number, (of, right, wrong) in enumerate(MISTAKES.values())
        if of == kernel
    ]


@pytest.mark.parametrize(
    ("of", "number"),
    [
        *((of, number) for number, (of, *_) in enumerate(MISTAKES.values())),
        (8, len(MISTAKES)),
        (9, len(MISTAKES)),
        (BULK, len(MISTAKES)),
    ],
    ids=[*MISTAKES, "none with mma.sync", "none with wgmma", "none with bulk copies"],
)
def test_a_mistake_in_a_kernel_is_noticed(mistaken, of, number):
    """It shows as a wrong answer, or as something that no kernel may do, in some order of threads
    and at some moment of what is asynchronous.
    """
    rng = np.random.default_rng(3)
    # Bulk copies fill a stage again for the third tile of 128 keys.
    shape = (1, 300 if of == BULK else 200, 128)
    q, k, v = (bits(rng.standard_normal(shape, dtype=np.float32), False) for _ in range(3))
    truth = JUDGE.exact(*(values(x, False) for x in (q, k, v)), True)

    def wrong(eager: int, backwards: int) -> bool:
        entry = f"attention_forward_{number}"
        answer, fault = launch(
            mistaken[of],
            q,
            k,
            v,
            causal=True,
            bf16=False,
            eager=eager,
            backwards=backwards,
            entry=entry,
        )
        return (
            bool(fault)
            or not np.abs(values(answer, False) - truth).max() < JUDGE.ERROR_FLOOR["fp16"]
        )

    assert any(wrong(e, b) for e, b in itertools.product((0, 3), range(2))) == (
        number < len(MISTAKES)
    )
