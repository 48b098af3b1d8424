"""What is trained, and on which samples. The same for everyone: a check uses its own copy."""

import json
import random
import sys
from pathlib import Path
from typing import NamedTuple

from torch.profiler import record_function

BATCH, WINDOW, ROWS = 16, 512, 4000


class Epoch(NamedTuple):
    """What to train next: the samples `order`, each once and in this order."""

    number: int
    seed: int
    order: list[int]


def kinds(data):
    """Which kind of pump each recording is of."""
    return json.loads((data / "manifest.json").read_text())["kinds"]


def recording(data, index):
    """The file of a recording: a line with names, then a line a reading."""
    return data / f"{index:03d}.csv"


def begin(seed, epoch, index):
    """Where the window of a sample begins in its recording, in readings."""
    return random.Random(f"{seed}/{epoch}/{index}").randrange(ROWS - WINDOW)


def batches(loader):
    """What `loader` yields; the time spent waiting for it is the range `data` in a capture."""
    iterator = iter(loader)
    while True:
        with record_function("data"):
            batch = next(iterator, None)
        if batch is None:
            return
        yield batch


class Stub:
    """Takes what it is given. `lab run` and `lab check` put a device in its place."""

    def epochs(self):
        yield Epoch(0, 0, list(range(64)))

    def step(self, windows, labels):
        print(f"{len(windows)} windows of {len(windows[0])} readings")

    def synchronize(self):
        pass


def main(train):
    """Feed a few batches to nobody: `python train.py FOLDER`."""
    train(Stub(), Path(sys.argv[1]), Path("cache"))
