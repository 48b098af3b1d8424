"""Which GPUs a worker may open: those chosen for it, by their device nodes, and by names that stay
valid whatever else is visible.

NVIDIA's driver counts the GPUs that a process can open. With one node visible, the second GPU
becomes the first; its UUID stays what it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

DEV, DRIVER = Path("/dev"), Path("/proc/driver/nvidia/gpus")
_NUMBERED = re.compile(r"nvidia\d+")


class Gpu(NamedTuple):
    """One GPU: its device node and its UUID (`GPU-…`)."""

    node: Path
    uuid: str


def chosen_gpus(environment: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names by index or UUID; none where it names none,
    or where it cannot be told which are meant.
    """
    names = [
        name.strip()
        for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if name.strip()
    ]
    known = _known()
    if all(name.isdecimal() for name in names):
        # In any other order the driver puts the fastest first, which only it knows.
        ordered = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(known) == 1
        indices = [int(name) for name in names]
        if ordered and max(indices, default=0) < len(known):
            return [known[index] for index in indices]
        return []
    chosen = [
        gpu
        for name in names
        for gpu in known
        if name.startswith("GPU-") and gpu.uuid.startswith(name)
    ]
    return chosen if len(chosen) == len(names) else []


def _known() -> list[Gpu]:
    """Return every GPU that has a node here, by PCI address. A container may have fewer nodes than
    the machine has GPUs.
    """
    gpus = []
    for folder in sorted(DRIVER.iterdir()) if DRIVER.is_dir() else []:
        lines = (folder / "information").read_text().splitlines()
        facts = {
            name.strip(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        node, uuid = DEV / f"nvidia{facts.get('Device Minor', '?')}", facts.get("GPU UUID", "")
        if node.exists() and "?" not in uuid:
            gpus.append(Gpu(node, uuid))
    return gpus


def visible_nodes(gpus: list[Gpu]) -> list[Path]:
    """Return the nodes that a worker on these GPUs sees, with those that control the driver; of
    every GPU where none is named.
    """
    nodes = sorted([*DEV.glob("nvidia*"), *DEV.glob("dxg")])  # the second is WSL2's
    own = {gpu.node for gpu in gpus}
    return [node for node in nodes if not own or node in own or not _NUMBERED.fullmatch(node.name)]


def words(gpus: list[Gpu]) -> str:
    """Return the visible GPUs in words, for a verdict."""
    if gpus:
        return f"only {', '.join(gpu.node.name for gpu in gpus)}"
    return "every GPU of this machine"
