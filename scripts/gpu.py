"""Everything that only a machine with a CUDA device can show, a step at a time: `make gpu`, or

    python scripts/gpu.py [--only grade: --only capture:] [--budget-s 1500] [--fresh] [--list]
                          [--pretend]

Every lab that is measured on `cuda`: its starter FAILs for its declared reason, its solution and
variants PASS. Then captures of starter and solution with each tool that is there, attention against
every backend of PyTorch's, and the tests marked `gpu`. Figures go to docs/measured/<gpu>.json,
captures to datasets/captures/<gpu>/. What is in order is remembered in build/gpu/, so a run that
was cut short goes on where it stopped, and what went wrong is tried again after what has not been
tried. What this machine cannot do is not tried; the record says what it lacks. Exit status: 0 all
well, 1 something is wrong, 3 steps are left, 4 no CUDA device (nothing is changed).

With `--pretend` all of it is rehearsed on a device that is not there (scripts/pretend_gpu).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import hashlib
import importlib.metadata
import io
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PRETEND_GPU = ROOT / "scripts" / "pretend_gpu"

BUDGET_S = 840.0
"""People rent fifteen minutes, of which one goes into writing down this machine's state."""
STEP_LIMIT_S = 900.0
FORMS = {
    r"data": 10.0,
    r"grade:.*:solution": 40.0,
    r"grade:.*:starter": 25.0,
    r"capture:.*:torch": 8.0,
    r"benchmark": 60.0,
    r"tests": 60.0,
    r"case:.*": 15.0,
    r"grade:.*:variant .*": 40.0,
    r"capture:.*:ncu": 50.0,
    r"capture:.*": 15.0,
    r"exploits": 120.0,
}
"""The forms of steps, in the order in which they are worth their time, each with the seconds that
one is expected to take as long as no record says how long it took.
"""
CHECKS_S = {
    "busy-ensemble": (39.0, 25.0),
    "forecaster-out-of-memory": (20.0, 20.0),
    "fused-attention": (44.0, 61.0),
    "idle-gpu": (25.0, 27.0),
    "past-the-plateau": (60.0, 74.0),
    "perf-gate": (56.0, 56.0),
    "resnet-latency": (45.0, 45.0),
    "resnet-top-ops": (43.0, 43.0),
    "roofline": (32.0, 31.0),
    "stuttering-tagger": (55.0, 44.0),
    "timing-pitfalls": (58.0, 58.0),
}
"""Seconds that a check of starter and solution is expected to take as long as no record says it, by
benchmarks/gpu_budget.py; those of `resnet-latency` and `resnet-top-ops` were read on an H200.
"""
GRACE_S, ORPHANS_S = 20.0, 5.0
"""For a step that has to end before its time, to stop its program and remove its temporary files;
then for what it has left to go by itself.
"""
ALL_OF_IT = 0.9
"""A step that had this share (0–1) of the budget and was not done is too long for any run."""
MAX_FILE_BYTES, MAX_TOTAL_BYTES = 1 << 20, 8 << 20
"""What may be committed of captures: a file, and all files of one GPU."""

RECORDED_BY = "scripts/gpu.py"
sys.path.append(str(ROOT))  # scripts.cases
DEVICE: Any = "cuda"
COUNTERS_REFUSED = "ERR_NVGPUCTRPERM"
"""The driver's word for counters that are kept for administrators."""
KEPT_STEPS = 3
NOT_REHEARSED = {
    "torch.compile(": "needs a GPU to compile for",
    "ENABLED = True": "needs a GPU to launch Triton's kernels on",
}
"""What a submission says that cannot run on a device that is not there, and why not."""
BELOW_HOPPER = "GPUs below compute capability 9.0"
"""What the entry file of a submission says that is right on a Hopper, but too slow there."""
HOPPER_ALONE = "for Hopper alone (compute capability"
ON_TRITON = 'SERVER = "triton"'
"""What the entry file of a submission says whose models are served by a Triton Inference Server."""
TOO_MUCH_FOR_A_HOST = ("ddp-scaling", "fused-attention")
"""Labs whose scripts, run alone as NVIDIA's tools see them, have no smaller size for a rehearsal.
"""
CASES = ROOT / "datasets" / "cases"
PYTESTS = {"tests": "tests/gpu", "exploits": "tests/exploits"}
"""Where the tests marked `gpu` are: other tests need packages that nothing here does."""
OK, WRONG, LEFT, NO_GPU = 0, 1, 3, 4
_PRIVATE = ("host_name", "hostname", "trace_name", "username")
_PRIVATE_COLUMNS = ("Host Name", "Process Name")
_BEGIN, _END = "<!-- never run: begin -->", "<!-- never run: end -->"


@dataclass(frozen=True)
class Ran:
    """How a step's process ended: its exit status (None: out of time) and its last output."""

    status: int | None
    output: str


Runner = Callable[[list[str], float], Ran]
WARM = multiprocessing.get_context("forkserver")
WARM.set_forkserver_preload(
    ["__main__", "torch", "torchvision", "bottleneck_lab.course.proving", "bottleneck_lab.capture"]
)
"""Where this script's own steps are forked: a process that has imported what takes seconds, and
never touches CUDA, which a fork would not survive.
"""


class Forked:
    """A step of this script in a process forked from the warm one, used as a Popen is."""

    def __init__(self, arguments: list[str], out: str, err: str) -> None:
        self._process = WARM.Process(target=forked, args=(arguments, out, err))
        self._process.start()
        self.terminate, self.kill = self._process.terminate, self._process.kill

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for its end. Raises TimeoutExpired if that does not come in time."""
        self._process.join(timeout_s)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("step", timeout_s or 0.0)


def forked(arguments: list[str], out: str, err: str) -> None:
    """Run this script with its output in files."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for path, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), descriptor)
    sys.exit(main(arguments))


def say(text: str) -> None:
    """Print a line at once: a step may take minutes."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def pretend() -> None:
    """Rehearse on a device that is not there, in this process and in those that it starts."""
    os.environ["BOTTLENECK_LAB_PLUGIN"] = str(PRETEND_GPU)
    from bottleneck_lab.plugin import load_plugin

    load_plugin()


def pretending() -> bool:
    """Return True in a rehearsal."""
    from bottleneck_lab.plugin import plugin_path

    return plugin_path() == PRETEND_GPU


def gpu_labs() -> list[Any]:
    """Return every lab in the folder labs/ that is measured on `cuda`, in the course or not yet."""
    import msgspec

    from bottleneck_lab.catalog import Lab, LabSpec
    from bottleneck_lab.declared import read_toml

    labs = []
    for path in sorted((ROOT / "labs").glob("*/lab.toml")):
        spec, slug = msgspec.convert(read_toml(path), LabSpec), path.parent.name
        labs.append(Lab(slug, "", path.parent, ROOT / "solutions" / slug, spec))
    return [lab for lab in labs if "cuda" in lab.spec.devices]


def lab_called(slug: str) -> Any:
    """Return the lab with this name, of those that are measured on `cuda`."""
    return next(lab for lab in gpu_labs() if lab.slug == slug)


def run(command: list[str], limit_s: float) -> Ran:
    """Run a step in a process of its own: one that crashes or hangs costs one step. Nothing that it
    started outlives it.
    """
    from bottleneck_lab.measure.sandbox.janitor import adopt_orphans

    adopt_orphans()
    # The warm process finds this script by its being the main program.
    warm = __name__ == "__main__" and command[:2] == [sys.executable, str(Path(__file__).resolve())]
    if warm:
        forkserver.ensure_running()
    bystanders = children()
    with (
        tempfile.NamedTemporaryFile("w+", errors="replace") as out,
        tempfile.NamedTemporaryFile("w+", errors="replace") as err,
    ):
        process: Forked | subprocess.Popen[bytes]
        if warm:
            process = Forked(command[2:], out.name, err.name)
        else:
            process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return Ran(None, f"not done after {limit_s:.0f} s")
        finally:
            end(process, bystanders)
        for file in (out, err):
            file.seek(0)
        output = out.read()
        return Ran(
            process.returncode, output if process.returncode == 0 else (output + err.read())[-4000:]
        )


def children() -> set[Any]:
    """Return the children of this process, as psutil has them."""
    import psutil

    return set(psutil.Process().children())


def end(process: Forked | subprocess.Popen[bytes], bystanders: set[Any]) -> None:
    """Have a step tidy up and end, then kill what is left of it, whose parents may be gone: it
    would go on using the GPU.

    `bystanders`: children of this process that were there before the step.
    """
    import psutil

    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    left = []
    for orphan in children() - bystanders:
        with contextlib.suppress(psutil.NoSuchProcess):
            left += [orphan, *orphan.children(recursive=True)]
    for orphan in psutil.wait_procs(left, ORPHANS_S)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            orphan.kill()
    psutil.wait_procs(left, GRACE_S)


def gpu_slug(name: str) -> str:
    """Return the name of a GPU's files: `a100-sxm4-80gb` for `NVIDIA A100-SXM4-80GB`."""
    short = re.sub(r"\b(nvidia|geforce|tesla|quadro)\b", " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", short).strip("-") or "gpu"


def submissions(lab: Any) -> dict[str, Path]:
    """Return what is graded of a lab: starter, solution, and each variant, with its folder."""
    from bottleneck_lab.measure.lab_rules.variants import variants

    graded = {
        f"variant {path.name}": path
        for path in variants(lab, DEVICE)
        if not path.name.startswith((".", "_"))
    }
    return {"starter": lab.path, "solution": lab.solution, **graded}


def plan(labs: Iterable[Any], tools: Iterable[str], gpu_count: int) -> dict[str, str]:
    """Return the names of the steps, in the order in which they are worth their time, each with
    what this machine lacks for it: nothing, as a rule.
    """
    labs = list(labs)
    lack = {
        (lab.slug, what): lacking(lab, path, gpu_count)
        for lab in labs
        for what, path in submissions(lab).items()
    }
    graded = {f"grade:{slug}:{what}": why for (slug, what), why in lack.items()}
    real = "needs a GPU" if pretending() else ""
    captures = {
        f"capture:{lab.slug}:{what}:{tool}": (
            lack[lab.slug, what] or (not_rehearsed(lab, tool) if real else "")
        )
        for tool in tools
        for lab in labs
        for what in captured(lab, tool)
    }
    steps = {"data": "", **graded, **captures, **cases(), "benchmark": real}
    steps |= {"tests": real, "exploits": real}
    return dict(sorted(steps.items(), key=lambda item: form_of(item[0])))


def cases() -> dict[str, str]:
    """Return the steps that record programs of the case library, with what each lacks here."""
    from scripts.cases import on_gpu
    from scripts.cases.record import load_spec

    folders = sorted(path.parent for path in CASES.glob("*/case.toml"))
    return {
        f"case:{folder.name}": on_gpu.why_not(load_spec(folder))
        or ("too much work for a host" if pretending() else "")
        for folder in folders
    }


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


def form_of(step: str) -> int:
    """Return the index of a step's form in FORMS."""
    return next(number for number, form in enumerate(FORMS) if re.fullmatch(form, step))


def expected_s(step: str, records: Iterable[dict[str, Any]]) -> float:
    """Return the seconds that a step took when it was last recorded, on any GPU; where it never
    was, those that were calculated for it, or those of its form.
    """
    dated = sorted(records, key=lambda record: record["date"], reverse=True)
    for record in dated:
        row = record["steps"].get(step, {})
        if "seconds" in row and is_good(row):
            return float(row["seconds"])
    kind, lab, what = [*step.split(":"), "", ""][:3]
    if kind == "grade" and lab in CHECKS_S and not what.startswith("variant "):
        return CHECKS_S[lab][what == "solution"]
    return [*FORMS.values()][form_of(step)]


def listed(
    steps: dict[str, str], state: State, records: list[dict[str, Any]], budget_s: float
) -> str:
    """Return the plan as it is shown: a line a step, with its expected seconds and, for what is
    still to do, the minute at which it would be done; then what fits the budget.
    """
    lines, clock_s, to_do, fitting = [], 0.0, 0, 0
    for step, lacks in steps.items():
        seconds = expected_s(step, records)
        if lacks or state.in_order(step):
            lines.append(
                f"{'-' if lacks else 'done':>5}  {seconds:4.0f} s  {step} {lacks}".rstrip()
            )
            continue
        clock_s += seconds
        to_do += 1
        fitting += clock_s <= budget_s
        lines.append(f"{int(clock_s // 60):>2}:{int(clock_s % 60):02}  {seconds:4.0f} s  {step}")
    lines.append(
        f"Still to do: {to_do}, about {clock_s / 60:.0f} minutes. Of these, the first {fitting} fit"
        f" the budget of {budget_s / 60:.0f} minutes."
    )
    return "\n".join(lines)


def lacking(lab: Any, folder: Path, gpu_count: int) -> str:
    """Return what a submission needs and this machine lacks, in words; empty if nothing."""
    if gpu_count < lab.spec.devices[DEVICE].gpus:
        return f"needs {lab.spec.devices[DEVICE].gpus} GPUs"
    sources = [
        (folder / name).read_text(encoding="utf-8")
        for name in lab.spec.editable
        if (folder / name).is_file()
    ]
    if pretending() and (
        why := next(
            (NOT_REHEARSED[word] for word in NOT_REHEARSED for s in sources if word in s), ""
        )
    ):
        return why
    if any(ON_TRITON in source for source in sources) and not has_triton():
        return "needs a Triton Inference Server (lab data tritonserver)"
    if any(BELOW_HOPPER in source for source in sources) and compute_capability() >= (9, 0):
        return "is written for GPUs below compute capability 9.0"
    if any(HOPPER_ALONE in source for source in sources) and compute_capability() != (9, 0):
        return "is written for Hopper alone"
    without_dali = any("nvidia.dali" in source for source in sources) and not installed(
        "nvidia-dali-cuda130"
    )
    return "needs nvidia-dali-cuda130" if without_dali else ""


def compute_capability() -> tuple[int, int]:
    """Return the first GPU's compute capability; (0, 0) where there is none."""
    import torch

    return torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)


def has_triton() -> bool:
    """Return True if a Triton Inference Server is set up."""
    from bottleneck_lab.workspace.dataset import is_made

    return is_made("tritonserver")


def not_rehearsed(lab: Any, tool: str) -> str:
    """Return why a tool's capture of a lab cannot be rehearsed, in words; empty where it can."""
    if tool == "memory":
        return "needs a GPU's allocator"
    return "too much work for a host" if tool != "torch" and lab.slug in TOO_MUCH_FOR_A_HOST else ""


def installed(distribution: str) -> bool:
    """Return True if a package is installed."""
    return bool(list(importlib.metadata.distributions(name=distribution)))


def captured(lab: Any, tool: str) -> tuple[str, ...]:
    """Return what a tool records of a lab: `starter` or `solution`."""
    from bottleneck_lab.measure.kinds.registry import kind_of

    return kind_of(lab).captured_work(tool)


def command_of(step: str, kept: Path) -> list[str]:
    """Return the command line of a step."""
    if step == "data":
        return [sys.executable, "-m", "bottleneck_lab", "data"]
    if step == "benchmark":
        return [sys.executable, "benchmarks/attention.py", "--device", "cuda"]
    if step in PYTESTS:
        return [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "gpu",
            "--timeout",
            "850",
            PYTESTS[step],
        ]
    return [sys.executable, str(Path(__file__).resolve()), "--do", step, "--into", str(kept)]


class State:
    """The steps that were done, kept in one file after each of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "state.json"
        self.done: dict[str, dict[str, Any]] = (
            json.loads(self.file.read_text()) if self.file.is_file() else {}
        )

    def add(self, step: str, record: dict[str, Any]) -> None:
        """Remember one step, whole or not at all."""
        self.done[step] = record
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.file.with_suffix(".new")
        temporary.write_text(json.dumps(self.done, indent=1))
        temporary.replace(self.file)

    def in_order(self, step: str) -> bool:
        """Return True if a step was done and nothing was wrong. The data set is this machine's,
        which may be another one than last time.
        """
        return step in self.done and step != "data" and is_good(self.done[step])

    def forget(self, steps: Iterable[str]) -> None:
        """Forget that these were done."""
        for step in steps:
            self.done.pop(step, None)


def is_good(record: dict[str, Any]) -> bool:
    """Return True if a step was run and nothing was wrong with it."""
    return not record["problems"] and "cannot" not in record


def record_of(ran: Ran) -> dict[str, Any]:
    """Return a step's outcome: its last line of JSON, what went wrong, or the machine's refusal."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    if ran.status != 0 and COUNTERS_REFUSED in ran.output:
        return {
            "at": at,
            "problems": [],
            "cannot": f"needs the GPU's counters, which the driver refuses ({COUNTERS_REFUSED})",
        }
    last = ran.output.strip().splitlines()[-1] if ran.output.strip() else ""
    try:
        output = json.loads(last)
    except json.JSONDecodeError:
        output = {"output": last[:500]}
    output = output if isinstance(output, dict) else {"output": last[:500]}
    if ran.status != 0:
        why = "out of time" if ran.status is None else f"status {ran.status}"
        output.setdefault("problems", [f"{why}: {ran.output.strip()[-1500:]}"])
    return {"at": at, "problems": [], **output}


def work(
    steps: list[str],
    state: State,
    runner: Runner,
    *,
    budget_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> list[str]:
    """Run what is not in order yet, while there is time, first what was never tried. Returns the
    steps that are left.

    A step that ran out of the budget is not held against it, unless it had all of it: it would
    never be done.
    """
    ends = clock() + budget_s
    left = sorted(
        (step for step in steps if not state.in_order(step)),
        key=lambda step: step in state.done and step != "data",
    )
    while left:
        remaining = ends - clock()
        if remaining <= 1:
            break
        limit = min(STEP_LIMIT_S, remaining)
        began = clock()
        ran = runner(command_of(left[0], state.folder / "captures"), limit)
        if ran.status is None and limit < min(STEP_LIMIT_S, ALL_OF_IT * budget_s):
            break
        record = record_of(ran) | {"seconds": round(clock() - began, 1)}
        for step in same_refusal(left) if "cannot" in record else left[:1]:
            state.add(step, record)
            print_outcome(step, record)
        left = [step for step in left if state.done.get(step) is not record]
    return left


def same_refusal(left: list[str]) -> list[str]:
    """Return the first step and those after it that record with the same tool: what the first was
    refused, they are, too.
    """
    return [
        step
        for step in left
        if step == left[0] or step.rsplit(":", 1)[-1] == left[0].rsplit(":", 1)[-1]
    ]


def print_outcome(step: str, record: dict[str, Any]) -> None:
    """Print a line for a step, and its problems."""
    say(
        f"{'✗' if record['problems'] else '✓' if is_good(record) else '-'} {step}"
        f" {record.get('cannot', '')}".rstrip()
    )
    for problem in record["problems"]:
        say(f"    {problem}")


def publish_captures(made: Path, target: Path) -> dict[str, Any]:
    """Copy captures into the repository's folder, smallest first, within the limits. Returns its
    manifest, which names what was left out.
    """
    kept: list[dict[str, Any]] = []
    left_out, total = [], 0
    files = sorted(
        (path for path in made.glob("*") if path.suffix in (".gz", ".csv")),
        key=lambda path: path.stat().st_size,
    )
    target.mkdir(parents=True, exist_ok=True)
    for path in files:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES or total + size > MAX_TOTAL_BYTES:
            left_out.append({"file": path.name, "bytes": size})
            continue
        data, total = path.read_bytes(), total + size
        (target / path.name).write_bytes(data)
        kept.append({"file": path.name, "bytes": size, "sha256": hashlib.sha256(data).hexdigest()})
    manifest = {
        "recorded_by": RECORDED_BY,
        "captures": sorted(kept, key=lambda row: row["file"]),
        "left_out": left_out,
    }
    (target / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def measured(gpu: str, state: State, versions: dict[str, str], left: list[str]) -> dict[str, Any]:
    """Return the content of docs/measured/<gpu>.json."""
    day = datetime.now(UTC).date().isoformat()
    return {
        "recorded_by": RECORDED_BY,
        "gpu": gpu,
        "date": day,
        "versions": versions,
        "steps": {step: row for step, row in state.done.items() if "cannot" not in row},
        "left": left,
    }


def cut(trace: dict[str, Any], steps: int = KEPT_STEPS) -> dict[str, Any]:
    """Return a torch.profiler trace reduced to its first `steps` steps, with all device work that
    was launched in them, and nothing that names the host.
    """
    trace = {key: value for key, value in trace.items() if key not in _PRIVATE}
    events = trace["traceEvents"]
    marks = sorted(
        (
            e
            for e in events
            if str(e.get("name", "")).startswith("ProfilerStep#")
            and "dur" in e
            and not _on_device(e)
        ),
        key=lambda e: float(e["ts"]),
    )
    if len(marks) <= steps:
        return trace
    begin = float(marks[0]["ts"])
    end = float(marks[steps - 1]["ts"]) + float(marks[steps - 1]["dur"])
    inside = [
        e for e in events if "ts" in e and begin <= float(e["ts"]) < end and not _on_device(e)
    ]
    launched = _correlations(inside)
    # Rows that the checker adds, such as those of a device that it feeds itself, have no launch
    # anywhere: they belong to the steps in which they lie.
    unlaunched = {None} | _correlations(e for e in events if _on_device(e))
    unlaunched -= _correlations(e for e in events if not _on_device(e))
    device = []
    for event in events:
        if _on_device(event):
            correlation = event.get("args", {}).get("correlation")
            lies_inside = begin <= float(event["ts"]) < end
            added = correlation in unlaunched and event["cat"] != "gpu_user_annotation"
            if correlation in launched or (added and lies_inside):
                device.append(event)
    labels = [e for e in events if e.get("ph") == "M"]
    return {**trace, "traceEvents": [*(e for e in inside if e.get("ph") != "M"), *device, *labels]}


def _correlations(events: Iterable[dict[str, Any]]) -> set[Any]:
    return {e["args"]["correlation"] for e in events if "correlation" in e.get("args", {})}


def _on_device(event: dict[str, Any]) -> bool:
    return event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")


def without_names(text: str) -> str:
    """Return ncu's CSV with the columns blanked that name the host and the process."""
    rows = list(csv.reader(io.StringIO(text)))
    header = next((row for row in rows if "Kernel Name" in row), [])
    blank = [header.index(name) for name in _PRIVATE_COLUMNS if name in header]
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for row in rows[rows.index(header) if header else 0 :]:
        writer.writerow(
            [("" if at in blank and row is not header else value) for at, value in enumerate(row)]
        )
    return out.getvalue()


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
    from bottleneck_lab.capture import workload
    from bottleneck_lab.course import proving
    from bottleneck_lab.workspace.dataset import data_folder
    from bottleneck_lab.workspace.home import home
    from bottleneck_lab.workspace.start import start_workspace

    lab = lab_called(slug)
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bottleneck-lab-") as scratch:
        workspace, out = Path(scratch, "workspace"), Path(scratch, "out")
        out.mkdir()
        start_workspace(lab, workspace, DEVICE)
        proving.lay_out(lab, submissions(lab)[what], workspace)
        trace = workload.profile(
            lab,
            workspace,
            DEVICE,
            tool,
            data=data_folder(lab),
            home=home(),
            out=out,
            progress=lambda _doing, _share: None,
        )
        return keep(trace, into / f"{slug}-{what}-{tool}")


def keep(trace: Path, target: Path) -> dict[str, Any]:
    """Put a capture's file beside `target` in the form in which it may be committed. Returns its
    name and size.

    nsys' SQLite, which names the host in many tables, is only read: that it can be is what is
    recorded.
    """
    from bottleneck_lab import load

    target = target.with_name(target.name + "".join(trace.suffixes))
    if trace.name.endswith(".json.gz"):
        content = json.loads(gzip.decompress(trace.read_bytes()))
        for steps in range(KEPT_STEPS, 0, -1):  # a step of many launches fills a file by itself
            text = json.dumps(cut(content, steps), separators=(",", ":"))
            target.write_bytes(gzip.compress(text.encode(), mtime=0))
            if target.stat().st_size <= MAX_FILE_BYTES:
                break
    elif trace.suffix in (".csv", ".txt"):
        text = trace.read_text(encoding="utf-8", errors="replace")
        target.write_text(without_names(text) if trace.suffix == ".csv" else text, encoding="utf-8")
    else:
        target = trace
    if trace.suffix != ".txt":
        load(target)
    return {"file": target.name, "bytes": target.stat().st_size}


def never_run(labs: Iterable[Any], records: Iterable[dict[str, Any]]) -> list[str]:
    """Return what no record in docs/measured shows to work on a GPU, a line a lab."""
    good = {step for record in records for step, row in record["steps"].items() if is_good(row)}
    lines = []
    for lab in labs:
        missing = [what for what in submissions(lab) if f"grade:{lab.slug}:{what}" not in good]
        kinds = [what for what in missing if not what.startswith("variant ")]
        if others := [what.removeprefix("variant ") for what in missing if what not in kinds]:
            kinds.append(f"variants ({', '.join(others)})")
        if kinds:
            lines.append(f"- `{lab.slug}` on `cuda`: {', '.join(kinds)}")
    if not good.issuperset(PYTESTS):
        lines.append("- the tests marked `gpu`")
    tools = {step.rsplit(":", 1)[1] for step in good if step.startswith("capture:")}
    lines += [
        f"- captures with `--tool {tool}` on a GPU"
        for tool in ("torch", "nsys", "ncu", "sanitizer", "memory")
        if tool not in tools
    ]
    return lines


def write_never_run(readme: Path, lines: list[str]) -> None:
    """Put the list between its marks in `readme`."""
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(_BEGIN)
    after = rest.split(_END)[1]
    readme.write_text(f"{before}{_BEGIN}\n{chr(10).join(lines)}\n{_END}{after}", encoding="utf-8")


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return every docs/measured/*.json that this script has written."""
    records = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))
    ]
    return [
        record
        for record in records
        if isinstance(record, dict) and record.get("recorded_by") == RECORDED_BY
    ]


def installed_tools() -> Iterator[str]:
    """Yield the tools of this machine that captures are made with."""
    from bottleneck_lab.capture.tools import TOOLS, locate_tool
    from bottleneck_lab.errors import MachineError

    for tool in TOOLS:
        try:
            locate_tool(tool)
        except MachineError as error:
            say(f"  without {tool}: {error.message}")
        else:
            yield tool


def versions() -> dict[str, str]:
    """Return what the record says of this machine; no host name."""
    from bottleneck_lab.measure.machine import fingerprint

    return fingerprint()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], help="steps whose names begin so")
    parser.add_argument(
        "--budget-s",
        type=float,
        default=BUDGET_S,
        help="stop after this many seconds, plus half a minute to tidy up; run again to go on",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="do these steps again, also those that are in order"
    )
    parser.add_argument(
        "--pretend", action="store_true", help="rehearse without a GPU; nothing is recorded"
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="show the plan: each step, how long it takes, and what fits the budget",
    )
    parser.add_argument(
        "--write-never-run", action="store_true", help="renew the list in docs/measured/README.md"
    )
    parser.add_argument("--do", help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def do_step(step: str, into: Path) -> dict[str, Any]:
    """Do a step, in its own process. Returns its record."""
    if step.startswith("case:"):
        return record_case(step.removeprefix("case:"), into)
    kind, slug, what, *tool = step.split(":")
    return grade(slug, what) if kind == "grade" else capture(slug, what, tool[0], into)


def main(arguments: list[str] | None = None, *, runner: Runner = run, root: Path = ROOT) -> int:
    """Entry point."""
    options = parse(arguments)
    if options.pretend:
        pretend()
    from bottleneck_lab.capture.doctor import gpus

    labs, docs = gpu_labs(), root / "docs" / "measured"
    if options.do:
        say(json.dumps(do_step(options.do, options.into)))
        return OK
    if options.write_never_run:
        write_never_run(docs / "README.md", never_run(labs, read_records(docs)))
        return OK
    if not (names := gpus()):
        sys.stderr.write(
            "There is no CUDA device that this process can use; nothing was run and nothing"
            " changed.\n"
        )
        return NO_GPU
    return run_steps(options, names, labs, runner, root)


def run_steps(
    options: argparse.Namespace, gpus: list[str], labs: list[Any], runner: Runner, root: Path
) -> int:
    """Run the steps that were asked for, and record them. Returns the exit status."""
    gpu = gpus[0]
    folder = root / "build" / "gpu" / gpu_slug(gpu)
    state, steps = State(folder), plan(labs, installed_tools(), len(gpus))
    named = {
        step: lacks
        for step, lacks in steps.items()
        if not options.only or step.startswith(("data", *options.only))
    }
    chosen = [step for step, lacks in named.items() if not lacks]
    if options.list:
        say(listed(named, state, read_records(root / "docs" / "measured"), options.budget_s))
        return OK
    if options.fresh:
        state.forget(chosen)
    left = work(chosen, state, runner, budget_s=options.budget_s)
    if pretending():
        say("This was a rehearsal: nothing was measured, and nothing is recorded.")
    else:
        record(gpu, state, folder, steps, labs, root)
    if left:
        say(f"{len(left)} steps are left; the same command goes on with {left[0]}.")
        return LEFT
    return WRONG if any(state.done[step]["problems"] for step in chosen) else OK


def record(
    gpu: str, state: State, folder: Path, steps: dict[str, str], labs: list[Any], root: Path
) -> None:
    """Publish captures and write docs/measured/<gpu>.json."""
    docs, cannot = root / "docs" / "measured", {step: why for step, why in steps.items() if why}
    if (folder / "captures").is_dir():
        publish_captures(folder / "captures", root / "datasets" / "captures" / gpu_slug(gpu))
    docs.mkdir(parents=True, exist_ok=True)
    cannot |= {step: row["cannot"] for step, row in state.done.items() if "cannot" in row}
    untried = [step for step in steps if step not in state.done and step not in cannot]
    written = measured(gpu, state, versions(), untried) | {"cannot": cannot}
    (docs / f"{gpu_slug(gpu)}.json").write_text(
        json.dumps(written, indent=1) + "\n", encoding="utf-8"
    )
    write_never_run(docs / "README.md", never_run(labs, read_records(docs)))


if __name__ == "__main__":
    # As Ctrl-C does: what runs is stopped, and temporary files go.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
