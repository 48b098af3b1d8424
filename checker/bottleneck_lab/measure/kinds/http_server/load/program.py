"""Run a program that makes load, while the server under it is watched."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from bottleneck_lab.measure.sandbox.janitor import Janitor

LOOK_S = 0.1


def run_watched(
    command: list[str],
    janitor: Janitor,
    watch: Callable[[float], None],
    limit_s: float,
    *,
    log: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> int | None:
    """Run a program for at most `limit_s`; its output goes to `log`. Returns its exit status, or
    None if it was still running then.

    `watch` is called again and again meanwhile, with the seconds it may take; what it raises ends
    the program too.
    """
    with log.open("wb") if log else contextlib.nullcontext() as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment,
            start_new_session=True,
        )
    janitor.follow(process.pid)
    try:
        for _ in range(int(limit_s / LOOK_S)):
            if process.poll() is not None:
                break
            watch(LOOK_S)
        return process.poll()
    finally:
        process.kill()
        process.wait()
        janitor.forget(process.pid)
