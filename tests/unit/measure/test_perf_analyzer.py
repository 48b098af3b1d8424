"""perf_analyzer beside `lab run`: what it is asked, what is read of its report, and what is said
where it is missing or fails.
"""

from __future__ import annotations

import base64
import json
import subprocess
import time

import numpy as np
import pytest

from bottleneck_lab.capture import doctor
from bottleneck_lab.errors import MachineError
from bottleneck_lab.measure.kinds.http_server.load.level import Level
from bottleneck_lab.measure.kinds.inference_server.triton.perf_analyzer import (
    FailedError,
    PerfAnalyzer,
    Row,
    closed_loop,
    command,
    open_loop,
    read_report,
    row_of,
    show,
    write_pictures,
)
from bottleneck_lab.measure.sandbox.janitor import Janitor

# As version 2.51.0 wrote it, of a closed loop of 16 clients.
REPORT = """Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,\
Server Compute Input,Server Compute Infer,Server Compute Output,\
Client Recv,p50 latency,p90 latency,p95 latency,p99 latency
16,29.2196,53,1017,204377,95,285010,38,5,508441,610000,700101,779003
"""


@pytest.fixture
def stand_in(tmp_path):
    """Function: a stand-in for perf_analyzer, a shell script, in the environment of a Triton
    server.
    """

    def make(script):
        program = tmp_path / "triton" / "env" / "bin" / "perf_analyzer"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return PerfAnalyzer(tmp_path / "triton")

    return make


def test_pictures_are_written_as_string_tensors_of_its_input_file(tmp_path):
    write_pictures([b"\xff\xd8first", b"\xff\xd8second one"], tmp_path / "pictures.json")
    entries = json.loads((tmp_path / "pictures.json").read_text())["data"]
    sent = [base64.b64decode(entry["picture"]["b64"]) for entry in entries]
    assert sent == [b"\x07\x00\x00\x00\xff\xd8first", b"\x0c\x00\x00\x00\xff\xd8second one"]
    assert all(entry["picture"]["shape"] == [1] for entry in entries)


def test_both_loops_are_asked_for_on_a_command_line_that_can_be_copied(tmp_path):
    closed = command(tmp_path / "perf_analyzer", "127.0.0.1:8000", tmp_path, closed_loop(16))
    opened = command(tmp_path / "perf_analyzer", "127.0.0.1:8000", tmp_path, open_loop(24.04))
    assert "--concurrency-range 16 --percentile 99" in " ".join(closed)
    assert "--request-rate-range 24.0 --request-distribution poisson --percentile 99" in " ".join(
        opened
    )
    for words in (closed, opened):
        assert f"-m classify -u 127.0.0.1:8000 --input-data {tmp_path}/pictures.json" in " ".join(
            words
        )
        assert words[-2:] == ["-f", str(tmp_path / "report.csv")]


def test_its_report_is_read(tmp_path):
    (tmp_path / "report.csv").write_text(REPORT)
    row = read_report(tmp_path / "report.csv", "closed loop", "perf_analyzer")
    assert row == Row("closed loop", "perf_analyzer", 29.2196, 508.441, 779.003)


@pytest.mark.parametrize(
    "text", [None, "", REPORT.splitlines()[0], REPORT.replace("p99", "p98"), REPORT * 2]
)
def test_what_is_not_a_report_of_one_loop_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "report.csv").write_text(text)
    with pytest.raises(FailedError, match="does not describe one loop"):
        read_report(tmp_path / "report.csv", "closed loop", "perf_analyzer")


def test_it_is_run_to_its_end_with_the_server_looked_after_meanwhile(stand_in, tmp_path):
    program, looks = (
        stand_in(
            f'sleep 0.3; cp {tmp_path}/given.csv {tmp_path}/report.csv; echo "$@" >'
            f" {tmp_path}/asked"
        ),
        [],
    )
    (tmp_path / "given.csv").write_text(REPORT)

    def watch(seconds):
        looks.append(seconds)
        time.sleep(seconds)

    with Janitor() as janitor:
        report = program.run("127.0.0.1:1", tmp_path, closed_loop(16), janitor, watch)
    assert report.read_text() == REPORT
    assert len(looks) >= 2
    assert "--concurrency-range 16" in (tmp_path / "asked").read_text()


def test_where_it_fails_its_last_words_are_told(stand_in, tmp_path):
    program = stand_in("echo starting; echo failed to connect >&2; exit 99")
    with Janitor() as janitor, pytest.raises(FailedError, match=r"^failed to connect$"):
        program.run("127.0.0.1:1", tmp_path, closed_loop(16), janitor, time.sleep)


def test_one_that_does_not_end_is_ended(stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "bottleneck_lab.measure.kinds.inference_server.triton.perf_analyzer.LIMIT_S", 0.3
    )
    program, started = stand_in("exec sleep 600"), []
    monkeypatch.setattr(subprocess, "Popen", _noted(subprocess.Popen, started))
    with Janitor() as janitor, pytest.raises(FailedError, match="still running"):
        program.run("127.0.0.1:1", tmp_path, closed_loop(16), janitor, time.sleep)
    assert started[-1].poll() is not None


def _noted(popen, started):
    class Noted(popen):
        def __init__(self, *options, **named) -> None:
            super().__init__(*options, **named)
            started.append(self)

    return Noted


def test_a_library_that_is_missing_is_named_with_its_package(stand_in):
    words = "error while loading shared libraries: libb64.so.0d: cannot open shared object file"
    with pytest.raises(MachineError, match="libb64") as missing:
        stand_in(f"echo {words} >&2; exit 127").version()
    assert "apt-get install libb64-0d" in missing.value.remedy


def test_doctor_says_whether_it_is_there_and_how_to_get_it(stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "dataset_root", lambda _: tmp_path / "triton")
    absent = doctor.probe_perf_analyzer()
    assert not absent.present
    assert "lab data tritonserver" in absent.remedy
    stand_in("echo 'Perf Analyzer Version 2.51.0 (commit unknown)'")
    assert (doctor.probe_perf_analyzer().present, doctor.probe_perf_analyzer().found) == (
        True,
        "2.51.0",
    )


def test_its_figures_stand_beside_those_of_lab_run():
    begun = np.arange(120, dtype=np.int64) * 50_000_000
    level = Level(begun, begun, begun, begun + 200_000_000, np.full(120, 200), [b""] * 120, 0.1)
    rows = [
        row_of(level, 6.0, "closed loop"),
        Row("closed loop", "perf_analyzer", 29.2, 508.4, 779.0),
    ]
    shown = show(
        [*rows, Row("open loop", "perf_analyzer --async", 19.2, 179.0, 483.0)], "2.51.0"
    ).splitlines()
    assert [line.split() for line in shown[3:8]] == [
        ["closed", "loop"],
        ["lab", "run", "19.5", "200", "200"],
        ["perf_analyzer", "29.2", "508", "779"],
        ["open", "loop"],
        ["perf_analyzer", "--async", "19.2", "179", "483"],
    ]
