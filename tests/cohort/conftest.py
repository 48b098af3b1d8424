"""A cohort for each test, on SQLite and on a PostgreSQL that is really started."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bottleneck_lab import catalog
from bottleneck_lab.cohort import people
from bottleneck_lab.cohort.executors.local import LocalExecutor
from bottleneck_lab.cohort.folder import Cohort, Config, create_cohort, open_cohort
from bottleneck_lab.cohort.intake import Intake
from bottleneck_lab.cohort.protocol import Join, Submission
from bottleneck_lab.cohort.runner import Runner

from ..tools import NO_SANDBOX
from .fake_job import COMMAND

MINI = Path(__file__).parents[1] / "integration" / "mini"


@pytest.fixture(autouse=True)
def mini(monkeypatch, tmp_path):
    """The miniature course, and a home of the test's own."""
    monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(MINI))
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    catalog.load_labs.cache_clear()
    yield MINI
    catalog.load_labs.cache_clear()


def _postgresql() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


def quietly(folder: Path, *command) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)


@contextmanager
def postgresql_server(folder: Path):
    """A PostgreSQL server that listens on a socket in `folder` alone, run by an unprivileged user; its URL without a database."""
    binaries = _postgresql()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    as_user = ["runuser", "-u", user, "--"] if os.geteuid() == 0 else []
    data = folder / "data"
    if os.geteuid() == 0:
        shutil.chown(folder, user)
    quietly(folder, *as_user, binaries / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "-N")
    options = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c max_connections=60"
    control = [*as_user, binaries / "pg_ctl", "-D", data, "-w"]
    quietly(folder, *control, "-l", folder / "log", "-o", options, "start")
    try:
        yield PostgreSQL(folder, control, options)
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=False, stdout=subprocess.DEVNULL, cwd=folder)


@dataclass
class PostgreSQL:
    """A running server."""

    folder: Path
    control: list
    options: str

    def url(self, name: str) -> str:
        return f"postgresql://postgres@/{name}?host={self.folder}"

    def new_database(self, name: str) -> str:
        import psycopg

        with psycopg.connect(f"host={self.folder} user=postgres dbname=postgres", autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def kill_and_start(self) -> None:
        """`kill -9` of every process of the server, then a start that has to recover."""
        quietly(self.folder, *self.control, "-m", "immediate", "stop")
        quietly(self.folder, *self.control, "-l", self.folder / "log", "-o", self.options, "start")


@pytest.fixture(scope="session")
def postgresql():
    folder = Path(tempfile.mkdtemp(prefix="lab-pg-", dir="/tmp"))  # a socket's path has at most 107 bytes
    try:
        with postgresql_server(folder) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request):
    """Both databases, by the same tests."""
    if request.param == "sqlite":
        return ""
    server = request.getfixturevalue("postgresql")
    name = f"t{abs(hash(request.node.nodeid)):x}"[:20]
    return server.new_database(name)


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Room:
    """An opened cohort with what tests do in it."""

    def __init__(self, cohort: Cohort, clock: Clock) -> None:
        self.cohort, self.clock = cohort, clock
        cohort.database.clock = clock
        self.intake = Intake(cohort)
        self._keys = 0

    def join(self, name: str = "Ada", **fields):
        with self.cohort.database.writing() as connection:
            return people.join(connection, Join(people.join_codes(connection)[0], name, **fields), self.clock())

    def submission(self, text: str = "# right\n", lab: str = "slow", **fields) -> Submission:
        self._keys += 1
        files = {"work.py": text.encode()}
        values = {
            "key": f"key-{self._keys:06}",
            "lab": lab,
            "lab_hash": catalog.find_lab(lab).content_hash(),
            "device": "cpu",
            "files": files,
        }
        return Submission(**{**values, **fields})

    def submit(self, token: str, text: str = "# right\n", **fields):
        self.clock.now += 6.0  # past the interval between two submissions
        return self.intake.offer(token, self.submission(text, **fields)).result(20)

    def runner(self, *, gpus=(), machine: int = 1, name: str = "test", executor=None) -> Runner:
        executor = executor or LocalExecutor(self.cohort.folder / "slots", list(gpus), machine=machine, command=COMMAND)
        return Runner(self.cohort, executor, name, sandbox_required=not NO_SANDBOX, limits_required=False)

    def rows(self, table) -> list:
        with self.cohort.database.reading() as connection:
            return list(connection.execute(table.select().order_by(*table.primary_key.columns)))


@contextmanager
def opened_room(folder: Path, url: str = ""):
    create_cohort(folder, Config("Autumn workshop", url))
    with open_cohort(folder) as cohort:
        room = Room(cohort, Clock())
        with room.intake:
            yield room


@pytest.fixture
def room(tmp_path, database_url):
    """A cohort on each of the databases."""
    with opened_room(tmp_path / "cohort", database_url) as found:
        yield found


@pytest.fixture
def sqlite_room(tmp_path):
    """A cohort where the database does not matter."""
    with opened_room(tmp_path / "cohort") as found:
        yield found
