"""A cohort's folder on the instructor's machine: configuration, key, database, blobs, and jobs."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import select

from bottleneck_lab.cohort.members.joining import new_join_code
from bottleneck_lab.cohort.members.secrets import new_token
from bottleneck_lab.cohort.settings import Settings
from bottleneck_lab.cohort.sign_in.providers import LtiPlatform, OpenIdProvider
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


CONFIG, DATABASE = "cohort.toml", "cohort.db"
DEFAULTS = Settings()
_ADDRESS = "address"


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of `cohort.toml`: what must be known before the database can be opened.

    `url` is where learners reach the server, if not at its own address. `oidc` and `lti` are where
    people sign in with accounts of their own.
    """

    name: str
    database: str = ""
    url: str = ""
    oidc: OpenIdProvider | None = None
    lti: list[LtiPlatform] = []


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
        """Return the private key. Raises UsageError when others could read it."""
        return load_private_key(self.key_file)

    def runner_token(self, *, renew: bool = False) -> str:
        """Return the token by which runners on other machines join; a new one with `renew`.

        Kept in words, unlike a learner's: whoever can read it can read the key beside it as well.
        """
        file = self.key_file.with_name("runner.token")
        if renew or not file.exists():
            write_bytes(file, f"{new_token()}\n".encode())
            file.chmod(0o600)
        return file.read_text().strip()

    def keep_address(self, url: str) -> None:
        """Remember where the server is reached, for `lab cohort link`."""
        write_bytes(self.folder / _ADDRESS, f"{url}\n".encode())

    def address(self) -> str:
        """Return where the server is reached: as it was last served, else as configured."""
        try:
            return (self.folder / _ADDRESS).read_text().strip()
        except OSError:
            return self.config.url or "http://127.0.0.1:8321"

    def close(self) -> None:
        """Give back connections and threads."""
        self.database.close()
        self.blobs.close()


def create_cohort(folder: Path, config: Config, settings: Settings = DEFAULTS) -> str:
    """Create a cohort in `folder`, with a join code, and return the cohort's identifier.

    Whatever fails, nothing is left of it. Raises UsageError if the folder or the database holds a
    cohort already.
    """
    if (folder / CONFIG).exists():
        raise UsageError(
            f"{folder} already holds a cohort.",
            "Open it with `lab cohort serve`, or choose another folder.",
        )
    existed = folder.exists()
    before = set(folder.iterdir()) if existed else set()
    try:
        return _create(folder, config, settings)
    except BaseException:  # Ctrl-C too: half a cohort would be in the way of the next try
        if folder.exists():
            for path in set(folder.iterdir()) - before:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if not existed:
                folder.rmdir()
        raise


def _create(folder: Path, config: Config, settings: Settings) -> str:
    with explained(folder):
        for part in ("key", "jobs", "blobs"):
            (folder / part).mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    if not config.database:
        (folder / DATABASE).touch(mode=0o600)
    generate_key(folder / "key" / "cohort.pem")
    # Bound into every verdict and receipt: those of another cohort do not pass here.
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
                "settings": msgspec.json.encode(settings).decode(),
            }
            connection.execute(tables.cohort.insert().values(values))
            new_join_code(connection, now)
            note(connection, now, "created")
    # Last: without this file the folder is no cohort, so half a one is never opened.
    write_config(folder, config)
    return identifier


def write_config(folder: Path, config: Config) -> None:
    """Write `cohort.toml`: from then on the folder is a cohort's."""
    lines = [
        # A JSON string is a TOML basic string once DEL is escaped, which JSON leaves bare.
        f"{key} = {msgspec.json.encode(value).decode()}\n".replace("\x7f", "\\u007f")
        for key, value in msgspec.to_builtins(config).items()
        if value
    ]
    write_bytes(folder / CONFIG, "".join(lines).encode())


@contextmanager
def _opened(folder: Path, config: Config) -> Iterator[Cohort]:
    url = config.database or f"sqlite:///{folder.resolve() / DATABASE}"
    database = Database(url, time.time)
    cohort = Cohort(folder, config, database, Blobs(folder / "blobs"))
    try:
        yield cohort
    finally:
        cohort.close()


@contextmanager
def open_cohort(folder: Path) -> Iterator[Cohort]:
    """Open the cohort in `folder`, its schema brought up to date. Raises UsageError without one."""
    if not (folder / CONFIG).is_file():
        below = sorted(path.parent.name for path in folder.glob(f"*/{CONFIG}"))
        remedy = "Name yours with --folder, or create one with `lab cohort create NAME`."
        if below:
            remedy = f"There is one below it: --folder {folder / below[0]}."
        raise UsageError(f"There is no cohort in {folder.resolve()}.", remedy)
    try:
        config = msgspec.convert(read_toml(folder / CONFIG), Config)
    except msgspec.ValidationError as error:
        raise UsageError(f"{folder / CONFIG}: {error}.", "Correct that line.") from error
    with _opened(folder.resolve(), config) as cohort, database_explained():
        migrate(cohort.database)
        yield cohort


def folder_name(name: str) -> str:
    """Return a folder's name for a cohort's: `Autumn workshop` → `autumn-workshop`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "cohort"
