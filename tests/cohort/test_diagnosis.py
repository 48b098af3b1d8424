"""The committed diagnosis, the help taken and the capture travel with a submission."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from bottleneck_lab import catalog
from bottleneck_lab.analysis.selection import figures_within
from bottleneck_lab.analysis.steps.window import Window
from bottleneck_lab.analysis.summary import analyse, summarise
from bottleneck_lab.cohort.client import Client, RefusedByServerError
from bottleneck_lab.cohort.members import people
from bottleneck_lab.cohort.protocol import content_of
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.submissions.capture_reading import read_figures, render_report
from bottleneck_lab.cohort.submissions.diagnosis import (
    AS_REPORTED,
    FROM_CAPTURE,
    NO_CAPTURE,
    Diagnosis,
)
from bottleneck_lab.cohort.submissions.handing_in import capture_files, files_problem
from bottleneck_lab.cohort.view.attempts import load_submission
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.errors import CaptureError
from bottleneck_lab.grading.figures import figures_of
from bottleneck_lab.grading.verdict import Outcome
from bottleneck_lab.report.verdict_words import describe_standing
from bottleneck_lab.trace import load
from bottleneck_lab.workspace.commitments import Commitment, Help, Record
from bottleneck_lab.workspace.diagnosis_file import load_answers

from .fake_job import verdict_of
from .serving import Visitor, log_in, serving
from .test_runner import run_until, settled

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "datasets" / "captures" / "synthetic-input.json.gz"
DESCRIPTION = {"files": [TRACE.name], "tool": "torch"}


def capture() -> dict[str, bytes]:
    return {"capture.json": json.dumps(DESCRIPTION).encode(), TRACE.name: TRACE.read_bytes()}


def idle_stretch() -> Window:
    """A stretch in which the device waits for input and does nothing else."""
    timeline = load(TRACE)
    gaps = [gap for use in summarise(timeline).devices for gap in use.largest_gaps]
    gap, origin = max(gaps, key=lambda each: each.end_ns - each.start_ns), timeline.extent[0]
    return Window(gap.start_ns - origin, gap.end_ns - origin)


@pytest.fixture
def dataloader(monkeypatch):
    """A lab of the real course whose answers are read off one's own capture."""
    monkeypatch.delenv("BOTTLENECK_LAB_CONTENT")
    catalog.load_labs.cache_clear()
    return catalog.find_lab("idle-gpu")


@pytest.fixture
def handed_in(tmp_path, dataloader):
    """Right answers to all questions in a folder, and the record of having committed them with one
    hint taken.
    """
    stretch, shown = idle_stretch(), figures_of(summarise(load(TRACE)))
    answers = {
        "cause": load_answers(dataloader.solution)["cause"],
        "evidence": round(shown["idle_input_share"], 3),
        "where": f"{stretch.start / 1e6}-{stretch.end / 1e6} ms",
        "predicted_gain": 1.1,
    }
    files = tmp_path / "files"
    files.mkdir()
    for name in dataloader.spec.editable:
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        (files / name).write_bytes((dataloader.path / name).read_bytes())
    (files / "diagnosis.toml").write_text(
        "".join(f"{name} = {json.dumps(value)}\n" for name, value in answers.items())
    )
    return files, Record(
        [Commitment("2026-11-23T09:00:00+00:00", answers, "0001-torch", 1)], Help(), 1
    )


def laid_out(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def test_a_held_process_reads_what_reading_it_here_shows():
    timeline, stretch = load(TRACE), idle_stretch()
    seen = read_figures(capture(), [stretch])
    assert seen.figures == pytest.approx(figures_of(summarise(timeline)))
    assert seen.span_ns == timeline.extent[1] - timeline.extent[0]
    here = analyse(timeline)
    assert seen.within(stretch) == pytest.approx(
        figures_within(timeline, here.times, here.summary.syncs, stretch)
    )


@pytest.mark.parametrize("data", [b"", b"{", b"\x1f\x8b" + bytes(100), b'{"traceEvents": [1]}'])
def test_what_is_no_capture_is_said_to_be_none(data):
    with pytest.raises(CaptureError):
        read_figures({**capture(), TRACE.name: data}, [])


def test_a_report_shows_the_cause(dataloader):
    page = render_report(capture(), "<b>title</b>").decode()
    assert "Findings" in page
    assert "<b>title</b>" not in page


def test_a_diagnosis_is_held_against_the_capture_that_came_with_it(tmp_path, dataloader, handed_in):
    files, record = handed_in
    diagnosis = Diagnosis(dataloader, files, laid_out(tmp_path / "capture", capture()), record)
    results, prediction = diagnosis.graded("virtual")
    assert [(result.id, result.holds) for result in results] == [
        ("cause", True),
        ("evidence", True),
        ("where", True),
    ]
    assert (prediction.predicted, diagnosis.notes) == (
        1.1,
        [AS_REPORTED, FROM_CAPTURE.format(capture=" 0001-torch")],
    )
    standing = diagnosis.standing(verdict_of(dataloader, files, "virtual", Outcome.PASS))
    assert (standing.named, standing.hints, standing.corrections, standing.copied) == (
        True,
        1,
        0,
        False,
    )


def test_a_wrong_share_is_not_what_the_capture_shows(tmp_path, dataloader, handed_in):
    files, record = handed_in
    text = (files / "diagnosis.toml").read_text()
    (files / "diagnosis.toml").write_text(
        text.replace(f"evidence = {record.commitments[0].answers['evidence']}", "evidence = 0.05")
    )
    results, _ = Diagnosis(
        dataloader, files, laid_out(tmp_path / "capture", capture()), record
    ).graded("virtual")
    assert [result.id for result in results if not result.holds] == ["evidence"]


def test_without_a_capture_nothing_is_said_of_it(tmp_path, dataloader, handed_in):
    files, record = handed_in
    diagnosis = Diagnosis(dataloader, files, tmp_path / "none", record)
    assert [result.id for result in diagnosis.graded("virtual")[0]] == ["cause"]
    assert diagnosis.notes[1] == NO_CAPTURE.format(why="none came with the submission.")
    standing = diagnosis.standing(verdict_of(dataloader, files, "virtual"))
    assert (standing.named, standing.measured) == (True, UNSET)


def test_whose_evidence_was_misread_has_named_the_cause(tmp_path, dataloader, handed_in):
    files, record = handed_in
    first = record.commitments[0]
    misread = Commitment(first.at, {**first.answers, "evidence": 0.05}, first.capture, 1)
    diagnosis = Diagnosis(
        dataloader, files, laid_out(tmp_path / "capture", capture()), Record([misread], Help(), 1)
    )
    passed = verdict_of(dataloader, files, "virtual", Outcome.PASS)
    standing = diagnosis.standing(passed)
    assert (standing.named, standing.measured) == (True, False)
    wording = "cause named on the first try with 1 hint, evidence wrong"
    assert describe_standing(replace(passed, diagnosis=standing)) == wording
    # The files hold the right figure meanwhile: it passes, and earns nothing.
    results, _ = diagnosis.graded("virtual")
    assert [one.id for one in results if one.corrected is True] == ["evidence"]


def test_evidence_of_a_first_diagnosis_read_off_another_capture_is_not_known(
    tmp_path, dataloader, handed_in
):
    files, record = handed_in
    first = Commitment("2026-11-23T08:00:00+00:00", record.commitments[0].answers, "0009-torch")
    both = Record([first, *record.commitments], Help(), 1)
    diagnosis = Diagnosis(dataloader, files, laid_out(tmp_path / "capture", capture()), both)
    standing = diagnosis.standing(verdict_of(dataloader, files, "virtual"))
    assert (standing.named, standing.measured, standing.corrections) == (True, UNSET, 0)


def test_who_was_told_has_not_named_the_cause(tmp_path, dataloader, handed_in):
    files, record = handed_in
    first = record.commitments[0]
    told_before = Commitment(first.at, first.answers, first.capture, 3, "revealed")
    diagnosis = Diagnosis(
        dataloader, files, tmp_path / "none", Record([told_before], Help(revealed=first.at), 3)
    )
    standing = diagnosis.standing(verdict_of(dataloader, files, "virtual"))
    assert (standing.named, standing.told) == (False, "revealed")


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"capture.json": b"{}"},
        {"capture.json": b"{}", "../evil": b""},
        {"capture.json": b"{}", ".hidden": b""},
        {"capture.json": b"{}", "a/b": b""},
        {"capture.json": b"{}", **{f"trace{number}.json": b"" for number in range(20)}},
    ],
    ids=["nothing", "no trace", "a way out", "hidden", "a folder", "too many"],
)
def test_what_is_not_a_capture_is_not_stored(files):
    assert files_problem(files)


def test_what_may_travel_of_a_capture(tmp_path, monkeypatch):
    folder = laid_out(tmp_path / "0001-torch", {**capture(), "notes.txt": b"mine"})
    assert capture_files(folder) == capture()
    monkeypatch.setattr("bottleneck_lab.cohort.submissions.handing_in.MAX_CAPTURE_BYTES", 100)
    assert capture_files(folder) is None


def test_the_instructor_sees_diagnosis_and_capture_and_the_verdict_carries_them(sqlite_room):
    room = sqlite_room
    _, token = room.join("Ada")
    answers = {"cause": "memory bandwidth", "gain": 3.0}
    better = {"cause": "the loop in Python", "gain": 3.0}
    record = Record(
        [
            Commitment("2026-11-23T09:00:00+00:00", answers, hints=1),
            Commitment("2026-11-23T09:05:00+00:00", better),
        ],
        Help(),
        2,
    )
    with serving(room.cohort.folder) as (port, _):
        client = Client(f"http://127.0.0.1:{port}", token)
        name = client.send_capture(capture())
        assert client.send_capture(capture()) == name
        handle = room.submit(token, record=record, capture=name).receipt.submission
        with pytest.raises(Exception, match="did not arrive"):
            room.submit(token, capture="0" * 64)
        run_until(room.runner(), settled(room))
        assistant = log_in(room, port, add_instructor(room))
        page = assistant.get(f"/submissions/{handle}")
        report = assistant.get(f"/submissions/{handle}/capture")
        with pytest.raises(RefusedByServerError, match="not a file of a capture"):
            client.send_capture({**capture(), "../evil": b""})
        assert Visitor(port).ask("POST", "/api/captures", content_of(capture())).status == 401
    document = room.rows(tables.verdicts)[0].document
    standing = json.loads(document)["diagnosis"]
    assert (standing["named"], standing["hints"], standing["corrections"]) == (False, 1, 1)
    assert "memory bandwidth → the loop in Python" in page.text
    assert "the first of 2 diagnoses;" in page.text
    assert report.status == 200
    assert "Findings" in report.text
    assert report.headers["content-security-policy"].startswith(
        "sandbox allow-scripts; default-src 'none'"
    )
    with room.cohort.database.reading() as connection:
        assert name in tables.blobs_of_submissions(connection)


def test_the_page_says_of_which_code_the_capture_is(sqlite_room):
    room, slow = sqlite_room, catalog.find_lab("slow")
    _, token = room.join("Ada")
    shown = []
    for code in (slow.code_hash(slow.path), "0" * 64, None, ["no", "hash"]):
        files = {**capture(), "capture.json": json.dumps({**DESCRIPTION, "code": code}).encode()}
        (name,) = room.cohort.blobs.put([content_of(files)])
        handle = room.submit(token, capture=name, figures={"idle_share": 0.5}).receipt.submission
        with room.cohort.database.writing() as connection:
            connection.execute(tables.submissions.update().values(state="failed"))
        with room.cohort.database.reading() as connection:
            judge = verdict_reader_of(room.cohort.public_key)
            shown.append(load_submission(connection, judge, room.cohort.blobs, handle).captured)
    changed, unknown = "code that was already changed", "code that is not known"
    assert shown == ["the shipped code", changed, unknown, unknown]


def add_instructor(room):
    with room.cohort.database.writing() as connection:
        return people.add_staff(
            connection, "assistant", "Grace", "correct horse battery", room.clock()
        )
