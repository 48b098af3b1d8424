"""Where content is: the folders of this project's labs and of packs, and the files in them."""

from __future__ import annotations

import hashlib
import os
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from bottleneck_lab.errors import LabError, UsageError

PACKS = "bottleneck_lab.labs"
"""The group of entry points by which a distribution brings labs; each names a package whose folder
holds `labs/` and `solutions/`.
"""


def content_root() -> Path:
    """Return the folder of this project's own `labs/`, `solutions/` and `datasets/`.

    That is `BOTTLENECK_LAB_CONTENT`, the wheel's copy, or the checkout. Raises LabError if none of
    them exists.
    """
    package = Path(__file__).resolve().parents[1]
    override = os.environ.get("BOTTLENECK_LAB_CONTENT")
    for root in [Path(override)] if override else [package / "content", package.parent.parent]:
        if (root / "labs" / "course.toml").is_file():
            return root
    raise LabError(
        "The labs are missing from this installation.",
        "Reinstall bottleneck-lab, or run it from a complete checkout.",
    )


def content_roots() -> list[Path]:
    """Return the folders of all content, each once.

    This project's own comes first, then the folders that `BOTTLENECK_LAB_PACKS` names, then those
    of the packages that entry points of the group `PACKS` name. Raises UsageError for a folder
    without a course, LabError for an entry point that names no package.
    """
    named = os.environ.get("BOTTLENECK_LAB_PACKS", "").split(os.pathsep)
    roots = [content_root(), *(Path(part).absolute() for part in named if part)]
    for entry in sorted(entry_points(group=PACKS), key=lambda entry: entry.name):
        # `find_spec` runs no code of the pack except that of a parent package.
        spec = find_spec(entry.value)
        if spec is None or not spec.submodule_search_locations:
            raise LabError(
                f"The lab pack '{entry.name}' names {entry.value}, which is not a package.",
                f"Correct its entry point in the group {PACKS}, or uninstall the pack.",
            )
        roots.append(Path(spec.submodule_search_locations[0]))
    for root in roots:
        if not (root / "labs" / "course.toml").is_file():
            raise UsageError(
                f"{root} holds no labs/course.toml.",
                "See docs/authors.md for what a lab pack consists of.",
            )
    return list(dict.fromkeys(roots))


def find_dataset(name: str) -> Path | None:
    """Return the generator of a data set; None if no content brings one.

    Packs can use each other's.
    """
    files = (root / "datasets" / f"{name}.py" for root in content_roots())
    return next((file for file in files if file.is_file()), None)


def files_below(root: Path) -> list[Path]:
    """Return the regular files below `root`, sorted, without caches and hidden files.

    A missing folder has none.
    """
    files = []
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if path.is_file() and not hidden:
            files.append(path)
    return files


def hash_files(files: dict[str, Path]) -> str:
    """Return the SHA-256 over names and contents, whatever order the files are given in."""
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        data = path.read_bytes()
        # The length keeps two files apart: without it, bytes could move from one to the next.
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()
