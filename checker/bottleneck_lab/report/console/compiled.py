"""The compiled code of a CUDA source, in the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from bottleneck_lab.analysis.machine_code.compiled import CompiledSource, KernelGroup
from bottleneck_lab.analysis.machine_code.warp import Access
from bottleneck_lab.report import capture_words
from bottleneck_lab.report.console.terminal import Sheet

_UNITS = {"global": "sectors", "shared": "passes"}


def render_compiled(compiled: CompiledSource, console: Console, *, blind: bool) -> None:
    """Print a source's figures and memory accesses; `blind`: with no judgement of them."""
    sheet = Sheet(console)
    sheet.line(f"{compiled.source}: compiled, not run", style="bold")
    _print_figures(sheet, compiled.groups)
    if compiled.accesses:
        sheet.heading(
            "Memory accesses of one warp: the first warp of the first block, computed from the"
            " compiled code"
        )
        _print_accesses(sheet, compiled.accesses, blind=blind)
        sheet.line(
            "A request is one instruction of a warp. It touches 32-byte sectors of global memory,"
            " or makes passes through the 32 banks of shared memory.",
            indent=2,
        )
    if not compiled.followed:
        sheet.line(
            "Without a GPU, some launches could not be followed to the end: there may be more"
            " accesses than these.",
            indent=2,
        )
    sheet.blank()
    if blind:
        sheet.line(capture_words.BLIND)
        return
    for verdict in compiled.judged:
        if verdict.judged.good:
            mark, style = (sheet.signs.right, "green")
        else:
            mark, style = (sheet.signs.wrong, "red")
        of = ""
        if verdict.of:
            of = f" ({', '.join(verdict.of)})"
        sheet.line(f"{verdict.judged.sentence}{of}", lead=f"{mark} ", lead_style=style)


_LABELS = (
    "threads per block",
    "shared memory per block",
    "registers per thread",
    "spilled to local memory",
    "widest global load",
    "asynchronous copies",
    "tensor-core instructions",
    "blocks per multiprocessor",
    "of its warps",
    "limited by",
)


def _print_figures(sheet: Sheet, groups: list[KernelGroup]) -> None:
    """Print a column of figures for each group of kernels."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column(no_wrap=True)
    columns = []
    for group in groups:
        archs = ", ".join(f"sm_{arch}" for arch in group.archs)
        names = [name.replace("<", "\n<", 1) for name in group.kernels]
        table.add_column(sheet.safe("\n".join([*names, archs])), justify="right")
        figures, cores = group.figures, "none"
        if figures.tensor_core:
            cores = f"{figures.tensor_core_instructions} ({', '.join(figures.tensor_core)})"
        columns.append(
            (
                str(figures.threads) if figures.launched else f"{figures.threads} (assumed)",
                f"{figures.shared_bytes:,} bytes",
                str(figures.registers),
                str(figures.spills or "nothing"),
                f"{figures.widest_load_bytes} bytes",
                str(figures.async_copies or "none"),
                cores,
                str(figures.blocks),
                f"{figures.share:.0%}",
                figures.limit,
            )
        )
    for label, *cells in zip(_LABELS, *columns, strict=True):
        table.add_row(label, *cells)
    sheet.console.print(table)


def _print_accesses(sheet: Sheet, accesses: list[Access], *, blind: bool) -> None:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("line", justify="right")
    table.add_column("what")
    table.add_column("per request", justify="right")
    if not blind:
        table.add_column("needs at least", justify="right")
    for access in accesses:
        style = "green"
        if access.wasteful:
            style = "red"
        if blind:
            style = ""
        each, least = access.cost / access.requests, access.least / access.requests
        cost = f"{each:.3g} {_UNITS[access.space]}"
        table.add_row(
            f"{access.line}, from {access.caller}" if access.caller else str(access.line),
            _what(access),
            *((cost,) if blind else (cost, f"{least:.3g}")),
            style=style,
        )
    sheet.console.print(table)


def _what(access: Access) -> str:
    if access.what == "ldmatrix":
        return "matrices from shared memory"
    way = {"loads": "from", "stores": "to", "copies": "from" if access.space == "global" else "to"}[
        access.what
    ]
    return f"{access.bytes}-byte {access.what} {way} {access.space} memory"
