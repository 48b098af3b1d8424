"""Frames of a second run on the clock of a first, from traces whose right answer is known."""

import json

import pytest

from bottleneck_lab import load, summarise
from bottleneck_lab.analysis.host.second_run import overlay_frames

SLOWER = 6.0
"""Python's frames make these programs' Python so many times as slow."""


class Run:
    """One run of a program; of `frames` it records the lines, and its Python is slower."""

    def __init__(self, *, frames: bool, base: float) -> None:
        self.frames, self.base, self.at, self.rows = frames, base, 0.0, []

    def add(self, category: str, name: str, start: float, us: float, tid: object = 1) -> None:
        row = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid}
        self.rows.append({**row, "ts": self.base + start, "dur": us})

    def operator(self, name: str, us: float) -> None:
        self.add("cpu_op", name, self.at, us)
        self.line("model.py(5): forward", us, us)

    def line(self, name: str, us: float, took: float | None = None) -> None:
        us = took or (us * SLOWER if self.frames else us)
        if self.frames:
            self.add("python_function", name, self.at, us, "lines of 1")
        self.at += us

    def loaded(self, folder):
        path = folder / f"{'frames' if self.frames else 'plain'}.json"
        path.write_text(json.dumps({"traceEvents": self.rows}))
        return load(path)


def decode(run: Run, tokens: int, *, extra: int = 0) -> None:
    """0.6 ms of operators a token, then 0.8 ms of Python, nearly all in `legal`."""
    for token in range(tokens):
        for name in ("aten::lstm_cell", "aten::linear", "aten::argmax"):
            run.operator(name, 200)
        if token < extra:
            run.operator("aten::masked_fill", 10)
        run.line("decode.py(33): generate", 50)
        run.line("decode.py(23): legal", 225)
        run.line("decode.py(24): legal", 525)


def both(tmp_path, tokens: int = 50, extra: int = 0):
    plain, framed = Run(frames=False, base=1e9), Run(frames=True, base=7e9)
    decode(plain, tokens)
    decode(framed, tokens, extra=extra)
    return plain.loaded(tmp_path), framed.loaded(tmp_path)


def shares(summary):
    (use,) = summary.devices
    return {part.cause: round(part.share_of_wall, 3) for part in use.gap_causes}


def test_shares_are_those_of_the_run_without_frames(tmp_path):
    plain, framed = both(tmp_path)
    alone, together = summarise(plain), summarise(overlay_frames(plain, framed))
    assert shares(together) == shares(alone)
    assert together.wall_ns == alone.wall_ns
    assert shares(summarise(framed))["python"] > 1.5 * shares(alone)["python"]
    assert together.quality.slowed == ""
    assert any(
        "a second run, which took 3.8x as long, and scaled to the first" in note
        for note in together.quality.notes
    )


def test_lines_have_their_time_in_the_run_without_frames(tmp_path):
    rows = {row.line: row for row in summarise(overlay_frames(*both(tmp_path))).lines}
    assert rows["decode.py(24): legal"].host_ns == pytest.approx(49 * 525_000, rel=0.03)
    assert rows["decode.py(23): legal"].host_ns == pytest.approx(49 * 225_000, rel=0.03)
    assert rows["model.py(5): forward"].operators == 150


def test_a_finding_names_the_lines_that_ran_and_advises_no_frames(tmp_path):
    findings = {row.id: row for row in summarise(overlay_frames(*both(tmp_path))).findings}
    stalls = findings["host-stalls"]
    assert "Most of that is in decode.py(24): legal." in stalls.evidence
    assert stalls.doubt == ""
    assert all("--stack" not in row.advice for row in findings.values())


def test_runs_that_differ_a_little_meet_again(tmp_path):
    """The second run calls an operator more for its first tokens, as a random input makes it."""
    rows = {r.line: r for r in summarise(overlay_frames(*both(tmp_path, extra=9))).lines}
    assert rows["decode.py(24): legal"].host_ns == pytest.approx(49 * 525_000, rel=0.05)


def test_runs_that_did_other_work_share_no_clock(tmp_path):
    plain, framed = Run(frames=False, base=0), Run(frames=True, base=0)
    decode(plain, 10)
    for _ in range(40):
        framed.operator("aten::conv2d", 100)
    assert overlay_frames(plain.loaded(tmp_path), framed.loaded(tmp_path)) is None
