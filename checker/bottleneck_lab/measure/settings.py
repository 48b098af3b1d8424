"""The `settings` of a device in lab.toml: here those of every kind of lab; each kind adds its
own and may change a default.
"""

from __future__ import annotations

from typing import Any

import msgspec

LOADING_CORES = 2
"""On how many cores the code of a lab about loading runs, so that machines of any size behave
alike.
"""


class HostCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a C function that launches kernels: numbers, "array" for the address of one,
    "null".
    """

    function: str
    arguments: tuple[int | float | str, ...]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For every lab.

    tools: programs that this machine must have. sources: the editable files that are used on this
    device; None means all of them. judge: handed to the functions of the lab's judge.py as
    `settings`; nothing else reads it.
    """

    tools: list[str] = []
    sources: list[str] | None = None
    judge: dict[str, Any] = {}


class WorkerSettings(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For the kinds that run workers.

    start_s, call_s: longest time to load the code, and to answer. threads: of OpenMP; with
    `bind_threads` each has a core. arena_mb: shared memory for the arrays of a call. hidden:
    packages that the learner's worker does not find. threads_only: it can start no process. native:
    the entry file compiles a kernel, which sandbox/native_code.py guards.
    """

    start_s: float = 120.0
    call_s: float = 60.0
    memory_gib: float = 6.0
    threads: int = 2
    bind_threads: bool = False
    arena_mb: int = 256
    hidden: list[str] = []
    threads_only: bool = False
    native: bool = False
