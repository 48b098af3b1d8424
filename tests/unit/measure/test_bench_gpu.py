"""The GPU that does real work: what it notes of each piece on a stream that is stood in for, and
its kernel, as far as it can be tried without a GPU.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from bottleneck_lab.errors import MachineError
from bottleneck_lab.measure.kinds.benchmark.bench import Bench
from bottleneck_lab.measure.kinds.benchmark.gpu import LEAD_S, SPIN, Gpu, Kernel

from ...pretend import pretend_gpu
from ...streams import GAP_S, LAUNCH_S, Stream


@pytest.fixture
def stream():
    return Stream()


@pytest.fixture
def gpu(stream):
    return Gpu(stream.spin, stream.event, stream.clock)


def notes_of(gpu):
    gpu.wait()
    return gpu.take_notes()


def took(note):
    return note[2] - note[1]


def test_the_host_goes_on_while_the_gpu_works(gpu, stream):
    before = stream.now_s
    for _ in range(100):
        gpu.work(1e-3, False)
    assert stream.now_s - before < 2e-3
    gpu.wait()
    assert stream.now_s - before > 0.1


def test_pieces_in_a_queue_take_their_time_to_the_microsecond_and_leave_no_gaps(gpu):
    for _ in range(50):
        gpu.work(1e-4, False)
    notes = notes_of(gpu)
    assert [note[0] for note in notes] == [1e-4] * 50
    assert all(took(note) == pytest.approx(1e-4, abs=1e-6) for note in notes)
    assert notes[-1][2] - notes[0][1] == pytest.approx(50e-4, abs=1e-6)


def test_a_piece_that_finds_the_gpu_idle_is_noted_without_its_launch(gpu, stream):
    before = stream.now_s
    gpu.work(1e-4, False)
    (note,) = notes_of(gpu)
    assert took(note) == pytest.approx(1e-4, abs=1e-6)
    assert note[1] - before >= LEAD_S
    assert LAUNCH_S + GAP_S < LEAD_S


def test_marks_are_passed_when_the_work_before_them_has_run(gpu):
    for seconds in (2e-4, 0.0, 1e-3, 0.0):
        gpu.work(seconds, False)
    _, start, _, end = notes_of(gpu)
    assert start[1] == start[2]
    assert end[1] - start[1] == pytest.approx(1e-3, abs=1e-6)


def test_a_mark_on_an_idle_gpu_is_passed_before_the_launch_of_what_follows(gpu, stream):
    for seconds in (0.0, 1e-4, 0.0):
        gpu.work(seconds, False)
        stream.now_s += 1e-5
    start, piece, end = notes_of(gpu)
    assert took(piece) == pytest.approx(1e-4, abs=1e-6)
    assert end[1] - start[1] > 1e-4 + LEAD_S


def test_a_piece_that_the_gpu_is_kept_from_is_noted_late(gpu, stream):
    stream.stretch = 1.5
    gpu.work(1e-3, False)
    (note,) = notes_of(gpu)
    assert took(note) == pytest.approx(1.5e-3, rel=0.01)


def test_a_piece_that_begins_long_after_the_one_before_still_takes_its_time(gpu, stream):
    for _ in range(3):
        gpu.work(1e-4, False)
        stream.now_s += 1.0
    assert [took(note) for note in notes_of(gpu)] == pytest.approx([1e-4] * 3, abs=1e-6)


def test_notes_are_on_the_hosts_clock(gpu, stream):
    gpu.work(1e-3, False)
    (note,) = notes_of(gpu)
    assert stream.now_s - note[2] < 2e-5


def test_events_are_recorded_again(gpu, stream):
    for _ in range(20):
        for seconds in (1e-4, 0.0, 1e-4):
            gpu.work(seconds, False)
        notes_of(gpu)
    assert stream.made <= 6


class StoodInDriver:
    """libcuda, as far as a Kernel calls it. `launched`: the values of the parameters at each
    launch.
    """

    def __init__(self, status=0):
        self.status, self.launched = status, []

    def cuModuleLoadData(self, _module, ptx):  # noqa: N802 - the driver's name
        self.ptx = ptx
        return self.status

    def cuModuleGetFunction(self, _function, _module, name):  # noqa: N802 - likewise
        self.name = name
        return 0

    def cuLaunchKernel(self, _function, *more):  # noqa: N802 - likewise
        *self.shape, self.shared, self.stream, pointers, _ = more
        self.launched.append([ctypes.c_uint64.from_address(pointer).value for pointer in pointers])
        return 0


def test_a_kernel_is_launched_with_its_values_on_its_stream():
    driver = StoodInDriver()
    kernel = Kernel(SPIN, b"spin", 3, driver)
    kernel.launch(17, 1 << 40, 100_000, 20_000)
    kernel.launch(17, 1 << 40, 5_000_000_000, 0)
    assert (driver.ptx, driver.name) == (SPIN, b"spin")
    assert driver.launched == [[1 << 40, 100_000, 20_000], [1 << 40, 5_000_000_000, 0]]
    assert (driver.shape, driver.shared, driver.stream.value) == ([1] * 6, 0, 17)


def test_a_driver_that_refuses_is_told():
    with pytest.raises(OSError, match="CUDA_ERROR 222"):
        Kernel(SPIN, b"spin", 3, StoodInDriver(222))


def assembler():
    """ptxas, of a CUDA toolkit or of Triton."""
    triton = pytest.importorskip("triton")
    return shutil.which("ptxas") or str(
        Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    )


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_kernel_is_ptx_that_assembles(architecture, tmp_path):
    assert SPIN.endswith(b"\0")
    (tmp_path / "spin.ptx").write_bytes(SPIN.rstrip(b"\0"))
    command = [assembler(), f"-arch={architecture}", "spin.ptx", "-o", "spin.cubin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "spin.cubin").stat().st_size


def test_a_gpu_that_is_not_there_works_in_a_rehearsal():
    with pretend_gpu.installed(), Bench.start("cuda") as bench:
        for seconds in (1e-3, 0.0, 2e-3):
            bench.work(seconds)
        report = bench.report()
    assert report[:, 0].tolist() == [1e-3, 0.0, 2e-3]
    assert (report[:, 2] >= report[:, 1]).all()
    assert report[-1, 2] - report[0, 1] >= 3e-3 - 1e-9  # a float of the clock has no more digits


def test_a_device_that_cannot_work_says_why(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(MachineError, match="cannot be used for timed work: ") as caught:
        Bench.start("cuda")
    assert "--device virtual" in caught.value.remedy
