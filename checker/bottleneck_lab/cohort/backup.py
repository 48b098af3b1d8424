"""Backups of a running cohort: one archive, restored into another folder on either database."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import msgspec
from sqlalchemy import Connection, Integer, func, select, text

from bottleneck_lab.cohort.folder import CONFIG, DATABASE, Cohort, Config, open_cohort, write_config
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import schema_revision
from bottleneck_lab.errors import UsageError
from bottleneck_lab.workspace.atomic import explained

_KEYS = ("cohort.pem", "cohort.pem.pub")
_MARK = "backup.json"
SCHEMA = 2


class _Mark(msgspec.Struct, frozen=True):
    """Origin of a backup: the cohort's name, and the revision of the database's schema."""

    schema: int
    name: str
    revision: str = ""


def back_up(cohort: Cohort, file: Path) -> int:
    """Write the whole cohort to `file` and return the number of submissions in it.

    Only its owner can read the file: the signing key is in it. The database is read in one
    transaction, and blobs are never changed, so what comes in meanwhile is left out whole. Raises
    UsageError if `file` exists.
    """
    if file.exists():
        raise UsageError(
            f"{file} already exists.", "Choose another name: a backup is never overwritten."
        )
    # Its final name only once it is whole: a copy job never picks up half a backup.
    partial = file.with_name(f".{file.name}.partial")
    with explained(file):
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as out, tarfile.open(fileobj=out, mode="w|") as archive:
            count = _fill(cohort, archive)
            out.flush()
        partial.rename(file)
    return count


def _fill(cohort: Cohort, archive: tarfile.TarFile) -> int:
    _add(archive, _MARK, msgspec.json.encode(_Mark(SCHEMA, cohort.config.name, schema_revision())))
    for name in _KEYS:
        _add(archive, f"key/{name}", cohort.key_file.with_name(name).read_bytes())
    with cohort.database.reading() as connection:
        for table in tables.metadata.sorted_tables:
            rows = [tuple(row) for row in connection.execute(select(table))]
            _add(archive, f"tables/{table.name}.json", msgspec.json.encode(rows))
        blobs = tables.blobs_of_submissions(connection)
        count = connection.execute(
            select(func.count()).select_from(tables.submissions)
        ).scalar_one()
    for name in sorted(blobs):
        _add(archive, f"blobs/{name}", cohort.blobs.get(name))
    return int(count)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    archive.addfile(member, io.BytesIO(data))


def restore(file: Path, folder: Path, database: str = "") -> str:
    """Recreate the cohort of a backup in `folder`, on `database` if given, and return its name.

    Raises UsageError for a folder that holds a cohort, or a file that is not a complete backup.
    """
    if (folder / CONFIG).exists():
        raise UsageError(f"{folder} already holds a cohort.", "Restore into a new folder.")
    try:
        parts = _read(file)
        mark = msgspec.json.decode(parts[_MARK], type=_Mark)
    except (tarfile.TarError, KeyError, msgspec.DecodeError, OSError) as error:
        raise UsageError(
            f"{file} is not a complete backup of a cohort: {error}.",
            "Name a file that `lab cohort backup` wrote.",
        ) from error
    if (mark.schema, mark.revision) != (SCHEMA, schema_revision()):
        # Rows are stored by position, which is that of the tables of one version.
        raise UsageError(
            f"{file} was written by another version of bottleneck-lab.",
            "Restore it with that version, then open the folder with this one: it is brought up to"
            " date.",
        )
    with explained(folder):
        for part in ("key", "jobs", "blobs"):
            (folder / part).mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        if not database:
            (folder / DATABASE).touch(mode=0o600)
        for key in _KEYS:
            (folder / "key" / key).write_bytes(parts[f"key/{key}"])
            (folder / "key" / key).chmod(0o600)
    write_config(folder, Config(mark.name, database))
    with open_cohort(folder) as cohort:
        cohort.blobs.put([data for part, data in parts.items() if part.startswith("blobs/")])
        with cohort.database.writing() as connection:
            _enter(connection, parts)
    return mark.name


def _read(file: Path) -> dict[str, bytes]:
    """Return the parts by name. Nothing is unpacked to a path that the archive chose."""
    with tarfile.open(file) as archive:
        return {
            member.name: content.read()
            for member in archive
            if member.isfile() and (content := archive.extractfile(member))
        }


def _enter(connection: Connection, parts: dict[str, bytes]) -> None:
    if connection.execute(select(tables.cohort.c.id)).first():
        raise UsageError("That database already holds a cohort.", "Name an empty database.")
    for table in tables.metadata.sorted_tables:
        rows = msgspec.json.decode(parts[f"tables/{table.name}.json"])
        names = [column.name for column in table.columns]
        if rows:
            connection.execute(table.insert(), [dict(zip(names, row, strict=True)) for row in rows])
        key = table.columns[names[0]]
        if connection.dialect.name == "postgresql" and isinstance(key.type, Integer):
            _move_sequence(connection, table.name, key.name)


def _move_sequence(connection: Connection, table: str, column: str) -> None:
    """Move PostgreSQL's counter behind rows that were inserted with their own numbers."""
    sequence = connection.execute(
        text("SELECT pg_get_serial_sequence(:table, :column)"), {"table": table, "column": column}
    ).scalar()
    if sequence:
        largest = f"(SELECT coalesce(max({column}), 0) + 1 FROM {table})"
        connection.execute(text(f"SELECT setval('{sequence}', {largest}, false)"))
