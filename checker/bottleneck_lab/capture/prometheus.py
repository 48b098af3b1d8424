"""The latest sample of `lab monitor` for a Prometheus server to scrape, from this machine only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bottleneck_lab.capture.monitor import Sample
from bottleneck_lab.errors import MachineError

_HERE = "127.0.0.1"
_PREFIX = "bottleneck_lab"
_GPU_GAUGES = {
    "busy_share": "Share of time in which a kernel ran.",
    "memory_busy_share": "Share of time in which memory was read or written.",
    "memory_used_bytes": "Memory in use.",
    "memory_total_bytes": "Size of the memory.",
    "power_w": "Power drawn, watts.",
    "power_limit_w": "Power limit, watts.",
    "sm_mhz": "Clock of the multiprocessors.",
    "memory_mhz": "Clock of the memory.",
    "temperature_c": "Temperature, degrees Celsius.",
}


class LatestSample(Collector):
    """Metrics of the latest `sample`; none while it is None. Unknown values are left out."""

    def __init__(self) -> None:
        self.sample: Sample | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, now."""
        sample = self.sample  # one, even if another is taken meanwhile
        if sample is None:
            return
        yield _gauge("gpus", "GPUs that this process can see.", len(sample.gpus))
        for name, text in _GPU_GAUGES.items():
            family = GaugeMetricFamily(f"{_PREFIX}_gpu_{name}", text, labels=["gpu", "name"])
            for gpu in sample.gpus:
                if (value := getattr(gpu, name)) is not None:
                    family.add_metric([str(gpu.index), gpu.name], value)
            if family.samples:
                yield family
        host = sample.host
        yield _gauge("cpu_share", "Share of all cores that is busy.", host.cpu_share)
        yield _gauge("memory_used_bytes", "Main memory in use.", host.memory_used_bytes)
        yield _gauge("memory_total_bytes", "Size of the main memory.", host.memory_total_bytes)
        waits = GaugeMetricFamily(
            f"{_PREFIX}_pressure_share",
            "Share of the last 10 s in which a task waited.",
            labels=["resource"],
        )
        for resource, share in host.pressure.items():
            waits.add_metric([resource], share)
        yield waits
        if sample.steps is not None:
            yield CounterMetricFamily(
                f"{_PREFIX}_steps", "Steps that the workload has made.", sample.steps
            )
        if sample.steps_per_s is not None:
            yield _gauge(
                "steps_per_second",
                "Steps per second since the previous sample.",
                sample.steps_per_s,
            )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, value)


@contextmanager
def serve(port: int) -> Iterator[tuple[str, LatestSample]]:
    """Serve samples on loopback; yield the address to scrape, and the sample that is served.

    Port 0 takes any free one. Raises MachineError for a port that cannot be used.
    """
    latest, registry = LatestSample(), CollectorRegistry()
    registry.register(latest)
    try:
        server, _thread = start_http_server(port, _HERE, registry)
    except OSError as error:
        raise MachineError(
            f"Port {port} cannot be used: {error.strerror}.",
            "Choose another with --prometheus; 0 takes any free one.",
        ) from error
    try:
        yield f"http://{_HERE}:{server.server_port}/metrics", latest
    finally:
        server.shutdown()
        server.server_close()
