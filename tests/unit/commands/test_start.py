"""`lab start`: what it says of older names, and of a data set that the lab works without."""

import pytest
from typer.testing import CliRunner

from bottleneck_lab.cli import app
from bottleneck_lab.commands import start
from bottleneck_lab.errors import MachineError


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Function: starts `past-the-plateau`; what was said. Data sets are made by `make`."""
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(make, *options):
        monkeypatch.setattr(start, "make", make)
        done = CliRunner().invoke(
            app, ["start", "past-the-plateau", "work", "--device", "virtual", *options]
        )
        assert done.exit_code == 0, done.output
        return " ".join(done.output.split())

    return run


def test_what_is_optional_is_named_and_not_made(started):
    made = []
    shown = started(made.append)
    assert made == ["photos"]
    assert "edit serve.py and 6 more files" in shown
    assert (
        "Optional: `lab data tritonserver` sets up tritonserver. The lab works without it." in shown
    )


def test_all_data_makes_it_too(started):
    made = []
    shown = started(made.append, "--all-data")
    assert made == ["photos", "tritonserver"]
    assert "tritonserver" not in shown


def test_a_machine_that_cannot_have_it_says_why_and_the_lab_is_started(started):
    def make(name):
        if name == "tritonserver":
            raise MachineError("The wheel is for Linux on x86-64; this is Darwin on arm64.", "")

    shown = started(make, "--all-data")
    assert "this is Darwin on arm64. The lab works without it." in shown
    assert "Next: cd work && lab profile" in shown


def test_an_older_name_says_what_the_lab_is_called_now(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["start", "sync-points", "--device", "virtual"])
    assert "The lab 'sync-points' is called 'stuttering-tagger' now." in done.output
    assert "cd stuttering-tagger" in done.output
