"""`lab submit`: submit the workspace's files, to be measured by the cohort's runner."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
from bottleneck_lab.cohort.moments import local_iso
from bottleneck_lab.cohort.protocol import MAX_CAPTURE_BYTES
from bottleneck_lab.cohort.submissions.handing_in import capture_files, files_problem, gather
from bottleneck_lab.cohort.submissions.receipts import receipt_problem, require_genuine
from bottleneck_lab.commands.asking import confirm_first_diagnosis
from bottleneck_lab.commands.screen import console
from bottleneck_lab.commands.ui import DeviceName, Json, here, note, print_json, say, say_next
from bottleneck_lab.course.captures import evidence_capture, read_capture
from bottleneck_lab.course.diagnosing import require_diagnosis
from bottleneck_lab.errors import ExitCode, LabError, MachineError, UsageError
from bottleneck_lab.grading.attest import public_key_of
from bottleneck_lab.grading.figures import figures_of
from bottleneck_lab.report.console.summary import render_top
from bottleneck_lab.report.console.verdict import render_verdict
from bottleneck_lab.report.evidence_only import evidence_only, without_remedies
from bottleneck_lab.wording import counted
from bottleneck_lab.workspace.captures import make_capture, readable
from bottleneck_lab.workspace.commitments import (
    Record,
    hides_remedies_at,
    is_blind_at,
    load_record,
)

if TYPE_CHECKING:
    from bottleneck_lab.catalog import Device
    from bottleneck_lab.cohort.members.membership import Membership
    from bottleneck_lab.cohort.protocol import Accepted, Standing, Tool
    from bottleneck_lab.workspace.folder import Workspace

EXAMPLE = "lab submit"
LONG_POLL_S = 20.0

Leave = Annotated[
    bool,
    typer.Option(
        "--no-wait",
        help=(
            "Return once the submission is stored. `lab status SUBMISSION` fetches the verdict"
            " later."
        ),
    ),
]


Profiler = Annotated[
    Literal["torch", "nsys", "ncu"] | None,
    typer.Option(
        "--capture",
        help=(
            "Have the runner profile your code in place of a check, and fetch the capture. For"
            " profilers and GPUs that your machine lacks."
        ),
        show_default=False,
    ),
]


def command(
    device: DeviceName = None,
    capture: Profiler = None,
    no_wait: Leave = False,
    json: Json = False,
) -> None:
    """Submit your work to your cohort.

    Exit code, when it waits: that of the verdict, as for `lab check`.
    """
    if capture is not None and no_wait:
        raise UsageError("A capture is fetched when it is made.", "Leave out --no-wait.")
    workspace, membership = here(), require_membership()
    workspace.require_current()
    client = Client(membership.url, membership.joined.token, on_retry=note)
    if capture is None:
        confirm_first_diagnosis(workspace, json=json)
    accepted = _send(workspace, client, membership, device, capture)
    if not json:
        _report_accepted(accepted, workspace)
    if no_wait:
        if json:
            print_json(accepted)
        else:
            say(f"Fetch the verdict with: lab status {accepted.receipt.submission}")
        return
    standing = follow(client, accepted.receipt.submission, quiet=json)
    if standing.state == "captured" and capture is not None:
        _fetch_capture(workspace, client, standing, capture, json=json)
        return
    finish(membership, standing, json=json)


def _send(
    workspace: Workspace,
    client: Client,
    membership: Membership,
    device: str | None,
    tool: Tool | None,
) -> Accepted:
    """Send the files, and keep the receipt once it has been verified with the cohort's key."""
    record = load_record(workspace)
    if tool is None:  # a capture is what a diagnosis is read from
        try:
            record = require_diagnosis(workspace, record)
        except UsageError:
            # Nobody should work on a diagnosis for a lab that is closed. Not asked otherwise: what
            # was sent before and not answered is accepted also when its time is over.
            client.require_allowed(workspace.lab.slug)
            raise
    chosen = _choose_device(workspace, device)
    if tool is None:
        # Both are of one capture: of which code it is stands in the one that is sent.
        folder = _diagnosed_capture(workspace, record)
        capture = _send_capture(folder, client) if folder else None
        figures = _figures(folder) if folder else {}
        submission = gather(workspace, chosen, figures, capture)
    else:
        submission = gather(workspace, chosen, {}, None, tool)
    # Kept before it is sent: if the answer is lost, the next try is the same request.
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


def _choose_device(workspace: Workspace, wanted: str | None) -> Device:
    """Return the device to measure on, which this machine need not have. Raises UsageError for one
    that the lab does not know.
    """
    if wanted is None:
        return workspace.info.device
    devices = workspace.lab.spec.devices
    for device in devices:
        if device == wanted:
            return device
    raise UsageError(
        f"'{workspace.lab.slug}' cannot be measured on {wanted}.",
        f"Choose one of {', '.join(devices)}.",
    )


def _diagnosed_capture(workspace: Workspace, record: Record) -> Path | None:
    """Return the capture that the diagnosis is about; None if there is none."""
    if record.commitments and record.commitments[-1].capture:
        folder = workspace.captures / record.commitments[-1].capture
        if folder.is_dir():
            return folder
    return evidence_capture(workspace)


def _send_capture(folder: Path, client: Client) -> str | None:
    """Send a capture; None if it cannot be sent."""
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


def _fetch_capture(
    workspace: Workspace, client: Client, standing: Standing, tool: Tool, *, json: bool
) -> None:
    """Put the capture that the runner made beside the workspace's own, and show its summary."""
    files = client.fetch_capture(standing.submission)
    if problem := files_problem(files):
        raise MachineError(f"The server sent no capture: {problem}", "Ask your instructor.")

    def fill(folder: Path) -> None:
        for name, data in files.items():
            (folder / name).write_bytes(data)

    with workspace.working("lab submit"):
        folder = make_capture(workspace, tool, fill)
    summary = None
    if folder in readable(workspace):
        summary = read_capture(folder)
        if is_blind_at(folder):
            summary = evidence_only(summary)
        elif hides_remedies_at(folder):
            summary = without_remedies(summary)
    if json:
        print_json({"capture": str(folder), "files": sorted(files), "summary": summary})
        return
    if summary:
        rest = f"lab report {folder.relative_to(workspace.root)}"
        render_top(summary, rest, console())
    note(f"The capture is in {folder}. It was made by the runner, on its machine.")
    say_next(f"lab report {folder.relative_to(workspace.root)} --html report.html")


def _figures(folder: Path) -> dict[str, float]:
    """Return the figures of a capture; none if it cannot be read, which is no obstacle."""
    try:
        seen = figures_of(read_capture(folder))
    except LabError as error:
        note(f"Your capture was not sent: {error.message}")
        return {}
    # JSON has no infinity or NaN.
    return {name: value for name, value in seen.items() if math.isfinite(value)}


def _report_accepted(accepted: Accepted, workspace: Workspace) -> None:
    receipt = accepted.receipt
    received = local_iso(receipt.received_at, accepted.timezone)
    say(
        f"Submitted {', '.join(workspace.lab.spec.editable)} of '{current_name(receipt.lab)}' as"
        f" {receipt.submission}, received {received}.",
        style="green",
    )
    wait = "no runner can measure it yet, which your instructor sees"
    if accepted.wait_s is not None:
        wait = f"about {accepted.wait_s:.0f} s until it is measured"
        if accepted.wait_s < 1:
            wait = "a machine is free for it"
        if accepted.paused:
            wait += ", once your instructor ends the pause"
    say(f"{accepted.ahead or 'Nobody'} ahead of you; {wait}.")
    if accepted.left is not None:
        say(f"{counted(accepted.left, 'submission')} left for this lab.")


def follow(client: Client, submission: str, *, quiet: bool) -> Standing:
    """Wait for the verdict on a submission and report each change once, unless `quiet`.

    Ctrl-C stops waiting; the submission stays queued.
    """
    standing, reported = client.standing(submission), ""
    while standing.state in ("queued", "running"):
        line = f"Waiting, {standing.ahead or 'nobody'} ahead of you."
        line += " Measuring is paused." if standing.paused else ""
        if standing.state == "running":
            line = "Being measured."
        if line != reported and not quiet:
            hint = "" if reported else " (Ctrl-C stops waiting; the submission stays.)"
            note(line + hint)
        reported = line
        standing = client.standing(standing.submission, standing.version, LONG_POLL_S)
    return standing


def finish(membership: Membership, standing: Standing, *, json: bool) -> None:
    """Print a measured submission, keep its signed verdict, and exit with the verdict's code.

    Raises MachineError for a verdict that the cohort's key did not sign for this submission.
    """
    if json:
        print_json(standing)
    if standing.verdict is not None:
        verdict = require_genuine(membership.joined, standing)
        kept = keep_verdict(membership.joined.cohort, standing.submission, standing.verdict)
        if not json:
            started = local_iso(verdict.started_at, standing.timezone)
            render_verdict(verdict, console(), started=started)
            note(f"The signed verdict is saved in {kept}.")
        raise typer.Exit(verdict.outcome.exit_code)
    if not json:
        say(standing.note or "Measured.")
        if standing.state == "failed":
            say(
                "The machine failed, not your work. This does not count, and your instructor can"
                " see it."
            )
    if standing.state in ("failed", "uncaptured"):
        raise typer.Exit(ExitCode.ERROR)
