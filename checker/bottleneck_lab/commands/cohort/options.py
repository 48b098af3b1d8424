"""Options that several commands of the group share, and what they mean."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
import typer

from bottleneck_lab.catalog import find_lab, load_labs
from bottleneck_lab.cohort.running.preflight import Preflight
from bottleneck_lab.cohort.workshop import as_setting
from bottleneck_lab.errors import UsageError
from bottleneck_lab.measure.gpu import cuda_devices

GIB_PER_CHECK = 4
"""Memory of a modelled check: eight ranks of `ddp-scaling` take 3 GiB."""
Folder = Annotated[
    Path, typer.Option("--folder", "-f", metavar="FOLDER", help="The cohort's folder.")
]
Database = Annotated[
    str,
    typer.Option(
        "--database",
        metavar="URL",
        help=(
            "A PostgreSQL database, instead of the built-in SQLite: postgresql://user@host/name."
        ),
    ),
]
Gpus = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        metavar="NUMBERS",
        help="GPUs to use, such as 0,1 (default: all).",
        show_default=False,
    ),
]
Unsandboxed = Annotated[
    bool,
    typer.Option(
        "--allow-unsandboxed", help="Measure without bubblewrap. Every verdict will say so."
    ),
]
NoCgroup = Annotated[
    bool,
    typer.Option(
        "--allow-no-cgroup",
        help=(
            "Measure without a control group, which limits memory and processes. Every verdict will"
            " say so."
        ),
    ),
]
Uids = Annotated[
    str | None,
    typer.Option(
        "--uids",
        metavar="FIRST-LAST",
        help=(
            "Unprivileged users that run the checks, one per slot, such as 61000-61003. Needs"
            " root, for which the default is to pick free ones. With '', all checks run as this"
            " user."
        ),
        show_default=False,
    ),
]
Quiet = Annotated[
    float,
    typer.Option(
        "--quiet",
        metavar="SECONDS",
        help="Wait up to this many seconds for the machine to be idle and cool.",
    ),
]
Slots = Annotated[
    int | None,
    typer.Option(
        "--slots",
        metavar="N",
        min=1,
        help=(
            "How many checks of modelled labs run side by side (default: one per core and 4 GiB of"
            " memory). A lab that measures always has the machine to itself."
        ),
        show_default=False,
    ),
]

SHARED_USER = (
    "All slots run checks as this runner's own user; every verdict says so. A runner that is"
    " started as root, without `--uids ''`, gives each slot its own user."
)


def parse_labs(text: str) -> list[str]:
    """Return the labs of a list separated by commas, or of the whole course for `all`.

    Raises UsageError for an unknown lab, no lab, or one twice.
    """
    if text.strip() == "all":
        return list(load_labs())
    labs = [find_lab(name.strip()).slug for name in text.split(",") if name.strip()]
    as_setting(labs)  # refuses none and twice
    return labs


@dataclass(frozen=True)
class Measuring:
    """How a runner measures on this machine. `lab cohort serve` takes the same options, and passes
    them on to the runner beside it.
    """

    gpus: str | None
    slots: int
    uids: str | None
    allow_unsandboxed: bool
    allow_no_cgroup: bool
    quiet_s: float

    def choose_users(self, preflight: Preflight) -> list[int]:
        """Check that learners' code can be contained here; return the users of the slots.

        Empty if all slots share the runner's own user. Reasons against it go to `preflight`.
        """
        preflight.check_containment(
            allow_unsandboxed=self.allow_unsandboxed, allow_no_cgroup=self.allow_no_cgroup
        )
        with preflight.step():
            slots = len(parse_gpus(self.gpus)) + self.slots
            return preflight.check_slot_users(
                self.uids, slots, allow_unsandboxed=self.allow_unsandboxed
            )
        return []

    def arguments(self, users: list[int]) -> list[str]:
        """Return the options of `lab cohort runner` that mean the same, with `users` chosen."""
        return [
            f"--quiet={self.quiet_s}",
            f"--slots={self.slots}",
            f"--uids={','.join(map(str, users))}",
            *([] if self.gpus is None else [f"--gpus={self.gpus}"]),
            *(["--allow-unsandboxed"] if self.allow_unsandboxed else []),
            *(["--allow-no-cgroup"] if self.allow_no_cgroup else []),
        ]


def default_slots() -> int:
    """Return how many modelled checks this machine can run side by side: at least one."""
    memory_gib = psutil.virtual_memory().available / 2**30
    return max(1, min(len(os.sched_getaffinity(0)), int(memory_gib // GIB_PER_CHECK)))


def parse_gpus(text: str | None) -> list[int]:
    """Return the indices of the GPUs to use; all for None. Raises UsageError for no such list."""
    if text is None:
        return list(range(len(cuda_devices())))
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(
            f"'{text}' is not a list of GPUs.",
            "List their indices: --gpus 0,1 (or --gpus '' for none).",
        )
    return [int(part) for part in parts]
