"""The device on which a lab is measured here."""

from __future__ import annotations

from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.errors import MachineError, UsageError
from bottleneck_lab.measure.gpu import cuda_devices, gpu_states
from bottleneck_lab.needs import require_lab_packages, require_linux

DEFAULT_MODE = "As administrator: `nvidia-smi -c DEFAULT`."
"""How to let a GPU be used that refuses it."""


def gpus() -> list[str]:
    """Return the names of the CUDA devices that this process may use."""
    return [name for name, _address in cuda_devices()]


def choose_device(lab: Lab, wanted: str | None) -> Device:
    """Return the device asked for, or the best that `lab` and this machine share: `cuda` first,
    then the lab's own order.

    Raises UsageError for a device that the lab is not measured on, MachineError for a GPU or a
    torch that is not there.
    """
    offered = lab.spec.devices
    if wanted is not None:
        if wanted not in offered:
            raise UsageError(
                f"'{lab.slug}' is not measured on '{wanted}'.",
                f"It is measured on: {', '.join(offered)}.",
            )
        if wanted == "cuda":
            _require_gpu(lab)
        return wanted
    usable = [device for device in offered if device != "cuda"]
    if "cuda" in offered and (not usable or not gpus_missing(lab)):
        _require_gpu(lab)
        return "cuda"
    return usable[0]


def gpus_missing(lab: Lab) -> str:
    """State what `lab` lacks to be measured on `cuda` here; empty if nothing is missing."""
    there, least = len(gpus()), lab.spec.devices["cuda"].gpus
    if not there:
        return "This process cannot use any CUDA device."
    if there < least:
        return f"'{lab.slug}' needs {least} GPUs on `cuda`, and this process can use {there}."
    return ""


def require_torch(command: str) -> None:
    """Raise MachineError if `command`, which runs a lab, lacks Linux or PyTorch."""
    require_linux(command)
    require_lab_packages()


def _require_gpu(lab: Lab) -> None:
    others = [device for device in lab.spec.devices if device != "cuda"]
    instead = ""
    if others:
        instead = f"Use `--device {others[0]}`; "
    if missing := gpus_missing(lab):
        raise MachineError(missing, f"{instead}`lab doctor` says what is missing.")
    if refusals := [refusal for state in gpu_states() if (refusal := state.refusal())]:
        raise MachineError(refusals[0], f"{instead or 'Allow it. '}{DEFAULT_MODE}")
