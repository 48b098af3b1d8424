"""A room that submits at the same moment: 300 uploads of 50 KB at once, to a real server, on SQLite
and on PostgreSQL.

    .venv/bin/python benchmarks/cohort_uploads.py [--uploads 300] [--rounds 3]

Every upload has a learner and a connection of its own; an acknowledgement is counted from the
moment when all begin to the signed receipt. Afterwards every acknowledged submission is looked up
in the database and its blob read back.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
MINI = Path(__file__).resolve().parents[1] / "tests" / "integration" / "mini"
os.environ["BOTTLENECK_LAB_CONTENT"] = str(MINI)

import msgspec
import psutil
from tests.cohort.conftest import Room, opened_room, postgresql_server
from tests.cohort.serving import serving

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cohort.protocol import Submission
from bottleneck_lab.cohort.store import tables

BYTES = 50_000


def request(token: str, number: int, round_: int) -> bytes:
    """One upload as it goes over the wire."""
    lab = find_lab("slow")
    text = base64.b64encode(os.urandom(BYTES * 3 // 4))
    body = msgspec.json.encode(
        Submission(f"{round_:04}-{number:06}", "slow", lab.content_hash(), "cpu", {"work.py": text})
    )
    head = (
        "POST /api/submissions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer"
        f" {token}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def upload(port: int, data: bytes, began: float) -> tuple[float, str | None]:
    """Seconds to the acknowledgement, and the submission's handle."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    answer = await reader.read()
    took = time.perf_counter() - began
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return took, json.loads(body)["receipt"]["submission"] if b" 201 " in head[:20] else None


async def all_at_once(port: int, requests: list[bytes]) -> list[tuple[float, str | None]]:
    """Every upload at the same moment."""
    began = time.perf_counter()
    return await asyncio.gather(*(upload(port, data, began) for data in requests))


def measure(room: Room, uploads: int, rounds: int) -> None:
    """Print one line a round."""
    room.cohort.database.clock = room.clock = time.time
    tokens = [room.join(f"learner {number}")[1] for number in range(uploads)]
    with serving(room.cohort.folder) as (port, server):
        for round_ in range(rounds):
            before = psutil.Process(server.process.pid).cpu_times()
            requests = [request(token, number, round_) for number, token in enumerate(tokens)]
            time.sleep(6)  # past the interval between two submissions
            answers = asyncio.run(all_at_once(port, requests))
            after = psutil.Process(server.process.pid).cpu_times()
            report(room, answers)
            print(
                f"  the server used {after.user + after.system - before.user - before.system:.2f} s"
                " of a core"
            )


def report(room: Room, answers: list[tuple[float, str | None]]) -> None:
    """Rate and latency, and whether what was acknowledged is there."""
    took = sorted(seconds for seconds, _ in answers)
    stored = {row.handle: row.blob for row in room.rows(tables.submissions)}
    acknowledged = [handle for _, handle in answers if handle]
    lost = [handle for handle in acknowledged if not room.cohort.blobs.get(stored[handle])]
    p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
    print(
        f"  {len(acknowledged)} of {len(answers)} acknowledged, {len(lost)} lost,"
        f" {len(answers) / took[-1]:.0f}/s, p50 {p50:.2f} s, p99 {p99:.2f} s, all after"
        f" {took[-1]:.2f} s"
    )


def main() -> None:
    """Both databases, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uploads", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, opened_room(Path(folder) / "sqlite") as room:
        print(
            f"SQLite (WAL, synchronous=FULL), {options.uploads} uploads of {BYTES // 1000} KB at"
            " once:"
        )
        measure(room, options.uploads, options.rounds)
    with (
        tempfile.TemporaryDirectory() as folder,
        postgresql_server() as server,
        opened_room(Path(folder) / "c", server.new_database("uploads")) as room,
    ):
        print(f"PostgreSQL, {options.uploads} uploads of {BYTES // 1000} KB at once:")
        measure(room, options.uploads, options.rounds)


if __name__ == "__main__":
    main()
