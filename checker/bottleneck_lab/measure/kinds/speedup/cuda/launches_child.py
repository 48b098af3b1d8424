"""Calls a kernel's host function in a library that was linked with launches.c, and prints each
launch as a line of JSON. In its own process: `python -I launches_child.py LIBRARY REQUEST`, the
request being JSON: `capability`, the `sizes` of every kernel's parameters in bytes, and the
`calls`.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

_CALLBACK = ctypes.CFUNCTYPE(
    None,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_size_t,
)
_APART = 1 << 32
"""Bytes between the beginnings of two arrays: none of them exists, and nothing is read."""


def main(library: str, request: str) -> None:
    """Call the host functions that the request names, and print each launch."""
    calls = json.loads(request)

    def show(name: bytes, shape: Any, arguments: Any, shared: int) -> None:
        kernel = name.decode()
        values = [
            ctypes.string_at(arguments[index], size).hex()
            for index, size in enumerate(calls["sizes"].get(kernel, []))
        ]
        launch = {
            "kernel": kernel,
            "grid": shape[:3],
            "block": shape[3:6],
            "dynamic_shared_bytes": shared,
            "arguments": values,
        }
        sys.stdout.write(json.dumps(launch) + "\n")
        sys.stdout.flush()  # what comes next may crash

    loaded, callback = ctypes.CDLL(library), _CALLBACK(show)
    loaded.lab_follow(callback, calls["capability"])
    for call in calls["calls"]:
        loaded[call["function"]](*_arguments(call["arguments"]))


def _arguments(values: list[str | int | float]) -> list[Any]:
    """Convert the arguments of a call to C: an address for "array", a null pointer for "null"."""
    converted: list[Any] = []
    for index, value in enumerate(values):
        if value == "array":
            converted.append(ctypes.c_void_p(_APART * (index + 1)))
        elif value == "null":
            converted.append(ctypes.c_void_p())
        elif isinstance(value, float):
            converted.append(ctypes.c_float(value))
        else:
            converted.append(value)
    return converted


if __name__ == "__main__":
    main(*sys.argv[1:])
