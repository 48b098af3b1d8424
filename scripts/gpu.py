"""Everything that only a machine with a CUDA device can show, a step at a time: `make gpu`, or

    python scripts/gpu.py [--only grade: --only capture:] [--budget-s 1500] [--fresh] [--list]

Every lab that is measured on `cuda`: its starter FAILs for its declared reason, its solution and variants PASS. Then the tests marked `gpu`, and
captures of starter and solution with each tool that is there,
and attention against every backend of PyTorch's. Figures go to docs/measured/<gpu>.json, captures to datasets/captures/<gpu>/. What is done
is remembered in build/gpu/, so a run that was cut short goes on where it stopped. Exit status: 0 all well, 1 something is wrong, 3 steps are left,
4 no CUDA device (nothing is changed).
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "checker"))

STEP_LIMIT_S = 900.0
MAX_FILE_BYTES, MAX_TOTAL_BYTES = 1 << 20, 8 << 20
"""What may be committed of captures: a file, and all files of one GPU."""

RECORDED_BY = "scripts/gpu.py"
DEVICE: Any = "cuda"
KEPT_STEPS = 3
OK, WRONG, LEFT, NO_GPU = 0, 1, 3, 4
_PRIVATE = ("host_name", "hostname", "trace_name", "username")
_PRIVATE_COLUMNS = ("Host Name", "Process Name")
_BEGIN, _END = "<!-- never run: begin -->", "<!-- never run: end -->"


@dataclass(frozen=True)
class Ran:
    """What a step's process left: its exit status (None: out of time) and what it printed last."""

    status: int | None
    output: str


Runner = Callable[[list[str], float], Ran]


def say(text: str) -> None:
    """A line, at once: a step may take minutes."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def gpu_labs() -> list[Any]:
    """Every lab in the folder labs/ that is measured on `cuda`, in the course or not yet."""
    import msgspec

    from bottleneck_lab.catalog import Lab, LabSpec, read_toml

    found = []
    for path in sorted((ROOT / "labs").glob("*/lab.toml")):
        spec, slug = msgspec.convert(read_toml(path), LabSpec), path.parent.name
        found.append(Lab(slug, "", path.parent, ROOT / "solutions" / slug, spec))
    return [lab for lab in found if "cuda" in lab.spec.devices]


def lab_called(slug: str) -> Any:
    """The same, one of them."""
    return next(lab for lab in gpu_labs() if lab.slug == slug)


def run(command: list[str], limit_s: float) -> Ran:
    """Runs a step in a process of its own: one that crashes or hangs costs one step."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "checker"), os.environ.get("PYTHONPATH", "")]),
    }
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Ran(None, f"not done after {limit_s:.0f} s")
    return Ran(done.returncode, done.stdout if done.returncode == 0 else (done.stdout + done.stderr)[-4000:])


def gpu_slug(name: str) -> str:
    """`NVIDIA A100-SXM4-80GB` is `a100-sxm4-80gb`: the name of its files."""
    short = re.sub(r"\b(nvidia|geforce|tesla|quadro)\b", " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", short).strip("-") or "gpu"


def submissions(lab: Any) -> dict[str, Path]:
    """What is graded of a lab: starter, solution, and each variant, with its folder."""
    from bottleneck_lab.workspace.lab_rules import variants

    found = {f"variant {path.name}": path for path in variants(lab, DEVICE) if not path.name.startswith((".", "_"))}
    return {"starter": lab.path, "solution": lab.solution, **found}


def plan(labs: Iterable[Any], tools: Iterable[str]) -> list[str]:
    """Names of the steps, in the order in which they are worth their time."""
    graded = [f"grade:{lab.slug}:{what}" for lab in labs for what in submissions(lab)]
    captures = [
        f"capture:{lab.slug}:{what}:{tool}" for tool in tools for lab in labs for what in ("starter", "solution")
    ]
    return ["data", *graded, *captures, "benchmark", "tests"]


def command_of(step: str, kept: Path) -> list[str]:
    """How a step is run."""
    if step == "data":
        return [sys.executable, "-m", "bottleneck_lab", "data"]
    if step == "benchmark":
        return [sys.executable, "benchmarks/attention.py", "--device", "cuda"]
    if step == "tests":
        return [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--timeout", "850"]
    return [sys.executable, str(Path(__file__).resolve()), "--do", step, "--into", str(kept)]


class State:
    """What was done, kept in one file after every step."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "state.json"
        self.done: dict[str, dict[str, Any]] = json.loads(self.file.read_text()) if self.file.is_file() else {}

    def add(self, step: str, record: dict[str, Any]) -> None:
        """Remembers one step, whole or not at all."""
        self.done[step] = record
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.file.with_suffix(".new")
        temporary.write_text(json.dumps(self.done, indent=1))
        temporary.replace(self.file)


def record_of(ran: Ran) -> dict[str, Any]:
    """A step's outcome: what it said in its last line of JSON, or what went wrong."""
    last = ran.output.strip().splitlines()[-1] if ran.output.strip() else ""
    try:
        said = json.loads(last)
    except json.JSONDecodeError:
        said = {"said": last[:500]}
    said = said if isinstance(said, dict) else {"said": last[:500]}
    if ran.status != 0:
        why = "out of time" if ran.status is None else f"status {ran.status}"
        said.setdefault("problems", [f"{why}: {ran.output.strip()[-1500:]}"])
    return {"at": datetime.now(UTC).isoformat(timespec="seconds"), "problems": [], **said}


def work(
    steps: list[str], state: State, runner: Runner, *, budget_s: float, clock: Callable[[], float] = time.monotonic
) -> list[str]:
    """Runs what is not done yet, while there is time; the steps that are left. A step that ran out of the budget is not held against it."""
    ends = clock() + budget_s
    left = [step for step in steps if step not in state.done]
    while left:
        remaining = ends - clock()
        if remaining <= 1:
            break
        limit = min(STEP_LIMIT_S, remaining)
        ran = runner(command_of(left[0], state.folder / "captures"), limit)
        if ran.status is None and limit < STEP_LIMIT_S:
            break
        state.add(left[0], record_of(ran))
        tell(left[0], state.done[left[0]])
        left = left[1:]
    return left


def tell(step: str, record: dict[str, Any]) -> None:
    """One line a step, and its problems."""
    say(f"{'✗' if record['problems'] else '✓'} {step}")
    for problem in record["problems"]:
        say(f"    {problem}")


def publish_captures(made: Path, target: Path) -> dict[str, Any]:
    """Copies captures into the repository's folder, smallest first, within the limits; its manifest, which names what was left out."""
    kept: list[dict[str, Any]] = []
    left_out, total = [], 0
    files = sorted(
        (path for path in made.glob("*") if path.suffix in (".gz", ".csv")), key=lambda path: path.stat().st_size
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
    """What docs/measured/<gpu>.json holds."""
    day = datetime.now(UTC).date().isoformat()
    return {
        "recorded_by": RECORDED_BY,
        "gpu": gpu,
        "date": day,
        "versions": versions,
        "steps": state.done,
        "left": left,
    }


def cut(trace: dict[str, Any], steps: int = KEPT_STEPS) -> dict[str, Any]:
    """A torch.profiler trace reduced to its first `steps` steps, with all device work that was launched in them, and nothing that names the host."""
    trace = {key: value for key, value in trace.items() if key not in _PRIVATE}
    events = trace["traceEvents"]
    marks = sorted(
        (e for e in events if str(e.get("name", "")).startswith("ProfilerStep#") and "dur" in e),
        key=lambda e: float(e["ts"]),
    )
    if len(marks) <= steps:
        return trace
    begin, end = float(marks[0]["ts"]), float(marks[steps - 1]["ts"]) + float(marks[steps - 1]["dur"])
    inside = [e for e in events if "ts" in e and begin <= float(e["ts"]) < end and not _on_device(e)]
    launched = {e["args"]["correlation"] for e in inside if "correlation" in e.get("args", {})}
    device = [e for e in events if _on_device(e) and e.get("args", {}).get("correlation") in launched]
    labels = [e for e in events if e.get("ph") == "M"]
    return {**trace, "traceEvents": [*(e for e in inside if e.get("ph") != "M"), *device, *labels]}


def _on_device(event: dict[str, Any]) -> bool:
    return event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")


def without_names(text: str) -> str:
    """ncu's CSV with the columns blanked that name the host and the process."""
    rows = list(csv.reader(io.StringIO(text)))
    header = next((row for row in rows if "Kernel Name" in row), [])
    blank = [header.index(name) for name in _PRIVATE_COLUMNS if name in header]
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for row in rows[rows.index(header) if header else 0 :]:
        writer.writerow([("" if at in blank and row is not header else value) for at, value in enumerate(row)])
    return out.getvalue()


def grade(slug: str, what: str) -> dict[str, Any]:
    """One submission's verdict on `cuda`, by the function that grades learners, and what it should have been."""
    import msgspec

    from bottleneck_lab.commands import dev

    lab = lab_called(slug)
    verdict = dev._check(lab, submissions(lab)[what], DEVICE)
    problems = dev._starter_problems(lab, verdict) if what == "starter" else dev._pass_problems(verdict)
    criteria = [{"id": row.id, "holds": row.holds, "sentence": row.sentence} for row in verdict.criteria]
    return {
        "problems": problems,
        "outcome": verdict.outcome,
        "reason": verdict.reason,
        "criteria": msgspec.to_builtins(criteria),
        "duration_s": verdict.duration_s,
        "environment": verdict.environment,
    }


def capture(slug: str, what: str, tool: str, into: Path) -> dict[str, Any]:
    """One capture of a lab's code on `cuda`, cut and freed of names, as a file below `into`."""
    from bottleneck_lab import capture as capturing
    from bottleneck_lab.commands import dev
    from bottleneck_lab.commands.ui import data_folder
    from bottleneck_lab.workspace.home import home
    from bottleneck_lab.workspace.start import start_workspace

    lab = lab_called(slug)
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bottleneck-lab-") as scratch:
        workspace, out = Path(scratch, "workspace"), Path(scratch, "out")
        out.mkdir()
        start_workspace(lab, workspace, DEVICE)
        dev._lay_out(lab, submissions(lab)[what], workspace)
        trace = capturing.profile(
            lab,
            workspace,
            DEVICE,
            tool,
            data=data_folder(lab),
            home=home(),
            out=out,
            progress=lambda _doing, _share: None,
        )
        kept = keep(trace, into / f"{slug}-{what}-{tool}")
    return {"file": kept.name, "bytes": kept.stat().st_size}


def keep(trace: Path, target: Path) -> Path:
    """A capture's file in the form in which it may be committed."""
    if trace.name.endswith(".json.gz"):
        content = cut(json.loads(gzip.decompress(trace.read_bytes())))
        target = target.with_name(target.name + ".json.gz")
        target.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0))
    elif trace.suffix == ".csv":
        target = target.with_name(target.name + ".csv")
        target.write_text(without_names(trace.read_text(encoding="utf-8", errors="replace")), encoding="utf-8")
    else:  # nsys' SQLite holds host names and more in many tables: it is read here, and only its size is recorded
        target = target.with_name(target.name + trace.suffix)
        target.write_bytes(trace.read_bytes())
    if target.suffix != ".txt":
        from bottleneck_lab import load

        load(target)
    return target


def never_run(labs: Iterable[Any], records: Iterable[dict[str, Any]]) -> list[str]:
    """What no record in docs/measured shows to be in order on a GPU, a line a lab."""
    good = {step for record in records for step, row in record["steps"].items() if not row["problems"]}
    lines = []
    for lab in labs:
        missing = [what for what in submissions(lab) if f"grade:{lab.slug}:{what}" not in good]
        kinds = [what for what in missing if not what.startswith("variant ")]
        if others := [what.removeprefix("variant ") for what in missing if what not in kinds]:
            kinds.append(f"variants ({', '.join(others)})")
        if kinds:
            lines.append(f"- `{lab.slug}` on `cuda`: {', '.join(kinds)}")
    if "tests" not in good:
        lines.append("- the tests marked `gpu`")
    tools = {step.rsplit(":", 1)[1] for step in good if step.startswith("capture:")}
    lines += [
        f"- captures with `--tool {tool}` on a GPU"
        for tool in ("torch", "nsys", "ncu", "sanitizer", "memory")
        if tool not in tools
    ]
    return lines


def write_never_run(readme: Path, lines: list[str]) -> None:
    """Puts the list between its marks."""
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(_BEGIN)
    after = rest.split(_END)[1]
    readme.write_text(f"{before}{_BEGIN}\n{chr(10).join(lines)}\n{_END}{after}", encoding="utf-8")


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Every docs/measured/*.json that this script has written."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [record for record in records if isinstance(record, dict) and record.get("recorded_by") == RECORDED_BY]


def installed_tools() -> Iterator[str]:
    """The tools of this machine that captures are made with."""
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
    """This machine, for the record; no host name."""
    from bottleneck_lab.measure.machine import fingerprint

    return fingerprint()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="steps whose names begin so")
    parser.add_argument("--budget-s", type=float, default=3600.0, help="stop after so long; run again to go on")
    parser.add_argument("--fresh", action="store_true", help="forget what was done before")
    parser.add_argument("--list", action="store_true", help="name the steps and those done")
    parser.add_argument("--write-never-run", action="store_true", help="renew the list in docs/measured/README.md")
    parser.add_argument("--do", help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def do(step: str, into: Path) -> dict[str, Any]:
    """A step, in its own process."""
    kind, slug, what, *tool = step.split(":")
    return grade(slug, what) if kind == "grade" else capture(slug, what, tool[0], into)


def main(arguments: list[str] | None = None, *, runner: Runner = run, root: Path = ROOT) -> int:
    """Entry point."""
    options = parse(arguments)
    from bottleneck_lab.capture.doctor import gpus

    labs, docs = gpu_labs(), root / "docs" / "measured"
    if options.do:
        say(json.dumps(do(options.do, options.into)))
        return OK
    if options.write_never_run:
        write_never_run(docs / "README.md", never_run(labs, read_records(docs)))
        return OK
    if not (names := gpus()):
        sys.stderr.write("There is no CUDA device that this process can use; nothing was run and nothing changed.\n")
        return NO_GPU
    return go(options, names[0], labs, runner, root)


def go(options: argparse.Namespace, gpu: str, labs: list[Any], runner: Runner, root: Path) -> int:
    """The steps that were asked for, then what is recorded of them."""
    folder, docs = root / "build" / "gpu" / gpu_slug(gpu), root / "docs" / "measured"
    if options.fresh:
        (folder / "state.json").unlink(missing_ok=True)
    state, steps = State(folder), plan(labs, installed_tools())
    chosen = [step for step in steps if not options.only or step.startswith(tuple(options.only))]
    if options.list:
        say("\n".join(f"{'done' if step in state.done else '    '} {step}" for step in chosen))
        return OK
    left = work(chosen, state, runner, budget_s=options.budget_s)
    if (folder / "captures").is_dir():
        publish_captures(folder / "captures", root / "datasets" / "captures" / gpu_slug(gpu))
    docs.mkdir(parents=True, exist_ok=True)
    record = measured(gpu, state, versions(), [step for step in steps if step not in state.done])
    (docs / f"{gpu_slug(gpu)}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    write_never_run(docs / "README.md", never_run(labs, read_records(docs)))
    if left:
        say(f"{len(left)} steps are left; the same command goes on with {left[0]}.")
        return LEFT
    return WRONG if any(state.done[step]["problems"] for step in chosen) else OK


if __name__ == "__main__":
    sys.exit(main())
