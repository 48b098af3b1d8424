"""The process in a check that runs a training script: `python -I -m
bottleneck_lab.measure.kinds.training.child …`. child_profiled.py runs the same in the learner's own
folder.

On the virtual GPU the script's tensors live in the verifier's engine, which also keeps the
parameters that the script returns: no value of them passes here.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import itertools
import json
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from bottleneck_lab.measure.channel.messages import Loading, Value
from bottleneck_lab.measure.channel.wire import Arena, Channel
from bottleneck_lab.measure.kinds.profiling import child_parser
from bottleneck_lab.measure.kinds.training import (
    COUNT_WAITS,
    COUNT_WORK,
    START_LOADER,
    TRAIN_ON_HOST,
)
from bottleneck_lab.measure.kinds.training.figures import WARM_UP_STEPS
from bottleneck_lab.measure.kinds.training.host_work import HostWork
from bottleneck_lab.measure.virtual_gpu.backend import Driver, install
from bottleneck_lab.measure.virtual_gpu.module import naming_what_is_missing
from bottleneck_lab.measure.virtual_gpu.secret_start import SecretStart
from bottleneck_lab.measure.virtual_gpu.tensor import VirtualTensor
from bottleneck_lab.measure.worker import answer_calls, load_module, serve

Reports = list[tuple[int, dict[str, float]]]

_collect = gc.collect
"""The virtual GPU puts another in its place, which charges for what a script asks for."""


class Program:
    """A training script on a device. It is given the first `steps` batches of its recipe,
    or all.
    """

    def __init__(
        self, entry: Path, device: str, driver: Driver | None, steps: int | None = None
    ) -> None:
        self._entry, self._script = entry, load_module(entry)
        # The script has imported its recipe under this name, unless it needs none of it.
        self._recipe = sys.modules.get("recipe") or load_module(entry.with_name("recipe.py"))
        self._device, self._driver, self._steps = torch.device(device), driver, steps
        self._step_bytes: list[int] = []
        self._start_s = 0.0
        self._start = SecretStart()
        """Of trainings on the host."""
        self._models_under_way = 0
        if driver:
            self._note_starts()
        gc.freeze()  # a collection then looks at no more than a training has made

    @functools.cached_property
    def smaller(self) -> Program:
        """The same script, loaded again with a recipe of its small size."""
        os.environ["LAB_SIZE"] = "small"
        sys.modules.pop("recipe", None)
        return Program(self._entry, str(self._device), self._driver, self._steps)

    def _note_starts(self) -> None:
        """Note the parameters of every model of the recipe as soon as it is made."""
        for kind in vars(self._recipe).values():
            is_model = isinstance(kind, type) and issubclass(kind, torch.nn.Module)
            if is_model and kind.__module__ == self._recipe.__name__:
                kind.__init__ = self._noting(kind.__init__)

    def _noting(self, initialise: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(initialise)
        def noted(model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
            self._models_under_way += 1
            try:
                initialise(model, *args, **kwargs)
            finally:
                self._models_under_way -= 1
            each = [each.detach() for each in model.parameters() if each.device.type == "cpu"]
            if self._driver:
                self._driver.tell("note_start", each)
            elif not self._models_under_way:
                # There is no copy to a device that would change them, and a model may change its
                # parts until it is complete.
                self._start.note(each)
                for parameter in each:
                    parameter.copy_(self._start.change(parameter))

        return noted

    @contextlib.contextmanager
    def on_host(self, secret: int) -> Iterator[None]:
        """Train on the host until the block ends, from the initial parameters that a virtual GPU
        with this secret has.
        """
        device, driver, threads = self._device, self._driver, torch.get_num_threads()
        self._device, self._driver, self._start = torch.device("cpu"), None, SecretStart(secret)
        torch.set_num_threads(1)  # sums are then added up as in the engine
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            self._device, self._driver, self._start = device, driver, SecretStart()

    def train(
        self,
        seed: int,
        on_step: Callable[[], None] = lambda: None,
        on_report: Callable[..., None] = lambda *_: None,
    ) -> tuple[Reports, dict[str, torch.Tensor]]:
        """Train on the data of a seed, calling `on_step` when a step begins and `on_report` for
        each report.

        Returns the reports and the parameters by name, in float32 on the CPU; no parameters on the
        virtual GPU, whose engine keeps them. Raises TypeError for a report that is not a number, or
        a model on another device.
        """
        reports: Reports = []

        def report(step: int, **numbers: float) -> None:
            reports.append(
                (int(step), {name: _number(name, value) for name, value in numbers.items()})
            )
            _collect()
            if self._driver:
                self._driver.tell("report")
            on_report(step, reports[-1][1])

        def begin_step(samples: int, *, at_once: bool) -> None:
            self._start_s = self._start_s or time.perf_counter() - began
            if self._driver:
                self._driver.step(samples, at_once=at_once)
            elif self._device.type == "cuda":
                # Asks the allocator, not the GPU: it does not wait for anything.
                self._step_bytes.append(torch.cuda.memory_allocated())
            on_step()

        def begin_pass() -> None:
            self._step_bytes.clear()
            if self._driver:
                self._driver.begin_pass()

        self._step_bytes, self._start_s, began = [], 0.0, time.perf_counter()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

        torch.manual_seed(seed)
        data = self._recipe.Data(seed)
        marked = _marked_steps(len(data.batches()), begin_pass, begin_step, self._steps)
        with marked, naming_what_is_missing(), _collecting_nothing_unasked():
            model = self._script.train(self._device, data, report)
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
        if self._driver:
            handles = {}
            for name, tensor in parameters.items():
                if not isinstance(tensor, VirtualTensor):
                    raise TypeError(
                        f"the parameter {name} is on {tensor.device}, not on the device that"
                        " train() was given"
                    )
                handles[name] = tensor.handle
            self._driver.ask("keep", handles)
            return reports, {}
        return reports, {name: tensor.float().cpu() for name, tensor in parameters.items()}

    def own_figures(self) -> dict[str, Any]:
        """Return figures of the last training on a real device: `start_s`, seconds until the first
        batch was handed over, and on a GPU bytes as this process's allocator counted them. Nothing
        on the virtual GPU, whose engine knows.
        """
        figures: dict[str, Any] = {} if self._driver else {"start_s": self._start_s}
        if self._device.type == "cuda":
            gc.collect()
            figures |= {
                "step_bytes": self._step_bytes,
                "peak_bytes": torch.cuda.max_memory_allocated(),
                "kept_bytes": torch.cuda.memory_allocated(),
            }
        return figures

    def start_loader(self, seed: int) -> float:
        """Return the seconds that making the data and starting a loader with a worker takes, until
        its first batch is there.
        """
        began = time.perf_counter()
        next(iter(self._recipe.Data(seed).batches(pin_memory=True)))
        return time.perf_counter() - began


@contextlib.contextmanager
def _collecting_nothing_unasked() -> Iterator[None]:
    """Have Python collect no garbage on its own.

    When it does depends on all that the process has made before, and with it the memory of a script
    with reference cycles: a run, a capture and a check would differ.
    """
    _collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class WrongReport(TypeError):  # noqa: N818 - says what, as `raise` reads
    """A report that holds something else than numbers."""

    reason = "wrong output"


def _number(name: str, value: Any) -> float:
    """Return a report's number; of arrays and tensors, those with one number in the host's memory.
    Raises WrongReport.
    """
    # A tensor would be turned into a number here, and its wait blamed on the checker's line.
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        raise WrongReport(
            f"A report takes numbers: {name} is a tensor on {value.device}. Read it first, with"
            " `.item()` or `.tolist()`."
        )
    try:
        (only,) = np.ravel(value)
        number = float(only)
    except (TypeError, ValueError):
        shape = f" of the shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        raise WrongReport(
            f"A report takes one number for each name: {name} is a {type(value).__name__}{shape}."
        ) from None
    if not math.isfinite(number):
        raise WrongReport(f"A report's {name} is {number}: the training has diverged.")
    return number


@contextlib.contextmanager
def _marked_steps(
    count: int, begin_pass: Callable[[], None], begin_step: Callable[..., None], most: int | None
) -> Iterator[None]:
    """Have every loader with so many batches begin a pass, then a step for each batch that it hands
    over, with the number of samples that this thread has loaded for it: none where a worker did. It
    hands over the first `most` batches. Garbage is collected behind the first two steps: PyTorch
    imports much on first use, and leaves cycles.

    A loader without a batch size asks its data set for a whole batch at once, by the indices that
    its sampler makes lists of, or for one that is ready, as an item.

    The script's own loaders count like the recipe's; a loader of something else has another number
    of batches.
    """
    iterate = DataLoader.__iter__

    def marked(loader: DataLoader[Any]) -> Iterator[Any]:
        # A loader draws a seed for its workers: models made after a look would start otherwise.
        with torch.random.fork_rng(devices=[]):
            batches = iterate(loader)
        length = len(loader) if hasattr(loader.dataset, "__len__") else None
        # Of batches that a script has gathered there are as many as it got.
        return _marked(loader, batches) if length and length in (count, most) else batches

    def _marked(loader: DataLoader[Any], batches: Iterator[Any]) -> Iterator[Any]:
        begin_pass()
        for step, batch in enumerate(itertools.islice(batches, most)):
            if 0 < step <= WARM_UP_STEPS:
                _collect()
            samples, at_once = _samples_of(batch), loader.batch_sampler is None
            if loader.num_workers:
                samples = 0
            elif at_once and isinstance(loader.sampler, SequentialSampler | RandomSampler):
                samples = 1
            begin_step(samples, at_once=at_once)
            yield batch

    with mock.patch.object(DataLoader, "__iter__", marked):
        yield


def _samples_of(batch: Any) -> int:
    """Return how many samples a batch has, by its first tensor; 1 without any."""
    parts = torch.utils._pytree.tree_leaves(batch)
    return next((len(part) for part in parts if isinstance(part, torch.Tensor) and part.dim()), 1)


def use_size_of(device: str) -> None:
    """Have recipes make the model and data of a device's size: they read LAB_DEVICE."""
    os.environ["LAB_DEVICE"] = device


def program_of(options: argparse.Namespace, channel: Channel | None = None) -> Program:
    """Load the script that the options name, with the virtual GPU installed where there is one. A
    check's `channel` hears of it just before.
    """
    use_size_of(options.device)
    driver = None
    if options.engine is not None:
        driver = install(socket.socket(fileno=options.engine), options.entry)
    if channel is not None:
        channel.send(Loading())
    return Program(options.entry, options.device, driver, options.steps)


def training_parser() -> argparse.ArgumentParser:
    """Return the options of both children of this kind."""
    parser = child_parser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", type=int)
    parser.add_argument("--steps", type=int)
    return parser


def _answer(
    program: Program, seed: int, task: int, secret: int = 0, smaller: int = 0
) -> list[Value]:
    """Train once, or only start a loader. Returns reports and the worker's own figures as JSON,
    then the parameters in the order of their names. `secret` is that of a training on the host;
    `smaller`: with the recipe's small size.
    """
    if smaller:
        program = program.smaller
    if task == START_LOADER:
        figures = {"start_s": program.start_loader(seed)}
        return [json.dumps({"reports": [], "names": [], "own_figures": figures})]
    counters = {COUNT_WAITS: _counted_waits(), COUNT_WORK: _counted_work()}
    host = program.on_host(secret) if task == TRAIN_ON_HOST else contextlib.nullcontext()
    with host, counters.get(task, contextlib.nullcontext({})) as own_figures:
        reports, parameters = program.train(seed)
    names = sorted(parameters)
    report = {
        "reports": reports,
        "names": names,
        "own_figures": own_figures | program.own_figures(),
    }
    return [json.dumps(report), *(parameters[name].numpy() for name in names)]


@contextlib.contextmanager
def _counted_waits() -> Iterator[dict[str, Any]]:
    """Profile a training; afterwards `waits` in the dictionary is how many calls waited for the
    GPU.
    """
    own_figures: dict[str, Any] = {}
    with torch.profiler.profile(acc_events=True) as profiler:
        yield own_figures
    own_figures["waits"] = sum(
        event.count for event in profiler.key_averages() if "Synchronize" in event.key
    )


@contextlib.contextmanager
def _counted_work() -> Iterator[dict[str, Any]]:
    """Count the arithmetic of a training; afterwards the dictionary has all of it, and what the
    host did.
    """
    own_figures: dict[str, Any] = {}
    # Compiled code would pass by the count, whichever device it is for.
    with torch.compiler.set_stance("force_eager"), HostWork() as work:
        yield own_figures
    own_figures["work"] = [work.flops, work.nbytes]
    own_figures["host_work"] = [work.host_flops, work.host_nbytes]


def main() -> None:
    """Entry point of a check's worker."""
    parser = training_parser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--arena", type=int, required=True)
    options = parser.parse_args()
    channel = Channel(
        socket.socket(fileno=options.socket), Arena.attach(options.arena), reads_half=0
    )

    def work() -> None:
        began = time.monotonic()
        program = program_of(options, channel)
        answer_calls(
            channel,
            lambda *task: _answer(program, *map(int, task)),
            loading_s=time.monotonic() - began,
        )

    serve(channel, options.entry.parent, work)


if __name__ == "__main__":
    main()
