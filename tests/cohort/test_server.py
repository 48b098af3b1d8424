"""The server from outside: who may do what, and that nothing a learner writes does anything on a
page.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from bottleneck_lab.catalog import QuestionSpec, find_lab, load_labs
from bottleneck_lab.cohort.members import joining, people, sessions
from bottleneck_lab.cohort.members.people import ROLES
from bottleneck_lab.cohort.protocol import MAX_BODY_BYTES, Submission, content_of
from bottleneck_lab.cohort.server.app import ROUTERS
from bottleneck_lab.cohort.server.guard import Needs, api_person, bearer, declared, runner_token
from bottleneck_lab.cohort.server.state import _templates, figure, holding, prose
from bottleneck_lab.cohort.settings import change_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.grading.verdict import CriterionResult, Prediction, Standing

from ..processes import PATIENCE_S
from .conftest import opened_room
from .fake_job import verdict_of
from .serving import Visitor, log_in, serving
from .test_runner import run_until, settled

TRACE = Path(__file__).parents[2] / "datasets" / "captures" / "synthetic-input.json.gz"
NASTY = "<script>alert(1)</script>\"'&{{7*7}}\u202e\u200b"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A served cohort with somebody of each role, a learner with a nasty name, and a submission
    with a verdict.
    """
    import os

    from bottleneck_lab import catalog

    from .conftest import MINI

    saved = dict(os.environ)
    folder = tmp_path_factory.mktemp("served") / "cohort"
    os.environ.update(
        {"BOTTLENECK_LAB_CONTENT": str(MINI), "BOTTLENECK_LAB_HOME": str(folder.parent / "home")}
    )
    catalog.load_labs.cache_clear()
    try:
        with opened_room(folder) as room:
            room.cohort.database.clock = room.clock = time.time
            with room.cohort.database.writing() as connection:
                change_settings(connection, min_interval_s=0)
                staff = {
                    role: people.add_staff(
                        connection, role, f"A. {role}", "correct horse battery", time.time()
                    )
                    for role in ROLES[1:]
                }
            who, token = room.join(NASTY)
            (capture,) = room.cohort.blobs.put(
                [content_of({"capture.json": b"{}", TRACE.name: TRACE.read_bytes()})]
            )
            submission = room.submission(f"# right\n# {NASTY}\n", capture=capture)
            handle = room.intake.offer(token, submission).result(PATIENCE_S).receipt.submission
            run_until(room.runner(), settled(room))
            with serving(folder) as (port, _):
                yield Served(room, port, {"learner": who, **staff}, token, handle)
    finally:
        os.environ.clear()
        os.environ.update(saved)
        catalog.load_labs.cache_clear()


class Served:
    """A served cohort that the tests below share."""

    def __init__(self, room, port, people_, token, handle) -> None:
        self.room, self.port, self.people, self.token, self.handle = (
            room,
            port,
            people_,
            token,
            handle,
        )

    def visitor(self, role) -> Visitor:
        return log_in(self.room, self.port, self.people[role])


def guards(route):
    """The role that a route declares; `token` for learners' programs. None at all is an error of
    ours.
    """
    guards_named = declared(route.dependant)
    needs = [each.role for each in guards_named if isinstance(each, Needs)]
    if guards_named & {bearer, api_person, runner_token}:
        return "token"
    assert len(needs) == 1, f"{route.path} declares {needs}"
    return needs[0]


def test_every_route_lets_in_its_role_and_those_above_and_nobody_else(served):
    """Walks all routes with everybody. What is asked for with an unknown name or an empty form may
    be refused for that, never let in.
    """
    routes = [route for router in ROUTERS for route in router.routes]
    visitors = {None: Visitor(served.port), **{role: served.visitor(role) for role in ROLES}}
    walked = 0
    for route in routes:
        needed, path = (
            guards(route),
            route.path.format(
                handle=served.handle, slug="slow", code="x", token="x", kind="json", name="x"
            ),
        )
        if path.startswith("/people/"):
            path = path.replace(served.handle, served.people["learner"].handle)
        if path in ("/logout", "/login") and "POST" in route.methods:
            continue  # would end the sessions of this test; they have tests of their own
        for role, visitor in visitors.items():
            method = next(iter(route.methods - {"HEAD"}))
            answer = visitor.get(path) if method == "GET" else visitor.post(path, csrf="wrong")
            walked += 1
            context = f"{method} {path} as {role}: {answer.status}"
            if needed == "token":
                assert answer.status == 401, context
            elif needed is None:
                assert answer.status < 500, context
            elif role is None:
                assert (answer.status, answer.headers.get("location")) == (303, "/login"), context
            elif ROLES.index(role) < ROLES.index(needed):
                assert answer.status == 403, context
                assert "not for you" in answer.text, context
            elif method == "GET":
                assert answer.status == 200 or "/me/submissions/" in path or "/cases/" in path, (
                    context
                )
            else:
                assert answer.status == 403, context  # a wrong CSRF token
                assert "not sent from its own page" in answer.text, context
    assert walked >= 100


def test_commands_in_sentences_are_code_and_what_is_quoted_stays_text():
    assert prose("Run `lab data`, not <b>`x<y`</b>.") == (
        "Run <code>lab data</code>, not &lt;b&gt;<code>x&lt;y</code>&lt;/b&gt;."
    )


def test_what_was_not_reached_is_called_not_judged():
    reached = CriterionResult("a", "target", None, "A step: undecided, 2–4x.")
    assert holding(reached) == "? undecided"
    assert holding(replace(reached, sentence="A: not measured, since B.")) == "– not judged"
    assert holding(replace(reached, holds=True)) == "✓ right"


def parts():
    """The macros that pages share."""
    templates = _templates()
    templates.filters["moment"] = str
    return templates.get_template("parts.html").module


def test_a_verdict_says_on_a_page_what_it_says_in_the_terminal():
    speed = CriterionResult("speedup", "target", None, "A: open.", 2.3, 1.6, 3.2, 2.0, unit="x")
    waits = CriterionResult("waits", "mechanism", None, "B: not measured, since C.")
    verdict = replace(
        verdict_of(find_lab("slow"), find_lab("slow").path, "cpu"),
        criteria=[speed, waits],
        prediction=Prediction(2.5, None),
        diagnosis=Standing(True, measured=False, missed=["evidence"], corrections=1, hints=2),
    )
    text = " ".join(re.sub(r"<[^>]+>", " ", str(parts().criteria(verdict))).split())
    assert "undecided 1.6–3.2x at least 2x" in text, "no figure that decides nothing"
    assert "The target lies in that range" in text
    assert "waits – not judged – –" in text
    assert "Predicted 2.5x; the gain was between 1.60x and 3.20x, undecided." in text
    assert "on the first try with 2 hints, evidence wrong at first." in text


def test_a_form_states_the_rule_for_a_stretch_before_it_is_answered():
    fields = parts().questions_fields
    where = QuestionSpec("where", "interval", "Where?", shows="idle_share", least=0.8)
    assert "Mark a stretch of 0.2% to 10% of the capture" in fields([where], {}, lambda _: [])
    assert "of the capture" not in fields([replace(where, shows=None)], {}, lambda _: [])


def test_a_learner_sees_nothing_of_others(served):
    _, other = served.room.join("Eve")
    eve = Visitor(served.port, token=other)
    assert eve.get(f"/api/submissions/{served.handle}").json()["code"] == "not-found"
    assert eve.get("/api/me").json()["submissions"] == []
    mine = Visitor(served.port, token=served.token).get(f"/api/submissions/{served.handle}").json()
    assert mine["outcome"] == "PASS"


def test_what_learners_write_is_text_on_every_page(served):
    instructor, me = served.visitor("instructor"), served.visitor("learner")
    person = served.people["learner"].handle
    pages = [
        "/room",
        "/room/live",
        "/labs/slow",
        f"/people/{person}",
        f"/submissions/{served.handle}",
    ]
    texts = [instructor.get(path).text for path in pages] + [me.get("/me").text]
    for text in texts:
        assert "<script>alert" not in text
        assert "49" not in text.split("alert(1)")[-1][:40]
        assert "\u202e" not in text
    assert sum("&lt;script&gt;alert(1)" in text for text in texts) >= 5


def test_pages_run_no_foreign_script_and_are_kept_nowhere(served):
    answer = served.visitor("instructor").get("/room")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_login_link_works_once_and_its_cookie_is_out_of_scripts_reach(served):
    with served.room.cohort.database.writing() as connection:
        token = sessions.new_link(connection, served.people["learner"], time.time())
    first = Visitor(served.port).get(f"/login/{token}")
    assert "httponly" in first.headers["set-cookie"].lower()
    assert "samesite=lax" in first.headers["set-cookie"].lower()
    assert Visitor(served.port).get(f"/login/{token}").status == 403
    with served.room.cohort.database.reading() as connection:
        stored = [row.token_sha256 for row in connection.execute(tables.sessions.select())]
    cookie = first.headers["set-cookie"].split("=")[1].split(";")[0]
    assert cookie not in stored


def test_forms_from_elsewhere_change_nothing(served):
    visitor = served.visitor("instructor")
    body = f"csrf={visitor.csrf()}&paused=yes".encode()
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    assert (
        visitor.ask("POST", "/room/pause", body, Origin="http://evil.example", **kind).status == 403
    )
    assert visitor.ask("POST", "/room/pause", b"paused=yes", **kind).status == 403
    assert "Pause measuring" in visitor.get("/room").text


def test_instructors_log_in_by_password_and_guessing_is_stopped(served):
    visitor = Visitor(served.port)
    assert (
        visitor.post("/login", name="a. INSTRUCTOR", password="correct horse battery").status == 303
    )
    assert visitor.get("/room").status == 200
    assert visitor.post("/logout").headers["location"] == "/login"
    assert visitor.get("/room").headers["location"] == "/login"
    guesser = Visitor(served.port)
    answers = [
        guesser.post("/login", name="a. assistant", password=f"guess {number}").status
        for number in range(12)
    ]
    assert answers == [403] * 10 + [429] * 2


def test_a_room_with_a_roster_asks_for_student_ids(served):
    with served.room.cohort.database.writing() as connection:
        code = joining.join_codes(connection)[0]
        change_settings(connection, roster_only=True)
    try:
        command = f"lab join http://127.0.0.1:{served.port} {code} --id STUDENT_ID"
        for visitor, path in (
            (served.visitor("instructor"), "/room"),
            (Visitor(served.port), f"/join/{code}"),
        ):
            assert command in re.sub("</?span[^>]*>", "", visitor.get(path).text)
        form = Visitor(served.port).get(f"/join/{code}").text
        assert ('name="name"' in form, 'name="student_id"' in form) == (False, True)
        refused = Visitor(served.port).post(f"/join/{code}").text
        assert "Only those on this cohort&#39;s roster can join." in refused
    finally:
        with served.room.cohort.database.writing() as connection:
            change_settings(connection, roster_only=False)


def test_a_revoked_code_lets_nobody_in(served):
    with served.room.cohort.database.writing() as connection:
        code = joining.new_join_code(connection, time.time())
    body = msgspec.json.encode({"code": code.lower().replace("-", " "), "name": "Late"})
    assert Visitor(served.port).ask("POST", "/api/join", body).status == 200
    instructor = served.visitor("instructor")
    assert instructor.post("/settings/codes", revoke=code).status == 303
    assert Visitor(served.port).ask("POST", "/api/join", body).json()["code"] == "wrong-code"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "bad-request"),
        (b"[]", "bad-request"),
        (b'{"key":"x","surprise":1}', "bad-request"),
        (b"x" * (MAX_BODY_BYTES + 10), "too-large"),
    ],
    ids=["no JSON", "another type", "another field", "too large"],
)
def test_what_is_no_submission_is_refused(served, body, code):
    assert (
        Visitor(served.port, token=served.token)
        .ask("POST", "/api/submissions", body)
        .json()["code"]
        == code
    )


def test_staff_change_rules_and_the_learner_sees_them(served):
    instructor = served.visitor("instructor")
    answer = instructor.post(
        "/labs/wrong", due="2031-01-02T03:04", budget="3", hints_open="1", points="50"
    )
    assert answer.status == 303
    assert instructor.post("/labs/wrong", due="tomorrow").status == 400
    assert instructor.post("/room/announce", text="Pizza at noon").status == 303
    me = Visitor(served.port, token=served.token).get("/api/me").json()
    (lab,) = [one for one in me["labs"] if one["slug"] == "wrong"]
    assert (lab["due"], lab["left"], lab["hints_open"]) == ("2031-01-02T03:04:00Z", 3, 1)
    assert "Pizza at noon" in me["announcements"]


def test_the_workshop_is_chosen_on_a_page_in_the_instructors_time_zone(served):
    instructor, learner = served.visitor("instructor"), Visitor(served.port, token=served.token)
    assert instructor.post("/workshop/zone", timezone="Nowhere").status == 400
    saved = instructor.post("/workshop/zone", timezone="Asia/Tokyo")
    # A page lists the times that other tests have set here: they read differently now.
    listed = saved.status == 200 and "<table" in saved.text
    assert listed or (saved.status, saved.headers["location"]) == (303, "/workshop#saved")
    assert 'id="saved">Saved' in instructor.get("/workshop").text
    chosen = {"in-wrong": "yes", "order-wrong": "1", "in-slow": "yes", "order-slow": "2"}
    moments = {"opens-wrong": "2090-01-01T09:00", "due-wrong": "2091-01-01T09:00"}
    assert instructor.post("/workshop", **chosen, **moments).status == 303
    me = learner.get("/api/me").json()
    assert me["timezone"] == "Asia/Tokyo"
    page = served.visitor("learner").get("/me").text
    assert "Times are those of Asia/Tokyo" in page
    assert re.search(r'<span class="hidden"> of [-0-9]{10} \d\d:\d\d JST</span>', page)
    assert '<time datetime="2091-01-01T00:00:00Z">2091-01-01 09:00 JST</time>' in page
    assert learner.get("/api/labs/slow/help").json()["timezone"] == "Asia/Tokyo"
    handed_in = learner.get(f"/api/submissions/{served.handle}").json()
    assert handed_in["timezone"] == "Asia/Tokyo"
    wrong, slow = me["labs"]
    assert (wrong["slug"], wrong["opens"]) == ("wrong", "2090-01-01T00:00:00Z")
    assert (slow["slug"], slow["due"]) == ("slow", None)
    page = instructor.get("/workshop").text
    assert 'value="2090-01-01T09:00"' in page
    assert page.index("in-wrong") < page.index("in-slow") < page.index("in-broken")
    assert instructor.post("/workshop").status == 400, "no lab is left"
    sheet = "/workshop/runsheet?plan=half-day&start=2026-11-30T09:00"
    page = served.visitor("assistant").get(sheet).text
    assert "Read the symptom aloud" in page
    times = re.findall(r"<th scope=\"row\">(wrong)</th>" + r"<td[^>]+>([^<]+)</td>" * 5, page)
    assert times == [("wrong", "09:20", "09:20", "09:21", "09:21", "never")]
    everything = {f"in-{slug}": "yes" for slug in load_labs()}
    assert instructor.post("/workshop", **everything).status == 303
    assert instructor.post("/workshop/zone", timezone="UTC").status == 303
    assert len(learner.get("/api/me").json()["labs"]) == len(load_labs())


def test_feedback_is_held_back_until_it_is_released(served):
    instructor, learner = served.visitor("instructor"), Visitor(served.port, token=served.token)
    instructor.post("/labs/slow", feedback_at="2090-01-01T00:00")
    held = learner.get(f"/api/submissions/{served.handle}").json()
    assert (held["outcome"], held["summary"], held["verdict"]) == (None, None, None)
    assert "released at 2090-01-01" in held["note"]
    page = served.visitor("learner").get(f"/me/submissions/{served.handle}").text
    assert "PASS" not in page
    instructor.post("/labs/slow", feedback_at="2020-01-01T00:00")
    assert learner.get(f"/api/submissions/{served.handle}").json()["outcome"] == "PASS"


def test_the_leaderboard_shows_those_who_chose_it_under_their_pseudonym(served):
    learner = served.visitor("learner")
    assert "Fast fox" not in learner.get("/leaderboard").text
    learner.post("/me/leaderboard", shown="yes", pseudonym="Fast fox")
    text = learner.get("/leaderboard").text
    assert "Fast fox" in text
    assert "alert(1)" not in text.split("<main")[1]


def test_a_submission_is_seen_by_a_page_that_waits_for_it(served):
    """Long polling returns when something happens; the event stream carries it too."""
    import http.client
    import threading

    _, token = served.room.join("Waiting")
    submission = served.room.submission()
    learner = Visitor(served.port, token=token)
    accepted = learner.ask("POST", "/api/submissions", msgspec.json.encode(submission)).json()
    handle = accepted["receipt"]["submission"]
    stream = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    instructor = served.visitor("instructor")
    stream.request("GET", "/events", headers={"Cookie": f"bottleneck_lab={instructor.cookie}"})
    events = stream.getresponse()
    threading.Timer(0.3, lambda: run_until(served.room.runner(), settled(served.room))).start()
    standing = learner.get(f"/api/submissions/{handle}?after=0&wait=20").json()
    assert standing["version"] > 0
    lines = []
    while not any(handle in line for line in lines):
        lines.append(events.readline().decode())
    stream.close()
    end = time.monotonic() + 120
    while (
        learner.get(f"/api/submissions/{handle}?after={standing['version']}&wait=5").json()["state"]
        != "done"
    ):
        assert time.monotonic() < end


def test_the_same_body_as_a_learners_client_sends_decodes(served):
    """The client's own encoding, so that both ends agree."""
    submission = served.room.submission()
    assert msgspec.json.decode(msgspec.json.encode(submission), type=Submission) == submission


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [(0.8, "share", "80%"), (1.3, "s", "1.3 s"), (2.5, "x", "2.5x"), (None, "", "–")],
)
def test_figures_read_on_a_page_as_in_a_verdict(value, unit, shown):
    assert figure(value, unit) == shown
