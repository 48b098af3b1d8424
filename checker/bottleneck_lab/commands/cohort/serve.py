"""`lab cohort serve`: the server of a cohort, with a runner beside it."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cohort.folder import Cohort, open_cohort
from bottleneck_lab.cohort.logs import log_json
from bottleneck_lab.cohort.members import joining, people, sessions
from bottleneck_lab.cohort.members.qr import qr_terminal
from bottleneck_lab.cohort.running.preflight import Preflight
from bottleneck_lab.cohort.server.serve import Keeper
from bottleneck_lab.cohort.server.serve import serve as serve_forever
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.workshop import workshop_labs
from bottleneck_lab.commands.cohort.options import (
    SHARED_USER,
    Folder,
    Gpus,
    Measuring,
    NoCgroup,
    Quiet,
    Slots,
    Uids,
    Unsandboxed,
    default_slots,
)
from bottleneck_lab.commands.ui import say
from bottleneck_lab.errors import MachineError
from bottleneck_lab.workspace.dataset import missing_datasets

EXAMPLE = "lab cohort serve --folder autumn-workshop --host 0.0.0.0"


_Host = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="Address to listen on; 0.0.0.0 is open to the whole network.",
    ),
]
_Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="URL at which learners reach the server, if that is a proxy's.",
        show_default=False,
    ),
]
_Tls = Annotated[
    tuple[Path, Path] | None,
    typer.Option(
        "--tls",
        metavar="CERT KEY",
        help="Certificate and key, both in PEM format.",
        show_default=False,
    ),
]


def command(
    folder: Folder = Path(),
    host: _Host = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="PORT", help="Port to listen on.")] = 8321,
    url: _Url = None,
    tls: _Tls = None,
    runner: Annotated[
        bool, typer.Option("--runner/--no-runner", help="Measure on this machine too.")
    ] = True,
    gpus: Gpus = None,
    slots: Slots = None,
    allow_unsandboxed: Unsandboxed = False,
    allow_no_cgroup: NoCgroup = False,
    uids: Uids = None,
    quiet: Quiet = 20.0,
) -> None:
    """Serve the cohort, and print how to join it.

    Exit codes: 2 for a wrong option; 4 if this machine cannot serve or measure, with all reasons at
    once.
    """
    log_json()
    measuring = Measuring(
        gpus, slots or default_slots(), uids, allow_unsandboxed, allow_no_cgroup, quiet
    )
    with open_cohort(folder) as cohort, ExitStack() as stack:
        preflight = Preflight()
        preflight.check_address(host, port)
        preflight.check_sign_in(cohort.config)
        if tls:
            preflight.check_certificate(*tls)
        users = measuring.choose_users(preflight) if runner else []
        preflight.finish("This cohort cannot be served here")
        keeper = None
        if runner:
            _warn(cohort, shared_user=not users)
            # A process of its own: what measures holds no sockets, and can be restarted alone.
            own = [f"--folder={cohort.folder}", f"--parent={os.getpid()}"]
            command = [sys.executable, "-m", "bottleneck_lab", "cohort", "runner", *own]
            keeper = stack.enter_context(Keeper([*command, *measuring.arguments(users)]))
        else:
            say(
                f"Nothing is measured here: `lab cohort runner --folder {folder}` measures on this"
                f" machine, and `lab cohort token --folder {folder}` prints the command for"
                " another.",
                style="yellow",
                err=True,
            )
        listening = f"{'https' if tls else 'http'}://{_network_address(host)}:{port}"
        reached = (url or cohort.config.url or listening).rstrip("/")
        cohort.keep_address(reached)
        _print_how_to_join(cohort, folder, reached)
        serve_forever(cohort, host, port, reached, tls=tls)
        if keeper and keeper.refused is not None:
            raise MachineError(
                f"The runner refuses to start here (exit code {keeper.refused}), so the server has"
                " stopped. The runner's own message is above.",
                "Do what it says, or serve without one: --no-runner.",
            )


def _warn(cohort: Cohort, *, shared_user: bool) -> None:
    """Say what this machine does less well than it could."""
    if shared_user:
        say(SHARED_USER, style="yellow", err=True)
    with cohort.database.reading() as connection:
        labs = workshop_labs(connection)
    needed = {name for lab in labs for name in find_lab(lab).spec.datasets}
    if lacking := sorted(needed & set(missing_datasets())):
        say(
            f"This machine lacks the data set {' and '.join(lacking)}: `lab data` makes it."
            " Submissions to labs that need it wait until then.",
            style="yellow",
            err=True,
        )


def _network_address(host: str) -> str:
    """Return this machine's own address where the server listens on all interfaces."""
    if host not in ("0.0.0.0", "::"):
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # An address for documentation (RFC 5737). Connecting a datagram socket sends nothing,
            # but makes the kernel choose the interface that leads out.
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def _print_how_to_join(cohort: Cohort, folder: Path, url: str) -> None:
    with cohort.database.writing() as connection:
        codes = joining.join_codes(connection)
        student = " --id STUDENT_ID" if load_settings(connection).roster_only else ""
        now = cohort.database.clock()
        login = sessions.new_link(connection, people.the_instructor(connection, now), now)
    say(f"{cohort.config.name}", style="bold")
    if codes:
        say(f"\nLearners type:  lab join {url} {codes[0]}{student}", style="bold")
        say(f"or open         {url}/join/{codes[0]}\n")
        if sys.stdout.isatty():
            typer.echo(qr_terminal(f"{url}/join/{codes[0]}"))
    say(
        "Your page, by a link that works once, within 15 minutes (`lab cohort link --folder"
        f" {folder}` prints another):\n  {url}/login/{login}"
    )
    if url.startswith("http:") and "127.0.0.1" not in url:
        say(
            "Without --tls, tokens cross the network unencrypted. Use only a network that you"
            " trust.",
            style="yellow",
            err=True,
        )
    sys.stdout.flush()  # serving never returns; a pipe would hold the link back
