"""`lab check --static`: what the compiler made of a lab's CUDA kernels. Needs the compiler packages, no GPU."""

from __future__ import annotations

from bottleneck_lab.analysis.machine_code import KernelReport, describe
from bottleneck_lab.commands.ui import print_json, say
from bottleneck_lab.errors import UsageError
from bottleneck_lab.measure.kinds.speedup.static_check import check_source, readable
from bottleneck_lab.workspace.folder import Workspace

ARCHITECTURES = ("80", "90a")


def show_static(workspace: Workspace, *, as_json: bool) -> None:
    """Registers, spills, shared memory, load widths and tensor-core instructions of every kernel, for each architecture.

    Raises UsageError for a lab without a CUDA source, or a source that does not compile.
    """
    sources = [workspace.root / name for name in workspace.lab.spec.editable if name.endswith(".cu")]
    if not sources:
        raise UsageError(f"{workspace.lab.slug} has no CUDA source to compile.", "`lab check` measures it.")
    found = {arch: [report for source in sources for report in check_source(source, arch)] for arch in ARCHITECTURES}
    if as_json:
        print_json(found)
    else:
        for arch, reports in found.items():
            _tell(arch, reports)


def _tell(arch: str, reports: list[KernelReport]) -> None:
    say(f"sm_{arch}: compiled, not run", style="bold")
    for report in reports:
        say(f"\n  {readable(report.name)}")
        for sentence in describe(report):
            say(f"    {sentence}")
    say("")
