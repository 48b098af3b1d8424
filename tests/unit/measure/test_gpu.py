"""What the driver says of GPUs, and what `lab doctor`, `start` and `check` make of it: with a
driver and an NVML that are stood in.
"""

import sys
from types import SimpleNamespace

import pytest

from bottleneck_lab.capture import devices, doctor
from bottleneck_lab.catalog import find_lab
from bottleneck_lab.errors import MachineError
from bottleneck_lab.measure import gpu, machine
from bottleneck_lab.measure.kinds.speedup.cuda.kernels import LIMITS
from bottleneck_lab.measure.sandbox.janitor import Janitor
from bottleneck_lab.measure.sandbox.process import Worker
from bottleneck_lab.measure.sandbox.visible import Paths
from bottleneck_lab.programs import find_program


class NVMLError(Exception):
    """NVML's own."""


def refuse(_handle):
    raise NVMLError


@pytest.fixture
def stand_in(monkeypatch):
    """Puts in a driver with so many GPUs, of which NVML gives these answers."""

    def put(count=1, name="NVIDIA H100 80GB HBM3", **answers):
        def says(value):
            return lambda place, *_: setattr(getattr(place, "_obj", place), "value", value)

        driver = SimpleNamespace(
            cuInit=lambda _flags: 0,
            cuDeviceGetCount=says(count),
            cuDeviceGetName=says(name.encode()),
            cuDeviceGetPCIBusId=says(b"0000:44:00.0"),
        )
        nvml = {
            "NVMLError": NVMLError,
            "NVML_CLOCK_SM": 1,
            "nvmlInit": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: "580.65",
            "nvmlDeviceGetHandleByPciBusId": lambda address: address.decode(),
            "nvmlDeviceGetName": lambda handle: f"GPU at {handle}",
            "nvmlDeviceGetClockInfo": lambda _handle, _clock: 1980,
            "nvmlDeviceGetComputeMode": lambda _handle: 0,
            "nvmlDeviceGetMigMode": refuse,
            "nvmlDeviceGetComputeRunningProcesses": lambda _handle: [],
            "nvmlDeviceGetUtilizationRates": lambda _handle: SimpleNamespace(gpu=0),
        }
        monkeypatch.setattr(gpu.ctypes, "CDLL", lambda _name: driver)
        monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**nvml | answers))

    return put


def rows():
    return {row.name: row for row in doctor.probe_gpu()}


def test_the_gpu_of_a_verdict_is_the_one_that_is_used(stand_in):
    """The driver's first is another than NVML's where CUDA_VISIBLE_DEVICES says so."""
    stand_in(name="The fourth")
    assert gpu.cuda_devices() == [("The fourth", "0000:44:00.0")]
    assert machine.fingerprint()["gpu"] == "GPU at 0000:44:00.0"


def test_a_gpu_in_order_has_nothing_in_its_way(stand_in):
    stand_in()
    assert set(rows()) == {"GPU", "GPU counters"}
    assert devices.choose_device(find_lab("idle-gpu"), None) == "cuda"


@pytest.mark.parametrize(("mode", "word"), [(3, "EXCLUSIVE_PROCESS"), (2, "PROHIBITED")])
def test_a_compute_mode_that_keeps_the_reference_out_is_refused_before_anything_runs(
    stand_in, mode, word
):
    stand_in(nvmlDeviceGetComputeMode=lambda _handle: mode)
    assert word in rows()["GPU mode"].found
    assert "nvidia-smi -c DEFAULT" in rows()["GPU mode"].remedy
    with pytest.raises(MachineError, match=word) as refused:
        devices.choose_device(find_lab("idle-gpu"), "cuda")
    assert "--device virtual" in refused.value.remedy


def test_others_on_the_gpu_are_counted_with_what_they_take_of_it(stand_in):
    others = [SimpleNamespace(pid=1), SimpleNamespace(pid=2)]
    stand_in(
        nvmlDeviceGetComputeRunningProcesses=lambda _handle: others,
        nvmlDeviceGetUtilizationRates=lambda _handle: SimpleNamespace(gpu=37),
    )
    row = rows()["GPU to itself"]
    assert row.found == "2 other processes on GPU at 0000:44:00.0, a kernel running 37% of the time"
    assert not row.present
    assert machine.fingerprint()["gpu_processes"] == "2"


def test_a_slice_says_what_it_cannot_show(stand_in):
    stand_in(
        name="NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        nvmlDeviceGetUtilizationRates=refuse,
        nvmlDeviceGetClockInfo=lambda *_: refuse(0),
    )
    (state,) = gpu.gpu_states()
    assert (state.sliced, state.busy, state.sm_clock_mhz) == (True, None, 0)
    assert rows()["whole GPU"].found == "a MIG slice"


@pytest.mark.parametrize(("gpus", "device"), [(0, "virtual"), (1, "virtual"), (2, "cuda")])
def test_a_lab_for_several_gpus_starts_where_they_are(stand_in, gpus, device):
    stand_in(count=gpus)
    lab = find_lab("ddp-scaling")
    assert devices.choose_device(lab, None) == device
    if gpus == 1:
        assert (
            devices.gpus_missing(lab)
            == "'ddp-scaling' needs 2 GPUs on `cuda`, and this process can use 1."
        )
        with pytest.raises(MachineError, match="needs 2 GPUs"):
            devices.choose_device(lab, "cuda")


def test_wsl_without_a_gpu_is_told_where_the_driver_belongs(stand_in, monkeypatch, tmp_path):
    stand_in(count=0)
    monkeypatch.setattr(doctor, "_WSL", tmp_path)
    assert "driver in Windows" in rows()["GPU"].remedy


@pytest.mark.parametrize(
    ("capabilities", "refused"), [("000001ffffffffff", False), ("00000000a80425fb", True)]
)
def test_root_in_a_container_may_not_read_counters_either(
    monkeypatch, tmp_path, capabilities, refused
):
    """The second set is the one that Docker gives."""
    status, params = tmp_path / "status", tmp_path / "params"
    status.write_text(f"Name:\tpython\nCapEff:\t{capabilities}\n")
    params.write_text("RmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(doctor, "_STATUS", status)
    monkeypatch.setattr(doctor, "_DRIVER_PARAMETERS", params)
    row = doctor.probe_counters()
    assert (not row.present) == refused
    assert ("SYS_ADMIN" in row.remedy) == refused


def test_a_python_without_its_headers_is_named_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.sysconfig, "get_path", lambda _name: str(tmp_path))
    assert "python3-dev" in doctor.probe_headers().remedy
    (tmp_path / "Python.h").touch()
    assert doctor.probe_headers().present


@pytest.mark.skipif(
    find_program("compute-sanitizer") is None or bool(gpu.cuda_devices()),
    reason="needs compute-sanitizer, and no GPU",
)
def test_the_sanitizer_starts_its_target_in_the_sandbox(tmp_path):
    """Its launcher meets the program over an abstract Unix socket, which a sandbox without a
    network has, too. Without a driver the rest is not to be had.
    """
    tool = find_program("compute-sanitizer")
    command = [str(tool), "--target-processes", "all", sys.executable, "-c", "print(1)"]
    paths = Paths(tmp_path, [tool.resolve().parents[1]])
    with Janitor() as janitor:
        worker = Worker(
            command, paths, LIMITS, pass_fds=[], cores=None, threads=2, gpu=True, janitor=janitor
        )
        try:
            worker.process.wait(60)
            assert "terminated before first instrumented API call" in worker.log_tail()
        finally:
            worker.end()
