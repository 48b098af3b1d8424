"""Ceilings: what is copied where, and what is kept. The rates themselves are the machine's."""

import msgspec
import numpy as np
import pytest

from bottleneck_lab.analysis.counters.roofline import CacheLevel, Machine
from bottleneck_lab.errors import BusyMachineError, MachineError
from bottleneck_lab.measure import ceilings
from bottleneck_lab.measure.ceilings import Cache

KB = 1024


def describe(folder, **files):
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def counted(monkeypatch):
    """Stands in for the measuring: says what was asked for."""
    asked = []
    monkeypatch.setattr(
        ceilings, "read_caches", lambda threads: [Cache("L1", 32 * KB), Cache("L2", 2048 * KB)]
    )
    monkeypatch.setattr(
        ceilings, "copy_rate", lambda size, threads: asked.append((size, threads)) or 1e15 / size
    )
    monkeypatch.setattr(ceilings, "_cpu_flops", lambda threads: 1e12)
    return asked


def test_caches_are_read_innermost_first_and_shared_out_among_threads(tmp_path):
    describe(tmp_path / "index0", type="Instruction", level="1", size="32K", shared_cpu_list="0")
    describe(tmp_path / "index1", type="Unified", level="3", size="32768K", shared_cpu_list="0-3,8")
    describe(tmp_path / "index2", type="Data", level="1", size="48K", shared_cpu_list="0")
    describe(tmp_path / "index3", type="Unified", level="2")
    assert ceilings.read_caches(4, tmp_path) == [Cache("L1", 48 * KB), Cache("L3", 8192 * KB)]
    assert ceilings.read_caches(16, tmp_path)[1] == Cache("L3", 32768 * KB // 5)
    assert ceilings.read_caches(4, tmp_path / "nothing") == []


def test_a_working_set_lies_between_two_caches():
    first, second = Cache("L1", 32 * KB), Cache("L2", 2048 * KB)
    assert ceilings.working_set_in(first, None) == 16 * KB
    assert ceilings.working_set_in(second, first) == 256 * KB


@pytest.mark.parametrize("size_bytes", [8 * KB, 24 * KB, 300 * KB, 2**24])
def test_a_window_is_passed_over_without_leaving_its_memory(size_bytes):
    window = ceilings.sliding_window(size_bytes)
    first, last = np.lib.array_utils.byte_bounds(window)
    assert 0.7 * size_bytes < last - first <= size_bytes
    assert window.nbytes >= min(ceilings.CALL_BYTES / 4, 0.9 * size_bytes)
    assert window.shape[2] * 4 > 0.4 * size_bytes  # a pass is most of the window, not a few lines


def test_every_thread_copies_and_all_is_counted(monkeypatch):
    monkeypatch.setattr(ceilings, "REPEAT_S", 1e-4)
    copied = []
    copy = np.copyto
    monkeypatch.setattr(
        np, "copyto", lambda to, source: copied.append(to.nbytes) or copy(to, source)
    )
    assert ceilings.copy_rate(64 * KB, 3) > 0
    assert len(copied) >= 3 * ceilings.REPEATS
    assert len(set(copied)) == 1


def test_levels_memory_and_arithmetic_make_a_machine(counted):
    steps = []
    found = ceilings.measure_ceilings("cpu", lambda step, done: steps.append((step, done)))
    assert [(level.name, level.working_set_bytes) for level in found.caches] == [
        ("L1", 16 * KB),
        ("L2", 256 * KB),
    ]
    assert found.flops == {"fp32": 1e12}
    in_memory, threads = counted[-1]
    assert found.bytes_per_s == 1e15 / in_memory
    assert in_memory * threads >= 4 * 2048 * KB
    assert {threads for _, threads in counted} == {found.threads}
    assert [step for step, _ in steps] == [
        "copying in L1",
        "copying in L2",
        "copying in memory",
        "multiplying matrices",
    ]
    assert steps[0][1] == 0 < steps[-1][1] < 1


def test_ceilings_are_measured_once_and_again_when_asked(home, counted):
    assert ceilings.stored_ceilings("cpu") is None
    first = ceilings.ceilings_of("cpu", lambda *_: None)
    asked = len(counted)
    assert ceilings.ceilings_of("cpu", lambda *_: None) == first == ceilings.stored_ceilings("cpu")
    assert len(counted) == asked
    ceilings.ceilings_of("cpu", lambda *_: None, again=True)
    assert len(counted) == 2 * asked


def test_ceilings_of_a_lab_are_those_of_its_threads(home, counted):
    all_cores = ceilings.ceilings_of("cpu", lambda *_: None)
    one = ceilings.ceilings_of("cpu", lambda *_: None, threads=1)
    assert (one.threads, {threads for _, threads in counted}) == (1, {1, all_cores.threads})
    assert ceilings.stored_ceilings("cpu", 1) == one
    assert ceilings.stored_ceilings("cpu") == all_cores


def test_a_cache_slower_than_memory_is_refused_and_nothing_is_saved(home, counted, monkeypatch):
    """As after other programs had taken the cores while L2 was measured."""
    slow_l2 = {16 * KB: 90e9, 256 * KB: 9e9}
    monkeypatch.setattr(ceilings, "copy_rate", lambda size, threads: slow_l2.get(size, 11e9))
    with pytest.raises(BusyMachineError, match=r"L2 came out at 9\.0 GB/s and memory at 11\.0"):
        ceilings.ceilings_of("cpu", lambda *_: None)
    assert ceilings.stored_ceilings("cpu") is None


@pytest.mark.parametrize(("others", "kept"), [(0.1, 0.0), (1.8, 1.8)])
def test_ceilings_keep_what_other_programs_took_meanwhile(home, counted, monkeypatch, others, kept):
    monkeypatch.setattr(ceilings.LoadMeter, "cores", lambda _: others)
    monkeypatch.setattr(ceilings, "busy_cores_allowed", lambda _: 0.25)
    ceilings.ceilings_of("cpu", lambda *_: None)
    assert ceilings.stored_ceilings("cpu").disturbed_by == kept


def test_another_machine_has_its_own_and_a_broken_file_counts_as_none(home, counted, monkeypatch):
    ceilings.ceilings_of("cpu", lambda *_: None)
    (file,) = (home / "ceilings").iterdir()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(ceilings, "cpu_model", lambda: "another processor")
        assert ceilings.stored_ceilings("cpu") is None
    file.write_text("{}")
    assert ceilings.stored_ceilings("cpu") is None


def test_a_gpu_that_is_not_there_is_named(torch, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MachineError, match="CUDA"):
        ceilings.measure_ceilings("cuda", lambda *_: None)


def test_ceilings_pass_through_json():
    machine = Machine("m", {"fp32": 1e12}, 1e10, [CacheLevel("L1", 24576, 2e11)], 2, "2026-01-01")
    assert msgspec.json.decode(msgspec.json.encode(machine), type=Machine) == machine
