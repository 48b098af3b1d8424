"""Where a lab's other correct solutions are."""

from __future__ import annotations

from pathlib import Path

from bottleneck_lab.catalog import Device, Lab

LEAST_VARIANTS = 3
"""Fewer correct solutions than this do not show that a check accepts more than the reference."""


def variants(lab: Lab, device: Device | None = None) -> list[Path]:
    """Return the folders of other right solutions; none outside a checkout. With `device`: those in
    which a file differs that is used there (`sources`).
    """
    folder = lab.root / "tests" / "variants" / lab.slug
    paths = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if device is None:
        return paths
    return [path for path in paths if any((path / name).is_file() for name in lab.sources(device))]
