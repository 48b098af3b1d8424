"""A cohort for each test, on SQLite and on a PostgreSQL that is really started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import psutil
import pytest

from bottleneck_lab import catalog
from bottleneck_lab.cohort.folder import Cohort, Config, create_cohort, open_cohort
from bottleneck_lab.cohort.members import joining
from bottleneck_lab.cohort.protocol import Join, Submission
from bottleneck_lab.cohort.running.dispatch import LocalDispatcher
from bottleneck_lab.cohort.running.executors.local import LocalExecutor
from bottleneck_lab.cohort.running.runner import Conditions, Machine, Runner
from bottleneck_lab.cohort.structs import inspect_structs
from bottleneck_lab.cohort.submissions.intake import Intake

from ..chromium import open_chromium
from ..processes import PATIENCE_S, ends_with_us, soon
from ..tools import NO_POSTGRES, NO_SANDBOX, POSTGRES
from .fake_job import COMMAND

MINI = Path(__file__).parents[1] / "integration" / "mini"


@pytest.fixture(autouse=True, scope="session")
def structs():
    """Tests have learners in threads."""
    inspect_structs()


@pytest.fixture(autouse=True)
def mini(monkeypatch, tmp_path):
    """The miniature course, and a home of the test's own."""
    monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(MINI))
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    catalog.load_labs.cache_clear()
    yield MINI
    catalog.load_labs.cache_clear()


def _programs() -> Path:
    if POSTGRES is None:
        pytest.skip(NO_POSTGRES)
    return POSTGRES.parent


RECOVERY_S = 300
"""How long a start may take: a slow disk needs minutes to replay what a crash interrupted."""


class PostgreSQL:
    """A server that listens on a socket in `folder` alone, run by an unprivileged user. It ends
    when the process that started it does, however that ends.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._programs = folder, _programs()
        self._as_user = []
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
            self._as_user = ["--reuid=postgres", "--regid=postgres", "--init-groups"]
        make = [
            self._programs / "initdb",
            "-D",
            folder / "data",
            "-A",
            "trust",
            "-U",
            "postgres",
            "-N",
        ]
        subprocess.run(
            ["setpriv", *self._as_user, "--", *make],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=folder,
        )
        self.start()

    def start(self) -> None:
        options = {
            "listen_addresses": "",
            "unix_socket_directories": self.folder,
            "max_connections": 60,
            # Tests end processes, never the machine: what was written is there without it, and a
            # start after a crash need not flush every file of every test's database.
            "fsync": "off",
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        command = [self._programs / "postgres", "-D", self.folder / "data", *words]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ends_with_us(command, "QUIT", *self._as_user),
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        ready = [self._programs / "pg_isready", "-q", "-h", self.folder]
        if not soon(lambda: subprocess.run(ready, check=False).returncode == 0, RECOVERY_S):
            self.kill()
            pytest.fail((self.folder / "log").read_text())

    def kill(self) -> None:
        """End every process of the server at once, as a crash would."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()

    def kill_and_start(self) -> None:
        """A crash, then a start that has to recover."""
        self.kill()
        self.start()

    def url(self, name: str) -> str:
        return f"postgresql://postgres@/{name}?host={self.folder}"

    def new_database(self, name: str) -> str:
        import psycopg

        with psycopg.connect(
            f"host={self.folder} user=postgres dbname=postgres", autocommit=True
        ) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)


@contextmanager
def postgresql_server():
    """A running server in a folder of its own."""
    _remove_left_behind()
    folder = Path(
        tempfile.mkdtemp(prefix="lab-pg-", dir="/tmp")
    )  # a socket's path has at most 107 bytes
    try:
        server = PostgreSQL(folder)
        yield server
        server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left_behind() -> None:
    """The folders of servers that ended with a test that was killed, an hour ago or more."""
    for folder in Path("/tmp").glob("lab-pg-*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > 3600 and not _is_served(folder):
                shutil.rmtree(folder)


def _is_served(folder: Path) -> bool:
    try:
        return (
            psutil.Process(int((folder / "data" / "postmaster.pid").read_text().split()[0])).name()
            == "postgres"
        )
    except (OSError, ValueError, psutil.NoSuchProcess):
        return False


@pytest.fixture(scope="session")
def postgresql():
    with postgresql_server() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
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
            return joining.join(
                connection, Join(joining.join_codes(connection)[0], name, **fields), self.clock()
            )

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
        return self.intake.offer(token, self.submission(text, **fields)).result(PATIENCE_S)

    def runner(self, *, gpus=(), machine: int = 1, name: str = "test", executor=None) -> Runner:
        executor = executor or LocalExecutor(
            self.cohort.folder / "slots", list(gpus), machine=machine, command=COMMAND
        )
        return Runner(
            LocalDispatcher(self.cohort, name),
            executor,
            name,
            self.cohort.jobs,
            Conditions(sandbox_required=not NO_SANDBOX, limits_required=False),
            Machine(clock=self.clock, needs_quiet=lambda _lab, _device: machine == 1),
        )

    def rows(self, table) -> list:
        with self.cohort.database.reading() as connection:
            return list(connection.execute(table.select().order_by(*table.primary_key.columns)))


@cache
def _new_cohort() -> tempfile.TemporaryDirectory[str]:
    """A cohort on SQLite as it is created, for copies: its schema takes a dozen migrations."""
    made = tempfile.TemporaryDirectory(prefix="lab-cohort-")
    create_cohort(Path(made.name, "new"), Config("Autumn workshop"))
    return made


@contextmanager
def opened_room(folder: Path, url: str = ""):
    if url:
        create_cohort(folder, Config("Autumn workshop", url))
    else:
        shutil.copytree(Path(_new_cohort().name, "new"), folder)
    with open_cohort(folder) as cohort:
        room = Room(cohort, Clock())
        with room.intake:
            yield room


@pytest.fixture
def room(tmp_path, database_url):
    """A cohort on each of the databases."""
    with opened_room(tmp_path / "cohort", database_url) as opened:
        yield opened


@pytest.fixture
def sqlite_room(tmp_path):
    """A cohort where the database does not matter."""
    with opened_room(tmp_path / "cohort") as opened:
        yield opened


@pytest.fixture
def browser():
    with open_chromium() as chromium:
        yield chromium
