"""Samples without a GPU and without waiting: NVML, the host and the clock are given."""

import urllib.parse
import urllib.request
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bottleneck_lab.capture import monitor
from bottleneck_lab.capture.monitor import Host, Sampler
from bottleneck_lab.capture.prometheus import serve
from bottleneck_lab.errors import MachineError

HOST = Host(
    cpu_share=0.5,
    cores=4,
    memory_used_bytes=1 << 30,
    memory_total_bytes=4 << 30,
    load=1.5,
    pressure={"cpu": 0.02},
)


class RefusedError(Exception):
    """NVML's own error."""


def refuse(*_):
    raise RefusedError("Not Supported")


def fake_nvml() -> SimpleNamespace:
    """One GPU that reports everything but its power limit."""
    return SimpleNamespace(
        NVMLError=RefusedError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=41, memory=7),
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=3 << 30, total=80 << 30),
        nvmlDeviceGetPowerUsage=lambda _: 123_456,
        nvmlDeviceGetPowerManagementLimit=refuse,
        nvmlDeviceGetName=lambda _: b'Fake "GPU"',
        nvmlDeviceGetClockInfo=lambda _, which: {1: 1410, 2: 1593}[which],
        nvmlDeviceGetTemperature=lambda *_: 51,
    )


def sampler(nvml=None, steps=None, times=(0.0, 2.0, 4.0), no_gpu=""):
    clock = iter(times)
    return Sampler(nvml, no_gpu, steps, host=lambda: HOST, clock=lambda: next(clock))


def test_what_the_gpu_reports_and_what_it_does_not():
    (gpu,) = sampler(fake_nvml()).sample().gpus
    assert (gpu.busy_share, gpu.memory_busy_share, gpu.power_w, gpu.power_limit_w) == (
        0.41,
        0.07,
        123.456,
        None,
    )
    assert (gpu.name, gpu.sm_mhz, gpu.memory_mhz, gpu.temperature_c) == (
        'Fake "GPU"',
        1410,
        1593,
        51,
    )


def test_a_gpu_that_is_lost_is_an_error_and_not_no_gpu():
    nvml = fake_nvml()
    nvml.nvmlDeviceGetCount = refuse
    with pytest.raises(MachineError, match="no longer answers"):
        sampler(nvml).sample()


def test_the_step_rate_is_between_samples_and_survives_a_restart(tmp_path):
    steps = tmp_path / "steps"
    watched = sampler(steps=steps, times=(0.0, 2.0, 4.0, 6.0, 8.0))
    rates = []
    for text in (None, "10", "30\n", "2", "6 of 100"):
        if text is not None:
            steps.write_text(text)
        rates.append(watched.sample().steps_per_s)
    assert rates == [None, None, 10.0, None, 2.0]


@pytest.mark.parametrize("text", ["", "soon", "\0\0"])
def test_a_steps_file_being_written_is_no_error(tmp_path, text):
    (tmp_path / "steps").write_text(text)
    assert monitor.read_steps(tmp_path / "steps") is None


def scraped(sample):
    """What Prometheus' own parser reads of a sample: (name, labels) → value."""
    with serve(0) as (address, latest):
        latest.sample = sample
        with urllib.request.urlopen(address, timeout=60) as answer:
            text = answer.read().decode()
    rows = [row for family in text_string_to_metric_families(text) for row in family.samples]
    return {
        (row.name.removeprefix("bottleneck_lab_"), *row.labels.values()): row.value for row in rows
    }


def test_prometheus_reads_every_figure_that_is_known(tmp_path):
    (tmp_path / "steps").write_text("12")
    figures = scraped(sampler(fake_nvml(), tmp_path / "steps").sample())
    assert figures["gpu_busy_share", "0", 'Fake "GPU"'] == 0.41
    assert figures["steps_total",] == 12
    assert figures["pressure_share", "cpu"] == 0.02
    assert not any("power_limit" in name or "steps_per_second" in name for name, *_ in figures)


def test_prometheus_gets_nothing_before_the_first_sample():
    assert scraped(None) == {}


def test_without_a_gpu_the_reason_is_in_the_sample():
    sample = sampler(no_gpu="there is none").sample()
    assert (sample.gpus, sample.no_gpu) == ([], "there is none")
    assert scraped(sample)["gpus",] == 0


def test_the_machine_itself_answers():
    host = monitor.read_host()
    assert 0 <= host.cpu_share <= 1
    assert 0 < host.memory_used_bytes <= host.memory_total_bytes
    assert all(0 <= share <= 1 for share in host.pressure.values())


def test_a_taken_port_is_explained():
    with (
        serve(0) as (address, _),
        pytest.raises(MachineError, match="cannot be used"),
        serve(port_of(address)),
    ):
        pass


def port_of(address: str) -> int:
    return urllib.parse.urlsplit(address).port
