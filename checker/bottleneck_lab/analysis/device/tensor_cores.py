"""The tensor cores of a device: whether it has any, what they take, and how much faster they are.

Both follow from its compute capability ("Compute Capabilities" in the CUDA C++ Programming Guide);
captures that lack it mostly have the device's name, which tells it as well.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from bottleneck_lab.analysis.counters.roofline import find_machine

FIRST, FIRST_WITH_TF32_AND_BF16 = 7.0, 8.0
"""Compute capabilities from which devices have them."""
_RATIOS = {
    7.0: 8.1,
    8.0: 16.0,
    8.6: 4.0,
    8.7: 8.1,
    8.9: 4.0,
    9.0: 16.0,
    10.0: 32.0,
    12.0: 4.0,
}
"""fp16 on tensor cores over fp32 without, the highest in the data sheets of the devices from this
compute capability to the next: T4, A100, A10, Orin, L4, H100, B200, RTX PRO 6000.
"""
_HALF_RATE = re.compile(r"\b(?:GeForce RTX|A10G\b|L40\b)")
"""Devices whose tensor cores add up in fp32, as PyTorch has them do, at half the rate of others of
their compute capability (NVIDIA's data sheets and white papers on Turing, Ampere, Ada, Blackwell).
"""
_WITHOUT = re.compile(r"\b(?:GTX 16\d\d|MX\d{3}|T(?:400|500|550|600|1000|1200|2000))\b")
"""Turing, compute capability 7.5, made without them (NVIDIA, Turing architecture: TU116, TU117)."""
_AMD = re.compile(r"\b(?:AMD|Instinct|Radeon)\b|^gfx\d")
# By name, the newest first: "RTX 6000 Ada" is no "RTX 6000".
_CAPABILITIES = tuple(
    (re.compile(rf"\b(?:{names})"), capability)
    for names, capability in (
        (r"RTX 50[5-9]\d|RTX PRO \d+", 12.0),
        (r"G?B[123]00\b", 10.0),
        (r"H(?:20|100|200|800)\b|GH200\b", 9.0),
        (r"L(?:2|4|20|40S?)\b|RTX 40[5-9]\d\b|RTX \d+ (?:\w+ )?Ada", 8.9),
        (r"Orin\b", 8.7),
        (r"A(?:2|10G?|16|40)\b|RTX 30[5-9]\d\b|RTX A\d+", 8.6),
        (r"A(?:30|100|800)\b|PG509", 8.0),
        (r"T4G?\b|T40\b|RTX 20[5-8]\d\b|TITAN RTX|RTX [34568]000\b|GTX 16\d\d", 7.5),
        (r"V100S?\b|GV100|TITAN V\b|Xavier", 7.0),
        (r"P(?:4|6|40|100)\b|GP100|GTX 10\d\d|GT 10\d\d|TITAN Xp?\b|Quadro P\d+", 6.0),
        (r"M(?:4|6|10|40|60)\b|GTX 9\d\d|GTX 750|Quadro M\d+|GTX TITAN X\b", 5.0),
        (r"K(?:10|20|40|80)[cmstX]*\b|GTX [67]\d\d|Quadro K\d+|GTX TITAN\b", 3.5),
    )
)


class TensorCores(NamedTuple):
    """`ratio`: how many times as fast fp16 is on them as fp32 without. `only_fp16`: they take
    neither bf16 nor TF32.
    """

    ratio: float
    only_fp16: bool


def find_tensor_cores(name: str, capability: float) -> TensorCores | None:
    """Return the tensor cores of the device of this name; None where it has none, or nothing tells
    that it has.

    `capability`: its compute capability as recorded; 0.0 where it was not.
    """
    capability = capability or _capability_of(name)
    if capability < FIRST or _WITHOUT.search(name) or _AMD.search(name):
        return None
    machine = find_machine(name)
    if machine is not None:
        ratio = machine.flops["fp16"] / machine.flops["fp32"]
    else:
        ratio = _RATIOS[max(since for since in _RATIOS if since <= capability)]
        if _HALF_RATE.search(name):
            ratio /= 2
    return TensorCores(ratio, capability < FIRST_WITH_TF32_AND_BF16)


def _capability_of(name: str) -> float:
    """Return the compute capability that goes with a device's name; 0.0 for an unknown one."""
    return next((known for names, known in _CAPABILITIES if names.search(name)), 0.0)
