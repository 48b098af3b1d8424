"""`lab monitor`: how busy the GPUs and the machine are, live."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bottleneck_lab.capture.monitor import Sample, Sampler, open_nvml
from bottleneck_lab.commands.screen import console
from bottleneck_lab.commands.ui import Json, note
from bottleneck_lab.needs import require_packages

if TYPE_CHECKING:
    from bottleneck_lab.capture.prometheus import LatestSample

EXAMPLE = "lab monitor --steps /tmp/steps --prometheus 9105"

_Port = Annotated[
    int | None,
    typer.Option(
        "--prometheus",
        min=0,
        max=65535,
        metavar="PORT",
        help=(
            "Serve the latest sample to Prometheus on this port, to this machine only. Needs the"
            " extra `cohort`."
        ),
    ),
]
_Steps = Annotated[
    Path | None,
    typer.Option(
        "--steps",
        metavar="FILE",
        help="A file to which the workload writes how many steps it has done.",
    ),
]


def command(
    interval_s: Annotated[
        float,
        typer.Option("--interval-s", metavar="SECONDS", min=0.1, help="Seconds between samples."),
    ] = 1.0,
    count: Annotated[
        int,
        typer.Option(
            "--count", metavar="N", min=0, help="Stop after this many samples; 0 runs until Ctrl-C."
        ),
    ] = 0,
    steps: _Steps = None,
    prometheus: _Port = None,
    json: Json = False,
) -> None:
    """Show live GPU utilisation, memory, power and clocks, the machine's load, and the workload's
    step rate.

    With --json, one line per sample. Utilisation only means that some kernel was running, not that
    the GPU was used well; `lab profile` shows that.
    """
    nvml, no_gpu = open_nvml()
    if no_gpu:
        note(f"No GPU to show: {no_gpu}.")
    sampler = Sampler(nvml, no_gpu, steps)
    with _served(prometheus) as latest:
        samples = _samples(sampler, latest, interval_s, count)
        if json:
            for sample in samples:
                sys.stdout.write(msgspec.json.encode(sample).decode() + "\n")
                sys.stdout.flush()  # a program reads each line when it is measured
        elif not console().is_terminal:
            for sample in samples:
                console().print(_table(sample))
        else:
            with Live(console=console(), auto_refresh=False) as live:
                for sample in samples:
                    live.update(_table(sample), refresh=True)


@contextmanager
def _served(port: int | None) -> Iterator[LatestSample | None]:
    if port is None:
        yield None
        return
    require_packages("cohort", prometheus_client="prometheus-client")
    prometheus = import_module("bottleneck_lab.capture.prometheus")
    with prometheus.serve(port) as (address, latest):
        note(f"Prometheus can scrape {address}")
        yield latest


def _samples(
    sampler: Sampler, latest: LatestSample | None, interval_s: float, count: int
) -> Iterator[Sample]:
    """Yield samples at fixed times, `count` of them, or endlessly if that is 0."""
    sampler.sample()  # covers no interval yet, so it is left out
    number, began = 0, time.monotonic()
    while not count or number < count:
        number += 1
        # Counted from the beginning: a slow sample does not delay the next.
        time.sleep(max(0.0, began + number * interval_s - time.monotonic()))
        sample = sampler.sample()
        if latest:
            latest.sample = sample
        yield sample


def _table(sample: Sample) -> Table:
    """Return a table with names in the first column, figures in the second; one line per GPU."""
    host = sample.host
    table = Table.grid(padding=(0, 2))
    for gpu in sample.gpus:
        memory = f"{_gib(gpu.memory_used_bytes)} of {_gib(gpu.memory_total_bytes)} GiB"
        power = f"{_figure(gpu.power_w)} of {_figure(gpu.power_limit_w)} W"
        clocks = (
            f"SM {_figure(gpu.sm_mhz)} MHz, memory {_figure(gpu.memory_mhz)} MHz,"
            f" {_figure(gpu.temperature_c)} °C"
        )
        table.add_row(
            Text(f"GPU {gpu.index} {gpu.name}"),
            f"busy {_percent(gpu.busy_share)}, {memory}, {power}, {clocks}",
        )
    used = f"{_gib(host.memory_used_bytes)} of {_gib(host.memory_total_bytes)} GiB"
    waits = (
        ", ".join(f"{kind} {_percent(share)}" for kind, share in host.pressure.items())
        or "not reported"
    )
    table.add_row(
        "CPU",
        f"busy {_percent(host.cpu_share)} of {host.cores} cores, load {host.load:.1f}, memory"
        f" {used}",
    )
    table.add_row("waiting for", waits)
    if sample.steps is not None:
        table.add_row("steps", f"{sample.steps:g}, {_figure(sample.steps_per_s, '.2f')} per second")
    return table


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _gib(size: int | None) -> str:
    return "–" if size is None else f"{size / 2**30:.1f}"


def _figure(value: float | None, form: str = ".0f") -> str:
    return "–" if value is None else format(value, form)
