"""`lab check --static` as a use case: what the compiler made of a lab's CUDA kernels.

It needs the compiler packages, and no GPU.
"""

from __future__ import annotations

from bottleneck_lab.analysis.machine_code.compiled import CompiledSource, sum_up
from bottleneck_lab.course.progress import ShowProgress
from bottleneck_lab.errors import UsageError
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.kinds.speedup.cuda.launches import read_launches
from bottleneck_lab.measure.kinds.speedup.cuda.static_check import check_source, readable
from bottleneck_lab.workspace.folder import Workspace

ARCHITECTURES = ("80", "90a")
"""The GPUs that kernels are compiled for: A100 (sm_80) and H100 (sm_90a)."""


def compile_kernels(workspace: Workspace, show_progress: ShowProgress) -> list[CompiledSource]:
    """Compile the workspace's CUDA sources for each architecture, and follow a warp's addresses.

    For every kernel: registers, spills, shared memory, load widths and tensor-core instructions.
    Raises UsageError for a lab without a CUDA source, or a source that does not compile.
    """
    lab = workspace.lab
    sources = [workspace.root / name for name in lab.spec.editable if name.endswith(".cu")]
    if not sources:
        raise UsageError(f"{lab.slug} has no CUDA source to compile.", "`lab check` measures it.")
    calls = kind_of(lab).launches(lab)
    compiled = []
    for source in sources:
        with show_progress() as show:
            reports = {}
            for number, arch in enumerate(ARCHITECTURES):
                show(f"compiling {source.name} for sm_{arch}", number / 3)
                reports[arch] = check_source(source, arch)
            show("following a warp's addresses", 2 / 3)
            launches = read_launches(source, calls) if calls else []
        launched = [(one.launch, one.followed) for one in launches]
        compiled.append(sum_up(source.name, reports, launched, readable))
    return compiled
