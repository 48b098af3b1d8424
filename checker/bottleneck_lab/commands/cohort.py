"""Run a cohort: a room of learners, and the runner that measures their submissions."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bottleneck_lab.cohort.backup import back_up
from bottleneck_lab.cohort.backup import restore as restore_
from bottleneck_lab.cohort.folder import Cohort, Config, create_cohort, folder_name, open_cohort
from bottleneck_lab.cohort.grading.exports import ENDINGS, Format
from bottleneck_lab.cohort.grading.exports import export as export_
from bottleneck_lab.cohort.logs import log_json
from bottleneck_lab.cohort.members import people
from bottleneck_lab.cohort.members.qr import qr_terminal
from bottleneck_lab.cohort.members.roster import enter_roster, read_roster
from bottleneck_lab.cohort.running import leases
from bottleneck_lab.cohort.running.executors.base import Executor
from bottleneck_lab.cohort.running.executors.local import LocalExecutor
from bottleneck_lab.cohort.running.executors.ray import RayExecutor
from bottleneck_lab.cohort.running.executors.slurm import SlurmExecutor
from bottleneck_lab.cohort.running.job import HOW_TO_LIMIT, end_with
from bottleneck_lab.cohort.running.runner import Runner, keep_lock
from bottleneck_lab.cohort.running.slot_users import free_uids, parse_uids, require_slot_users
from bottleneck_lab.cohort.server.serve import Keeper
from bottleneck_lab.cohort.server.serve import serve as serve_
from bottleneck_lab.cohort.settings import change_settings
from bottleneck_lab.cohort.store.database import explained
from bottleneck_lab.cohort.view.room import load_room
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.commands.ui import Json, print_json, say
from bottleneck_lab.errors import MachineError, UsageError
from bottleneck_lab.measure.gpu import cuda_devices
from bottleneck_lab.measure.sandbox.bubblewrap import bubblewrap
from bottleneck_lab.measure.sandbox.cgroup import limits_problem, take_charge
from bottleneck_lab.workspace.atomic import write_bytes

ExecutorName = Literal["local", "slurm", "ray"]
"""Where checks run."""
Folder = Annotated[Path, typer.Option("--folder", "-f", help="The cohort's folder.")]
Gpus = Annotated[
    str | None,
    typer.Option("--gpus", help="GPUs to use, such as 0,1 (default: all).", show_default=False),
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
        help="Measure without a control group's limits. Every verdict will say so.",
    ),
]
Uids = Annotated[
    str | None,
    typer.Option(
        "--uids",
        help=(
            "Unprivileged users to run checks as, one per slot, such as 61000-61003. Needs root."
            " The default as root is to pick free ones; '' shares root."
        ),
        show_default=False,
    ),
]
Quiet = Annotated[
    float,
    typer.Option(
        "--quiet", help="Wait up to this many seconds for the machine to be idle and cool."
    ),
]


def create(
    name: Annotated[str, typer.Argument(help="The cohort's name.")],
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            "-f",
            help="Folder to create (default: one here, named after the cohort).",
            show_default=False,
        ),
    ] = None,
    database: Annotated[
        str,
        typer.Option(
            "--database", help="postgresql://user@host/name, instead of the built-in SQLite."
        ),
    ] = "",
) -> None:
    """Create a cohort: a folder with its database, key and settings."""
    place = folder or Path(folder_name(name))
    with explained():
        create_cohort(place, Config(name, database))
    say(f"Created '{name}' in {place}.", style="green")
    say(
        f"Its verdicts are signed with {place / 'key' / 'cohort.pem'}: keep that file private."
        f" Publish {place / 'key' / 'cohort.pem.pub'} is for everybody."
    )
    say(f"Next: lab cohort serve --folder {place}", style="bold")


def serve(
    folder: Folder = Path(),
    host: Annotated[
        str,
        typer.Option("--host", help="Address to listen on; 0.0.0.0 is open to the whole network."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port")] = 8321,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            help="URL at which learners reach the server, if it is behind a proxy.",
            show_default=False,
        ),
    ] = None,
    tls: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--tls", help="Certificate and key, both in PEM format.", show_default=False),
    ] = None,
    runner: Annotated[
        bool, typer.Option("--runner/--no-runner", help="Measure on this machine too.")
    ] = True,
    gpus: Gpus = None,
    allow_unsandboxed: Unsandboxed = False,
    allow_no_cgroup: NoCgroup = False,
    uids: Uids = None,
    quiet: Quiet = 20.0,
) -> None:
    """Serve the cohort, and print how to join it."""
    _log()
    scheme = "https" if tls else "http"
    with open_cohort(folder) as cohort, ExitStack() as stack:
        reached = (url or cohort.config.url or f"{scheme}://{_address(host)}:{port}").rstrip("/")
        if runner:
            _require_sandbox(allow_unsandboxed, allow_no_cgroup)
            users = ",".join(map(str, _slot_uids(uids, len(_gpus(gpus)) + 1, allow_unsandboxed)))
            allowed = {
                "--allow-unsandboxed": allow_unsandboxed,
                "--allow-no-cgroup": allow_no_cgroup,
            }
            options = ["--uids", users, *(option for option, given in allowed.items() if given)]
            command = _runner_command(cohort, gpus, quiet, options)
            stack.enter_context(Keeper(command))
        _tell_how_to_join(cohort, reached)
        serve_(cohort, host, port, reached, tls=(str(tls[0]), str(tls[1])) if tls else None)


def _runner_command(
    cohort: Cohort, gpus: str | None, quiet: float, options: list[str]
) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "bottleneck_lab",
        "cohort",
        "runner",
        "--folder",
        str(cohort.folder),
        "--quiet",
        str(quiet),
    ]
    return [
        *command,
        *(["--gpus", gpus] if gpus is not None else []),
        *options,
        "--parent",
        str(os.getpid()),
    ]


def _address(host: str) -> str:
    """This machine's network address, for a server that listens on all interfaces."""
    if host not in ("0.0.0.0", "::"):
        return host

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation; nothing is sent
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def _tell_how_to_join(cohort: Cohort, url: str) -> None:

    database = cohort.database
    with database.writing() as connection:
        codes = people.join_codes(connection)
        link = people.new_link(
            connection, people.the_instructor(connection, database.clock()), database.clock()
        )
    say(f"{cohort.config.name}", style="bold")
    if codes:
        say(f"\nLearners type:  lab join {url} {codes[0]}", style="bold")
        say(f"or open         {url}/join/{codes[0]}\n")
        if sys.stdout.isatty():
            typer.echo(qr_terminal(f"{url}/join/{codes[0]}"))
    say(
        "Your page (this link works once, within 15 minutes; `lab cohort link` makes another):\n "
        f" {url}/login/{link}"
    )
    if url.startswith("http:") and "127.0.0.1" not in url:
        say(
            "Without --tls, tokens cross the network unencrypted. Use only a network that you"
            " trust.",
            style="yellow",
            err=True,
        )
    sys.stdout.flush()


def link(
    folder: Folder = Path(),
    url: Annotated[str, typer.Option("--url", help="The server's URL.")] = "http://127.0.0.1:8321",
) -> None:
    """Print a new link to the instructor's page. It works once, within 15 minutes."""
    with open_cohort(folder) as cohort:
        database = cohort.database
        with database.writing() as connection:
            token = people.new_link(
                connection, people.the_instructor(connection, database.clock()), database.clock()
            )
        say(f"{cohort.config.url or url}/login/{token}")


def runner(
    folder: Folder = Path(),
    executor: Annotated[
        ExecutorName, typer.Option("--executor", help="Where checks run.")
    ] = "local",
    jobs: Annotated[
        int, typer.Option("--jobs", help="On a cluster: how many checks to run at once.")
    ] = 4,
    sbatch: Annotated[
        list[str] | None,
        typer.Option("--sbatch", help="An option for sbatch, such as --reservation=lab."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="This runner's name (default: the machine's).", show_default=False
        ),
    ] = None,
    gpus: Gpus = None,
    allow_unsandboxed: Unsandboxed = False,
    allow_no_cgroup: NoCgroup = False,
    uids: Uids = None,
    quiet: Quiet = 20.0,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True)] = None,
) -> None:
    """Measure submissions until stopped. `lab cohort serve` starts a runner of its own."""
    _log()
    if parent is not None:
        end_with(parent)
    users: list[int] = []
    if executor == "local":  # on a cluster, each job checks its own node
        _require_sandbox(allow_unsandboxed, allow_no_cgroup)
        users = _slot_uids(
            uids, len(_gpus(gpus)) + 1, allow_unsandboxed, quietly=parent is not None
        )
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _frame: stopping.append(signum))
    called = name or socket.gethostname()
    with open_cohort(folder) as cohort:
        descriptor = keep_lock(cohort, called)
        try:
            Runner(
                cohort,
                _executor(executor, cohort, gpus, jobs, sbatch or [], users),
                called,
                sandbox_required=not allow_unsandboxed,
                limits_required=not allow_no_cgroup,
                quiet_s=quiet,
            ).run(lambda: bool(stopping))
        finally:
            os.close(descriptor)


def _executor(
    kind: ExecutorName,
    cohort: Cohort,
    gpus: str | None,
    jobs: int,
    options: list[str],
    uids: list[int],
) -> Executor:
    if kind == "slurm":
        return SlurmExecutor(jobs, gpus=gpus != "", options=options)
    if kind == "ray":
        return RayExecutor(jobs, gpus=gpus != "")
    return LocalExecutor(cohort.folder / "slots", _gpus(gpus), uids=uids)


def _slot_uids(
    asked: str | None, slots: int, allow_unsandboxed: bool, *, quietly: bool = False
) -> list[int]:
    """The users to run checks as; none if the slots share the runner's, which is then reported.
    Raises UsageError, and MachineError where they cannot run checks.
    """
    root = os.geteuid() == 0
    given = parse_uids(asked or "")
    if given and not root:
        raise UsageError(
            "Only root can run checks as other users.",
            "Start the runner as root, or leave out --uids.",
        )
    uids = free_uids(slots) if asked is None and root else given
    if uids:
        require_slot_users(uids[:slots], sandbox_required=not allow_unsandboxed)
    elif not quietly:
        say(
            f"{SHARED_USER} A runner started as root gives each slot its own user.",
            style="yellow",
            err=True,
        )
    return uids


SHARED_USER = "All slots run checks as this runner's own user; every verdict says so."


def _gpus(asked: str | None) -> list[int]:
    """The indices of the GPUs to use. Raises UsageError for anything but a list of numbers."""
    if asked is None:
        return list(range(len(cuda_devices())))
    parts = [part.strip() for part in asked.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(
            f"'{asked}' is not a list of GPUs.",
            "List their indices: --gpus 0,1 (or --gpus '' for none).",
        )
    return [int(part) for part in parts]


def _require_sandbox(allow_unsandboxed: bool, allow_no_cgroup: bool) -> None:
    """Raises MachineError if verdicts would be signed for code that nothing contains, unless that
    was allowed.
    """
    if bubblewrap() is None and not allow_unsandboxed:
        raise MachineError(
            "bubblewrap does not work here, so learners' code could read the key that signs"
            " verdicts.",
            "Install bubblewrap (`lab doctor` shows whether it works), or go on without it:"
            " --allow-unsandboxed. Every verdict will then say so.",
        )
    take_charge()
    problem = "" if allow_no_cgroup else limits_problem()
    if problem:
        raise MachineError(
            f"Learners' code cannot be limited by a control group here: {problem}.", HOW_TO_LIMIT
        )


def status(folder: Folder = Path(), json: Json = False) -> None:
    """Show learners, queue, runners, and who is stuck."""
    with open_cohort(folder) as cohort, cohort.database.reading() as connection:
        room = load_room(connection, verdict_reader_of(cohort.public_key), cohort.database.clock())
    if json:
        print_json(room)
    else:
        _show(cohort.config.name, room)


def _show(name: str, room: Any) -> None:

    states = room.states
    say(f"{name}: {len(room.rows)} learners, {room.passed} labs passed", style="bold")
    say(
        f"{states.get('queued', 0)} waiting, {states.get('running', 0)} being measured,"
        f" {states.get('done', 0)} measured, {states.get('failed', 0)} set aside"
    )
    if room.settings.paused:
        say("Paused: no checks are being started.", style="yellow")
    for one in room.runners:
        busy = sum(slot.busy is not None for slot in one.slots)
        user = f"; user: {one.health['user']}" if "user" in one.health else ""
        state = (
            f"{busy} of {len(one.slots)} slots busy{user}"
            if one.alive(room.now)
            else "not responding"
        )
        say(
            f"runner {one.name} ({one.executor}): {state}",
            style=None if one.alive(room.now) else "red",
        )
    for row in room.stuck:
        say(
            f"stuck: {row.name} in {row.lab}, {row.failed} failed since the last progress,"
            f" {row.idle_min:.0f} min ago"
        )


def roster(
    file: Annotated[
        Path, typer.Argument(help="A CSV file with a student_id (or identifier) column.")
    ],
    folder: Folder = Path(),
    only: Annotated[
        bool, typer.Option("--only", help="From now on, let only people on the roster join.")
    ] = False,
) -> None:
    """Add a roster's learners, or correct their entries. They join with `lab join URL CODE --id
    STUDENT_ID`.
    """
    try:
        learners = read_roster(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}.", "Name a UTF-8 CSV file.") from error
    with open_cohort(folder) as cohort, cohort.database.writing() as connection:
        added, corrected = enter_roster(connection, learners, cohort.database.clock())
        if only:
            change_settings(connection, roster_only=True)
    say(f"Roster: {added} added, {corrected} corrected.", style="green")


def export(
    kind: Annotated[
        Format, typer.Argument(help="csv, nbgrader, canvas, json, or files (for JPlag and Dolos).")
    ],
    folder: Folder = Path(),
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File or folder to write (default: named after the cohort).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Export the grades, or the graded files, for another program."""
    with open_cohort(folder) as cohort:
        with cohort.database.reading() as connection:
            data = export_(connection, verdict_reader_of(cohort.public_key), cohort.blobs, kind)
        place = output or Path(
            f"{folder_name(cohort.config.name)}-{kind}.{ENDINGS.get(kind, 'csv')}"
        )
    write_bytes(place, data)
    say(f"Wrote {place}.", style="green")


def regrade(
    lab: Annotated[str, typer.Argument(help="A lab, or the handle of one submission.")],
    folder: Folder = Path(),
    checker: Annotated[
        str | None,
        typer.Option(
            "--checker",
            help="Only submissions measured by this version of the checker.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure submissions again. Earlier verdicts stay on record; the newest counts."""
    with open_cohort(folder) as cohort, cohort.database.writing() as connection:
        judged = verdict_reader_of(cohort.public_key).latest(connection)
        chosen = [
            one.submission
            for one in judged
            if lab in (one.lab, one.submission) and checker in (None, one.checker)
        ]
        count = leases.regrade(connection, chosen, cohort.database.clock())
    say(f"{count} submissions are queued again.")


def backup(
    file: Annotated[
        Path, typer.Argument(help="File to create. It contains the signing key: keep it private.")
    ],
    folder: Folder = Path(),
) -> None:
    """Back up the whole cohort to one file, while it runs."""
    with open_cohort(folder) as cohort:
        count = back_up(cohort, file)
    say(f"Wrote {file}: {count} submissions, readable only by you.", style="green")


def restore(
    file: Annotated[Path, typer.Argument(help="A file written by `lab cohort backup`.")],
    folder: Annotated[Path, typer.Option("--folder", "-f", help="Folder to create.")],
    database: Annotated[
        str, typer.Option("--database", help="postgresql://user@host/name, instead of SQLite.")
    ] = "",
) -> None:
    """Recreate a cohort from a backup, on either kind of database."""
    with explained():
        name = restore_(file, folder, database)
    say(f"Restored '{name}' in {folder}. Next: lab cohort serve --folder {folder}", style="green")


def staff(
    name: Annotated[str, typer.Argument(help="The name to log in with.")],
    folder: Folder = Path(),
    role: Annotated[Literal["assistant", "instructor"], typer.Option("--role")] = "assistant",
) -> None:
    """Add an assistant or an instructor. Prints the password once."""
    password = secrets.token_urlsafe(15)
    with open_cohort(folder) as cohort, cohort.database.writing() as connection:
        people.add_staff(connection, role, name, password, cohort.database.clock())
    say(f"{name} logs in at /login with the password  {password}")


def _log() -> None:
    """One JSON line per event, on stderr."""
    log_json()


COMMANDS = {
    "create": (create, 'lab cohort create "Autumn workshop"'),
    "serve": (serve, "lab cohort serve --folder autumn-workshop --host 0.0.0.0"),
    "status": (status, "lab cohort status --folder autumn-workshop"),
    "runner": (runner, "lab cohort runner --folder autumn-workshop --gpus 0,1"),
    "roster": (roster, "lab cohort roster students.csv --folder autumn-workshop --only"),
    "export": (export, "lab cohort export nbgrader --folder autumn-workshop"),
    "regrade": (regrade, "lab cohort regrade dataloader --folder autumn-workshop"),
    "backup": (backup, "lab cohort backup autumn.tar --folder autumn-workshop"),
    "restore": (restore, "lab cohort restore autumn.tar --folder restored"),
    "staff": (staff, "lab cohort staff Grace --folder autumn-workshop"),
    "link": (link, "lab cohort link --folder autumn-workshop"),
}
"""Every command of the group, with its example."""
