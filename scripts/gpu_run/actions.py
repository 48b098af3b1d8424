"""Do a step, in its own process: check or capture a submission, or record a program of the case
library.
"""

from __future__ import annotations

import contextlib
import gzip
import tempfile
from pathlib import Path
from typing import Any

from scripts.gpu_run.captures import keep
from scripts.gpu_run.plan import CASES, DEVICE, lab_called, pretending, submissions


def do_step(step: str, into: Path) -> dict[str, Any]:
    """Do a step, in its own process. Returns its record."""
    if step.startswith("case:"):
        return record_case(step.removeprefix("case:"), into)
    kind, slug, what, *tool = step.split(":")
    return grade(slug, what) if kind == "grade" else capture(slug, what, tool[0], into)


def grade(slug: str, what: str) -> dict[str, Any]:
    """Return one submission's verdict on `cuda`, by the function that grades learners, with the
    problems where it should have been another.
    """
    import msgspec

    from bottleneck_lab.course import proving

    lab = lab_called(slug)
    verdict = proving.check(lab, submissions(lab)[what], DEVICE)
    problems = (
        proving.starter_problems(lab, verdict)
        if what == "starter"
        else proving.pass_problems(verdict)
    )
    if pretending():
        from pretend_gpu import REHEARSED

        problems = [] if verdict.summary == REHEARSED else [verdict.summary]
    criteria = [
        {"id": row.id, "holds": row.holds, "sentence": row.sentence} for row in verdict.criteria
    ]
    return {
        "problems": problems,
        "outcome": verdict.outcome,
        "reason": verdict.reason,
        "criteria": msgspec.to_builtins(criteria),
        "duration_s": verdict.duration_s,
        "phases_s": verdict.seconds,
        "environment": verdict.environment,
    }


def capture(slug: str, what: str, tool: str, into: Path) -> dict[str, Any]:
    """Capture a lab's code on `cuda`, and keep it below `into`, cut and freed of names."""
    from bottleneck_lab.capture import tools
    from bottleneck_lab.capture.workload import Workload
    from bottleneck_lab.course import proving
    from bottleneck_lab.workspace.dataset import data_folder
    from bottleneck_lab.workspace.start import start_workspace

    lab = lab_called(slug)
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bottleneck-lab-") as scratch:
        workspace, out = Path(scratch, "workspace"), Path(scratch, "out")
        out.mkdir()
        start_workspace(lab, workspace, DEVICE)
        proving.lay_out(lab, submissions(lab)[what], workspace)
        workload = Workload(lab, workspace, DEVICE, data_folder(lab))
        trace = tools.profile_workload(workload, tool, out)
        return keep(trace, into / f"{slug}-{what}-{tool}")


def record_case(name: str, into: Path) -> dict[str, Any]:
    """Record a program of the case library on `cuda`, as it is and without its top cause, beside
    what was modelled.
    """
    from scripts.cases import on_gpu
    from scripts.cases.record import PROGRAM, load_spec

    from bottleneck_lab.workspace.cases import find_case

    folder, modelled = CASES / name, find_case(name)
    spec, program = load_spec(folder), (folder / PROGRAM).read_text(encoding="utf-8")
    named = {switch.name: switch for switch in spec.switch}
    top = named[modelled.switches[0].name] if modelled.switches else None
    with (
        tempfile.TemporaryDirectory(prefix="bottleneck-lab-") as scratch,
        contextlib.chdir(scratch),
    ):
        Path("checkpoints").mkdir()
        measured = on_gpu.measure(program, spec, top, Path("trace.json"))
        into.mkdir(parents=True, exist_ok=True)
        packed = Path("trace.json.gz")
        packed.write_bytes(gzip.compress(Path("trace.json").read_bytes()))
        kept = keep(packed, into / f"case-{name}")
    return {**kept, "measured": measured, "modelled": {"ms": modelled.ms, "gain": modelled.gain}}
