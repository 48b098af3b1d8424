"""300 pages that follow what changes: how long from a submission to its being told, and what it
costs the server.

.venv/bin/python benchmarks/cohort_events.py [--pages 300] [--rounds 10]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
MINI = Path(__file__).resolve().parents[1] / "tests" / "integration" / "mini"
os.environ["BOTTLENECK_LAB_CONTENT"] = str(MINI)

import psutil
from tests.cohort.conftest import opened_room
from tests.cohort.serving import log_in, serving

from bottleneck_lab.cohort.members import people
from bottleneck_lab.cohort.settings import change_settings


class Page:
    """An open event stream; `heard` is when each submission was told."""

    def __init__(self) -> None:
        self.heard: dict[str, float] = {}

    async def follow(self, port: int, cookie: str) -> None:
        """Read until cancelled."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"GET /events HTTP/1.1\r\nHost: x\r\nCookie: bottleneck_lab={cookie}\r\n\r\n".encode()
        )
        async for line in reader:
            if line.startswith(b"data:"):
                self.heard.setdefault(
                    line.decode().split('"submission": "')[1].split('"')[0], time.perf_counter()
                )


async def watch(port: int, cookies: list[str], submit, rounds: int) -> list[float]:
    """Seconds until each page had heard of each submission."""
    pages = [Page() for _ in cookies]
    tasks = [
        asyncio.create_task(page.follow(port, cookie))
        for page, cookie in zip(pages, cookies, strict=True)
    ]
    await asyncio.sleep(3)
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        handle = await asyncio.to_thread(submit)
        await asyncio.sleep(1.5)
        took += [page.heard[handle] - began for page in pages if handle in page.heard]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return took


def main() -> None:
    """Every page is an instructor's, which hears of everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, opened_room(Path(folder) / "cohort") as room:
        room.cohort.database.clock = room.clock = time.time
        with room.cohort.database.writing() as connection:
            change_settings(connection, min_interval_s=0, max_waiting=1000)
            instructor = people.the_instructor(connection, time.time())
        _, token = room.join()
        with serving(room.cohort.folder) as (port, server):
            memory = psutil.Process(server.process.pid).memory_info().rss
            cookies = [log_in(room, port, instructor).cookie for _ in range(options.pages)]

            def submit() -> str:
                return room.intake.offer(token, room.submission()).result(10).receipt.submission

            took = sorted(asyncio.run(watch(port, cookies, submit, options.rounds)))
            more = psutil.Process(server.process.pid).memory_info().rss - memory
            expected = options.pages * options.rounds
            print(
                f"{len(took)} of {expected} told; p50 {took[len(took) // 2]:.2f} s, p99"
                f" {took[int(len(took) * 0.99)]:.2f} s, longest {took[-1]:.2f} s"
            )
            print(
                f"the server grew by {more / 2**20:.1f} MiB with {options.pages} pages open"
                f" ({more / options.pages / 1024:.0f} KiB a page)"
            )


if __name__ == "__main__":
    main()
