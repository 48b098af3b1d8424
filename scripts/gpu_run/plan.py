"""The steps that only a machine with a CUDA device can do, in the order of their worth, and what
this machine lacks for each.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PRETEND_GPU = ROOT / "scripts" / "pretend_gpu"
DEVICE: Any = "cuda"
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
NOT_REHEARSED = {
    "torch.compile(": "needs a GPU to compile for",
    "ENABLED = True": "needs a GPU to launch Triton's kernels on",
}
"""Words of submissions that cannot run on a device that is not there, and why not."""
BELOW_HOPPER = "GPUs below compute capability 9.0"
"""Words in the entry file of a submission that is right on a Hopper, but too slow there."""
HOPPER_ALONE = "for Hopper alone (compute capability"
ON_TRITON = 'SERVER = "triton"'
"""Words in the entry file of a submission that a Triton Inference Server serves."""
DALI = "nvidia-dali-cuda130"
TOO_MUCH_FOR_A_HOST = ("ddp-scaling", "fused-attention")
"""Labs whose scripts, run alone as NVIDIA's tools see them, have no smaller size for a rehearsal.
"""
CASES = ROOT / "datasets" / "cases"
PYTESTS = {"tests": "tests/gpu", "exploits": "tests/exploits"}
"""Where the tests marked `gpu` are: other tests need packages that nothing here does."""


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


def submissions(lab: Any) -> dict[str, Path]:
    """Return what is graded of a lab: starter, solution, and each variant, with its folder."""
    from bottleneck_lab.measure.lab_rules.variants import variants

    graded = {
        f"variant {path.name}": path
        for path in variants(lab, DEVICE)
        if not path.name.startswith((".", "_"))
    }
    return {"starter": lab.path, "solution": lab.solution, **graded}


def plan_steps(labs: Iterable[Any], tools: Iterable[str], gpu_count: int) -> dict[str, str]:
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


def captured(lab: Any, tool: str) -> tuple[str, ...]:
    """Return what a tool records of a lab: `starter` or `solution`."""
    from bottleneck_lab.measure.kinds.registry import kind_of

    return kind_of(lab).captured_work(tool)


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


def form_of(step: str) -> int:
    """Return the index of a step's form in FORMS."""
    return next(number for number, form in enumerate(FORMS) if re.fullmatch(form, step))


def lacking(lab: Any, folder: Path, gpu_count: int) -> str:
    """Return what a submission needs and this machine lacks, in words; empty if nothing."""
    if gpu_count < lab.spec.devices[DEVICE].gpus:
        return f"needs {lab.spec.devices[DEVICE].gpus} GPUs"
    code = "\n".join(
        (folder / name).read_text(encoding="utf-8")
        for name in lab.spec.editable
        if (folder / name).is_file()
    )
    if pretending():
        for word, why in NOT_REHEARSED.items():
            if word in code:
                return why
    # What the code says of itself, if this machine will do, and what to say if not.
    needs = (
        (ON_TRITON, has_triton, "needs a Triton Inference Server (lab data tritonserver)"),
        (
            BELOW_HOPPER,
            lambda: compute_capability() < (9, 0),
            "is written for GPUs below compute capability 9.0",
        ),
        (HOPPER_ALONE, lambda: compute_capability() == (9, 0), "is written for Hopper alone"),
        ("nvidia.dali", lambda: installed(DALI), f"needs {DALI}"),
    )
    return next((why for word, will_do, why in needs if word in code and not will_do()), "")


def compute_capability() -> tuple[int, int]:
    """Return the first GPU's compute capability; (0, 0) where there is none."""
    import torch

    return torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)


def has_triton() -> bool:
    """Return True if a Triton Inference Server is set up."""
    from bottleneck_lab.workspace.dataset import is_made

    return is_made("tritonserver")


def installed(distribution: str) -> bool:
    """Return True if a package is installed."""
    return bool(list(importlib.metadata.distributions(name=distribution)))


def not_rehearsed(lab: Any, tool: str) -> str:
    """Return why a tool's capture of a lab cannot be rehearsed, in words; empty where it can."""
    if tool == "memory":
        return "needs a GPU's allocator"
    return "too much work for a host" if tool != "torch" and lab.slug in TOO_MUCH_FOR_A_HOST else ""
