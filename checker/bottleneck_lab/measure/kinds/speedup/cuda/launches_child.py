"""Calls a kernel's host function in a library that was linked with launches.c, and prints each
launch as a line of JSON. In its own process: `python -I launched.py LIBRARY REQUEST`, the request
being JSON: `capability`, the `sizes` of every kernel's parameters in bytes, and the `calls`.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

_SEEN = ctypes.CFUNCTYPE(
    None,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_size_t,
)
_APART = 1 << 32
"""Bytes between the beginnings of two arrays: none of them exists, and nothing is read."""


def main(library: str, request: str) -> None:
    """Prints what was launched."""
    asked = json.loads(request)

    def seen(name: bytes, shape: Any, arguments: Any, shared: int) -> None:
        kernel = name.decode()
        values = [
            ctypes.string_at(arguments[place], size).hex()
            for place, size in enumerate(asked["sizes"].get(kernel, []))
        ]
        told = {
            "kernel": kernel,
            "grid": shape[:3],
            "block": shape[3:6],
            "dynamic_shared_bytes": shared,
            "arguments": values,
        }
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()  # what comes next may crash

    loaded, callback = ctypes.CDLL(library), _SEEN(seen)
    loaded.lab_follow(callback, asked["capability"])
    for call in asked["calls"]:
        loaded[call["function"]](*_arguments(call["arguments"]))


def _arguments(given: list[str | int | float]) -> list[Any]:
    """As C takes them: an address for "array", a null pointer for "null"."""
    return [
        ctypes.c_void_p(_APART * (place + 1)) if value == "array"
        else ctypes.c_void_p() if value == "null"
        else ctypes.c_float(value) if isinstance(value, float)
        else value
        for place, value in enumerate(given)
    ]  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
