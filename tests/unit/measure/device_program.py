"""Run a program on the virtual GPU."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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
        return json.loads(done.stdout.splitlines()[-1]), engine.end().figures.step_waits
