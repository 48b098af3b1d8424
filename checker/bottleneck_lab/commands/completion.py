"""Shell completion. Nothing here may fail or print: the shell would show it in the middle of a
line.
"""

from __future__ import annotations

from pathlib import Path

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.errors import LabError
from bottleneck_lab.workspace.folder import numbered, workspace_above

Offer = tuple[str, str]
"""A word, and its explanation."""


def lab_names(incomplete: str) -> list[Offer]:
    """Return the labs whose name begins with `incomplete`, each with its title."""
    try:
        labs = load_labs()
    except LabError:
        return []
    return [(lab.slug, lab.spec.title) for lab in labs.values() if lab.slug.startswith(incomplete)]


def capture_numbers(incomplete: str) -> list[Offer]:
    """Return the numbers of the captures made in this lab, each with its folder's name.

    Outside a lab, those of the captures made in this folder.
    """
    try:
        workspace = workspace_above(Path.cwd())
    except (LabError, OSError):
        return []
    captures = workspace.captures if workspace else Path.cwd() / "captures"
    offers = [(str(number), path.name) for number, path in numbered(captures)]
    return [offer for offer in offers if offer[0].startswith(incomplete)]
