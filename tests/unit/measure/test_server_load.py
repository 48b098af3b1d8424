"""The load generator of servers: what it sends, what it times from, and what it says of itself."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import os
import socket
import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from bottleneck_lab.analysis.plateau import Plateau, Point
from bottleneck_lab.measure.kinds.http_server import figures, local_server
from bottleneck_lab.measure.kinds.http_server.load import stolen as measured
from bottleneck_lab.measure.kinds.http_server.load.generator import LOST, Generator, Plan, go_first
from bottleneck_lab.measure.kinds.http_server.load.level import Level, Load
from bottleneck_lab.measure.kinds.http_server.load.loops import compare_loops
from bottleneck_lab.measure.kinds.http_server.load.messages import Messages, message
from bottleneck_lab.measure.kinds.http_server.load.stolen import Stolen
from bottleneck_lab.measure.kinds.http_server.local_server import compare
from bottleneck_lab.measure.kinds.inference_server import run as inference_run
from bottleneck_lab.measure.kinds.inference_server.judging import LIGHT_AT_MOST, seen_by_model
from bottleneck_lab.measure.kinds.inference_server.pictures import (
    ALIKE_SHARE,
    CROP,
    HEAD,
    RESIZED,
    make_strips,
)
from bottleneck_lab.measure.kinds.inference_server.pixels import levels
from bottleneck_lab.measure.kinds.inference_server.plateau import max_batch_of, show_plateau


@pytest.fixture(scope="module")
def strips(tmp_path_factory):
    """Strips of three photographs, each a gradient with blots."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    names = []
    for number in range(3):
        coarse = rng.integers(0, 255, size=(9, 11, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((1200, 900), Image.Resampling.BICUBIC).save(
            folder / f"{number}.jpg"
        )
        names.append(f'{{"name": "{number}.jpg", "set": "large"}}')
    (folder / "manifest.json").write_text(f'{{"photos": [{", ".join(names)}]}}')
    return make_strips(folder, rng)


class Server:
    """Answers HTTP on a Unix socket, one function for all requests: number and body in, status and
    delay out.
    """

    def __init__(self, path, answer) -> None:
        self.address, self.bodies, self._answer = str(path), [], answer
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen(600)
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()

    async def _serve(self) -> None:
        server = await asyncio.start_unix_server(self._client, sock=self._listener, limit=1 << 22)
        await server.serve_forever()

    async def _client(self, reader, writer) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
                self.bodies.append(await reader.readexactly(length))
                status, delay_s = self._answer(len(self.bodies) - 1)
                await asyncio.sleep(delay_s)
                if status:
                    writer.write(
                        b'HTTP/1.1 %d x\r\nContent-Length: 15\r\n\r\n{"scores": [1]}' % status
                    )
                else:
                    writer.close()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@pytest.fixture
def load(strips, tmp_path):
    return Load(tmp_path / "load", strips, Mock(), np.random.default_rng(1))


def test_a_picture_is_a_whole_file_and_shows_what_is_said_of_it(strips):
    pictures = strips.draw(4, np.random.default_rng(2))
    files = [strips.file(picture) for picture in pictures]
    assert len(set(files)) == 4
    left, top = (RESIZED[0] - CROP) // 2, (RESIZED[1] - CROP) // 2
    shown = []
    for file in files:
        with Image.open(io.BytesIO(file)) as image:
            assert image.size == (1024, 768)
            cut = image.convert("RGB").resize(RESIZED, Image.Resampling.BILINEAR)
            shown.append(
                np.asarray(cut.crop((left, top, left + CROP, top + CROP))).transpose(2, 0, 1)
            )
    apart = np.abs(levels(np.stack(shown)).reshape(4, -1) - seen_by_model(strips, pictures)).mean(1)
    assert apart.max() < 1.5
    elsewhere = np.abs(
        levels(np.stack(shown[::-1])).reshape(4, -1) - seen_by_model(strips, pictures)
    ).mean(1)
    assert elsewhere.min() > 10


def test_some_pictures_differ_from_another_only_in_details(strips):
    pictures = strips.draw(100, np.random.default_rng(9))
    assert len({picture.tobytes() for picture in pictures}) == 100
    doubles = (pictures + len(strips.scans) // 2) % len(strips.scans)
    alike = [number for number, each in enumerate(pictures) if (each == doubles).all(1).any()]
    assert len(alike) == 100 * ALIKE_SHARE
    seen, double = (strips.seen(each)[:, :14, :12] for each in (pictures, doubles))
    assert np.abs(seen - double).mean((1, 2, 3)).min() > 2 * LIGHT_AT_MOST
    small, other = (each.reshape(-1, 7, 2, 6, 2, 3).mean((2, 4)) for each in (seen, double))
    assert np.abs(small - other).mean() < 1


def test_pictures_are_the_same_when_another_process_puts_them_together(strips, tmp_path):
    pictures = strips.draw(2, np.random.default_rng(3))
    strips.messages(pictures).save(tmp_path / "messages.npz")
    again = Messages.load(tmp_path / "messages.npz")
    assert [again.whole(number) for number in range(3)] == [
        message(HEAD, strips.file(pictures[number])) for number in (0, 1, 0)
    ]


def test_the_model_sees_the_same_in_bytes_and_in_floats():
    pixels = np.random.default_rng(4).integers(0, 256, size=(2, 3, 224, 224), dtype=np.uint8)
    mean, std = (
        np.array([0.485, 0.456, 0.406]).reshape(3, 1, 1),
        np.array([0.229, 0.224, 0.225]).reshape(3, 1, 1),
    )
    floats = ((pixels / 255 - mean) / std).astype(np.float32)
    assert np.abs(levels(pixels).astype(int) - levels(floats)).max() <= 1


def test_a_closed_loop_waits_for_its_answers(load, tmp_path):
    under_way, most = [0], [0]
    server = Server(tmp_path / "s", lambda _: (200, 0.02))
    level = load.closed(server.address, 3, 0.5, time.sleep)
    answered = level.status == 200
    assert answered.all()
    events = sorted([(t, 1) for t in level.sent_ns] + [(t, -1) for t in level.ended_ns])
    for _, step in events:
        under_way[0] += step
        most[0] = max(most[0], under_way[0])
    assert most[0] <= 3
    assert len({bytes(body) for body in server.bodies}) == len(server.bodies)


def test_an_open_loop_waits_for_nobody_and_counts_from_when_a_request_was_due(load, tmp_path):
    server = Server(tmp_path / "s", lambda number: (200, 0.6 if number < 40 else 0.0))
    level = load.open(server.address, 100.0, 0.8, time.sleep)
    assert (level.status == 200).all()
    assert 40 < len(level.status) < 160
    assert (level.sent_ns[:40] < level.ended_ns[:1]).sum() > 10, (
        "requests were sent while the first was waited for"
    )
    assert (level.latencies_s() >= (level.ended_ns - level.sent_ns) / 1e9).all()
    assert (level.sent_ns >= level.begun_ns).all()


def test_an_open_loop_too_short_for_a_request_sends_one(load, tmp_path):
    level = load.open(Server(tmp_path / "s", lambda _: (200, 0.0)).address, 0.01, 0.05, time.sleep)
    assert level.status.tolist() == [200]


def test_a_server_that_reads_no_further_is_heard_all_the_same(load, tmp_path):
    """A body of more than the server takes: it answers, and closes the connection while the rest is
    still to be sent.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen(5)

    def refuse():
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(
                    b"HTTP/1.1 413 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )

    server = threading.Thread(target=refuse)
    server.start()
    due_ns = np.array([0, 200_000_000])
    level = load.at(
        str(tmp_path / "s"), due_ns, time.sleep, broken={0: message(HEAD, bytes(4 << 20))}
    )
    server.join()
    listener.close()
    assert level.status.tolist() == [413, 413]


def test_what_has_no_answer_is_lost_and_waits_for_ever(load, tmp_path):
    server = Server(tmp_path / "s", lambda number: (0 if number % 4 == 0 else 200, 0.0))
    level = load.open(server.address, 100.0, 0.5, time.sleep)
    assert (level.status == LOST).any()
    assert np.isinf(level.latencies_s()[level.status == LOST]).all()
    assert figures.p99_ms(level.latencies_s()) == 1000 * figures.NEVER_S


def test_bad_requests_are_sent_as_planned(load, tmp_path):
    server = Server(tmp_path / "s", lambda _: (200, 0.0))
    level = load.open(
        server.address,
        60.0,
        0.5,
        time.sleep,
        broken={1: message(HEAD, b"no picture")},
        disconnects=[3],
    )
    assert b"no picture" in server.bodies
    assert level.status[3] == LOST
    assert len(server.bodies) == len(level.status) - 1, "who leaves does not finish the upload"


def test_what_is_due_goes_before_what_has_come(tmp_path):
    address, ticks = str(tmp_path / "s"), itertools.count(1)
    plan, messages = Plan(address, "", due_ns=[0] * 4), Messages([HEAD], np.zeros((1, 1), int))
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(address)
        listener.listen(8)
        generator = Generator(plan, messages, lambda: next(ticks))
        for _ in plan.due_ns:
            generator._send(0)
            client = stack.enter_context(listener.accept()[0])
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1")
        answered = []
        for until in (0, 0, 10**9):
            generator._wait(until)
            answered.append(sum(status == 200 for status in generator.status))
        for connection in generator._idle:
            connection.sock.close()
    assert answered == [1, 2, 4]


class Machine:
    """A clock, and what a kernel says of a thread and of all cores. `passes` lets time pass, ms: of
    it, so much as used, so much as stolen.
    """

    def __init__(self) -> None:
        self.now, self.used, self.stolen_s = 0, 0, 0.0

    def passes(self, ms, used=0.0, stolen=0.0):
        self.now += round(ms * MS)
        self.used += round(used * MS)
        self.stolen_s += stolen / 1000

    def watch(self):
        return Stolen(lambda: self.now, lambda: self.used, lambda: self.stolen_s)


MS = 1_000_000


def test_time_in_which_a_thread_neither_ran_nor_slept_was_stolen():
    machine = Machine()
    stolen = machine.watch()
    machine.passes(20, used=8, stolen=12)  # it had something to do
    stolen.ran()
    machine.passes(30, stolen=5)  # it slept until 45, and woke at 50
    stolen.slept(45 * MS)
    machine.passes(10, used=10)
    stolen.ran()
    begin, end = np.array([0, 10, 25, 45, 50]) * MS, np.array([20, 20, 45, 50, 60]) * MS
    assert stolen.between(begin, end) / MS == pytest.approx([12, 6, 0, 5, 0], abs=0.01)


def test_what_no_hypervisor_took_was_not_stolen():
    machine = Machine()
    stolen = machine.watch()
    machine.passes(20, used=2, stolen=9)  # the kernel says less than this looks like
    stolen.ran()
    assert stolen.between(np.array([0]), np.array([20 * MS])) / MS == pytest.approx([9], abs=0.01)
    machine = Machine()
    stolen = machine.watch()
    machine.passes(20, used=19.9)
    stolen.ran()
    assert stolen.between(np.array([0]), np.array([20 * MS])) == [0]


def test_where_the_kernel_says_nothing_nothing_was_stolen(monkeypatch, tmp_path):
    monkeypatch.setattr(measured, "SCHEDSTAT", tmp_path / "none")
    monkeypatch.setattr(measured, "STAT", tmp_path / "none")
    stolen = Stolen()
    time.sleep(0.01)
    stolen.ran()
    assert stolen.between(np.array([0]), np.array([time.monotonic_ns()])) == [0]


def made_up(latencies_s, gap_s=0.01, late_s=0.0, cores=0.1, stolen_s=0.0) -> Level:
    """A level whose requests were due one after the other and took so long; infinite: never
    answered.
    """
    begun = (1e9 + np.arange(len(latencies_s)) * gap_s * 1e9).astype(np.int64)
    answered = np.isfinite(latencies_s)
    ended = np.where(answered, begun + np.where(answered, latencies_s, 0) * 1e9, 0).astype(np.int64)
    status = np.where(answered, 200, LOST)
    sent = begun + int(late_s * 1e9)
    stolen = np.full(len(begun), int(stolen_s * 1e9))
    return Level(
        np.zeros((len(begun), 8), np.int64),
        begun,
        sent,
        ended,
        status,
        [b""] * len(begun),
        cores,
        stolen,
    )


def test_each_window_of_an_open_loop_has_its_own_p99():
    latencies = np.full(1000, 0.1)
    latencies[600:620] = 3.0
    level = made_up(latencies)
    assert figures.window_p99s_ms(level, 10.0) == pytest.approx([100, 100, 3000, 100])


def test_a_generator_that_was_late_or_busy_says_so():
    assert figures.generator_doubt(made_up(np.full(100, 0.1))) is None
    assert "2.0 ms late" in figures.generator_doubt(made_up(np.full(100, 0.1), late_s=0.002))
    assert (
        figures.generator_doubt(made_up(np.full(100, 0.1), late_s=0.009, stolen_s=0.0085)) is None
    )
    assert "hypervisor" in figures.generator_doubt(
        made_up(np.full(100, 0.1), late_s=0.05, stolen_s=0.0495)
    )
    assert "cores" in figures.generator_doubt(made_up(np.full(100, 0.1), cores=0.95))


def test_the_generator_says_what_it_sent_how_late_and_at_what_cost():
    late, unsent = made_up(np.full(100, 0.1), late_s=0.0024, cores=0.3), made_up(np.full(100, 0.1))
    unsent.sent_ns[:10] = 0
    sentence = figures.audit([late, unsent])
    assert (
        sentence
        == "The load generator sent 190 of 200 requests, 1% of them more than 2.4 ms late, and used"
        " at most 0.30 cores."
    )


def test_the_generator_says_what_a_hypervisor_took_from_it():
    sentence = figures.audit([made_up(np.full(100, 0.1), late_s=0.009, stolen_s=0.0085)])
    assert "more than 9.0 ms late (0.5 ms without the time a hypervisor took), and" in sentence


def test_where_nothing_is_answered_no_loops_are_compared():
    printed, load = [], SimpleNamespace(closed=lambda *_: made_up(np.full(16, np.inf)))
    compare(SimpleNamespace(address="here", follow=None), load, 16, printed.append)
    assert printed == [
        "None of 16 concurrent clients got an answer within 6 s, so there is no rate to compare"
        " at.\n"
    ]


def test_both_loops_are_drawn_to_one_scale():
    text = compare_loops(made_up(np.full(200, 0.05)), made_up(np.full(200, 0.5)), 16, 100.0)
    assert "coordinated omission" in text
    legend = "  (▒ closed, █ open)"
    assert legend in text
    text = text.replace(legend, "")
    closed, opened = (
        (line for line in text.splitlines() if "▒" in line),
        (line for line in text.splitlines() if "█" in line),
    )
    assert {line.count("▒") for line in closed} == {5}
    assert {line.count("█") for line in opened} == {46}
    assert "never" in compare_loops(
        made_up(np.full(200, 0.05)), made_up(np.full(200, np.inf)), 16, 100.0
    )


def test_loops_of_one_rate_and_two_p99s_are_not_said_to_agree():
    text = compare_loops(made_up(np.full(200, 1.116)), made_up(np.full(200, 0.5)), 16, 27.0)
    assert "agree" not in text
    assert "keeps this rate" in text
    assert "Only the open loop's p99 is what users see" in text


def test_operators_run_on_as_many_threads_as_in_a_check(monkeypatch, tmp_path):
    """A capture would else show waits that no check has."""
    given = []
    monkeypatch.setattr(local_server, "stream", lambda *arguments: given.append(arguments) or 0)

    def closed(*_, **__):
        raise local_server.Ended

    context = SimpleNamespace(
        workspace=tmp_path,
        settings=SimpleNamespace(threads=1),
        janitor=SimpleNamespace(folder=tmp_path),
        lab=SimpleNamespace(spec=SimpleNamespace(entry="serve.py")),
    )
    launch = local_server.Launch("a.module", {}, channel=None, end=lambda: None)
    local_server.serve_locally(context, launch, SimpleNamespace(closed=closed), None, print)
    assert given[0][4]["OMP_NUM_THREADS"] == "1"


def test_a_size_without_latencies_is_loaded_for_longer_and_each_is_announced(monkeypatch):
    """The size before may have been slower, and its time too short all the same."""
    loads, announced = [], []

    def point(size, _level, seconds, *_):
        loads.append((size, seconds))
        latency_s = 0.5 if size < 16 or seconds > 3 else None
        return Point(size, 48.0, latency_s, latency_s, float(size))

    monkeypatch.setattr(inference_run, "point", point)
    server = SimpleNamespace(address="", follow=None, batches=[], command=lambda *_: None)
    bench = SimpleNamespace(
        load=SimpleNamespace(closed=lambda *_, **__: None),
        context=SimpleNamespace(
            settings=SimpleNamespace(clients=64), progress=lambda text, _: announced.append(text)
        ),
    )
    plateau = inference_run._plateau(server, bench, 16, 1.5)
    assert [seconds for size, seconds in loads if size == 16] == [2.0, 4.0]
    assert all(each.p50_s for each in plateau.points)
    assert announced[0] == "loading the server with batches of up to 1 (1 of 6 sizes)"


def test_the_plateau_is_drawn_to_its_highest_rate(tmp_path):
    points = [Point(1, 81.0, 0.2, 0.2, 1.0), Point(8, 300.0, 0.1, 0.1, 6.0)]
    unmeasured = show_plateau(Plateau(64, [Point(1, 81.0, None, None, 1.0)]))
    assert "–" in unmeasured
    assert "never" not in unmeasured, "too short a load says nothing of the server"
    text = show_plateau(Plateau(64, points))
    rows = [line for line in text.splitlines() if "█" in line]
    assert [row.split()[:4] for row in rows] == [
        ["1", "1.0", "81", "200"],
        ["8", "6.0", "300", "100"],
    ]
    assert rows[1].count("█") == 40
    assert 8 <= rows[0].count("█") <= 14
    entry = tmp_path / "serve.py"
    entry.write_text("MAX_WAIT_S = 1\nMAX_BATCH = 16  # images\n")
    assert max_batch_of(entry) == 16
    entry.write_text("SIZE = 16\n")
    assert max_batch_of(entry) is None


@pytest.mark.parametrize(
    ("refused", "done"),
    [
        ((), [("sched_setscheduler", os.SCHED_FIFO)]),
        (("sched_setscheduler",), [("setpriority", -10)]),
        (("sched_setscheduler", "setpriority"), []),
    ],
)
def test_the_generator_goes_before_other_programs_as_far_as_it_may(refused, done, monkeypatch):
    calls = []

    def stand_in(name, position):
        def call(*arguments):
            if name in refused:
                raise PermissionError(name)
            calls.append((name, arguments[position]))

        monkeypatch.setattr(os, name, call)

    stand_in("sched_setscheduler", 1)
    stand_in("setpriority", 2)
    go_first()
    assert calls == done
