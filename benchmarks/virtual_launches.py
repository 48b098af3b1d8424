"""What it brings that a program does not wait for every operator that it launches on the virtual
GPU: the shipped scripts, in turns with and without waiting.

    python benchmarks/virtual_launches.py [--lab launch-bound …] [--pairs 3] [--steps 12]

Each run is a pair of fresh processes, program and engine; the seconds are those of the training
alone, as the program counts them. Start-up is not in them.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bottleneck_lab.catalog import Lab, find_lab, load_labs
from bottleneck_lab.measure.virtual_gpu.owner import engine_process
from bottleneck_lab.measure.virtual_gpu.spec import T4


class Forgetful(dict):  # type: ignore[type-arg]  # of whatever the driver keeps
    """No result is predicted, so that every call waits for its answer."""

    def __setitem__(self, key: object, value: object) -> None: ...


def train(entry: Path, fd: int, steps: int, waits: bool) -> None:
    """The program's side: prints the seconds of one training."""
    import torch

    from bottleneck_lab.measure.kinds.training.child import Program
    from bottleneck_lab.measure.virtual_gpu.backend import install

    driver = install(socket.socket(fileno=fd), entry.parent)
    if waits:
        driver._predicted = Forgetful()
    torch.optim.SGD(
        [torch.zeros(1)], lr=0.1
    )  # the first optimizer of a process imports torch.compile
    sys.path.insert(0, str(entry.parent))
    program = Program(entry, "virtual", driver, steps)
    began = time.perf_counter()
    program.train(0)
    print(time.perf_counter() - began)


def seconds(lab: Lab, steps: int, waits: bool) -> tuple[float, float]:
    """Of one training, and the modelled time of it in us, which has to be the same."""
    with engine_process() as engine:
        engine.begin(T4, recording=True)
        engine.wait_started()
        fd = engine.program.fileno()
        options = json.dumps([str(lab.path / lab.spec.entry), fd, steps, waits])
        done = subprocess.run(
            [sys.executable, __file__, "--train", options],
            pass_fds=[fd],
            capture_output=True,
            text=True,
            check=True,
        )
        return float(done.stdout.split()[-1]), engine.end().figures.total_us


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lab", nargs="+")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--train", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        entry, *rest = options.train
        train(Path(entry), *rest)
        return
    for name in options.lab or [
        name for name, lab in load_labs().items() if lab.spec.measure == "training"
    ]:
        lab = find_lab(name)
        pairs = [
            [seconds(lab, options.steps, waits) for waits in (True, False)]
            for _ in range(options.pairs)
        ]
        waited, launched = (statistics.median(pair[at][0] for pair in pairs) for at in (0, 1))
        modelled = {round(time_us) for pair in pairs for _, time_us in pair}
        print(
            f"{name}, {options.steps} steps: {waited:.2f} s waiting, {launched:.2f} s not,"
            f" {waited / launched:.1f}x; modelled {sorted(modelled)} us",
            flush=True,
        )


if __name__ == "__main__":
    main()
