"""Opening the database, and its two kinds of transaction: reading, and writing alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from bottleneck_lab.cohort.store import tables
from bottleneck_lab.errors import MachineError, UsageError

_WRITERS_LOCK = 0x6C6162
"""PostgreSQL's advisory lock that stands for what BEGIN IMMEDIATE is to SQLite."""

Clock = Callable[[], float]
"""Seconds since the epoch; tests put their own in its place."""


class Database:
    """A cohort's database. Safe to use from several threads."""

    def __init__(self, url: str, clock: Clock = time.time) -> None:
        try:
            parsed = make_url(url)
            # Without a driver SQLAlchemy would take psycopg2, which is not among our packages.
            if parsed.drivername in ("postgresql", "postgres"):
                parsed = parsed.set(drivername="postgresql+psycopg")
            # `pool_pre_ping`: after a restart of the database its old connections are replaced
            # instead of failing the next request.
            self.engine = sqlalchemy.create_engine(
                parsed, pool_pre_ping=True, pool_size=8, max_overflow=16
            )
        except (SQLAlchemyError, ModuleNotFoundError) as error:
            raise UsageError(
                f"'{url}' is not a database that can be opened: {error}.",
                "Use `postgresql://user@host/name`, or leave it out to use the built-in SQLite.",
            ) from error
        if self.engine.dialect.name == "sqlite":
            event.listen(self.engine, "connect", _set_up_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        self.clock = clock

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a consistent view that nobody's writing changes meanwhile."""
        with self.engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                # Its default shows each statement what was committed before it: a page that reads
                # grades and then names could show two states.
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that is alone in writing from its first statement on.

        It is durable when the block has ended. SQLite's ordinary BEGIN takes the lock at the first
        write, and fails then if anyone else wrote in between: 251 of 300 parallel uploads did.
        """
        with self.engine.connect().execution_options(writes=True) as connection, connection.begin():
            if connection.dialect.name == "postgresql":
                # Given back by the end of the transaction, however it ends.
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS_LOCK})")
            yield connection

    def close(self) -> None:
        """Give back every connection."""
        self.engine.dispose()


def _set_up_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # BEGIN is ours to send
    # WAL lets pages read while a submission is written; FULL makes each commit durable, which WAL
    # alone does not (sqlite.org/pragma.html#pragma_synchronous).
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=30000"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(
        "BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN"
    )


@contextmanager
def explained() -> Iterator[None]:
    """Turn a database that cannot be reached or read into a MachineError."""
    try:
        yield
    except OperationalError as error:
        raise MachineError(
            f"The cohort's database does not answer: {str(error.orig).splitlines()[0]}.",
            "Start it, or correct `database` in cohort.toml; nothing recorded is lost.",
        ) from error
    except DBAPIError as error:
        raise MachineError(
            f"The cohort's database refused: {str(error.orig).splitlines()[0]}.",
            "`lab cohort restore` restores a backup; `lab cohort status` shows what is there.",
        ) from error


def _migrations() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    return config


def schema_revision() -> str:
    """Return the revision of this version's schema."""
    return str(ScriptDirectory.from_config(_migrations()).get_current_head())


def migrate(database: Database) -> None:
    """Bring the schema to this version's; does nothing if it is there already."""
    config = _migrations()
    with explained(), database.writing() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def note(connection: Connection, at: float, kind: str, text: str = "", **about: Any) -> None:
    """Append to the log of events, which pages follow.

    `about` may name `person` (its number) and `submission` (its handle).
    """
    connection.execute(tables.events.insert().values(at=at, kind=kind, text=text, **about))
