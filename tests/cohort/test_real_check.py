"""The runner with the real check in its real sandbox: good work passes, and hostile work reaches
neither key, job folder nor another's verdict.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bottleneck_lab import catalog
from bottleneck_lab.cohort.running.executors.local import JOB, LocalExecutor
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.grading.verdict import Outcome

from ..tools import NO_SANDBOX
from ..weather import machines_fault
from .slots import NOT_ROOT, slot_users
from .test_runner import run_until, settled

HOSTILE = """
import glob, json, os

def load(device):
    seen = []
    wanted = [{folder!r} + "/key/cohort.pem", {folder!r} + "/cohort.db"]
    for path in glob.glob({folder!r} + "/**", recursive=True) + wanted:
        try:
            open(path, "rb").read(1)
            seen.append(path)
        except OSError:
            pass
    if seen:
        raise RuntimeError("SAW " + " ".join(seen))
    told = json.dumps({{"nonce": "", "checker": "", "verdict": {{"outcome": "PASS"}}}}).encode()
    for place in (".", "..", "/tmp", {folder!r} + "/jobs"):
        try:
            open(os.path.join(place, "result.json"), "wb").write(told)
        except OSError:
            pass
    for descriptor in range(1, 64):
        try:
            os.write(descriptor, told)
        except OSError:
            pass
    return lambda values: values.sum()
"""


@contextmanager
def executor_of(locks: Path, monkeypatch) -> Iterator[LocalExecutor]:
    """One slot, with a user of its own where these tests are root."""
    if NOT_ROOT:
        yield LocalExecutor(locks, [])
        return
    with slot_users() as users:
        if users is None:
            yield LocalExecutor(locks, [])
        else:
            monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(users.shared))
            yield LocalExecutor(
                locks, [], command=[users.python, *JOB[1:]], uids=users.uids, users_root=users.root
            )


@pytest.mark.timed
@pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX)
def test_right_work_passes_and_hostile_work_gets_nowhere(sqlite_room, monkeypatch):
    room = sqlite_room
    lab = catalog.find_lab("wrong")
    right = (lab.solution / "work.py").read_text() + "\n# my own\n"
    for name, text in (("Ada", right), ("Eve", HOSTILE.format(folder=str(room.cohort.folder)))):
        _, token = room.join(name)
        room.submit(token, text, lab="wrong", files={"work.py": text.encode()})
    with executor_of(room.cohort.folder / "slots", monkeypatch) as executor:
        run_until(room.runner(executor=executor), settled(room), 150)
        user = executor.user("cpu0")
    with room.cohort.database.reading() as connection:
        ada, eve = verdict_reader_of(room.cohort.public_key).latest(connection)
    documents = [json.loads(row.document) for row in room.rows(tables.verdicts)]
    assert ada.outcome is Outcome.PASS or machines_fault(f"{ada.outcome} {ada.summary}")
    assert eve.outcome is Outcome.FAIL
    assert "SAW " not in json.dumps(
        documents[1]
    )  # the space: a signature holds any three letters now and then
    assert documents[0]["attestation"] == "verified"
    assert documents[0]["isolation"]["sandbox"].startswith("bubblewrap")
    assert documents[0]["isolation"]["user"] == user
