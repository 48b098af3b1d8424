"""The lab's server on Triton: how it is chosen, what it is given, what stands before it, and what
becomes of it when it ends.
"""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from PIL import Image, UnidentifiedImageError

from bottleneck_lab.catalog import content_root, find_lab
from bottleneck_lab.errors import MachineError
from bottleneck_lab.measure.channel.wire import Arena
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.inference_server.learner_api import MAX_BATCH
from bottleneck_lab.measure.kinds.inference_server.pixels import IMAGES
from bottleneck_lab.measure.kinds.inference_server.triton import capture as triton_capture
from bottleneck_lab.measure.kinds.inference_server.triton import gateway
from bottleneck_lab.measure.kinds.inference_server.triton import server as tritonserver
from bottleneck_lab.measure.kinds.inference_server.triton.gateway import Gateway, infer_request
from bottleneck_lab.measure.kinds.inference_server.triton.perf_analyzer import (
    PerfAnalyzer,
    closed_loop,
    open_loop,
    read_report,
    write_pictures,
)
from bottleneck_lab.measure.kinds.inference_server.triton.server import (
    TritonError,
    Tritonserver,
    device_fds,
    environment_for,
    max_batch_of,
    queue_note,
    repository_for,
    show_statistics,
)
from bottleneck_lab.measure.kinds.input_pipeline.learner_api import SLOTS
from bottleneck_lab.measure.sandbox.janitor import Janitor
from bottleneck_lab.trace import load
from bottleneck_lab.workspace.dataset import is_made
from bottleneck_lab.workspace.home import dataset_root

from ...modules import load_file

LAB = find_lab("past-the-plateau")
SET_UP = load_file(content_root() / "datasets" / "tritonserver.py", "set_up_triton")
NO_TRITON = "" if is_made("tritonserver") else "no Triton Inference Server: lab data tritonserver"


@pytest.fixture
def solved(tmp_path):
    """The solution's model repository, as a workspace has it: the shipped one with the solution's
    files over it.
    """
    folder = tmp_path / "solved"
    for source in (LAB.path, LAB.solution):
        for file in (source / "models").rglob("*.p*"):
            target = folder / file.relative_to(source / "models")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize("line", ["", 'SERVER = "python"', "SERVER = 'python'  # as shipped"])
def test_the_learners_own_code_serves_unless_it_says_otherwise(tmp_path, line):
    (tmp_path / "serve.py").write_text(f"import io\n{line}\n")
    assert environment_for(tmp_path / "serve.py") is None


def test_triton_serves_where_it_is_asked_for_and_set_up(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path))
    entry = tmp_path / "serve.py"
    entry.write_text('SERVER = "triton"\n')
    with pytest.raises(MachineError) as missing:
        environment_for(entry)
    assert "lab data tritonserver" in missing.value.remedy
    folder = tmp_path / "datasets" / "tritonserver"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text('{"complete": true}')
    assert environment_for(entry) == folder


def test_another_server_is_the_learners_mistake(tmp_path):
    (tmp_path / "serve.py").write_text('SERVER = "torchserve"\n')
    with pytest.raises(LearnerFault, match='"python" or "triton", not "torchserve"'):
        environment_for(tmp_path / "serve.py")


@pytest.mark.parametrize(
    ("system", "machine", "python", "library", "reason"),
    [
        ("Darwin", "arm64", (3, 11), True, "for Linux on x86-64; this is Darwin on arm64"),
        ("Linux", "x86_64", (3, 13), True, "runs with Python 3.11 and 3.12; this is 3.13"),
        ("Linux", "x86_64", (3, 11), False, "apt-get install libpython3.11"),
    ],
)
def test_a_machine_that_cannot_have_triton_is_told_why(
    tmp_path, system, machine, python, library, reason
):
    file = tmp_path / "libpython.so"
    if library:
        file.touch()
    assert reason in SET_UP.refusal(system, machine, python, file)


def test_a_machine_that_can_have_triton_is_refused_nothing(tmp_path):
    (tmp_path / "libpython.so").touch()
    assert SET_UP.refusal("Linux", "x86_64", (3, 12), tmp_path / "libpython.so") == ""


def test_what_is_set_up_stays_and_what_was_interrupted_is_begun_anew(tmp_path, monkeypatch):
    done = []
    names = ("require_machine", "make_environment", "install", "arrange", "try_out")
    for name in names:
        monkeypatch.setattr(SET_UP, name, lambda _, name=name: done.append(name))
    seen = []
    SET_UP.set_up(tmp_path / "env", lambda *progress: seen.append(progress))
    assert done == list(names)
    assert seen == [(number, 5) for number in range(6)]
    SET_UP.set_up(tmp_path / "env", lambda *_: None)
    assert len(done) == 5
    (tmp_path / "env" / "manifest.json").write_text('{"complete": false}')
    SET_UP.set_up(tmp_path / "env", lambda *_: None)
    assert len(done) == 10


def configs(repository):
    """The text of every model's configuration, by the model's folder."""
    return {file.parent.name: file.read_text() for file in repository.glob("*/config.pbtxt")}


def test_the_shipped_repository_decodes_in_the_batch_path_and_the_solution_in_an_ensemble(solved):
    shipped, fixed = configs(LAB.path / "models"), configs(solved)
    for repository in (shipped, fixed):
        assert repository.keys() == {"classify", "decode", "resnet50"}
        assert all(f'name: "{name}"' in text for name, text in repository.items())
        assert "dynamic_batching" in repository["resnet50"]
        assert "dims: [ 3, 224, 224 ]" in repository["resnet50"]
    assert 'backend: "python"' in shipped["classify"]
    assert "count: 1" in shipped["classify"]
    assert 'platform: "ensemble"' in fixed["classify"]
    assert re.findall(r'model_name: "(\w+)"', fixed["classify"]) == ["decode", "resnet50"]
    assert "count: 2" in fixed["decode"]


def test_the_lab_puts_its_own_model_and_batch_size_into_a_copy(tmp_path):
    repository = LAB.path / "models"
    copy = repository_for(repository, 4, tmp_path / "copy")
    assert "LAB_SOCKET" in (copy / "resnet50/1/model.py").read_text()
    assert {max_batch_of(copy), max_batch_of(repository)} == {4, 16}
    assert all("max_batch_size: 4\n" in text for text in configs(copy).values())
    assert configs(repository_for(repository, None, tmp_path / "copy")) == configs(repository)


@pytest.mark.parametrize(("server", "file"), [("python", "serve.py"), ("triton", "pictures.py")])
def test_each_server_is_calibrated_by_its_own_shipped_code(server, file):
    timed = load_file(LAB.path / "judge.py", "judge_of_servers").load("virtual")
    with pytest.raises(UnidentifiedImageError) as raised:
        timed(server, b"no picture")
    assert file in {entry.path.name for entry in raised.traceback}


def test_what_triton_tells_of_its_models_is_shown():
    model = {"name": "decode", "execution_count": 5, "inference_count": 20}
    times = {
        "queue": {"count": 20, "ns": 40_000_000},
        "compute_infer": {"count": 20, "ns": 600_000_000},
    }
    idle = {"queue": {"count": 0, "ns": 0}, "compute_infer": {"count": 0, "ns": 0}}
    ensemble = {
        "name": "classify",
        "execution_count": 0,
        "inference_count": 0,
        "inference_stats": idle,
    }
    shown = show_statistics(
        {"model_stats": [{**model, "inference_stats": times}, ensemble]}
    ).splitlines()
    assert shown[-2].split() == ["decode", "5", "4.0", "2.0", "30.0"]
    assert shown[-1].split() == ["classify", "0", "0.0", "0.0", "0.0"]


def test_what_a_killed_server_left_in_shared_memory_is_removed_and_no_others(tmp_path, monkeypatch):
    memory, temporary = tmp_path / "shm", tmp_path / "tmp"
    (temporary / "tritonserver-1").mkdir(parents=True)
    memory.mkdir()
    for name in ("tritonserver-1abc", "tritonserver-2abc", "other"):
        (memory / name).touch()
    monkeypatch.setattr(tritonserver, "_SHARED_MEMORY", memory)
    tritonserver.clear(temporary)
    assert {each.name for each in memory.iterdir()} == {"tritonserver-2abc", "other"}


def test_what_requests_waited_in_a_window_is_a_sentence():
    def stats(name, ns, count):
        return {"name": name, "inference_stats": {"queue": {"ns": ns, "count": count}}}

    before = {"model_stats": [stats("classify", 5_000_000, 5), stats("decode", 0, 0)]}
    after = {
        "model_stats": [
            stats("classify", 65_000_000, 15),
            stats("decode", 0, 0),
            stats("resnet50", 4_000_000, 2),
        ]
    }
    assert queue_note(before, after).endswith(
        "waited 6.0 ms in the queue of classify, 2.0 ms in the queue of resnet50."
    )
    assert queue_note(after, after).endswith("no request waited in a queue.")


def test_every_python_model_is_put_under_the_profiler_and_keeps_its_own_code(tmp_path):
    repository = repository_for(LAB.path / "models", None, tmp_path / "copy")
    code = (repository / "classify/1/model.py").read_text()
    triton_capture.put_under_profiler(repository)
    for model in ("classify", "decode", "resnet50"):
        assert "capture_on_order" in (repository / model / "1/model.py").read_text()
    assert (repository / "classify/1" / f"{triton_capture.LEARNERS}.py").read_text() == code


@pytest.fixture
def ranges(monkeypatch):
    """Ranges, and what they mark: the list of what began and ended."""
    marked = []

    class Recorded:
        def __init__(self, name) -> None:
            self.name = name

        def __enter__(self) -> None:
            marked.append(f"{self.name} begins")

        def __exit__(self, *_) -> None:
            marked.append(f"{self.name} ends")

    monkeypatch.setattr(torch.profiler, "record_function", Recorded)
    return triton_capture.Ranges(), marked


def test_one_range_follows_another_without_a_hole(ranges):
    thread_ranges, marked = ranges
    thread_ranges.begin("queue")
    thread_ranges.begin("preprocess")
    with thread_ranges.instead("request", "postprocess"):
        assert marked == [
            "queue begins",
            "queue ends",
            "preprocess begins",
            "preprocess ends",
            "request begins",
        ]
    thread_ranges.begin(None)
    assert marked[5:] == ["request ends", "postprocess begins", "postprocess ends"]


def test_batches_that_overlap_on_a_thread_are_marked_stretch_by_stretch(ranges):
    thread_ranges, marked = ranges
    batches = triton_capture.Batches(thread_ranges)

    async def batch(number, decoded, answered):
        await decoded
        batches.request_sent()
        await answered
        if number == 2:
            raise ValueError(number)
        return number

    async def both():
        (first, second), (one, two) = ([asyncio.Event() for _ in range(2)] for _ in range(2))
        tasks = [
            asyncio.create_task(batches.mark(batch(number, decoded.wait(), answered.wait())))
            for number, decoded, answered in ((1, first, one), (2, second, two))
        ]
        for event in (first, second, one, two):
            await asyncio.sleep(0)
            event.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(both())
    assert answers[0] == 1
    assert isinstance(answers[1], ValueError)
    begun = [name.removesuffix(" begins") for name in marked if name.endswith("begins")]
    assert begun == [
        *("preprocess", "preprocess")
        * 2,  # each batch to its first wait, then the thread waits for both
        *(
            "preprocess",
            "preprocess",
        ),  # the first asks another model; the second is still being decoded
        *("preprocess", "request to another model"),
        *("postprocess", "request to another model"),  # the first ends
        *("postprocess", "queue"),
    ]


def test_a_batch_that_is_given_up_is_no_longer_waited_for(ranges):
    thread_ranges, marked = ranges
    batches = triton_capture.Batches(thread_ranges)

    async def given_up():
        task = asyncio.create_task(batches.mark(asyncio.sleep(60)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    assert asyncio.run(given_up())
    assert marked[-1] == "queue begins"


def test_a_thread_of_the_models_own_marks_its_requests_alone(ranges):
    thread_ranges, marked = ranges
    thread_ranges.begin("preprocess")

    def ask():
        with thread_ranges.instead("request", "postprocess"):
            pass

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert marked == ["preprocess begins", "request begins", "request ends"]


def write_trace(file, base_ns, events):
    with gzip.open(file, "wt") as out:
        json.dump({"baseTimeNanoseconds": base_ns, "host_name": "x", "traceEvents": events}, out)


def test_traces_of_several_processes_become_one_on_one_clock_with_the_models_names(tmp_path):
    def events(pid, ts):
        span = {
            "ph": "X",
            "cat": "user_annotation",
            "name": "preprocess",
            "pid": pid,
            "tid": pid,
            "ts": ts,
            "dur": 5.0,
        }
        return [
            {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "python"}},
            span,
        ]

    traces = [tmp_path / "classify 7.json.gz", tmp_path / "my model 8.json.gz"]
    write_trace(traces[0], 1_000_000, events(7, 100.0))
    write_trace(traces[1], 3_000_000, events(8, 100.0))
    merged = tmp_path / "trace.json.gz"
    triton_capture.merge(traces, ["requests waited"], merged)
    timeline = load(merged)
    assert (timeline.ranges.start - timeline.ranges.start[0]).tolist() == [0, 2_000_000]
    assert timeline.notes == ("requests waited",)
    with gzip.open(merged, "rt") as file:
        named = [
            event["args"]["name"] for event in json.load(file)["traceEvents"] if event["ph"] == "M"
        ]
    assert named == ["Triton: classify", "Triton: my model"]


def test_every_process_is_told_the_same_window_and_waited_for(tmp_path, monkeypatch):
    windows = []
    monkeypatch.setattr(triton_capture, "LEAD_S", 0.05)
    monkeypatch.setattr(
        triton_capture,
        "capture",
        lambda *window: window[1] and (windows.append(window), window[1].touch()),
    )
    for model in ("classify", "resnet50"):
        triton_capture.capture_on_order(tmp_path, model)
    traces = triton_capture.order(tmp_path, 0.25)
    assert [trace.name.split()[0] for trace in traces] == ["classify", "resnet50"]
    assert all(trace.exists() for trace in traces)
    assert [seconds for seconds, _ in windows] == [0.25, 0.25]


def test_a_process_that_writes_nothing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(triton_capture, "LEAD_S", 0.0)
    monkeypatch.setattr(triton_capture, "WRITING_S", 0.0)
    (tmp_path / "decode 9.ready").touch()
    with pytest.raises(TimeoutError, match="no trace of the model decode"):
        triton_capture.order(tmp_path, 0.0)


class FakeTriton:
    """Speaks Triton's protocol on a port; answers as it is told to."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.status, self.content, self.requests, self.gone = 200, None, [], False
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()

    async def _serve(self) -> None:
        async with await asyncio.start_server(self._client, sock=self.listener) as server:
            await server.serve_forever()

    async def _client(self, reader, writer) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader, writer) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        sizes = {
            name: int(value) for name, value in re.findall(r"(\S*Content-Length): (\d+)", head)
        }
        body = await reader.readexactly(sizes["Content-Length"])
        text = body[: sizes["Inference-Header-Content-Length"]]
        self.requests.append((head.split()[1], json.loads(text), body[len(text) :]))
        content = (
            {"outputs": [{"name": "scores", "data": [0.5] * 10}]}
            if self.content is None
            else self.content
        )
        reply = json.dumps(content).encode()
        writer.write(
            b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n" % (self.status, len(reply)) + reply
        )

    def start(self, max_batch=None) -> None:
        pass

    def ended(self) -> bool:
        return self.gone

    def last_words(self) -> str:
        return "out of memory"


class Place:
    """A gateway before a Triton, real or made up."""

    def __init__(self, triton) -> None:
        self.triton, self.gateway = triton, Gateway(triton)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.problem = None
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        try:
            self.gateway.serve(self.listener)
        except TritonError as error:
            self.problem = error

    def ask(self, body, path="/classify"):
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("POST", path, body)
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())


@pytest.fixture
def served(monkeypatch):
    monkeypatch.setattr(gateway, "LOOK_S", 0.02)
    made = Place(FakeTriton())
    yield made
    made.triton.gone = True
    made.thread.join(60)


def test_a_picture_goes_to_triton_as_it_came_and_its_scores_come_back(served):
    assert served.ask(b"\xff\xd8picture") == (200, {"scores": [0.5] * 10})
    path, requests, binary = served.triton.requests[0]
    assert path == "/v2/models/classify/infer"
    assert requests["inputs"][0]["parameters"] == {"binary_data_size": len(binary)}
    assert binary == (9).to_bytes(4, "little") + b"\xff\xd8picture", (
        "a string's length stands before it"
    )


def test_what_triton_refuses_is_refused_with_its_status(served):
    served.triton.status, served.triton.content = 400, {"error": "not a JPEG file"}
    assert served.ask(b"") == (400, {"error": "not a JPEG file"})
    served.triton.status, served.triton.content = 200, None
    assert served.ask(b"next")[0] == 200


def test_what_a_learners_model_raises_is_shown_once(served, capsys):
    served.triton.status, served.triton.content = 500, {"error": "KeyError: 'images'"}
    assert [served.ask(b"picture")[0] for _ in range(2)] == [500, 500]
    assert capsys.readouterr().out == "Triton could not answer a request: KeyError: 'images'\n"


def test_a_huge_body_is_refused_unread_and_another_path_is_not_there(served):
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(b"POST /classify HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")
    assert served.ask(b"", "/elsewhere")[0] == 404
    assert not served.triton.requests


def test_a_client_that_goes_away_leaves_the_others_answered(served):
    with socket.create_connection(("127.0.0.1", served.port)) as gone:
        gone.sendall(b"POST /classify HTTP/1.1\r\nContent-Length: 1000\r\n\r\nhalf")
    assert served.ask(b"other")[0] == 200
    assert len(served.triton.requests) == 1


def test_who_asks_when_triton_is_gone_is_told_and_serving_ends_with_its_last_words(served):
    served.triton.port = served.triton.port - 1 or 1  # nobody listens there
    assert served.ask(b"picture")[0] == 503
    served.triton.gone = True
    served.thread.join(60)
    assert "out of memory" in str(served.problem)


def test_a_request_says_how_long_its_parts_are():
    head, _, body = infer_request(b"abc").partition(b"\r\n\r\n")
    sizes = dict(re.findall(rb"(\S*Content-Length): (\d+)", head))
    assert int(sizes[b"Content-Length"]) == len(body)
    assert json.loads(body[: int(sizes[b"Inference-Header-Content-Length"])])["outputs"] == [
        {"name": "scores"}
    ]


def read_on(verifier) -> None:
    """Takes what the device says of its batches: it waits while nobody does."""
    with suppress(OSError):
        while verifier.recv(1 << 16):
            pass


@pytest.fixture
def device():
    """Function: a device's process, as the environment of models finds it."""
    pairs = [socket.socketpair(), socket.socketpair()]
    arena = Arena.create(SLOTS * MAX_BATCH * IMAGES.largest_bytes)
    fds = [pairs[0][0].fileno(), pairs[1][0].fileno(), arena.fd]
    options = zip(
        ("--host", "--verifier", "--arena", "--fixed-s", "--image-s"),
        [*fds, 0.01, 0.001],
        strict=True,
    )
    command = [
        sys.executable,
        "-m",
        "bottleneck_lab.measure.kinds.inference_server.device",
        "--engine",
        "emulated",
        "--batch",
        "16",
    ]
    process = subprocess.Popen(
        [*command, *(str(part) for pair in options for part in pair)], pass_fds=fds
    )
    threading.Thread(target=read_on, args=(pairs[1][1],), daemon=True).start()
    yield device_fds(pairs[0][1].fileno(), arena.fd)
    process.kill()
    process.wait()
    for each in (*pairs[0], *pairs[1]):
        each.close()
    arena.close()


@pytest.fixture
def triton(device):
    """Function: a real server on a repository, with a gateway before it: its address."""
    servers = []

    def start(repository, **options):
        server = Tritonserver(dataset_root("tritonserver"), repository, device, **options)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.close()


def pictures():
    """A JPEG file, and what is none."""
    noise = np.random.default_rng(0).integers(0, 255, (96, 128, 3), dtype=np.uint8)
    file = Path("picture.jpg")
    Image.fromarray(noise).resize((1024, 768)).save(file)
    return file.read_bytes(), b"\xff\xd8no picture"


@pytest.mark.slow
@pytest.mark.skipif(bool(NO_TRITON), reason=NO_TRITON)
@pytest.mark.parametrize("which", ["shipped", "solved"])
def test_a_real_triton_serves_both_repositories_on_loopback_alone_and_leaves_nothing(
    which, solved, triton, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    server = triton(LAB.path / "models" if which == "shipped" else solved)
    good, bad = pictures()
    served = Place(server)
    answers = [served.ask(body) for body in (good, bad, b"", good)]
    assert [status for status, _ in answers] == [200, 400, 400, 200]
    assert "not a JPEG file" in answers[1][1]["error"]
    assert len(answers[0][1]["scores"]) == 10
    assert answers[0] == answers[3]
    mine = [psutil.Process(), *psutil.Process().children(recursive=True)]
    heard = {
        each.laddr.ip
        for process in mine
        for each in process.net_connections()
        if each.status == "LISTEN"
    }
    assert heard == {"127.0.0.1"}
    assert "resnet50" in server.statistics()
    served.gateway.close()
    assert server.ended()
    named = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not any(
        "triton_python_backend_stub" in word and server._shared in " ".join(words)
        for words in named
        for word in words
    )
    assert not list(Path("/dev/shm").glob(f"{server._shared}*"))


def asynchronous(copy):
    """The shipped repository, with the model that clients ask as coroutines."""
    shutil.copytree(LAB.path / "models", copy)
    model = copy / "classify" / "1" / "model.py"
    code = model.read_text()
    for old, new in (
        ("    def execute(", "    async def execute("),
        ("def infer(", "async def infer("),
        ("zip(good, infer(np.stack(images)))", "zip(good, await infer(np.stack(images)))"),
        ("request.exec()", "await request.async_exec()"),
    ):
        assert old in code
        code = code.replace(old, new)
    model.write_text(code)
    return copy


@pytest.mark.slow
@pytest.mark.skipif(bool(NO_TRITON), reason=NO_TRITON)
@pytest.mark.parametrize(
    ("which", "marked"),
    [
        (
            "shipped",
            {"classify": {"queue", "preprocess", "request to another model", "postprocess"}},
        ),
        (
            "asynchronous",
            {"classify": {"queue", "preprocess", "request to another model", "postprocess"}},
        ),
        ("solved", {"decode": {"queue", "preprocess"}}),
    ],
)
def test_models_on_a_real_triton_are_captured_each_in_its_process(
    which, marked, solved, triton, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shipped = asynchronous(tmp_path / "models") if which == "asynchronous" else LAB.path / "models"
    server = triton(solved if which == "solved" else shipped, captured=True)
    served, (good, _) = Place(server), pictures()
    served.ask(good)
    capturing = threading.Thread(target=server.capture, args=(1.5, tmp_path / "trace.json.gz"))
    capturing.start()
    while capturing.is_alive():
        assert served.ask(good)[0] == 200
    served.gateway.close()
    with gzip.open(tmp_path / "trace.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    models = {
        each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"
    }
    names = {}
    for each in events:
        if each.get("cat") == "user_annotation" and each["pid"] in models:
            names.setdefault(models[each["pid"]].removeprefix("Triton: "), set()).add(each["name"])
    assert names == {**marked, "resnet50": {"queue", "h2d", "infer"}}
    (note,) = load(tmp_path / "trace.json.gz").notes
    assert re.search(r"[\d.]+ ms in the queue of resnet50", note)


def no_perf_analyzer() -> str:
    """Why Triton's load generator does not run here; empty where it does."""
    try:
        PerfAnalyzer(dataset_root("tritonserver")).version()
    except MachineError as error:
        return f"{error.message} {error.remedy}"
    return ""


@pytest.mark.slow
def test_a_real_perf_analyzer_asks_a_real_triton_in_both_loops(
    solved, triton, tmp_path, monkeypatch
):
    if why := no_perf_analyzer():
        pytest.skip(why)
    monkeypatch.chdir(tmp_path)
    server, program = triton(solved), PerfAnalyzer(dataset_root("tritonserver"))
    write_pictures([pictures()[0]] * 3, tmp_path / "pictures.json")
    rows = []
    with Janitor() as janitor:
        for loop in (closed_loop(4), open_loop(10.0), (*open_loop(10.0), "--async")):
            report = program.run(f"127.0.0.1:{server.port}", tmp_path, loop, janitor, time.sleep)
            rows.append(read_report(report, "", ""))
    assert all(0 < row.p50_ms <= row.p99_ms for row in rows)
    assert all(3 < row.rate < 20 for row in rows[1:])
    stats = re.search(r"^decode +(\d+) ", server.statistics(), re.MULTILINE)
    assert stats is not None
    assert int(stats[1]) > 20


@pytest.mark.slow
@pytest.mark.skipif(bool(NO_TRITON), reason=NO_TRITON)
def test_a_real_triton_that_cannot_load_a_model_says_which_line_is_wrong(solved, triton):
    config = solved / "decode" / "config.pbtxt"
    config.write_text(config.read_text().replace("TYPE_UINT8", "TYPE_INT12"))
    with pytest.raises(TritonError, match=r"decode/config\.pbtxt"):
        triton(solved)
