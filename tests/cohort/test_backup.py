"""A backup of a cohort that runs, restored on either database: the same verdicts, still verified,
and the counting goes on.
"""

from __future__ import annotations

import tarfile

import pytest

from bottleneck_lab.cohort.backup import back_up, restore
from bottleneck_lab.cohort.folder import Config, create_cohort, open_cohort
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.verdict import Outcome

from .conftest import Clock, Room
from .test_leases import claim, finish


@pytest.mark.parametrize("target", ["sqlite", "postgresql"])
def test_what_is_restored_is_what_was_there_and_goes_on(room, target, tmp_path, request):
    _, ada = room.join()
    room.submit(ada)
    finish(room, claim(room))
    room.submit(ada)
    file = tmp_path / "backup.tar"
    assert back_up(room.cohort, file) == 2
    assert file.stat().st_mode & 0o077 == 0
    room.submit(ada)  # is not in it
    url = (
        request.getfixturevalue("postgresql").new_database(
            f"r{abs(hash(request.node.nodeid)):x}"[:20]
        )
        if target == "postgresql"
        else ""
    )
    assert restore(file, tmp_path / "restored", url) == "Autumn workshop"
    with open_cohort(tmp_path / "restored") as cohort:
        again = Room(cohort, Clock())
        again.clock.now = room.clock.now + 100
        assert [row.state for row in again.rows(tables.submissions)] == ["done", "queued"]
        with cohort.database.reading() as connection:
            (shown,) = verdict_reader_of(cohort.public_key).latest(connection)
        assert (shown.outcome, shown.problem) == (Outcome.PASS, None)
        again._keys = 10
        with again.intake:
            again.submit(ada)
        finish(again, claim(again))
        assert len(again.rows(tables.verdicts)) == 2


def test_nothing_is_overwritten_and_half_a_backup_is_refused(sqlite_room, tmp_path):
    file = tmp_path / "backup.tar"
    back_up(sqlite_room.cohort, file)
    with pytest.raises(UsageError, match="already exists"):
        back_up(sqlite_room.cohort, file)
    with pytest.raises(UsageError, match="already holds a cohort"):
        restore(file, sqlite_room.cohort.folder)
    half = tmp_path / "half.tar"
    half.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(UsageError, match="not a complete backup"):
        restore(half, tmp_path / "new")
    with tarfile.open(file) as archive:
        assert all(not name.startswith(("/", "..")) for name in archive.getnames())


def test_a_backup_of_another_version_is_refused_in_words(sqlite_room, tmp_path, monkeypatch):
    file = tmp_path / "backup.tar"
    back_up(sqlite_room.cohort, file)
    monkeypatch.setattr("bottleneck_lab.cohort.backup.schema_revision", lambda: "9999")
    with pytest.raises(UsageError, match="written by another version"):
        restore(file, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_only_the_owner_can_read_a_cohorts_database(tmp_path):
    create_cohort(tmp_path / "made", Config("Autumn"))
    with open_cohort(tmp_path / "made") as cohort:
        back_up(cohort, tmp_path / "backup.tar")
        # With the files that SQLite keeps beside it while it is open.
        modes = [file.stat().st_mode & 0o777 for file in cohort.folder.glob("cohort.db*")]
    assert set(modes) == {0o600}
    restore(tmp_path / "backup.tar", tmp_path / "restored")
    assert (tmp_path / "restored" / "cohort.db").stat().st_mode & 0o777 == 0o600
