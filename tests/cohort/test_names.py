"""Labs whose folder names the cause have a neutral name: nothing that learners see, or that hangs
on a wall, says the other.
"""

from __future__ import annotations

import time

import pytest
from typer.testing import CliRunner

from bottleneck_lab import catalog
from bottleneck_lab.cli import app
from bottleneck_lab.cohort.client import Client
from bottleneck_lab.cohort.grading.rules import set_rules
from bottleneck_lab.cohort.members.membership import Membership, remember
from bottleneck_lab.cohort.members.people import join_codes, the_instructor
from bottleneck_lab.cohort.protocol import Join
from bottleneck_lab.cohort.refused import RefusedError

from .conftest import opened_room
from .serving import log_in, serving


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A cohort on the course as it is shipped."""
    monkeypatch.delenv("BOTTLENECK_LAB_CONTENT")
    catalog.load_labs.cache_clear()
    with opened_room(tmp_path / "cohort") as room:
        room.cohort.database.clock = room.clock = time.time
        yield room


def hidden() -> list[tuple[str, str]]:
    """Slug and neutral name of the labs that have one."""
    return [(lab.slug, lab.name) for lab in catalog.load_labs().values() if lab.name != lab.slug]


def test_what_learners_see_says_the_neutral_name(course):
    with course.cohort.database.writing() as connection:
        code, instructor = join_codes(connection)[0], the_instructor(connection, 0.0)
    with serving(course.cohort.folder) as (port, _):
        url = f"http://127.0.0.1:{port}"
        joined = Client(url).join(Join(code, "Ada"))
        remember(Membership(url, joined))
        said = CliRunner().invoke(app, ["status"]).output
        room = log_in(course, port, instructor).get("/room").text
        mine = log_in(course, port, instructor).get("/me").text
    assert len(hidden()) >= 3
    for slug, name in hidden():
        assert name in said
        assert slug not in said
        assert f">{name}<" in room
        assert f">{slug}<" not in room
        assert slug not in mine


def test_a_refusal_says_it_too(course):
    slug, name = hidden()[0]
    lab = catalog.find_lab(slug)
    files = {path: (lab.path / path).read_bytes() for path in lab.spec.editable}
    _, token = course.join()
    with course.cohort.database.writing() as connection:
        set_rules(connection, slug, 0.0, closes=1.0)
    asked = course.submission(lab=slug, device=next(iter(lab.spec.devices)), files=files)
    with pytest.raises(RefusedError) as refused:
        course.intake.offer(token, asked).result(20)
    assert name in refused.value.message
    assert slug not in refused.value.message
