"""The virtual GPU beside a real one: modelled and measured trainings of the same sizes.

    python benchmarks/emulation_fidelity.py [--record docs/measured/h200.json] [--write]

For every training of the record, starter and solution train on the virtual GPU at that size. A CPU
takes too long for large ones: these train smaller batches on a device that is slower in proportion,
whose loader takes longer in proportion, too. Nothing is timed: every figure repeats on any machine.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import msgspec

from bottleneck_lab.catalog import Lab, find_lab
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.kinds.training import figures
from bottleneck_lab.measure.kinds.training.session import train_modelled
from bottleneck_lab.measure.sandbox.janitor import Janitor
from bottleneck_lab.measure.submission import collect_pristine
from bottleneck_lab.measure.virtual_gpu.spec import H200

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "measured" / "h200.json"
PAGE = ROOT / "docs" / "measured" / "emulation_fidelity.md"
TOLERANCE = 0.10
"""Of the ratio of starter to solution: as near as modelled and measured ones must be."""
STEPS = 12
MOST_WORK = 2e6
"""Of a batch, tokens times width, from which on it is divided: a step then takes a few seconds."""


class Modelled(msgspec.Struct, frozen=True):
    """One training of the record, modelled: milliseconds a step, and the ratio of the two."""

    starter_ms: float
    solution_ms: float

    @property
    def ratio(self) -> float:
        return self.starter_ms / self.solution_ms


def measured_ratio(training: dict[str, Any]) -> float:
    """Return the measured ratio of starter to solution of a row of the record."""
    return float(training.get("ratio") or training["starter_ms"] / training["solution_ms"])


def model(training: dict[str, Any]) -> Modelled:
    """Train starter and solution of a row of the record on the virtual GPU."""
    lab = find_lab(training["lab"])
    return Modelled(*(_step_ms(lab, overlay, training["size"]) for overlay in (None, lab.solution)))


def _step_ms(lab: Lab, overlay: Path | None, size: dict[str, int]) -> float:
    parts = _parts(size)
    gpu = msgspec.structs.replace(H200, scale=float(parts), sample_us=parts * H200.sample_us)
    with Janitor() as janitor:
        folder = janitor.folder / "script"
        collect_pristine(lab, folder, overlay)
        recipe = folder / "recipe.py"
        constants = dict(size)
        if size:
            constants |= {"BATCH": size["BATCH"] // parts, "STEPS": STEPS}
        recipe.write_text(_with_constants(recipe.read_text("utf-8"), constants), "utf-8")
        settings = kind_of(lab).settings(lab, "virtual")
        folders = (folder, folder, folder, folder)
        context = Context(lab, "virtual", settings, *folders, janitor, lambda *_: None)
        (training,) = train_modelled(context, "reference", folder, [7], gpu)
        return figures.step_time_us(training.engine_figures()) / 1000


def _parts(size: dict[str, int]) -> int:
    """Return the power of two by which a batch is divided."""
    parts = 1
    while size and size["BATCH"] * size["LONGEST"] * size["WIDTH"] / parts > MOST_WORK:
        parts *= 2
    return min(parts, 8)


def _with_constants(recipe: str, constants: dict[str, int]) -> str:
    """Set the recipe's constants, after its own lines have: its classes come later."""
    lines = "".join(f"{name} = {value}\n" for name, value in constants.items())
    return re.sub(r"(?m)^class ", f"{lines}\n\nclass ", recipe, count=1)


def table(record: dict[str, Any]) -> str:
    """Return the table of a record, printing each row as it is modelled."""
    lines = [
        "| lab | size | measured ms: starter, solution | modelled ms | measured ratio | modelled |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for training in record["trainings"]:
        modelled, right = model(training), measured_ratio(training)
        size = ", ".join(f"{name.lower()} {value}" for name, value in training["size"].items())
        times = "not read"
        if "starter_ms" in training:
            times = f"{training['starter_ms']:.2f}, {training['solution_ms']:.2f}"
        lines.append(
            f"| {training['lab']} | {size or 'as shipped'} | {times}"
            f" | {modelled.starter_ms:.2f}, {modelled.solution_ms:.2f}"
            f" | {right:.2f}x | {modelled.ratio:.2f}x ({modelled.ratio / right - 1:+.0%}) |"
        )
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--write", action="store_true", help=f"renew {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    record = json.loads(options.record.read_text("utf-8"))
    text = table(record)
    if options.write:
        PAGE.write_text(
            "# The virtual GPU beside a real one\n\n"
            "Generated by `python benchmarks/emulation_fidelity.py --write`. Modelled figures"
            " repeat on any machine. The measured ones are from one session and were written down"
            f" by hand ([{options.record.name}]({options.record.name})): {record['gpu']},"
            f" {record['date']}. Six of these times were also used to set the prices of a launch,"
            " of a step and of a kernel's work, so the rows are no independent proof.\n\n"
            f"{text}\n\n"
            "The ratio of the ensemble is from a whole check, with an interval of 5.9 to 10.6. A"
            " test holds each modelled ratio within 10% of the measured one.\n",
            "utf-8",
        )


if __name__ == "__main__":
    main()
