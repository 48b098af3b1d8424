"""A memory snapshot in every rendering, through the command."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bottleneck_lab.cli import app

SCRIPT = Path(__file__).parents[3] / "datasets" / "snapshots.py"


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("snapshot") / "run.pickle"
    subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(path), "--events", "2000"],
        check=True,
        timeout=60,
    )
    return path


def report(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["report", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_line_that_keeps_memory_stands_first(snapshot: Path) -> None:
    shown = report(str(snapshot))
    assert "Memory of device 0" in shown
    rows = shown[shown.index("Which lines") :].splitlines()
    assert rows[1].split() == ["kept", "for", "good", "freed", "later"]
    assert " ".join(rows[2].split()) == "at the end at the peak per step per step"
    assert " ".join(rows[3].split()) == "train.py(44): train 216.00 KiB 0.21 MiB 4.00 KiB -"
    assert re.search(r" all of these +966\.00 KiB +8\.30 MiB +4\.00 KiB +-$", shown, re.MULTILINE)
    assert "is reserved" in shown


def test_a_snapshot_without_history_says_how_to_record_it(tmp_path: Path) -> None:
    block = {"address": 1 << 40, "size": 1 << 20, "requested_size": 1 << 20, "frames": []}
    segment = {
        "device": 0,
        "address": 1 << 40,
        "total_size": 2 << 20,
        "blocks": [block | {"state": "active_allocated"}],
    }
    path = tmp_path / "bare.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[]]}))
    shown = " ".join(report(str(path)).split())
    assert "is allocated in 1 block," in shown
    assert "No history was recorded" in shown
    assert "_record_memory_history()" in shown


def test_a_program_reads_the_same_figures(snapshot: Path) -> None:
    found = json.loads(report(str(snapshot), "--json"))
    (device,) = found["memory"]
    assert device["growth_bytes_per_step"] == 4096
    assert [row["line"] for row in device["holders"] if row["grows"]] == ["train.py(44): train"]


def test_the_page_has_curve_and_table(snapshot: Path, tmp_path: Path) -> None:
    report(str(snapshot), "--html", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Who holds the memory" in page
    assert "Allocated and reserved memory, at most" in page
    assert "train.py(44): train" in page


def test_names_in_a_snapshot_are_never_markup(tmp_path: Path) -> None:
    path = tmp_path / "run.pickle"
    code = SCRIPT.read_text(encoding="utf-8").replace("/home/me/train.py", "/home/me/<script>x.py")
    made = tmp_path / "snapshots.py"
    made.write_text(code, encoding="utf-8")
    subprocess.run(
        [sys.executable, str(made), "--out", str(path), "--events", "300"], check=True, timeout=60
    )
    report(str(path), "--html", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;x.py(44)" in page
    assert "<script>x.py" not in page


def test_a_hostile_pickle_ends_in_a_message(tmp_path: Path) -> None:
    path = tmp_path / "bad.pickle"
    path.write_bytes(b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00exitR.")
    done = CliRunner().invoke(app, ["report", str(path)])
    assert done.exit_code != 0
    assert "Nothing in it was executed" in str(done.exception) + done.output
