"""The photograph generator: same seed, same bytes; stoppable at any moment; damage is found and
repaired.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from PIL import Image

from ...modules import load_file
from ...processes import PATIENCE_S, lives, running, soon

SCRIPT = Path(__file__).parents[3] / "datasets" / "photos.py"


photos = load_file(SCRIPT, "photos_script")


def run(root, *arguments):
    command = [
        sys.executable,
        str(SCRIPT),
        "--root",
        str(root),
        "--small",
        "3",
        "--large",
        "1",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def snapshot(root):
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos") / "Fotos für später"
    result = run(root, "--progress", "json")
    assert result.returncode == 0, result.stderr
    return root, [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def root(made, tmp_path):
    """A copy of them, to be changed."""
    return shutil.copytree(made[0], tmp_path / "set")


def read_manifest(root):
    return json.loads((root / "manifest.json").read_text())


def test_files_are_what_the_manifest_says(made):
    root, _ = made
    manifest = read_manifest(root)
    assert manifest["complete"]
    names = {entry["name"] for entry in manifest["photos"]}
    assert names == {"small/000000.jpg", "small/000001.jpg", "small/000002.jpg", "large/000000.jpg"}
    for entry in manifest["photos"]:
        assert photos.is_whole(root, entry, read=True)
        assert entry["label"] == photos.label_of(1, entry["set"], entry["index"])
        with Image.open(root / entry["name"]) as image:
            assert (image.format, image.mode, image.size) == (
                "JPEG",
                "RGB",
                (entry["width"], entry["height"]),
            )


def test_large_photographs_have_the_size_and_weight_of_photographs(made):
    root, _ = made
    (large,) = [entry for entry in read_manifest(root)["photos"] if entry["set"] == "large"]
    assert 1.9e6 <= large["width"] * large["height"] <= 4e6
    assert 250_000 <= large["bytes"] <= photos.TYPICAL_BYTES["large"]


def test_progress_is_one_json_object_a_line(made):
    _, lines = made
    assert lines[0] == {"done": 0, "total": 4}
    assert lines[-1] == {"done": 4, "total": 4}


def test_running_again_changes_nothing(made):
    root, _ = made
    before = snapshot(root)
    assert run(root).returncode == 0
    assert snapshot(root) == before


def test_another_machine_or_folder_gets_the_same_bytes(made, tmp_path):
    assert run(tmp_path, "--jobs", "1").returncode == 0
    ours, theirs = snapshot(tmp_path), snapshot(made[0])
    assert {name: data for name, (data, _) in ours.items()} == {
        name: data for name, (data, _) in theirs.items()
    }


def test_another_seed_gives_other_photographs_and_every_class_occurs():
    assert photos.encode_photo(1, "small", 0) != photos.encode_photo(2, "small", 0)
    assert {photos.label_of(1, "large", index) for index in range(512)} == set(
        range(photos.CLASSES)
    )


def test_a_data_set_only_grows(root):
    assert run(root, "--small", "2").returncode == 0
    assert len(read_manifest(root)["photos"]) == 4
    assert run(root, "--small", "5").returncode == 0
    assert len(read_manifest(root)["photos"]) == 6


@pytest.mark.parametrize("damage", ["missing", "short", "changed"])
def test_verify_repairs_what_is_damaged(root, damage):
    before = {name: data for name, (data, _) in snapshot(root).items()}
    victim = root / "small/000001.jpg"
    data = victim.read_bytes()
    if damage == "missing":
        victim.unlink()
    else:
        victim.write_bytes(data[:100] if damage == "short" else data[:500] + b"\x00" + data[501:])
    assert run(root, "--verify").returncode == 0
    assert {name: data for name, (data, _) in snapshot(root).items()} == before


def test_a_damaged_manifest_is_named_and_repaired(root):
    whole = (root / "manifest.json").read_bytes()
    (root / "manifest.json").write_bytes(whole[:200])
    result = run(root)
    assert result.returncode == 4
    assert "--verify" in result.stderr
    assert run(root, "--verify").returncode == 0
    assert (root / "manifest.json").read_bytes() == whole


def test_a_manifest_cannot_point_outside_its_folder(root):
    precious = root.parent / "precious.jpg"
    precious.write_bytes(b"mine")
    manifest = read_manifest(root)
    manifest["photos"][0]["name"] = "../precious.jpg"
    (root / "manifest.json").write_text(json.dumps(manifest))
    assert run(root, "--verify").returncode == 0
    assert precious.read_bytes() == b"mine"


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "000000.jpg").write_bytes(b"my holiday")
    result = run(tmp_path)
    assert result.returncode == 2
    assert "Choose an empty folder" in result.stderr
    assert (tmp_path / "small" / "000000.jpg").read_bytes() == b"my holiday"


def test_another_seed_in_the_same_folder_is_refused(made):
    result = run(made[0], "--seed", "2")
    assert result.returncode == 2
    assert "seed 1" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--small", "-1"],
        ["--large", "many"],
        ["--jobs", "0"],
        ["--seed", "-4"],
        ["--progress", "loud"],
    ],
)
def test_wrong_arguments_make_nothing(tmp_path, arguments):
    with pytest.raises(SystemExit, match="2"):
        photos.main(["--root", str(tmp_path / "new"), *arguments])
    assert not (tmp_path / "new").exists()


def test_too_little_space_is_said_before_the_first_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(photos.shutil, "disk_usage", lambda _: SimpleNamespace(free=9e6))
    assert photos.main(["--root", str(tmp_path)]) == 4
    message = capsys.readouterr().err
    assert "9 MB free" in message
    assert "--large" in message
    assert not list(tmp_path.glob("*/*.jpg"))


def test_a_root_that_is_a_file_is_an_error_not_a_trace(tmp_path):
    (tmp_path / "file").write_text("")
    result = run(tmp_path / "file")
    assert result.returncode == 4
    assert "Choose another --root" in result.stderr


@contextmanager
def long_run(root):
    """The script at work on many photographs, once four of them are done."""
    command = [
        sys.executable,
        str(SCRIPT),
        "--root",
        str(root),
        "--small",
        "0",
        "--large",
        "400",
        "--jobs",
        "2",
    ]
    command += ["--progress", "json"]
    with running(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        while json.loads(process.stdout.readline())["done"] < 4:
            pass
        yield process


def living_in(group):
    """Return the processes of a group that have not ended.

    A worker may finish the photograph that it is at.
    """
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) == group and lives(process):
                found.append(process)
    return found


@pytest.mark.parametrize(
    ("kill", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)]
)
def test_stopped_at_any_moment_it_goes_on_from_there(tmp_path, kill, status):
    with long_run(tmp_path) as process:
        process.send_signal(kill)
        assert process.wait(PATIENCE_S) == status
    assert soon(lambda: not living_in(process.pid))
    if kill != signal.SIGKILL:
        assert not list(tmp_path.rglob("*.partial"))
    assert not read_manifest(tmp_path)["complete"]
    kept = snapshot(tmp_path / "large")
    whole = {name: entry for name, entry in kept.items() if not name.endswith(".partial")}
    assert len(whole) >= 4
    (tmp_path / "large" / "000000.jpg.partial").write_bytes(b"half a pho")
    assert run(tmp_path, "--small", "0", "--large", str(len(whole))).returncode == 0
    after = snapshot(tmp_path)
    assert not [name for name in after if name.endswith(".partial")]
    assert all(after[f"large/{name}"] == entry for name, entry in whole.items())
    assert read_manifest(tmp_path)["complete"]
