"""Captures with a real device: run by `make gpu`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bottleneck_lab import load, summarise
from bottleneck_lab.capture.devices import gpus

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpus(), reason="there is no CUDA device")]
LAB = [sys.executable, "-m", "bottleneck_lab"]
NET = """
import torch
net = torch.nn.Linear(512, 512, device="cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    net(torch.randn(64, 512, device="cuda")).square().mean().backward()
    optimizer.step()
torch.cuda.synchronize()
"""


def lab(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "net.py").write_text(NET)
    return subprocess.run(
        [*LAB, *arguments], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_torch_sees_the_kernels_and_the_memory_tool_writes_a_snapshot(tmp_path):
    done = lab(
        tmp_path, "profile", "--tool", "memory", "--out", "out", "--", sys.executable, "net.py"
    )
    assert done.returncode == 0, done.stderr
    timeline = load(tmp_path / "out" / "trace.json.gz")
    assert len(timeline.device)
    assert summarise(timeline).kernels
    assert (tmp_path / "out" / "memory.pickle").stat().st_size


@pytest.mark.parametrize("tool", ["nsys", "ncu", "sanitizer"])
def test_each_tool_that_is_there_records_or_names_what_it_lacks(tmp_path, tool):
    """A right or a driver that is missing is no fault of ours, if it is said so."""
    done = lab(
        tmp_path,
        "profile",
        "--tool",
        tool,
        "--launches",
        "2",
        "--out",
        "out",
        "--",
        sys.executable,
        "net.py",
    )
    if done.returncode:
        assert "→" in done.stderr
        pytest.skip(done.stderr[-500:])
    assert json.loads((tmp_path / "out" / "capture.json").read_text())["files"]


def test_monitor_shows_the_gpu(tmp_path):
    pytest.importorskip("pynvml")
    done = lab(tmp_path, "monitor", "--count", "1", "--json")
    (gpu,) = json.loads(done.stdout)["gpus"][:1]
    assert gpu["memory_total_bytes"] > 1 << 30
