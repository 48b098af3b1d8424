"""`lab check --static`: what the compiler made of a lab's CUDA kernels. Needs the compiler
packages, no GPU.
"""

from __future__ import annotations

from pathlib import Path

from bottleneck_lab.analysis.machine_code.compiled import CompiledSource, sum_up
from bottleneck_lab.commands.screen import console, progress
from bottleneck_lab.commands.ui import print_json
from bottleneck_lab.errors import UsageError
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.kinds.speedup.cuda.launches import read_launches
from bottleneck_lab.measure.kinds.speedup.cuda.static_check import check_source, readable
from bottleneck_lab.measure.settings import HostCall
from bottleneck_lab.report.console.compiled import render_compiled
from bottleneck_lab.workspace.commitments import is_blind
from bottleneck_lab.workspace.folder import Workspace

ARCHITECTURES = ("80", "90a")


def show_static(workspace: Workspace, *, as_json: bool) -> None:
    """Registers, spills, shared memory, load widths and tensor-core instructions of every kernel,
    for each architecture, and a warp's addresses.

    Raises UsageError for a lab without a CUDA source, or a source that does not compile.
    """
    lab = workspace.lab
    sources = [workspace.root / name for name in lab.spec.editable if name.endswith(".cu")]
    if not sources:
        raise UsageError(f"{lab.slug} has no CUDA source to compile.", "`lab check` measures it.")
    found = [_compile(source, kind_of(lab).launches(lab)) for source in sources]
    if as_json:
        print_json(found)
        return
    for one in found:
        render_compiled(one, console(), blind=is_blind(workspace))


def _compile(source: Path, calls: tuple[HostCall, ...]) -> CompiledSource:
    with progress() as show:
        reports = {}
        for number, arch in enumerate(ARCHITECTURES):
            show(f"compiling {source.name} for sm_{arch}", number / 3)
            reports[arch] = check_source(source, arch)
        show("following a warp's addresses", 2 / 3)
        launched = (
            [(one.launch, one.followed) for one in read_launches(source, calls)] if calls else []
        )
    return sum_up(source.name, reports, launched, readable)
