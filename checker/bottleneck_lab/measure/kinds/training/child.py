"""What runs a training script, in a check's worker and in the learner's own folder: `python -m
bottleneck_lab.measure.kinds.training.child …`.

On the virtual GPU the script's tensors live in the verifier's engine, which also keeps the
parameters that the script returns: no value of them passes here.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import itertools
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch

from bottleneck_lab.measure.channel.messages import Value
from bottleneck_lab.measure.channel.wire import Arena, Channel
from bottleneck_lab.measure.kinds.profiling import child_parser, profiling, run_child
from bottleneck_lab.measure.rehearsed import stand_in
from bottleneck_lab.measure.virtual_gpu.backend import Driver, VirtualTensor, install
from bottleneck_lab.measure.worker import answer_calls, load_module, serve

Reports = list[tuple[int, dict[str, float]]]


class Program:
    """A training script on a device. `on_step` is called when a step begins, `on_report` for each
    report. There are `steps` batches, None for all.
    """

    def __init__(
        self, entry: Path, device: str, driver: Driver | None, steps: int | None = None
    ) -> None:
        self._script = load_module(entry)
        self._recipe = _recipe(entry)
        self._device, self._driver, self._steps = torch.device(device), driver, steps
        self._step_bytes: list[int] = []

    def train(
        self,
        seed: int,
        on_step: Callable[[], None] = lambda: None,
        on_report: Callable[..., None] = lambda *_: None,
    ) -> tuple[Reports, dict[str, torch.Tensor]]:
        """Trains on the data of a seed: what was reported, and the parameters, which on the virtual
        GPU stay with its engine.
        """
        reports: Reports = []

        def report(step: int, **numbers: float) -> None:
            reports.append(
                (int(step), {name: _number(name, value) for name, value in numbers.items()})
            )
            if self._driver:
                self._driver.ask("report")
            on_report(step, reports[-1][1])

        def begin_step() -> None:
            if self._driver:
                self._driver.ask("step")
            elif self._device.type == "cuda":
                self._step_bytes.append(torch.cuda.memory_allocated())
            on_step()

        self._step_bytes = []
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

        torch.manual_seed(seed)
        model = self._script.train(
            self._device, _marked(self._recipe, seed, begin_step, self._steps), report
        )
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
        if self._driver:
            self._driver.ask(
                "keep", {name: _handle(name, tensor) for name, tensor in parameters.items()}
            )
            return reports, {}
        return reports, {name: tensor.float().cpu() for name, tensor in parameters.items()}

    def memory(self) -> dict[str, Any]:
        """Memory of the last training on a GPU, as this process's allocator saw it; on the virtual
        GPU the engine knows.
        """
        if self._device.type != "cuda":
            return {}
        return {"step_bytes": self._step_bytes, "peak_bytes": torch.cuda.max_memory_allocated()}


def _handle(name: str, tensor: torch.Tensor) -> Any:
    if not isinstance(tensor, VirtualTensor):
        raise TypeError(
            f"the parameter {name} is on {tensor.device}, not on the device that train() was given"
        )
    return tensor.handle


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) or not isinstance(value, int | float):
        raise TypeError(f"report takes plain numbers; {name} is a {type(value).__name__}")
    return float(value)


def _recipe(entry: Path) -> ModuleType:
    return sys.modules.get("recipe") or load_module(entry.with_name("recipe.py"))


def _marked(
    recipe: ModuleType, seed: int, begin_step: Callable[[], None], steps: int | None
) -> Any:
    """The recipe's data, whose batches say when a step begins: when a batch is handed over; the
    first `steps` of them.
    """

    class Marked(recipe.Data):  # type: ignore[name-defined, misc]  # known at run time
        def batches(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
            for batch in itertools.islice(super().batches(*args, **kwargs), steps):
                begin_step()
                yield batch

    return Marked(seed)


def _program(options: argparse.Namespace) -> Program:
    driver = (
        install(socket.socket(fileno=options.engine), options.entry.parent)
        if options.engine is not None
        else None
    )
    return Program(options.entry, options.device, driver, options.steps)


def _answer(program: Program, seed: int, counting: bool) -> list[Value]:
    """A call: reports and the worker's own figures as JSON, and the parameters one after the other,
    by name.
    """
    with contextlib.ExitStack() as stack:
        told = stack.enter_context(_counted_waits()) if counting else {}
        reports, parameters = program.train(seed)
    names = sorted(parameters)
    said = {"reports": reports, "names": names, "told": told | program.memory()}
    return [json.dumps(said), *(parameters[name].numpy() for name in names)]


@contextlib.contextmanager
def _counted_waits() -> Iterator[dict[str, Any]]:
    """torch.profiler around a training; afterwards the dictionary says how many calls waited for
    the GPU.
    """
    told: dict[str, Any] = {}
    with torch.profiler.profile(acc_events=True) as profiler:
        yield told
    told["waits"] = sum(
        event.count for event in profiler.key_averages() if "Synchronize" in event.key
    )


def _show(program: Program, options: argparse.Namespace) -> None:
    """In the learner's own folder: reports are printed, and a real device is profiled with `trace`."""
    with profiling(options.trace, options.schedule) as step:
        program.train(
            0,
            on_step=step,
            on_report=lambda at, numbers: print(_line(at, numbers), flush=True),  # noqa: T201 - it is the workload that prints
        )


def _line(step: int, numbers: dict[str, float]) -> str:
    return f"step {step}: " + ", ".join(f"{name} {value:.5g}" for name, value in numbers.items())


def _leave() -> NoReturn:
    """Ends this process as multiprocessing ends its own: PyTorch is not taken apart, which takes a
    second.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main() -> None:
    """Entry point; with `--socket` a check's worker."""
    parser = child_parser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--socket", type=int)
    parser.add_argument("--arena", type=int)
    options = parser.parse_args()
    if options.socket is None:
        run_child(lambda options: _show(_program(options), options), options)
        if options.engine is not None:
            _leave()
        return
    stand_in(options.device)
    channel = Channel(
        socket.socket(fileno=options.socket), Arena.attach(options.arena), reads_half=0
    )

    def work() -> None:
        program = _program(options)
        answer_calls(channel, lambda seed, counting: _answer(program, int(seed), bool(counting)))

    serve(channel, options.entry.parent, work)


if __name__ == "__main__":
    main()
