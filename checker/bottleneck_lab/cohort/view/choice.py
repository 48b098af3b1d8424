"""The facts about a lab that an instructor needs before choosing it for a workshop."""

from __future__ import annotations

from bottleneck_lab.catalog import Lab
from bottleneck_lab.cohort.rehearsal.learners import choose_device
from bottleneck_lab.cohort.running.forecast import needs_quiet
from bottleneck_lab.wording import counted


def needs_of(lab: Lab) -> list[str]:
    """Return what a lab needs of the machines of learners and runners, in a few words each.

    Where it runs on several devices, the one without a GPU counts.
    """
    devices = lab.spec.devices
    device = "cuda" if set(devices) == {"cuda"} else choose_device(lab, gpus=0)
    needs = ["no GPU"] if device != "cuda" else [counted(devices[device].gpus, "GPU")]
    needs += [f"data set {name}" for name in lab.spec.datasets]
    needs += devices[device].settings.get("tools", [])  # compilers, by name
    if needs_quiet(lab.slug, device):
        needs.append("quiet machine")
    return needs
