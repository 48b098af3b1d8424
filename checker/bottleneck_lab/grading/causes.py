"""The causes of the library of cases, of which labs use some: names, meanings and signs."""

from __future__ import annotations

MEMORY_GROWTH = "memory-growth"
"""The cause whose evidence and gain are a share and a ratio of peak memory, not of time."""
CAUSES = (
    "input-bound",
    "launch-bound",
    "synchronisation-bound",
    "allocation-bound",
    "copy-bound",
    "host-bound",
    "communication-bound",
    "straggler",
    "memory-bound",
    "compute-bound",
    "shared-device",
    MEMORY_GROWTH,
    "healthy",
)

MEANINGS = {
    "input-bound": "the next batch comes late",
    "launch-bound": "the host launches work too slowly",
    "synchronisation-bound": "the host waits for the device, then the device for the host",
    "copy-bound": "work waits for copies between host and device",
    "communication-bound": "work waits for data from other devices",
    "network-bound": "requests or replies are held up on the network",
    "straggler": "one rank is late, and the others wait for it",
    "memory-bound": "the speed of the device's memory sets the pace",
    "compute-bound": "the speed of the device's arithmetic sets the pace",
    "host-bound": "the host does something else: files, compiling, Python",
    "allocation-bound": "memory is taken from the driver again and again",
    "shared-device": "another program uses the device, too",
    "healthy": "nothing is worth fixing",
    "memory-growth": "each step leaves more memory allocated",
}
"""The usual names of causes, for those who meet them for the first time."""

SIGNS_OF = {
    "input-bound": "the main thread waiting in its loading range while the device is idle",
    "launch-bound": (
        "many short kernels in every step, with gaps between them as long as the kernels"
    ),
    "synchronisation-bound": "a gap on the device after each of many waiting calls of the host",
    "copy-bound": "copies on the device with no computation in parallel",
    "communication-bound": "collectives on the device with no computation in parallel",
    "compute-bound": "a device that is busy nearly all the time, with long kernels",
    "memory-bound": "a busy device whose operators do little arithmetic per byte moved",
    "host-bound": "a device that is idle while the main thread runs Python, files or a compiler",
    "allocation-bound": "an idle device while the host takes memory from the driver in every step",
    "straggler": "one rank whose own work takes longer than the others', step after step",
    "shared-device": "the same kernels taking longer in some steps than in others",
    "memory-growth": "more memory allocated after each step than after the one before",
}
"""The signs in a capture of each cause."""
