"""`lab run`: run the workload as it is now."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Annotated

import typer

from bottleneck_lab.capture.devices import choose_device, require_torch
from bottleneck_lab.capture.workload import Workload, run_workload, scale_workload
from bottleneck_lab.catalog import Device
from bottleneck_lab.commands.screen import console, progress
from bottleneck_lab.commands.ui import DeviceName, NoWait, here, note, say, waiting
from bottleneck_lab.commands.where import say_next_step, say_step
from bottleneck_lab.errors import ExitCode, UsageError
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.quiet import describe_others
from bottleneck_lab.report.console.scaling import render_scaling
from bottleneck_lab.report.page.html import render_html
from bottleneck_lab.workspace.attempts import load_attempts
from bottleneck_lab.workspace.commitments import is_blind, load_record
from bottleneck_lab.workspace.dataset import data_folder
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.looks import note_run
from bottleneck_lab.workspace.next_step import next_after_run
from bottleneck_lab.workspace.start import describe_given, handed_out_files

EXAMPLE = "lab run --device cpu"
SCALING_PAGE = "scaling.html"

Ranks = Annotated[
    str | None,
    typer.Option(
        "--ranks",
        help="For a distributed lab: extend its modelled scaling to these rank counts.",
        metavar="N,N,…",
    ),
]


Shipped = Annotated[
    bool,
    typer.Option(
        "--shipped", help="Run the code as it was handed out, and leave yours where it is."
    ),
]


def command(
    device: DeviceName = None,
    no_wait: NoWait = False,
    ranks: Ranks = None,
    shipped: Shipped = False,
) -> None:
    """Run this lab's workload as it is now, and show its output."""
    workspace = here()
    workspace.require_current()
    require_torch("`lab run`")
    lab, numbers = workspace.lab, _numbers(ranks)
    chosen = choose_device(lab, device or workspace.info.device)
    kind = kind_of(lab)
    scales = kind.scales_on(chosen)
    if numbers and not scales:
        raise UsageError(
            f"`--ranks` needs a lab with modelled ranks; {lab.slug} on {chosen} has none.",
            "Leave out `--ranks`. `ddp-scaling` on virtual has modelled ranks.",
        )
    note(f"Running {lab.spec.entry} on {chosen}.{kind.run_note(chosen)}")
    given = describe_given(workspace, "this run uses yours, a check the lab's")
    if given and not shipped:
        note(given)
    if others := describe_others(kind.cores(lab, chosen)):
        note(f"{others}: this run may be slower for it.")
    with workspace.working("lab run", wait=not no_wait, on_wait=waiting):
        if scales:
            if shipped:
                raise UsageError(
                    "`--shipped` runs labs without modelled ranks.", "`lab reset` brings it back."
                )
            _scale(workspace, chosen, numbers)
            note_run(workspace, lab.code_hash(workspace.root), ended=True)
            return
        with handed_out_files(lab) if shipped else nullcontext(workspace.root) as folder:
            workload = Workload(lab, folder, chosen, data_folder(lab))
            code = lab.code_hash(folder)
            output = _Output()
            status = run_workload(workload, output.line)
            output.end()
    note_run(workspace, code, ended=not status)
    if status:
        say(f"The workload exited with status {status}.", style="red")
        if output.is_out_of_memory and chosen == "virtual":
            say(
                "`lab profile` and `lab check` emulate a card with memory to spare, so they run to"
                " the end."
            )
        if output.is_out_of_memory or code != lab.code_hash(lab.path):
            say_next_step(workspace, load_attempts(workspace), load_record(workspace))
        raise typer.Exit(ExitCode.FAIL)
    if lab.spec.evidence == "run":
        attempts = load_attempts(workspace)
        if not shipped and (step := next_after_run(workspace, attempts)):
            say_step(step)
        else:
            say_next_step(workspace, attempts, load_record(workspace))


OUT_OF_MEMORY = "OutOfMemoryError"
"""What PyTorch raises where a device's memory does not suffice, in a traceback's last line."""


class _Output:
    """The terminal for a run's lines. A reader that goes away, such as `head`, ends the command;
    where a thread prints, only once the run has ended, since what it serves would wait for it.
    """

    def __init__(self) -> None:
        self._closed: BrokenPipeError | None = None
        self.is_out_of_memory = False

    def line(self, text: str) -> None:
        self.is_out_of_memory |= OUT_OF_MEMORY in text
        if self._closed:
            return
        try:
            say(text.rstrip("\n"))
        except BrokenPipeError as error:
            if threading.current_thread() is threading.main_thread():
                raise
            self._closed = error

    def end(self) -> None:
        if self._closed:
            raise self._closed


def _scale(workspace: Workspace, device: Device, ranks: list[int]) -> None:
    """Run a distributed script on emulated ranks, and show its scaling curve.

    It is drawn in the terminal and, once a diagnosis is committed, in `scaling.html`.
    """
    lab = workspace.lab
    with progress() as show:
        workload = Workload(lab, workspace.root, device, data_folder(lab))
        scaling = scale_workload(workload, ranks, show)
    blind = is_blind(workspace)
    render_scaling(scaling, console(), blind=blind)
    if blind:
        return
    page = workspace.root / SCALING_PAGE
    page.write_text(
        render_html(title=f"{lab.slug}: how it scales", scaling=scaling), encoding="utf-8"
    )
    note(
        f"The scaling curve is in {SCALING_PAGE}; after a check, `lab report --html` draws it too."
    )


def _numbers(text: str | None) -> list[int]:
    """Return `64,512` as numbers. Raises UsageError for anything else."""
    if text is None:
        return []
    parts = [part.strip() for part in text.split(",")]
    if any(not part.isdigit() or not 1 <= int(part) <= 65536 for part in parts):
        raise UsageError(
            f"'{text}' is not a list of rank counts.", "For example: `--ranks 64,512,4096`."
        )
    return [int(part) for part in parts]
