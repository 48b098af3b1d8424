"""The steps that were done: on this machine, in build/gpu/, and on any, in docs/measured/."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts.gpu_run.plan import PYTESTS, submissions
from scripts.gpu_run.runner import Ran

RECORDED_BY = "scripts/gpu.py"
COUNTERS_REFUSED = "ERR_NVGPUCTRPERM"
"""The driver's word for counters that are kept for administrators."""
BEGIN, END = "<!-- never run: begin -->", "<!-- never run: end -->"


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


def write_never_run(readme: Path, labs: Iterable[Any]) -> None:
    """Put the list of what never ran between its marks in `readme`, by the records beside it."""
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    lines = "\n".join(never_run(labs, read_records(readme.parent)))
    readme.write_text(f"{before}{BEGIN}\n{lines}\n{END}{after}", encoding="utf-8")
