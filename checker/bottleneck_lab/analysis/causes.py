"""The causes of idle time, one row each.

Attribution, the words and colours of reports, the figures `idle_<cause>_share` and the table in
docs/analysis.md all follow from `IDLE_CAUSES`. A cause that the names of ranges, frames, operators
or calls give away is one row; one that has to be worked out is one row and a few lines in
`device.attribution.attribute`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from bottleneck_lab.analysis.host.calls import (
    ALLOCATION_CALL,
    COPY_CALL,
    SHORT_PAUSE_NS,
    SYNC_CALL,
)

Cause: TypeAlias = str

Sureness = Literal["certain", "likely", "unsure"]
"""Certain: the host's own rows show it. Likely: it follows from what was recorded around it.
Unsure: nothing was recorded about the host.
"""

# Lightning's profiler puts its own name, and the loop's, before each range.
_LIGHTNING = r"^(?:\[pl\]\[profile\](?:\[\w+\]\w*\.?)?)?"
_INPUT_RANGE = re.compile(
    _LIGHTNING + r"(?:enumerate\(DataLoader\)#|(?:train|val|test|predict)\w*_next$"
    r"|(?:#+ )?(?:data|input)s?(?: #+)?$|(?:data|input|batch)["
    r" _-]?(?:wait|load(?:ing|er)?|fetch(?:ing)?|prep\w*|time|next)"
    r"|(?:load|next|get|fetch|read|decode|wait)[ _-]?(?:for["
    r" _-])?(?:data|batch|input|image|sample)s?|data ?loader|dali\b|augment|pre-?process)",
    re.IGNORECASE,
)
_INPUT_FRAME = re.compile(
    r"(?:torch/utils/data/dataloader\.py\(\d+\): (?:__next__|_next_data|_get_data|_try_get_data)"
    r"|nvidia/dali/plugin/\w+/?\S*\(\d+\): __next__|nvidia/dali/pipeline\.py\(\d+\):"
    r" (?:run|share_outputs|outputs))"
)
_COPY_RANGE = re.compile(
    _LIGHTNING + r"(?:#+ )?(?:h2d|d2h|host[ _-]?to[ _-]?device|copy[ _-]?to[ _-]?(?:device|gpu)"
    r"|(?:batch[ _-])?to[ _-]?(?:device|gpu)|transfer)",
    re.IGNORECASE,
)
_COMMUNICATION = re.compile(
    r"^(?:gloo:|mpi:|c10d::barrier"
    r"|(?:#+ )?(?:all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|barrier|gradient[ _-]sync|wait["
    r" _-]for[ _-](?:gradients|ranks)))",
    re.IGNORECASE,
)
_COMPILING = re.compile(
    r"\(dynamo_timed\)$|^(?:entire_frame_compile|backend_compile|inductor_compile|triton_autotune)"
    r"|torch/_(?:dynamo/convert_frame|inductor/(?:compile_fx|codecache|async_compile))\.py\(\d+\): "
    r"|triton/(?:compiler/compiler|runtime/(?:jit|autotuner))\.py\(\d+\):"
    r" (?:compile|_do_compile|benchmark)"
    r"|torch/utils/cpp_extension\.py\(\d+\): load"
    r"|^(?:cuda|cu|hip)(?:Module|Library)(?:Load|GetFunction)|^nvrtcCompile|^(?:jit"
    r" )?compil(?:e|ing|ation)$",
    re.IGNORECASE,
)
_IMPORTING = re.compile(r"^<frozen importlib|importlib/_?bootstrap|^imports?$", re.IGNORECASE)
_SLEEPING = re.compile(
    r"^<built-in (?:function|method) (?:sleep|pause)\b|^(?:clock_)?(?:nano|u)?sleep$|^sleep",
    re.IGNORECASE,
)
_FILES = re.compile(
    r"^<built-in (?:function|method) (?:open|print|read|readinto|readline|write|flush|fsync|recv\w*"
    r"|send\w*|stat|dump|dumps|load|loads)\b"
    r"|torch/serialization\.py\(\d+\): (?:save|load)$|(?:^|/)(?:json/__init__|pickle)\.py\(\d+\):"
    r" (?:dump|load)s?$"
    r"|^(?:#+ )?(?:sav(?:e|ing)|writ(?:e|ing)|logging|log)"
    r"(?:[ _-](?:checkpoints?|model|state|weights|metrics|loss|images?|files?|results?|to["
    r" _-]\w+))?(?: #+)?$",
    re.IGNORECASE,
)


_ANYWHERE = ("ranges", "frames", "operators")
"""The host's rows in which a program, or a library in its name, can say what it does; `calls` are
those of the runtime.
"""


@dataclass(frozen=True, slots=True)
class IdleCause:
    """One cause of idle time.

    `label` is its name in reports, `colour` a class of page.css, and `sentence` completes "In that
    time …". `recognised_by` is its line in docs/analysis.md. `patterns` are names of the
    launching threads' `ranges`, `frames`, `operators` or `calls` that give it away; a cause
    without any is worked out by `device.attribution.attribute`. On a CPU nothing is launched, and a
    CPU that prepares input is not idle: `cpu_label` (whole, without "idle:") and `cpu_sentence` say
    it for captures without an accelerator.
    """

    id: Cause
    label: str
    colour: str
    sentence: str
    recognised_by: str
    patterns: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    sure: Sureness = "certain"
    outside: bool = False
    """Not a part of the work: before its beginning or after its end."""
    cpu_label: str = ""
    cpu_sentence: str = ""


IDLE_CAUSES: tuple[IdleCause, ...] = (
    IdleCause(
        "queued",
        "queued kernels",
        "gap-outside",
        "the next work was already queued: the device's own pause between two kernels, or one"
        " stream waiting for another",
        "the next work was launched before the gap began",
    ),
    IdleCause(
        "devices",
        "another device",
        "gap-communication",
        "the next work was already queued, and waited for another device of the process",
        "the same, while another device of the process worked",
        sure="likely",
    ),
    IdleCause(
        "communication",
        "communication",
        "gap-communication",
        "the host was waiting for other ranks",
        "ranges and operators of collectives and barriers",
        {"ranges": _COMMUNICATION, "operators": _COMMUNICATION},
    ),
    IdleCause(
        "input",
        "input",
        "gap-input",
        "the thread that feeds the device was waiting for, or making, the next batch",
        "ranges named after data, batches or loaders; the loader's and DALI's frames",
        {"ranges": _INPUT_RANGE, "frames": _INPUT_FRAME},
        cpu_label="preparing input",
        cpu_sentence="the main thread was making, or waiting for, the next input",
    ),
    IdleCause(
        "compilation",
        "compilation",
        "gap-host",
        "the host was compiling or loading code",
        "Dynamo's, Inductor's and Triton's ranges and frames; module loading; launch calls of over"
        " 1 ms, which load the kernel",
        dict.fromkeys((*_ANYWHERE, "calls"), _COMPILING),
    ),
    IdleCause(
        "imports",
        "imports",
        "gap-host",
        "the host was importing modules",
        "importlib's frames; ranges named `import`",
        dict.fromkeys(_ANYWHERE, _IMPORTING),
    ),
    IdleCause(
        "sleep",
        "sleep",
        "gap-python",
        "the host was asleep",
        "`sleep` among frames and ranges",
        dict.fromkeys(_ANYWHERE, _SLEEPING),
    ),
    IdleCause(
        "files",
        "files",
        "gap-host",
        "the host was reading or writing files, or printing",
        "built-in functions that read, write or print; ranges named after saving or logging",
        dict.fromkeys(_ANYWHERE, _FILES),
    ),
    IdleCause(
        "allocation",
        "allocating memory",
        "gap-host",
        "the host was asking the driver for memory, or giving it back",
        "cudaMalloc, cudaFree and their like",
        {"calls": ALLOCATION_CALL},
    ),
    IdleCause(
        "synchronisation",
        "synchronisation",
        "gap-synchronisation",
        "the host had waited for the device, so the queue was empty when it continued",
        "waiting calls, copies from pageable memory until the device has come to them, and what is"
        " late because of these",
        {"calls": SYNC_CALL},
    ),
    IdleCause(
        "copy",
        "copy",
        "gap-copy",
        "the host was inside a copy call, staging data",
        "copy calls; ranges such as `h2d`",
        {"ranges": _COPY_RANGE, "calls": COPY_CALL},
    ),
    IdleCause(
        "between_steps",
        "between steps",
        "gap-outside",
        "the host was between two marked steps and launched nothing",
        "nothing was launched for long, between two marked steps",
        sure="likely",
        cpu_sentence="no operator ran, between two marked steps",
    ),
    IdleCause(
        "host",
        "work on the host",
        "gap-host",
        "the host launched nothing: it ran operators on the CPU",
        "nothing was launched for long, while operators ran",
        sure="likely",
    ),
    IdleCause(
        "python",
        "Python",
        "gap-python",
        f"the host launched nothing for {SHORT_PAUSE_NS / 1e6:.1f} ms or more at a time and ran"
        " no operator: Python, another library, or a wait that was not recorded",
        "nothing was launched for long, and nothing else is known",
        sure="likely",
        cpu_label="no operator for long",
        cpu_sentence=(
            "no operator ran for long: Python, another library, or a wait that was not recorded"
        ),
    ),
    IdleCause(
        "launch",
        "launch",
        "gap-launch",
        "the host was launching work, but more slowly than the device finished it",
        "one launch follows another within 0.5 ms",
        sure="likely",
        cpu_label="between operators",
        cpu_sentence="no operator ran: Python between one operator and the next",
    ),
    IdleCause(
        "fixed",
        "fixed charges",
        "gap-host",
        "the host's model charged a step for the Python beside its operators, or for a batch from a"
        " worker, as it does whatever your code is",
        "the model's own range in each step; on modelled hosts only",
    ),
    IdleCause(
        "startup",
        "before first work",
        "gap-outside",
        "the device had not been given any work yet",
        "before the first work, where no steps are marked, or where one call of the runtime was"
        " much of it and never is again",
        outside=True,
        cpu_sentence="no operator had run yet",
    ),
    IdleCause(
        "ending",
        "after last work",
        "gap-outside",
        "the device was given no more work",
        "after the last work, where no steps are marked",
        outside=True,
        cpu_sentence="no operator ran any more",
    ),
    IdleCause(
        "unknown",
        "unknown",
        "gap-unknown",
        "no host activity was recorded at that time",
        "nothing is known of the host",
        sure="unsure",
    ),
    IdleCause(
        "unrecorded",
        "not recorded",
        "gap-unknown",
        "the device must have worked, since the host waited for it or work was in its queue, but"
        " nothing that ran was recorded",
        "a wait outlasts all recorded work or returns before it, work is queued for longer than any"
        " device pauses or stands out of its stream's order, or launches have no kernels",
        sure="unsure",
    ),
)
"""In the order in which a stretch of idle time is offered to them: the first that covers it has
it.
"""

CAUSE_OF: dict[Cause, IdleCause] = {cause.id: cause for cause in IDLE_CAUSES}
CAUSES: tuple[Cause, ...] = tuple(CAUSE_OF)
PATTERNS = {cause.id: cause.patterns for cause in IDLE_CAUSES if cause.patterns}
"""By cause, the names of host rows that give it away: what `view_host` looks for."""
OUTSIDE: tuple[Cause, ...] = tuple(cause.id for cause in IDLE_CAUSES if cause.outside)
