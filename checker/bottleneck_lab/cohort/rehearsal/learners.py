"""Made-up learners: when each would submit what, drawn from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from bottleneck_lab.catalog import Device, Lab

FIRST_SHARE = 0.5
"""Share of a lab's minutes after which a learner of ordinary speed submits for the first time."""
SPREAD = 0.35
"""Standard deviation of the logarithm of how fast learners are: the middle two thirds lie within
a factor of 1.4 of ordinary speed."""


class Block(msgspec.Struct, frozen=True):
    """A lab in the rehearsal: when the room works on it (s from the start), and on which device."""

    lab: str
    device: Device
    begins: float
    ends: float


class Try(NamedTuple):
    """One submission: how long after the verdict before, or after the block's begin, it is sent
    (s), and whether it passes.
    """

    think_s: float
    passes: bool


class Script(msgspec.Struct, frozen=True):
    """The doings of one learner: the blocks, in order, and the tries in each.

    A block's tries end with the one that passes, or when the block ends.
    """

    name: str
    blocks: list[Block]
    tries: list[list[Try]]


def choose_device(lab: Lab, gpus: int) -> Device:
    """Return the device on which learners submit: a GPU where there is one, else the lab's own."""
    devices = lab.spec.devices
    if gpus and "cuda" in devices:
        return "cuda"
    return "virtual" if "virtual" in devices else "cpu"


def lay_out(labs: Sequence[Lab], gpus: int, scale_s: float = 60.0) -> list[Block]:
    """Lay out labs one after another, each for the minutes of its lab.toml (`scale_s` s each)."""
    blocks, begins = [], 0.0
    for lab in labs:
        ends = begins + lab.spec.minutes * scale_s
        blocks.append(Block(lab.slug, choose_device(lab, gpus), begins, ends))
        begins = ends
    return blocks


def lay_out_times(
    labs: Sequence[Lab], gpus: int, times: Mapping[str, tuple[float, float]]
) -> list[Block]:
    """Lay out labs by when each opens and is due (s since the epoch), beginning with the first."""
    start = min(opens for opens, _ in times.values())
    blocks = []
    for lab in sorted(labs, key=lambda each: times[each.slug]):
        opens, due = times[lab.slug]
        blocks.append(Block(lab.slug, choose_device(lab, gpus), opens - start, due - start))
    return blocks


def lay_out_before_due(labs: Sequence[Lab], gpus: int, dues: Mapping[str, float]) -> list[Block]:
    """Lay out labs as if everybody began each as late as its minutes allow before it is due.

    `dues` are seconds since the epoch. Labs that are due together follow one another in the order
    of `labs`. The first block begins at 0.
    """
    blocks: list[Block] = []  # from the last to the first
    ordered = sorted(labs, key=lambda each: dues[each.slug])
    for lab in reversed(ordered):
        ends = min(dues[lab.slug], blocks[-1].begins if blocks else math.inf)
        begins = ends - lab.spec.minutes * 60
        blocks.append(Block(lab.slug, choose_device(lab, gpus), begins, ends))
    start = blocks[-1].begins
    return [
        msgspec.structs.replace(block, begins=block.begins - start, ends=block.ends - start)
        for block in reversed(blocks)
    ]


def reverse(blocks: Sequence[Block]) -> list[Block]:
    """Return the same labs in the opposite order, each as long as before."""
    end = max(block.ends for block in blocks)
    return [
        msgspec.structs.replace(block, begins=end - block.ends, ends=end - block.begins)
        for block in reversed(blocks)
    ]


def make_scripts(
    blocks: Sequence[Block], learners: int, tries: float, seed: int, *, halves: bool = False
) -> list[Script]:
    """Draw what each of so many learners does; on average `tries` submissions until a lab passes.

    With `halves`, every other learner takes the labs in the opposite order. The number of tries is
    geometric: each passes with the same probability. A learner's speed is log-normal and stays the
    same in all labs; pauses between tries are exponential.
    """
    rng = random.Random(seed)
    scripts = []
    for number in range(learners):
        order = reverse(blocks) if halves and number % 2 else list(blocks)
        speed = rng.lognormvariate(0.0, SPREAD)
        of_blocks = []
        for block in order:
            length = block.ends - block.begins
            think = length * FIRST_SHARE * speed * rng.uniform(0.8, 1.2)
            own: list[Try] = []
            while not own or not own[-1].passes:
                own.append(Try(think, rng.random() < 1 / tries))
                think = rng.expovariate(1.0) * length * (1 - FIRST_SHARE) * speed / tries
            of_blocks.append(own)
        scripts.append(Script(f"learner {number + 1}", order, of_blocks))
    return scripts
