"""Measure what recording Python's frames does to a capture's shares, and what `lab profile --stack`
makes of it.

    python benchmarks/frames.py [--rounds 3]

The program tokenises in its loader's `collate_fn`, which costs much more once frames are recorded.
It measures the share of that itself, without a profiler; then it is captured with `--stack`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bottleneck_lab import load, summarise

PROGRAM = """
import re, time
import torch
words = [" ".join(f"word{(i * j) % 997}" for j in range(160)) for i in range(240)]
known = {f"word{i}": i for i in range(0, 997, 2)}
spent = 0.0
def pieces(text):
    ids = []
    for word in re.findall(r"[a-z]+[0-9]*", text.lower()):
        cut = len(word)
        while cut and word[:cut] not in known:
            cut -= 1
        ids.append(known.get(word[:cut], 1))
    return ids
def collate(rows):
    return torch.tensor([pieces(row)[:128] for row in rows])
loader = torch.utils.data.DataLoader(words, batch_size=12, collate_fn=collate)
layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
model = torch.nn.ModuleList([torch.nn.Embedding(1000, 64), layer, torch.nn.Linear(64, 2)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
began, batches = time.perf_counter(), iter(loader)
for step in range(20):
    waited_from = time.perf_counter()
    batch = next(batches)
    spent += time.perf_counter() - waited_from
    optimizer.zero_grad()
    model[2](model[1](model[0](batch)).mean(1)).square().mean().backward()
    optimizer.step()
print("SHARE", spent / (time.perf_counter() - began))
"""


def share_of_input(path: Path) -> tuple[float, str]:
    """Return the share (0–1) of the time for input, and the top finding of a capture."""
    summary = summarise(load(path))
    (use,) = summary.devices
    parts = {part.cause: part.share_of_wall for part in use.gap_causes}
    top = summary.findings[0].id if summary.findings else "none"
    return parts.get("input", 0.0), top


def measure(folder: Path) -> list[tuple[float, str]]:
    """Return share and top finding: unprofiled, as reported, and of the run with frames alone."""
    script = folder / "program.py"
    script.write_text(PROGRAM)
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "BOTTLENECK_LAB_HOME": str(folder)}
    alone = subprocess.run(
        [sys.executable, script], env=settings, capture_output=True, text=True, check=True
    )
    (share,) = re.findall(r"SHARE ([\d.]+)", alone.stdout)
    capture = folder / "capture"
    profile = [sys.executable, "-m", "bottleneck_lab", "profile", "--stack", "--json"]
    subprocess.run(
        [*profile, "--out", capture, "--", sys.executable, script],
        env=settings,
        capture_output=True,
        check=True,
    )
    described = json.loads((capture / "capture.json").read_text())
    return [
        (float(share), ""),
        share_of_input(capture / described["files"][0]),
        share_of_input(capture / described["frames"][0]),
    ]


def main() -> int:
    """Print the row of docs/measured/capture_overhead.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    results = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            results.append(measure(Path(folder)))
    columns = list(zip(*results, strict=True))
    shares = [f"{statistics.median(share for share, _ in column):.0%}" for column in columns]
    tops = [" or ".join(sorted({top for _, top in column if top})) for column in columns]
    print(f"| {shares[0]} | {shares[1]}, {tops[1]} | {shares[2]}, {tops[2]} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
