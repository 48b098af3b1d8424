"""Compilers found and run, and machine code read: from recorded text everywhere, from a real
compiler where there is one.
"""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from bottleneck_lab import programs
from bottleneck_lab.analysis.machine_code.sass import describe, occupancy, read_reports
from bottleneck_lab.catalog import load_labs
from bottleneck_lab.errors import CaptureError, MachineError, UsageError
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.kinds.speedup.cuda import static_check
from bottleneck_lab.measure.kinds.speedup.cuda.compilers import compile_cubin, complaint
from bottleneck_lab.measure.kinds.speedup.cuda.launches import read_launches
from bottleneck_lab.measure.kinds.speedup.cuda.static_check import check_binary, check_source
from bottleneck_lab.measure.sandbox.native_code import refuse_libraries
from bottleneck_lab.measure.settings import HostCall
from bottleneck_lab.programs import find_program, require_program

from ...modules import load_file

ROOT = Path(__file__).resolve().parents[3]
LAB = ROOT / "labs" / "fused-attention"
SOLUTION = ROOT / "solutions" / "fused-attention"
MMA_SYNC = ROOT / "tests" / "variants" / "fused-attention" / "mma-sync"
BULK_COPIES = MMA_SYNC.with_name("bulk-copies")

needs_nvcc = pytest.mark.skipif(
    find_program("nvcc") is None, reason="needs nvcc: pip install 'bottleneck-lab[nvcc]'"
)
needs_disassembler = pytest.mark.skipif(
    find_program("nvdisasm") is None, reason="needs nvdisasm, which comes with Triton"
)

RESOURCES = """
Resource usage:
 Common:
  GLOBAL:0
 Function slow:
  REG:40 STACK:16 SHARED:5120 LOCAL:0 CONSTANT[0]:560 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
SASS = """
\tcode for sm_90a
\t\tFunction : slow
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;              /* 0x00000a00ff017b82 */
        /*0010*/                   LDG.E R2, desc[UR4][R2.64] ;        /* 0x0000000402027981 */
        /*0020*/              @!P0 LDG.E.128.CONSTANT R4, [R2.64] ;    /* 0x0000000402027981 */
        /*0030*/                   LDG.E.U16 R4, [R2.64] ;
        /*0040*/                   LDGSTS.E.BYPASS.128 [R9], [R2.64] ;
        /*0050*/             @!UP0 STL.64 [R1], R4 ;
        /*0060*/                   LDL R4, [R1] ;
        /*0070*/                   HGMMA.64x64x16.F32 R24, gdesc[UR4] ;
        /*0080*/                   NOP ;
"""
ELF = """
.nv.info.slow
\t<0x1>
\tAttribute:\tEIATTR_MAX_THREADS
\tFormat:\tEIFMT_SVAL
\tValue:\t0x80 0x2 0x1
"""


def test_machine_code_is_read_into_rows():
    (report,) = read_reports(RESOURCES, SASS, ELF)
    assert (report.name, report.arch, report.registers, report.stack_bytes) == (
        "slow",
        "90a",
        40,
        16,
    )
    assert report.shared_bytes == 4096  # without the system's KiB
    assert report.max_threads == 256
    assert report.global_load_bytes == {16: 1, 4: 1, 2: 1}
    assert report.async_copies == {16: 1}
    assert report.tensor_core == {"HGMMA": 1}
    assert (report.local_loads, report.local_stores) == (1, 1)
    assert report.instructions == 8


def test_code_without_a_kernel_is_refused():
    with pytest.raises(CaptureError, match="no kernel"):
        read_reports("", "code for sm_80")


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "threads", "blocks", "limit"),
    [
        ("90a", 32, 0, 1024, 2, "registers"),  # 64 warps are full
        ("90", 168, 0, 384, 1, "registers"),
        ("80", 255, 0, 128, 2, "registers"),
        ("80", 64, 100 << 10, 128, 1, "shared memory"),
        ("80", 128, 48 << 10, 256, 2, "registers"),
        ("75", 16, 0, 1024, 1, "threads"),
        ("90", 16, 0, 32, 32, "blocks"),
    ],
)
def test_occupancy_by_the_published_limits(arch, registers, shared, threads, blocks, limit):
    fit = occupancy(arch, registers, shared, threads)
    assert (fit.blocks, fit.limit) == (blocks, limit)


def test_an_unknown_architecture_is_said_to_be_unknown():
    with pytest.raises(CaptureError, match="sm_42"):
        occupancy("42", 32, 0, 128)


@needs_nvcc
def test_a_kernel_is_compiled_once_and_whole(tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text("__global__ void two(int *out) { *out = 2; }\n")
    first = compile_cubin(source, "80", tmp_path / "cache")
    stamp = first.stat().st_mtime_ns
    assert compile_cubin(source, "80", tmp_path / "cache") == first
    assert first.stat().st_mtime_ns == stamp
    assert compile_cubin(source, "90", tmp_path / "cache") != first
    assert sorted(p.suffixes[-2:] for p in (tmp_path / "cache").iterdir()) == [
        [".sm_80", ".cubin"],
        [".sm_90", ".cubin"],
    ]


@needs_nvcc
def test_an_error_is_shown_with_the_learners_own_line(tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text("int one = 1;\nint two = missing;\n")
    with pytest.raises(UsageError, match=r"kernel.cu, line 2: .*missing.*\n    int two = missing;"):
        compile_cubin(source, "80", tmp_path / "cache")


def test_complaints_of_nvcc_are_read_too(tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text("a\nb\nint x = y;\n")
    output = (
        'kernel.cu(3): error: identifier "y" is undefined\n1 error detected in the compilation of'
        ' "kernel.cu".\n'
    )
    assert 'kernel.cu, line 3: identifier "y" is undefined\n    int x = y;' in complaint(
        source, output
    )
    many = "".join(f"kernel.cu({i % 3 + 1}): error: no\n" for i in range(9))
    assert "… and 4 more" in complaint(source, many)
    assert "does not compile: nvlink says no" in complaint(source, "nvlink says no")


def test_a_missing_tool_comes_with_its_remedy(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(programs, "_folders", lambda: iter(()))
    with pytest.raises(MachineError) as caught:
        require_program("nvcc")
    assert "bottleneck-lab[nvcc]" in caught.value.remedy


@pytest.mark.long
@needs_nvcc
@needs_disassembler
@pytest.mark.parametrize("arch", ["80", "90a"])
def test_the_static_check_tells_the_solution_from_the_shipped_kernel(arch, cubins):
    shipped, solution = (_reports(folder, arch, cubins) for folder in (LAB, SOLUTION))
    assert len(shipped) == len(solution) == 4  # two formats, two head dimensions
    for report in shipped:
        assert report.widest_load_bytes == 4
        assert any("4 bytes" in sentence for sentence in describe(report))
    for report in solution:
        wide = "Li128E" in report.name
        threads, products, blocks = (128, {"HMMA": 256 if wide else 128}, 2)
        if arch == "90a":
            # wgmma takes 16 columns of the queries or 16 of a tile's 128 keys at a time: the first
            # tile's scores, a turn of the loop, the last sums.
            threads, products, blocks = (
                (256, {"HGMMA": 8 + 16 + 8}, 1) if wide else (384, {"HGMMA": 4 + 12 + 8}, 1)
            )
        assert set(report.async_copies) == {16}
        assert report.tensor_core == products
        assert report.local_loads + report.local_stores == 0
        assert report.max_threads == threads
        assert report.occupancy().blocks == blocks


@pytest.mark.long
@needs_nvcc
@needs_disassembler
@pytest.mark.parametrize(
    ("folder", "threads", "wasteful"),
    [(LAB, [128] * 4, 4), (SOLUTION, [256, 256, 384, 384], 0)],
    ids=["shipped", "solution"],
)
def test_launches_are_seen_and_a_warp_is_followed_without_a_gpu(folder, threads, wasteful, cubins):
    found = _followed(folder, cubins)
    assert [one.launch.threads for one in found] == threads
    assert all(one.launch.dynamic_shared_bytes >= 16384 and one.followed.whole for one in found)
    assert [sum(access.wasteful for access in one.followed.accesses) for one in found] == [
        wasteful
    ] * 4


@pytest.mark.long
@needs_nvcc
@needs_disassembler
def test_the_shipped_kernel_is_slow_for_what_the_lab_teaches(cubins):
    """Beside a kernel of the same tiles on the same tensor cores: every `ldmatrix` passes twice,
    and global memory is read 4 bytes a thread.
    """
    shipped, in_order = (_followed(folder, cubins) for folder in (LAB, MMA_SYNC))
    for slow, fast in zip(shipped, in_order, strict=True):
        assert _each(slow, "shared", "ldmatrix") == {8}
        assert _each(fast, "shared", "ldmatrix") == {4}
        assert _each(slow, "global", "loads") == {4}, (
            "128 bytes in a row, one sector after the other"
        )
        assert _each(fast, "global", "copies") == {16}
        assert 1.5 < _passes(slow) / _passes(fast) < 2


@pytest.mark.long
@needs_nvcc
def test_a_test_an_element_is_a_cause_of_its_own(cubins, tmp_path):
    """64 scores a lane are tested twice a tile, whether a tile is on the diagonal or not."""
    source = (LAB / "attention.cu").read_text()
    test = "if (key < seq && (!causal || key <= query))"
    assert source.count(test) == 2
    (tmp_path / "attention.cu").write_text(source.replace(test, "if (true)"))
    shipped, without = (_reports(folder, "80", cubins) for folder in (LAB, tmp_path))
    for one, other in zip(shipped, without, strict=True):
        assert (
            one.tensor_core == other.tensor_core == {"HMMA": 256 if "Li128E" in one.name else 128}
        )
        assert one.instructions - other.instructions > 500


@needs_nvcc
@needs_disassembler
def test_an_edit_shows_in_what_a_warp_does(tmp_path):
    """16 bytes of padding a row of shared memory instead of 32: no conflict of `ldmatrix` is left,
    and the block needs less.
    """
    source = (LAB / "attention.cu").read_text()
    assert "kPadding = 16;" in source
    (tmp_path / "attention.cu").write_text(source.replace("kPadding = 16;", "kPadding = 8;"))
    first = read_launches(tmp_path / "attention.cu", _launches()[:1], tmp_path / "cache")[0]
    assert first.launch.dynamic_shared_bytes == 256 * 136 * 2
    assert _each(first, "shared", "ldmatrix") == {4}
    assert {
        (access.space, access.what) for access in first.followed.accesses if access.wasteful
    } == {("global", "stores")}


def _each(found, space, what):
    """What one request of a kind costs, in passes or in sectors."""
    return {
        one.cost / one.requests
        for one in found.followed.accesses
        if (one.space, one.what) == (space, what)
    }


def _passes(found):
    """Through the banks of shared memory, by one warp."""
    return sum(access.cost for access in found.followed.accesses if access.space == "shared")


@cache
def _reports(folder, arch, cubins):
    """What the static check reads in a folder's kernels."""
    return check_source(folder / "attention.cu", arch, cubins)


@cache
def _followed(folder, cubins):
    """The launches of a folder's kernels, and what a warp does in each."""
    return read_launches(folder / "attention.cu", _launches(), cubins)


def _launches():
    lab = load_labs()["fused-attention"]
    return kind_of(lab).settings(lab, "cuda").launches


@needs_nvcc
@needs_disassembler
def test_host_code_that_crashes_is_no_fault_of_the_program(tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text(
        '__global__ void kernel(int *out) { *out = 1; }\nextern "C" void run(int *out) {'
        " kernel<<<2, 96>>>(out); *out = 0; kernel<<<1, 1>>>(out); }\n"
    )
    (seen,) = read_launches(source, (HostCall("run", ("array",)),), tmp_path / "cache")
    assert (seen.launch.grid[0], seen.launch.threads) == (2, 96)


@needs_nvcc
@needs_disassembler
@pytest.mark.parametrize("folder", [SOLUTION, BULK_COPIES], ids=["solution", "bulk copies"])
def test_scores_are_weighed_while_wgmma_adds(folder, tmp_path):
    binding = load_file(LAB / "attention.py", "attention_binding")
    source, built = folder / "attention.cu", tmp_path / "kernel.o"
    command = [
        find_program("nvcc"),
        *binding.CUDA_COMPILER,
        "-Xptxas",
        "-v",
        "-gencode",
        "arch=compute_90a,code=sm_90a",
    ]
    done = subprocess.run(
        [*command, "-c", source, "-o", built], capture_output=True, text=True, check=True
    )
    assert (
        "serialized" not in done.stderr + done.stdout
    )  # ptxas says so when it has to wait for each product
    assert "warning" not in done.stderr + done.stdout
    refuse_libraries(source.name, built)
    sass = static_check.disassembled("-sass", built, lambda command: command)
    for code in sass.split("Function : ")[1:]:
        # After the wait that leaves the sums in flight come all weights of a tile and two factors,
        # with no other wait before the loop's next turn.
        (hidden,) = re.findall(
            r"WARPGROUP\.DEPBAR\.LE gsb0, 0x1(.*?)(?:WARPGROUP|HGMMA)", code, re.DOTALL
        )
        assert hidden.count("MUFU.EX2") == 64 + 2


@pytest.mark.long
@needs_nvcc
@needs_disassembler
def test_bulk_copies_cost_the_warps_that_compute_neither_loads_nor_registers(cubins):
    for report in _reports(BULK_COPIES, "90a", cubins):
        wide = "Li128E" in report.name
        threads, registers = (384, 168) if wide else (512, 128)
        # Of the queries and of a tile of keys and of values: 64 rows and 64 columns each.
        assert report.bulk_copies == (4 + 4 + 4 if wide else 3 + 2 + 2)
        assert not report.global_load_bytes
        assert not report.async_copies
        assert report.widest_load_bytes == 16
        assert report.tensor_core == {"HGMMA": 8 + 16 + 8 if wide else 4 + 12 + 8}
        assert report.local_loads + report.local_stores == 0
        assert (report.max_threads, report.registers) == (threads, registers)
    seen = [one.launch for one in _followed(BULK_COPIES, cubins)]
    assert [launch.threads for launch in seen] == [384, 384, 512, 512]
    assert all(launch.dynamic_shared_bytes <= 227 << 10 for launch in seen)


@needs_nvcc
@pytest.mark.parametrize("folder", [SOLUTION, BULK_COPIES], ids=["solution", "bulk copies"])
def test_hopper_without_its_own_instructions_is_refused(folder, tmp_path):
    """The host would launch wgmma's blocks, and the code for sm_90 would be that of mma.sync."""
    with pytest.raises(UsageError, match="compile with -gencode arch=compute_90a,code=sm_90a"):
        compile_cubin(folder / "attention.cu", "90", tmp_path)


@needs_nvcc
def test_a_mistake_in_cuda_code_names_its_line(tmp_path):
    source = tmp_path / "attention.cu"
    source.write_text("__global__ void kernel() {\n    missing();\n}\n")
    with pytest.raises(UsageError, match=r"attention.cu, line 2: .*\n    missing\(\);"):
        compile_cubin(source, "80", tmp_path / "cache")


@pytest.mark.long
@needs_disassembler
@pytest.mark.parametrize("folder", [LAB, SOLUTION], ids=["shipped", "solution"])
def test_the_triton_kernels_compile_for_hopper_without_a_gpu(folder, tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv(
        "TRITON_DEFAULT_FP_FUSION", "1"
    )  # else Triton warns that its default will change
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = load_file(folder / "attention_triton.py", "attention_triton")
    constants = {
        "causal": True,
        "dim": 128,
        "tile_queries": module.QUERIES,
        "tile_keys": module.KEYS,
    }
    arguments = dict.fromkeys(("q", "k", "v", "out"), "*fp16") | {"seq": "i32", "scale": "fp32"}
    kernel = ASTSource(
        fn=module.attention_kernel,
        signature=arguments | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
    )
    made = triton.compile(kernel, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(made["cubin"])
    (report,) = check_binary(cubin)
    assert set(report.tensor_core) == {"HGMMA"}
    if folder == SOLUTION:
        # Triton, whose code GPUs have run, describes such tiles to wgmma as
        # solutions/fused-attention/attention.cu does: the 128-byte swizzle, 1024 bytes from 8 rows
        # to the next 8, a tile's rows times 128 bytes from 64 columns of the values to the next 64,
        # and 16 rows a step.
        described, panel, step = (
            1 << 62 | 1024 >> 4 << 32,
            module.KEYS * 128 >> 4 << 16,
            16 * 128 >> 4,
        )
        numbers = {int(number) for number in re.findall(r"(?<=, )\d+(?=;)", made["ptx"])}
        steps = {panel + i * step for i in range(module.KEYS // 16)}
        assert described in numbers
        # Triton 3.8 adds the two up when it compiles, 3.9 leaves that to the GPU.
        assert steps <= numbers or {described + at for at in steps} <= numbers
