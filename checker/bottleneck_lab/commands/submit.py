"""`lab submit`: submit the workspace's files, to be measured by the cohort's runner."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bottleneck_lab.catalog import current_name
from bottleneck_lab.cohort.client import Client
from bottleneck_lab.cohort.members.membership import (
    forget_unsent,
    keep_receipt,
    keep_unsent,
    keep_verdict,
    require_membership,
)
from bottleneck_lab.cohort.protocol import MAX_CAPTURE_BYTES
from bottleneck_lab.cohort.submissions.handing_in import capture_files, gather
from bottleneck_lab.cohort.submissions.receipts import receipt_problem
from bottleneck_lab.commands.screen import console
from bottleneck_lab.commands.ui import DeviceName, Json, here, note, print_json, say
from bottleneck_lab.course.captures import evidence_capture, figures
from bottleneck_lab.course.diagnosing import require_diagnosis
from bottleneck_lab.errors import ExitCode, LabError, MachineError, UsageError
from bottleneck_lab.grading.attest import public_key_of, verify_bytes
from bottleneck_lab.report.console.verdict import render_verdict
from bottleneck_lab.workspace.commitments import Record, load_record

if TYPE_CHECKING:
    from bottleneck_lab.cohort.members.membership import Membership
    from bottleneck_lab.cohort.protocol import Accepted, Standing
    from bottleneck_lab.workspace.folder import Workspace

EXAMPLE = "lab submit"
LONG_POLL_S = 20.0

Leave = Annotated[
    bool,
    typer.Option(
        "--no-wait",
        help="Return once the submission is stored; `lab status` shows the verdict later.",
    ),
]


def command(device: DeviceName = None, no_wait: Leave = False, json: Json = False) -> None:
    """Submit your work to your cohort.

    Exit code, when it waits: that of the verdict, as for `lab check`.
    """
    workspace, membership = here(), require_membership()
    workspace.require_current()
    client = Client(membership.url, membership.joined.token, told=note)
    accepted = _send(workspace, client, membership, device)
    if not json:
        _show_receipt(accepted, workspace)
    if no_wait:
        if json:
            print_json(accepted)
        return
    standing = _follow(client, accepted, quiet=json)
    _finish(membership, standing, json=json)


def _send(
    workspace: Workspace, client: Client, membership: Membership, device: str | None
) -> Accepted:
    """Send the files, and keep the receipt once it has been verified with the cohort's key."""
    record = require_diagnosis(workspace, load_record(workspace))
    capture = _send_capture(workspace, record, client)
    submission = gather(workspace, _device(workspace, device), _figures(workspace), capture)
    keep_unsent(submission)
    accepted = client.submit(submission)
    problem = receipt_problem(
        accepted.receipt, public_key_of(membership.joined.public_key.encode())
    )
    if problem:
        raise MachineError(
            f"The server's receipt is not genuine: {problem}",
            "Ask your instructor. If the cohort was recreated, join again.",
        )
    keep_receipt(accepted.receipt)
    forget_unsent()
    return accepted


def _send_capture(workspace: Workspace, record: Record, client: Client) -> str | None:
    """Send the capture that the diagnosis is about; None if there is none that can be sent."""
    folder = None
    if record.commitments and record.commitments[-1].capture:
        folder = workspace.captures / record.commitments[-1].capture
    if folder is None or not folder.is_dir():
        folder = evidence_capture(workspace)
    if folder is None:
        return None
    try:
        files = capture_files(folder)
    except LabError as error:
        note(f"{folder.name} was not sent: {error.message}")
        return None
    if files is None:
        note(
            f"{folder.name} was not sent: it is larger than {MAX_CAPTURE_BYTES >> 20} MiB. Your"
            " answers will not be compared with it."
        )
        return None
    return client.send_capture(files)


def _device(workspace: Workspace, device: str | None) -> Any:
    """Return the device to measure on, which this machine need not have: the runner measures."""
    known = workspace.lab.spec.devices
    if device is not None and device not in known:
        raise UsageError(
            f"'{workspace.lab.slug}' cannot be measured on {device}.",
            f"Choose one of {', '.join(known)}.",
        )
    return device or workspace.info.device


def _figures(workspace: Workspace) -> dict[str, float]:
    """Return the figures of the captures. An unreadable capture does not prevent submitting."""
    try:
        known = figures(workspace) or {}
    except LabError as error:
        note(f"Your capture was not sent: {error.message}")
        return {}
    return {name: value for name, value in known.items() if math.isfinite(value)}


def _show_receipt(accepted: Accepted, workspace: Workspace) -> None:
    receipt = accepted.receipt
    say(
        f"Submitted {', '.join(workspace.lab.spec.editable)} of '{current_name(receipt.lab)}' as"
        f" {receipt.submission}, received {receipt.received_at}.",
        style="green",
    )
    wait = "no runner is working yet"
    if accepted.wait_s is not None:
        wait = f"about {accepted.wait_s:.0f} s until it is measured"
    say(f"{accepted.ahead} ahead of you; {wait}.")
    if accepted.left is not None:
        say(f"{accepted.left} submissions left for this lab.")


def _follow(client: Client, accepted: Accepted, *, quiet: bool) -> Standing:
    """Wait for the verdict and report each change once.

    Ctrl-C stops waiting; the submission stays queued.
    """
    standing, last = client.standing(accepted.receipt.submission), ""
    while standing.state in ("queued", "running"):
        line = "Being measured."
        if standing.state == "queued":
            line = f"Waiting, {standing.ahead} ahead of you."
        if line != last and not quiet:
            note(line if last else f"{line} (Ctrl-C stops waiting; the submission stays.)")
        last = line
        standing = client.standing(standing.submission, standing.version, LONG_POLL_S)
    return standing


def _finish(membership: Membership, standing: Standing, *, json: bool) -> None:
    if json:
        print_json(standing)
    if standing.verdict is not None:
        _show_verdict(membership, standing, quiet=json)
    elif not json:
        say(standing.note or "Measured.")
        if standing.state == "failed":
            say(
                "The machine failed, not your work. This does not count, and your instructor can"
                " see it."
            )
    if standing.state == "failed":
        raise typer.Exit(ExitCode.ERROR)


def _show_verdict(membership: Membership, standing: Standing, *, quiet: bool) -> None:
    """Print the verdict, which must carry the cohort's signature, and exit with its code."""
    joined, document = membership.joined, standing.verdict or ""
    checked = verify_bytes(document.encode(), public_key_of(joined.public_key.encode()))
    bound = checked.verdict.binding if checked.verdict else None
    if (
        not checked.ok
        or checked.verdict is None
        or bound is None
        or (bound.learner, bound.submission) != (joined.learner, standing.submission)
    ):
        raise MachineError(
            "The verdict that arrived is not genuine.",
            "Ask your instructor to look at this submission.",
        )
    kept = keep_verdict(joined.cohort, standing.submission, document)
    if not quiet:
        render_verdict(checked.verdict, console())
        note(f"The signed verdict is saved in {kept}.")
    raise typer.Exit(checked.verdict.outcome.exit_code)
