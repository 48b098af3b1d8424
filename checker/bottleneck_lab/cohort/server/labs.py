"""A lab on a learner's own page: its files, its questions, and handing in from a browser."""

from __future__ import annotations

import io
import zipfile
from secrets import token_hex
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response
from msgspec.structs import replace

from bottleneck_lab.catalog import Lab, load_labs
from bottleneck_lab.cohort.members.sessions import Session
from bottleneck_lab.cohort.moments import iso
from bottleneck_lab.cohort.protocol import Submission, Tool
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.server.forms import answer_fields, lab_field
from bottleneck_lab.cohort.server.guard import LEARNER, AsLearner, Fields, Form
from bottleneck_lab.cohort.server.markdown import render_brief
from bottleneck_lab.cohort.server.state import state
from bottleneck_lab.cohort.submissions.intake import DIAGNOSIS
from bottleneck_lab.cohort.submissions.ledger import Ledger
from bottleneck_lab.cohort.view.attempts import find_evidence, load_known_record
from bottleneck_lab.grading.answers import describe_choices
from bottleneck_lab.workspace.commitments import Commitment, Record, questions_of
from bottleneck_lab.workspace.diagnosis_file import with_answer

router = APIRouter()
TOOLS: tuple[Tool, ...] = ("torch", "nsys", "ncu")
WAIT_S = 30.0


@router.get("/me/labs/{slug}")
def my_lab(request: Request, session: AsLearner, slug: str) -> Response:
    """Show a lab: its brief, its files, and the form for handing in."""
    lab = load_labs()[lab_field(slug)]
    record = _record(request, session, lab)
    answers = record.commitments[-1].answers if record.commitments else {}
    return state(request).page(
        "my_lab.html",
        session,
        lab=lab,
        brief=render_brief(lab.brief().read_text(encoding="utf-8"))
        if lab.brief().is_file()
        else "",
        questions=questions_of(lab, record),
        answers=answers,
        choices=describe_choices,
        tools=TOOLS,
        # Drawn with the page: a form that is sent twice is one submission.
        key=token_hex(16),
    )


@router.get("/me/labs/{slug}/files.zip", dependencies=[Depends(LEARNER)])
def shipped_files(slug: str) -> Response:
    """Return the lab's files as they are shipped, in one folder."""
    lab, packed = load_labs()[lab_field(slug)], io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in dict.fromkeys([lab.brief().name, *lab.spec.files, *lab.spec.editable]):
            if (lab.path / name).is_file():
                archive.write(lab.path / name, f"{lab.slug}/{name}")
    headers = {"Content-Disposition": f'attachment; filename="{lab.slug}.zip"'}
    return Response(packed.getvalue(), media_type="application/zip", headers=headers)


@router.post("/me/labs/{slug}")
def hand_in(request: Request, session: AsLearner, slug: str, fields: Form) -> Response:
    """Take in a submission from the form. Raises RefusedError for what `lab submit` refuses."""
    lab, shared = load_labs()[lab_field(slug)], state(request)
    shared.requests.count(session.person.handle)
    tool, device = fields.get("tool", ""), fields.get("device", "")
    if (tool and tool not in TOOLS) or device not in lab.spec.devices:
        raise RefusedError("bad-request", "This form was changed.", "Reload the page.")
    record = _record(request, session, lab)
    try:
        answers = _answers(lab, record, fields, needed=not tool)
    except RefusedError:
        with shared.cohort.database.reading() as connection:
            ledger = Ledger(connection, [session.person], [], shared.cohort.database.clock())
            ledger.require_allowed(session.person, lab.slug)  # that it is closed comes first
        raise
    if answers and not (record.commitments and record.commitments[-1].answers == answers):
        # Committed at the server's time: unlike a learner's machine, this page can vouch for it.
        at = iso(shared.cohort.database.clock())
        record = replace(record, commitments=[*record.commitments, Commitment(at, answers)])
    with shared.cohort.database.reading() as connection:
        evidence = find_evidence(connection, shared.cohort.blobs, session.person, lab)
    submission = Submission(
        fields.get("key", ""),
        lab.slug,
        lab.content_hash(),
        device,
        _files(lab, fields, answers, needed=not tool),
        record=record,
        capture=evidence if answers else None,
        tool=tool or None,
    )
    shared.intake.offer(session.person, submission).result(WAIT_S)
    return RedirectResponse("/me", status_code=303)


def _record(request: Request, session: Session, lab: Lab) -> Record:
    with state(request).cohort.database.reading() as connection:
        return load_known_record(connection, session.person, lab.slug)


def _answers(lab: Lab, record: Record, fields: Fields, *, needed: bool) -> dict[str, Any]:
    """Return the answers of the form. Raises RefusedError if they are `needed` and incomplete."""
    try:
        return answer_fields(questions_of(lab, record), fields)
    except RefusedError:
        if needed:
            raise
        return {}  # a capture is what a diagnosis is read from


def _files(lab: Lab, fields: Fields, answers: dict[str, Any], *, needed: bool) -> dict[str, bytes]:
    """Return the files to submit: what was chosen, and the rest as shipped."""
    chosen = {name: fields.files.get(f"file-{name}", b"") for name in lab.spec.editable}
    if needed and not any(chosen.values()):
        raise RefusedError("wrong-files", "No file was chosen.", "Choose yours.")
    files = {name: data or (lab.path / name).read_bytes() for name, data in chosen.items()}
    shipped = lab.path / DIAGNOSIS
    if answers:
        text = shipped.read_text(encoding="utf-8") if shipped.is_file() else ""
        for key, answer in answers.items():
            text = with_answer(text, key, answer)
        files[DIAGNOSIS] = text.encode()
    return files
