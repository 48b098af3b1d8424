"""Replace what the pretend GPU has to: in the package's modules, in files of labs, and in torch.

Imported by every process of a rehearsal, so it imports little; the functions import what they need.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from pretend_gpu import GPUS, HERE, NAME, REHEARSED, VARIABLE

Names = Mapping[str, Any]
"""Names of a module, and what takes their place."""

LESS: dict[str, dict[str, Any]] = {
    "benchmark": {},
    "data_parallel": {},
    "http_server": {},
    "inference_server": {"most_members": 4},
    "input_pipeline": {"epoch_batches": 6},
    "operator_profile": {"passes": 1, "precision": 9.0, "loosest": 9.0, "least_captures": 2},
    "speedup": {
        "max_s": 3.0,
        "warmup_calls": 1,
        "judged": 4,
        "compared": 2,
        "self_test_margin": 99.0,
    },
    "training": {"max_s": 2.0, "warm_up_rounds": 1},
}
"""Smaller settings of each kind: as little work as shows that all of it can be done."""

_SHORT = {"length": [65, 97], "launches": 3}
JUDGED: dict[str, dict[str, Any]] = {
    "fused-attention": {
        "work_gflop": 0.5,
        "bands": [
            {**_SHORT, "tail": 8, "dim": 64, "causal": False, "dtype": "fp16"},
            {**_SHORT, "tail": 1, "dim": 128, "causal": True, "dtype": "bf16"},
        ],
    },
    "perf-gate": {"commits": 2, "looks": [[2, 0, 2]]},
    "resnet-top-ops": {"batch": 2},
    "roofline": {"parameters": [90_000, 99_000], "rounds": 2},
    "timing-pitfalls": {"quiet": 2, "noisy": 1},
}
"""Smaller settings of a lab's judge, by the lab."""

SCHEDULE = {"wait": 1, "warmup": 1, "active": 3}
TOOLS = {
    "nsys": HERE / "tools" / "nsys.py",
    "ncu": HERE / "tools" / "ncu.py",
    "compute-sanitizer": HERE / "tools" / "compute_sanitizer.py",
}


def of_driver(_module: ModuleType) -> Names:
    """Have the driver and NVML report two devices that nobody else uses."""
    from bottleneck_lab.measure.gpu import GpuState

    state = GpuState(NAME, "none", sm_clock_mhz=0, mode=0, sliced=False, others=0, busy=None)
    return {"cuda_devices": lambda: [(NAME, "")] * GPUS, "gpu_states": lambda: [state] * GPUS}


def of_tools(module: ModuleType) -> Names:
    """Have NVIDIA's profilers installed."""
    find_program = module.find_program
    return {"find_program": lambda name: TOOLS.get(name) or find_program(name)}


def of_kinds(module: ModuleType) -> Names:
    """Have every kind do less work on `cuda`, and run the learner's script in run.py."""
    kind_of = module.kind_of
    return {"kind_of": lambda lab: _less_work(kind_of(lab))}


def _less_work(kind: Any) -> Any:
    """Return a copy of a kind: the package's own object stays as it is."""
    import msgspec

    changed = copy.copy(kind)

    def settings(lab: Any, device: str) -> Any:
        declared = kind.settings(lab, device)
        if device != "cuda":
            return declared
        judge = declared.judge | JUDGED.get(lab.slug, {})
        return msgspec.structs.replace(declared, judge=judge, **LESS.get(kind.name, {}))

    def program(lab: Any, device: str, tool: str | None = None) -> tuple[str, ...]:
        command = kind.program(lab, device, tool)
        return on_pretend_gpu(command) if device == "cuda" else command

    changed.settings, changed.program = settings, program
    return changed


def on_pretend_gpu(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command line with its script run by run.py, on as many devices as there are.

    A command line that runs a module of the package needs no change: that process finds out by
    itself (`works_on_cuda`).
    """
    ranks = {"--nproc-per-node=gpu": f"--nproc-per-node={GPUS}"}
    words = [ranks.get(word, word) for word in command]
    for number, word in enumerate(words):
        if word.endswith(".py"):
            return (*words[:number], str(HERE / "run.py"), *words[number:])
    return tuple(words)


def of_verdicts(module: ModuleType) -> Names:
    """Have a check on `cuda` end without a verdict and without a figure."""
    check_lab = module.check_lab

    @wraps(check_lab)
    def check(lab: Any, workspace: Path, device: str, **more: Any) -> Any:
        verdict = check_lab(lab, workspace, device, **more)
        return _without_figures(lab, verdict) if device == "cuda" else verdict

    return {"check_lab": check}


def _without_figures(lab: Any, verdict: Any) -> Any:
    """Keep of a verdict only that the check ran, or what went wrong whatever the times are."""
    import msgspec

    from bottleneck_lab.catalog import CriterionSpec
    from bottleneck_lab.grading.criteria import not_measured
    from bottleneck_lab.grading.verdict import Outcome

    if verdict.outcome is Outcome.ERROR:
        return verdict
    of_times = ("correct but slow", "wrong diagnosis", "the mechanism is still there")
    wrong = verdict.outcome is Outcome.FAIL and verdict.reason not in of_times
    summary = f"{REHEARSED} It ended early: {verdict.summary}" if wrong else REHEARSED
    declared = lab.spec.devices["cuda"].criteria
    known = {spec.id for spec in declared}
    specs = [
        *declared,
        *(
            CriterionSpec(result.id, "diagnosis", result.id)
            for result in verdict.criteria
            if result.kind == "diagnosis" and result.id not in known
        ),
    ]
    return msgspec.structs.replace(
        verdict,
        outcome=Outcome.INCONCLUSIVE,
        reason=None,
        summary=summary,
        advice=[f"Unset {VARIABLE} to measure."],
        criteria=[not_measured(spec, "since this was a rehearsal") for spec in specs],
        notes=[],
        prediction=None,
        measurement={},
    )


def of_profiling(module: ModuleType) -> Names:
    """torch.profiler records fewer steps."""
    schedule = module.schedule
    return {"schedule": lambda device: SCHEDULE if device == "cuda" else schedule(device)}


def of_speedup(module: ModuleType) -> Names:
    """Accept calls that take no longer than the protocol or that other programs slow: they slow
    what stands in for a kernel, too. Time the second level however slow the work is.
    """
    with_second_level = module.with_second_level

    def timed(workers: Any, measured: Any, cases: Any) -> Any:
        from dataclasses import replace

        with_second_level(workers, replace(measured, results=[]), cases)
        return measured

    return {
        "_refuse_slowed": lambda *_, **__: None,
        "refuse_overhead": lambda *_, **__: None,
        "with_second_level": timed,
    }


def of_training(_module: ModuleType) -> Names:
    """The host does the device's work."""
    return {"refuse_work_on_the_host": lambda *_: None}


def of_benchmark(module: ModuleType) -> Names:
    """Judge no measuring code of a learner's by its figures."""
    measure = module.measure

    def check(context: Any) -> Any:
        from bottleneck_lab.grading.criteria import not_measured

        measured = measure(context)
        if context.device != "cuda":
            return measured
        specs = context.lab.spec.devices["cuda"].criteria
        return type(measured)([not_measured(spec, "since this was a rehearsal") for spec in specs])

    return {"measure": check}


def of_benchmark_gpu(module: ModuleType) -> Names:
    """Have the device that does real work do it on the modelled queue."""

    def open_gpu() -> Any:
        import torch  # noqa: F401 - first: at its end it imports `device`, which imports it

        from pretend_gpu import device

        return module.Gpu(device.QUEUE.launch, device.Event)

    return {"open_gpu": open_gpu}


def of_load(_module: ModuleType) -> Names:
    """Load a server for as long as it takes to see that it answers."""
    return {"OPEN_WINDOWS": (1,), "TRIES": 1, "MOST_CLOSED_S": 7.0}


def of_pictures(_module: ModuleType) -> Names:
    """A few looks at the host's speed are enough."""
    return {"CALIBRATION_PICTURES": 6}


def of_loops(_module: ModuleType) -> Names:
    """Capture a server under load for as long as it takes to see some requests."""
    return {"WARM_UP_S": 1.0, "CAPTURED_S": 2.0, "LEAD_S": 0.5, "LOOP_S": 2.0}


def of_plateau(_module: ModuleType) -> Names:
    """Two maximum batch sizes stand for all, and a few requests for each."""
    return {"SIZES": (1, 32), "CAPTURED_POINT_S": 0.5}


def of_sizing(_module: ModuleType) -> Names:
    """Accept a device however fast it is beside this CPU."""
    return {"SHARES": (0.0, float("inf"))}


def of_data_parallel(module: ModuleType) -> Names:
    """Have ranks train on the emulation's small pictures, a few steps."""
    launch = module.launch

    def launch_small(context: Any, folder: Path, costs: Any, *job: Any, **options: Any) -> Any:
        import msgspec

        small = msgspec.structs.replace(costs, samples=2, shape=costs.stand_in.shape)
        return launch(context, folder, small, *job, **{**options, "warmup": 2, "steps": 7})

    return {"launch": launch_small}


PACKAGE: dict[str, Callable[[ModuleType], Names]] = {
    "bottleneck_lab.measure.gpu": of_driver,
    "bottleneck_lab.capture.tools": of_tools,
    "bottleneck_lab.measure.kinds.registry": of_kinds,
    "bottleneck_lab.measure.verifier": of_verdicts,
    "bottleneck_lab.measure.kinds.profiling": of_profiling,
    "bottleneck_lab.measure.kinds.speedup.check": of_speedup,
    "bottleneck_lab.measure.kinds.training.check": of_training,
    "bottleneck_lab.measure.kinds.benchmark.check": of_benchmark,
    "bottleneck_lab.measure.kinds.benchmark.gpu": of_benchmark_gpu,
    "bottleneck_lab.measure.kinds.http_server.check": of_load,
    "bottleneck_lab.measure.kinds.http_server.local_server": of_loops,
    "bottleneck_lab.measure.kinds.inference_server.bench": of_pictures,
    "bottleneck_lab.measure.kinds.inference_server.run": of_plateau,
    "bottleneck_lab.measure.kinds.inference_server.sizing": of_sizing,
    "bottleneck_lab.measure.kinds.data_parallel.session_gpu": of_data_parallel,
}
"""Modules of the package, each with the function that knows its replacements."""


def of_small_networks(name: str) -> Callable[[ModuleType], Names]:
    """Have a judge's function called `name` use, in place of a ResNet-50, something that a host
    trains in milliseconds.
    """

    def replaced(judge: ModuleType) -> Names:
        function = getattr(judge, name)

        @wraps(function)
        def with_small_networks(*arguments: Any) -> Any:
            import torchvision

            resnet50 = torchvision.models.resnet50
            torchvision.models.resnet50 = small_network
            try:
                return function(*arguments)
            finally:
                torchvision.models.resnet50 = resnet50

        return {name: with_small_networks}

    return replaced


def small_network(num_classes: int = 1000) -> Any:
    """Return a network with the inputs and outputs of a ResNet-50."""
    from torch import nn

    layers = nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(3 * 8 * 8, num_classes)
    return nn.Sequential(*layers)


def of_disturbances(_hardware: ModuleType) -> Names:
    """Nothing disturbs a device whose times mean nothing."""
    return {"disturbance": lambda *_: "", "SHARE": float("inf")}


def of_attention(_binding: ModuleType) -> Names:
    """Have the kernel compiled, but PyTorch answer in its place."""
    from pretend_gpu.attention import launch_cuda

    return {"launch_cuda": launch_cuda}


FILES: dict[tuple[str, str], Callable[[ModuleType], Names]] = {
    ("idle-gpu", "judge.py"): of_small_networks("training_step"),
    ("past-the-plateau", "judge.py"): of_small_networks("member"),
    ("perf-gate", "hardware.py"): of_disturbances,
    ("timing-pitfalls", "hardware.py"): of_disturbances,
}
"""Files of labs, by folder and name. The binding of `fused-attention` is found by its function: it
lies in a submission's folder when it is loaded.
"""


def of_tagger(recipe: ModuleType) -> Names:
    """Train the tagger at the size of the emulated device: a host takes minutes for the other."""
    recipe.Data.__init__.__defaults__ = (40,)
    return {"LONGEST": 48, "WIDTH": 64, "BATCH": 32, "STEPS": 40}


def replacements_of(module: ModuleType) -> Names:
    """Return what is replaced in a module that has just been imported."""
    if module.__name__ in PACKAGE:
        return PACKAGE[module.__name__](module)
    if module.__name__ == "torch" and works_on_cuda():
        from pretend_gpu.device import give

        give()
        return {}
    file = Path(getattr(module, "__file__", None) or "")
    if file.name == "attention.py" and hasattr(module, "launch_cuda"):
        return of_attention(module)
    # The recipe, too, lies in a workspace or a submission.
    if file.name == "recipe.py" and hasattr(module, "Tagger"):
        return of_tagger(module)
    known = FILES.get((file.parent.name, file.name))
    return known(module) if known else {}


def works_on_cuda() -> bool:
    """Return True in a process of a check or a capture that computes on `cuda`: not in the
    verifier, which computes references on the host.
    """
    words = sys.orig_argv
    if "-m" not in words:
        return False
    module, *options = words[words.index("-m") + 1 :]
    on_cuda = "cuda" in options or any('"backend":"nccl"' in word for word in options)
    return on_cuda and module.startswith("bottleneck_lab.measure.")
