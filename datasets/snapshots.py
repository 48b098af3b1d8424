"""Made-up memory snapshots, exactly in the form that `torch.cuda.memory._dump_snapshot` writes.

    python datasets/snapshots.py --out snapshot.pickle [--events 3000] [--depth 12] [--layers 12]
    [--kept 1] [--seed 0]

A training loop whose every step allocates activations, frees them in the backward pass, and keeps
`--kept` tensors of the forward pass. Events, segments, blocks and frames share their parts as
PyTorch's do (torch/csrc/cuda/Module.cpp): a list of frames of its own for every event but
free_completed, which has free_requested's; a live block has the list of its allocation; frames and
the words of the format occur once.
"""

from __future__ import annotations

import argparse
import pickle
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

MIB = 1 << 20
BEGIN_US = 1_763_000_000_000_000
TORCH = "/venv/lib/python3.11/site-packages/torch"


class Program:
    """The frames of a program: made once for each line, as PyTorch does."""

    def __init__(self, depth: int) -> None:
        self._frames: dict[tuple[str, int, str], dict[str, Any]] = {}
        self._library = [
            self.frame(f"{TORCH}/nn/modules/module.py", 1500 + at, "_call_impl")
            for at in range(depth)
        ]

    def frame(self, file: str, line: int, function: str) -> dict[str, Any]:
        """One line."""
        known = self._frames.get((file, line, function))
        if known is None:
            known = {"name": function, "filename": file, "line": line}
            self._frames[file, line, function] = known
        return known

    def stack(self, *own: tuple[str, int, str]) -> list[dict[str, Any]]:
        """A stack, the innermost line first: lines of PyTorch's, between `own` lines of the
        program.
        """
        inner, *outer = own
        library = self._library[1 : len(self._library) - len(own)]
        functional = self.frame(f"{TORCH}/nn/functional.py", 2000 + inner[1], "linear")
        return [functional, self.frame(*inner), *library, *(self.frame(*line) for line in outer)]


class Allocator:
    """A caching allocator: blocks are cut from segments and used again by size. It writes down what
    PyTorch's would.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.now_us = BEGIN_US
        self._segments: list[dict[str, Any]] = []
        self._free: dict[int, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
        self._next, self._room = 0x7F12_0000_0000, {"small": (0, 0), "large": (0, 0)}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._words = {
            word: word
            for word in (
                "alloc",
                "free_requested",
                "free_completed",
                "segment_alloc",
                "oom",
                "snapshot",
            )
        }

    def _say(self, action: str, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        self.now_us += 3
        self.events.append(
            {
                "action": self._words[action],
                ("device_free" if action == "oom" else "addr"): address,
                "size": size,
                "stream": 0,
                "time_us": self.now_us,
                "compile_context": "".join(
                    ("N", "/A")
                ),  # a new text each time, as PyTorch makes one
                "user_metadata": "",
                "frames": frames,
            }
        )

    def alloc(self, requested: int, frames: list[dict[str, Any]]) -> int:
        """Allocates; the block's address."""
        size = max(512, -(-requested // 512) * 512)
        if self._free[size]:
            address, block = self._free[size].pop()
        else:
            address, block = self._cut(size, frames)
        block |= {"requested_size": requested, "state": "active_allocated", "frames": frames}
        self._blocks[address] = block
        self._say("alloc", address, size, frames)
        return address

    def _cut(self, size: int, frames: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        kind = "small" if size <= MIB else "large"
        at, end = self._room[kind]
        if end - at < size:
            whole = 2 * MIB
            if kind == "large":
                whole = 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            at, end = self._next, self._next + whole
            self._next += whole + 64 * MIB
            self._segments.append(
                {
                    "address": at,
                    "total_size": whole,
                    "segment_type": kind,
                    "frames": frames,
                    "blocks": [],
                }
            )
            self._say("segment_alloc", at, whole, frames)
        block = {"address": at, "size": size}
        segment = next(
            s
            for s in reversed(self._segments)
            if s["address"] <= at < s["address"] + s["total_size"]
        )
        segment["blocks"].append(block)
        self._room[kind] = (at + size, end)
        return at, block

    def free(self, address: int, frames: list[dict[str, Any]]) -> None:
        """The program lets go of a block."""
        block = self._blocks.pop(address)
        block |= {"state": "inactive", "requested_size": 0, "frames": []}
        self._say("free_requested", address, block["size"], frames)
        self._say("free_completed", address, block["size"], frames)
        self._free[block["size"]].append((address, block))

    def out_of_memory(self, size: int, free: int, frames: list[dict[str, Any]]) -> None:
        """An allocation that fails."""
        self._say("oom", free, size, frames)

    def segments(self) -> list[dict[str, Any]]:
        """What the allocator holds now; the rest of each segment is one free block."""
        return [self._segment(segment) for segment in self._segments]

    def _segment(self, segment: dict[str, Any]) -> dict[str, Any]:
        blocks = list(segment["blocks"])
        end = sum(block["size"] for block in blocks)
        if end < segment["total_size"]:
            rest = {"address": segment["address"] + end, "size": segment["total_size"] - end}
            blocks.append(rest | {"requested_size": 0, "state": "inactive", "frames": []})
        active = [block for block in blocks if block["state"] == "active_allocated"]
        return {
            "device": 0,
            "address": segment["address"],
            "total_size": segment["total_size"],
            "allocated_size": sum(block["size"] for block in active),
            "active_size": sum(block["size"] for block in active),
            "requested_size": sum(block["requested_size"] for block in active),
            "stream": 0,
            "segment_type": segment["segment_type"],
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": segment["frames"],
            "blocks": blocks,
        }


def snapshot(
    *,
    events: int = 3000,
    depth: int = 12,
    layers: int = 12,
    kept: int = 1,
    seed: int = 0,
    fails: bool = False,
) -> dict[str, Any]:
    """The snapshot as PyTorch would hand it over, of at least so many events. `fails`: it ends out
    of memory.
    """
    rng, program, allocator = random.Random(seed), Program(depth), Allocator()
    sizes = [
        rng.choice((4096, 70_000, 300_000, MIB, 3 * MIB)) + 4 * rng.randrange(100)
        for _ in range(layers)
    ]
    loop, main = ("/home/me/train.py", 40, "train"), ("/home/me/train.py", 80, "<module>")
    for layer in range(layers):
        allocator.alloc(64_000, program.stack(("/home/me/model.py", 10 + layer, "__init__"), main))
    annotations, step = [], 0
    while len(allocator.events) < events:
        annotations += [_annotation(f"ProfilerStep#{step}", "START", allocator.now_us)]
        held = []
        for layer, size in enumerate(sizes):
            forward = ("/home/me/model.py", 50 + layer, "forward")
            held.append(allocator.alloc(size, program.stack(forward, loop, main)))
            if layer < kept:
                allocator.alloc(4096, program.stack(("/home/me/train.py", 44, "train"), main))
        for address in reversed(held):
            allocator.free(address, program.stack(("/home/me/train.py", 42, "train"), main))
        annotations += [_annotation(f"ProfilerStep#{step}", "END", allocator.now_us)]
        step += 1
    if fails:
        allocator.out_of_memory(
            64 * MIB, 3 * MIB, program.stack(("/home/me/model.py", 61, "forward"), loop, main)
        )
    return {
        "segments": allocator.segments(),
        "device_traces": [allocator.events, []],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "max_split_size": -1,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": False,
        },
        "external_annotations": annotations,
    }


def _annotation(name: str, stage: str, time_us: int) -> dict[str, Any]:
    return {"name": name, "stage": stage, "device": 0, "time_us": time_us}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--events", type=int, default=3000)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--kept", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    made = snapshot(
        events=options.events,
        depth=options.depth,
        layers=options.layers,
        kept=options.kept,
        seed=options.seed,
    )
    with options.out.open("wb") as file:
        pickle.dump(made, file)  # as torch.cuda.memory._dump_snapshot does


if __name__ == "__main__":
    main()
