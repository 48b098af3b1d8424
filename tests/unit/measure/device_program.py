"""Run a program on the virtual GPU."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bottleneck_lab.measure.virtual_gpu.books import Figures
from bottleneck_lab.measure.virtual_gpu.owner import engine_process
from bottleneck_lab.measure.virtual_gpu.spec import H200

SET_UP = """
import json, socket, sys, torch
from pathlib import Path
from torch import nn
from bottleneck_lab.measure.faults import NotModelled
from bottleneck_lab.measure.virtual_gpu.backend import install
driver = install(socket.socket(fileno=int(sys.argv[1])), Path(__file__))
device = torch.device("virtual")
"""
"""The beginning of every program."""


def run(program: str, folder: Path, *arguments: str, secret: int = 0) -> tuple[Any, list[int]]:
    """Return what a program prints as JSON that runs on the virtual GPU, and the waits of its
    steps. `secret`: of the engine's initial parameters.
    """
    output, figures = _run(program, folder, *arguments, secret=secret)
    return json.loads(output.splitlines()[-1]), figures.step_waits


def count_launches(program: str, folder: Path) -> tuple[Any, list[int]]:
    """Return what a program prints as JSON that runs on the virtual GPU, and the launches of its
    steps.
    """
    output, figures = _run(program, folder)
    return json.loads(output.splitlines()[-1]), figures.step_launches


def _run(program: str, folder: Path, *arguments: str, secret: int = 0) -> tuple[str, Figures]:
    """Return what a program prints, and the figures of its run."""
    script = folder / "program.py"
    script.write_text(SET_UP + program, encoding="utf-8")
    with engine_process() as engine:
        engine.begin(H200, secret=secret)
        fd = engine.program.fileno()
        done = subprocess.run(
            [sys.executable, str(script), str(fd), *arguments],
            pass_fds=[fd],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout, engine.end().figures
