"""The `speedup` kind: how much faster the learner's code answers calls than the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from bottleneck_lab.catalog import CriterionSpec, Device, Lab
from bottleneck_lab.grading.sequential import SELF_TEST_MARGIN
from bottleneck_lab.measure.kinds.base import Criteria, JudgeFunctions, Kind
from bottleneck_lab.measure.settings import HostCall, WorkerSettings


class SpeedupSettings(WorkerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """reference: the file that the reference worker loads; by default the lab's entry, as shipped.

    max_s: longest time for the timed pairs. judged: answers that are judged at least, timed ones
    among them, however fast the code is. self_test_margin: how far apart the reference may be from
    itself. standards: a trusted file that gives the reference's answers sooner, for untimed calls,
    and those of the ways that the brief allows and forbids, with which the judge compares
    `compared` of the timed answers. triton_sources, sanitize: see kernels.py. second_level: what is
    reported besides, and never decides (second_level.py). launches: what `lab check --static` calls
    to see how kernels are launched (launches.py).
    """

    call_s: float = 30.0
    max_s: float = 120.0
    warmup_calls: int = 2
    judged: int = 100
    self_test_margin: float = SELF_TEST_MARGIN
    reference: str | None = None
    standards: str | None = None
    compared: int = 16
    triton_sources: tuple[str, ...] = ()
    sanitize: str | None = None
    launches: tuple[HostCall, ...] = ()
    second_level: CriterionSpec | None = None


class SpeedupKind(Kind[SpeedupSettings]):
    """Calls, timed one by one against a reference."""

    name = "speedup"
    settings_type = SpeedupSettings
    criteria: ClassVar[Criteria] = {
        "right-answers": "correctness",
        "speedup": "target",
        "p50-ms": "target",
        "load-bytes": "mechanism",
    }
    required = ("right-answers",)
    judge_functions: ClassVar[JudgeFunctions] = {"cases": 2, "make_inputs": 4, "judge": 5}

    def launches(self, lab: Lab) -> tuple[HostCall, ...]:
        return self.settings(lab, "cuda").launches

    def problems(self, lab: Lab) -> Iterator[str]:
        yield from super().problems(lab)
        judge = lab.path / "judge.py"
        if not judge.is_file() or not any(
            spec.settings.get("standards") for spec in lab.spec.devices.values()
        ):
            return
        text = judge.read_text(encoding="utf-8")
        for name in ("compare", "disagreement"):
            if f"def {name}(" not in text:
                yield f"{judge}: `{name}` is missing; a lab with `standards` needs it."

    def program(self, lab: Lab, device: Device, tool: str | None = None) -> tuple[str, ...]:
        *python, entry = super().program(lab, device, tool)
        sanitize = self.settings(lab, device).sanitize if tool == "sanitizer" else None
        return (*python, sanitize or entry)


KIND = SpeedupKind()
