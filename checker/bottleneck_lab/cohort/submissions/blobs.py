"""Content-addressed files: a name is the SHA-256 of the content, so a changed blob is noticed."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from secrets import token_hex

from bottleneck_lab.errors import MachineError
from bottleneck_lab.workspace.atomic import explained, sync_folder

ORPHAN_AGE_S = 3600.0
"""A blob that no submission names may belong to a request under way; after an hour it does not."""


class Blobs:
    """A folder of blobs, in 256 folders by the first byte of their names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(8, "blobs")
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        """Return the path of the blob with that name, whether or not it is there."""
        return self._folder / name[:2] / name

    def put(self, contents: list[bytes]) -> list[str]:
        """Store each and return their names. All are on the disk when this returns."""
        with explained(self._folder):
            # In threads: fsync waits for the disk, and waits overlap.
            names = list(self._pool.map(self._write, contents))
            # A new name is durable only once its folder is (fsync(2)), and the folder's own is.
            folders = {self._folder, *(self.path(name).parent for name in names)}
            list(self._pool.map(sync_folder, folders))
        return names

    def _write(self, content: bytes) -> str:
        name = hashlib.sha256(content).hexdigest()
        path = self.path(name)
        if path.exists():
            os.utime(path)  # not an orphan of an hour ago any more
            return name
        path.parent.mkdir(exist_ok=True)
        # Renamed once it is whole: a reader never sees half a blob under its final name.
        temporary = path.with_name(f".{token_hex(8)}")
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)
        return name

    def holds(self, name: str) -> bool:
        """Return True if there is a blob with that name, and keep it for the next hour."""
        if not re.fullmatch(r"[0-9a-f]{64}", name) or not self.path(name).is_file():
            return False
        os.utime(self.path(name))
        return True

    def get(self, name: str) -> bytes:
        """Return a blob's content. Raises MachineError if it is gone or was altered."""
        try:
            content = self.path(name).read_bytes()
        except OSError as error:
            raise MachineError(
                f"The stored submission {name[:12]} cannot be read: {error.strerror}.",
                "Restore the cohort's folder from a backup.",
            ) from error
        if hashlib.sha256(content).hexdigest() != name:
            raise MachineError(
                f"The stored submission {name[:12]} was altered on disk.",
                "Restore the cohort's folder from a backup; altered files are never measured.",
            )
        return content

    def collect(self, wanted: Iterable[str], age_s: float = ORPHAN_AGE_S) -> int:
        """Remove blobs that are not `wanted` and older than `age_s`, and return how many.

        Leftovers of killed writers go too.
        """
        keep, limit, removed = set(wanted), time.time() - age_s, 0
        for path in self._folder.glob("??/*"):
            if path.name not in keep and path.stat().st_mtime < limit:
                path.unlink(missing_ok=True)
                removed += 1
        return removed

    def close(self) -> None:
        """End the threads that write."""
        self._pool.shutdown()
