"""A cohort's folder on the instructor's machine: configuration, key, database, blobs, and the jobs
under way.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import select

from bottleneck_lab.cohort.members.people import new_join_code
from bottleneck_lab.cohort.settings import Settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import Database, migrate, note
from bottleneck_lab.cohort.store.database import explained as database_explained
from bottleneck_lab.cohort.submissions.blobs import Blobs
from bottleneck_lab.declared import read_toml
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.attest import generate_key, load_private_key
from bottleneck_lab.workspace.atomic import explained, write_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


CONFIG = "cohort.toml"


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`cohort.toml`: what must be known before the database can be opened. `url` is where learners
    reach the server, if that is another place.
    """

    name: str
    database: str = ""
    url: str = ""


class Cohort:
    """An opened cohort: its folder, its database and its blobs."""

    def __init__(self, folder: Path, config: Config, database: Database, blobs: Blobs) -> None:
        self.folder = folder
        self.config = config
        self.database = database
        self.blobs = blobs

    @property
    def jobs(self) -> Path:
        """The folder of the jobs under way, for the runner alone."""
        return self.folder / "jobs"

    @property
    def key_file(self) -> Path:
        """The private key that signs receipts and verdicts."""
        return self.folder / "key" / "cohort.pem"

    @property
    def public_key(self) -> str:
        """Its public half, as PEM text."""
        return self.key_file.with_name("cohort.pem.pub").read_text()

    def key(self) -> Ed25519PrivateKey:
        """The private key. Raises UsageError when others could read it."""
        return load_private_key(self.key_file)

    def close(self) -> None:
        """Give back connections and threads."""
        self.database.close()
        self.blobs.close()


def _database_url(folder: Path, config: Config) -> str:
    return config.database or f"sqlite:///{folder.resolve() / 'cohort.db'}"


def create_cohort(folder: Path, config: Config) -> str:
    """Make a cohort in `folder`, with a join code; the cohort's identifier.

    Raises UsageError if the folder holds a cohort already, or the database holds one.
    """

    if (folder / CONFIG).exists():
        raise UsageError(
            f"{folder} already holds a cohort.",
            "Open it with `lab cohort serve`, or choose another folder.",
        )
    with explained(folder):
        for part in ("key", "jobs", "blobs"):
            (folder / part).mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    generate_key(folder / "key" / "cohort.pem")
    identifier = token_hex(8)
    with _opened(folder, config) as cohort:
        migrate(cohort.database)
        with cohort.database.writing() as connection:
            if connection.execute(select(tables.cohort.c.id)).first():
                raise UsageError("That database already holds a cohort.", "Name an empty database.")
            now = cohort.database.clock()
            values = {
                "id": identifier,
                "name": config.name,
                "created": now,
                "public_key": cohort.public_key,
            }
            settings = msgspec.json.encode(Settings()).decode()
            connection.execute(tables.cohort.insert().values(settings=settings, **values))
            new_join_code(connection, now)
            note(connection, now, "created")
    write_config(folder, config)
    return identifier


def write_config(folder: Path, config: Config) -> None:
    """Write `cohort.toml`: from then on the folder is a cohort's."""
    write_bytes(folder / CONFIG, _toml(config).encode())


def _toml(config: Config) -> str:
    """A JSON string is a TOML basic string, once DEL is escaped, which JSON leaves bare."""
    fields = [(key, value) for key, value in msgspec.to_builtins(config).items() if value]
    quoted = [
        (key, msgspec.json.encode(value).decode().replace("\x7f", "\\u007f"))
        for key, value in fields
    ]
    return "".join(f"{key} = {value}\n" for key, value in quoted)


@contextmanager
def _opened(folder: Path, config: Config) -> Iterator[Cohort]:

    database = Database(_database_url(folder, config), time.time)
    cohort = Cohort(folder, config, database, Blobs(folder / "blobs"))
    try:
        yield cohort
    finally:
        cohort.close()


@contextmanager
def open_cohort(folder: Path) -> Iterator[Cohort]:
    """The cohort in `folder`, its schema brought up to date. Raises UsageError if there is none."""

    if not (folder / CONFIG).is_file():
        raise UsageError(
            f"There is no cohort in {folder}.",
            "Create one with `lab cohort create NAME`, or name yours with `--folder`.",
        )
    try:
        config = msgspec.convert(read_toml(folder / CONFIG), Config)
    except msgspec.ValidationError as error:
        raise UsageError(f"{folder / CONFIG}: {error}.", "Correct that line.") from error
    with _opened(folder.resolve(), config) as cohort, database_explained():
        migrate(cohort.database)
        yield cohort


def folder_name(name: str) -> str:
    """A folder's name from a cohort's: `Autumn workshop` → `autumn-workshop`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "cohort"
