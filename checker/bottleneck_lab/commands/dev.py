"""`lab dev`: for authors."""

from __future__ import annotations

CHECK_EXAMPLE = "lab dev check dataloader --static"
NEW_EXAMPLE = "lab dev new my-lab"


def check() -> None:
    """Prove that labs are in order."""


def new() -> None:
    """Begin a new lab."""
