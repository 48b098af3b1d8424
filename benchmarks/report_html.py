"""How quickly the report opens: a synthetic capture of a million events, in headless Chromium.

    python benchmarks/report_html.py [--events 1000000] [--opens 5]

Prints what it takes to write the page, how large it is, how long a browser needs from navigation
until the timeline is drawn, and how long one redraw takes at each zoom. The goal is at most 2 s to
open. Needs Playwright and a Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from tests.chromium import FLAGS

from bottleneck_lab.analysis.summary import analyse
from bottleneck_lab.report.page.html import render_html
from bottleneck_lab.trace.timeline import (
    DeviceTable,
    HostTable,
    MemoryTable,
    Thread,
    Timeline,
    make_table,
)

REDRAW = """async () => {
  const canvas = document.querySelector("canvas.lanes");
  canvas.focus();
  const times = [];
  for (let zoom = 0; zoom < 18; zoom++) {
    const start = performance.now();
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "+" }));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    times.push(performance.now() - start);
  }
  return times;
}"""


def synthetic_capture(events: int) -> Timeline:
    """Half of the events are nested operators, a quarter runtime calls, a quarter kernels on two
    streams; seeded.
    """
    rng = np.random.default_rng(1)
    quarter = events // 4
    names = tuple(f"at::native::operator_{index}<float, {index}>" for index in range(400))

    def spread(count: int) -> tuple[np.ndarray, np.ndarray]:
        start = np.cumsum(rng.integers(2_000, 12_000, count))
        return start, start + rng.integers(500, 2_000, count)

    launch_start, launch_end = spread(quarter)
    outer_start, outer_end = launch_start - 300, launch_end + 300
    inner_start, inner_end = launch_start - 100, launch_end + 100
    delay = rng.integers(3_000, 9_000, quarter)
    operators = make_table(
        HostTable,
        2 * quarter,
        start=np.concatenate([outer_start, inner_start]),
        end=np.concatenate([outer_end, inner_end]),
        name=rng.integers(0, 400, 2 * quarter),
    )
    runtime = make_table(
        HostTable,
        quarter,
        start=launch_start,
        end=launch_end,
        name=rng.integers(0, 400, quarter),
        correlation=np.arange(1, quarter + 1),
    )
    device = make_table(
        DeviceTable,
        quarter,
        start=launch_start + delay,
        end=launch_start + delay + rng.integers(1_000, 2_000, quarter),
        name=rng.integers(0, 400, quarter),
        stream=7 + np.arange(quarter) % 2,
        correlation=np.arange(1, quarter + 1),
    )
    none = make_table(HostTable)
    threads = (Thread(0, "1", "1", "main"),)
    return Timeline(
        "synthetic",
        "kineto",
        names,
        device,
        runtime,
        operators,
        none,
        none,
        make_table(MemoryTable),
        threads,
    )


def measure(html: str, opens: int) -> tuple[list[float], list[float]]:
    """(milliseconds from navigation until drawn, a fresh page each time; milliseconds of each
    redraw while zooming in).
    """
    from playwright.sync_api import sync_playwright

    executable = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "report.html"
        file.write_text(html, encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        opened = []
        for _ in range(opens):
            page = browser.new_page(viewport={"width": 1600, "height": 1000})
            page.goto(file.as_uri())
            page.wait_for_selector("#timeline[data-ready]", timeout=120_000)
            opened.append(float(page.get_attribute("#timeline", "data-ready")))
            redraws = page.evaluate(REDRAW)
            page.close()
        browser.close()
    return opened, redraws


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--opens", type=int, default=5)
    options = parser.parse_args()
    timeline = synthetic_capture(options.events)
    started = time.perf_counter()
    html = render_html(title="A million events", capture=analyse(timeline))
    written = time.perf_counter() - started
    opened, redraws = measure(html, options.opens)
    print(f"events on the page   {timeline.events:,}")
    print(f"writing the page     {written:.2f} s, {len(html) / 1e6:.1f} MB")
    print(
        f"opening until drawn  {statistics.median(opened):.0f} ms median, {max(opened):.0f} ms"
        f" worst of {len(opened)} (goal: 2000)"
    )
    print(
        f"one redraw           {statistics.median(redraws):.0f} ms median, {max(redraws):.0f} ms"
        f" worst over {len(redraws)} zooms"
    )


if __name__ == "__main__":
    main()
