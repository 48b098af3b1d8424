"""Reading ncu's two CSV layouts."""

import gzip
import sys
from types import SimpleNamespace

import pytest

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace import load

FIXED = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block'
    ' Size","Grid Size","Device","CC"'
)
WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
SOFTMAX = '"0","1","python","h","softmax","1","7","(128, 1, 1)","(64, 1, 1)","0","9.0"'
SIZES = '"(128, 1, 1)","(64, 2, 1)"'
RAW = f"""==PROF== Connected to process 1
{FIXED},"gpu__time_duration.sum","{WARPS}","dram__bytes.sum"
"","","","","","","","","","","","ns","%","byte"
"0","1","python","127.0.0.1","softmax(float*)","1","7",{SIZES},"0","9.0","1,500.25","55.5","4096"
"1","1","python","127.0.0.1","gemm","1","7","(256, 1, 1)","(8, 1, 1)","0","9.0","2000","31","n/a"
"""
DETAILS = f"""{FIXED},"Section Name","Metric Name","Metric Unit","Metric Value"
{SOFTMAX},"GPU Speed Of Light Throughput","Duration","usecond","3.5"
{SOFTMAX},"GPU Speed Of Light Throughput","Memory Throughput","Gbyte/second","2"
"""


def test_the_raw_page(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(RAW)
    found = load(path)
    softmax, gemm = found.counters
    assert (softmax.name, softmax.grid, softmax.block, softmax.duration_ns) == (
        "softmax(float*)",
        (64, 2, 1),
        (128, 1, 1),
        1500.25,
    )
    assert softmax.metrics["dram__bytes.sum"] == 4096
    assert "dram__bytes.sum" not in gemm.metrics
    assert (found.device.end - found.device.start).tolist() == [1500, 2000]
    assert any("time between them is not recorded" in note for note in found.notes)


def test_a_gzipped_page_is_the_same(tmp_path):
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(RAW.encode()))
    assert [kernel.name for kernel in load(path).counters] == ["softmax(float*)", "gemm"]


def test_the_details_page_in_base_units(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(DETAILS)
    (kernel,) = load(path).counters
    assert kernel.duration_ns == 3500
    assert kernel.metrics["Memory Throughput"] == 2e9


@pytest.mark.parametrize("thousands", [".", "\u202f", "\u00a0", " "])
def test_numbers_with_a_decimal_comma(tmp_path, thousands):
    """As ncu writes them where the system speaks German or French."""
    text = RAW.replace("1,500.25", f"1{thousands}500,25").replace("55.5", "55,5")
    (tmp_path / "x.csv").write_text(text)
    softmax, gemm = load(tmp_path / "x.csv").counters
    assert (softmax.duration_ns, softmax.metrics[WARPS]) == (1500.25, 55.5)
    assert (gemm.duration_ns, gemm.compute_capability) == (2000, "9.0")


def test_numbers_with_apostrophes_between_thousands(tmp_path):
    (tmp_path / "x.csv").write_text(RAW.replace("1,500.25", "1’500.25"))
    assert load(tmp_path / "x.csv").counters[0].duration_ns == 1500.25


@pytest.mark.parametrize(
    "text",
    ["==PROF== Disconnected\n", FIXED + "\n", FIXED + ',"x"\n"","",""\n', FIXED + '\n"0"\x00\n'],
)
def test_tables_without_kernels_are_errors(tmp_path, text):
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(CaptureError) as caught:
        load(path)
    assert caught.value.remedy


def test_a_report_without_any_reader_says_what_to_do(tmp_path, monkeypatch):
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"NVR")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    with pytest.raises(CaptureError) as caught:
        load(path)
    assert "pip install" in caught.value.remedy


def test_a_report_is_read_through_ncus_own_package(tmp_path, monkeypatch):
    values = {
        "gpu__time_duration.sum": 12.345,
        "launch__grid_dim_x": 4,
        "device__attribute_compute_capability_major": 9,
    }

    class Action(dict):
        name = staticmethod(lambda: "k")
        metric_names = dict.keys

    action = Action(
        {name: SimpleNamespace(value=lambda v=value: v) for name, value in values.items()}
    )
    fake = SimpleNamespace(load_report=lambda path: [[action]], __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "ncu_report", fake)
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"NVR")
    (kernel,) = load(path).counters
    assert (kernel.name, kernel.duration_ns, kernel.grid, kernel.compute_capability) == (
        "k",
        12.345,
        (4, 1, 1),
        "9.0",
    )
