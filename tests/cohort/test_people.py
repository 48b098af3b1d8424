"""Who is who: joining twice, merging, renaming, removal, names, and calls for help."""

from __future__ import annotations

import json
import re
import time

import pytest
from typer.testing import CliRunner

from bottleneck_lab.cli import app
from bottleneck_lab.cohort.client import Client
from bottleneck_lab.cohort.grading.grades import DAY_S, override_grade, withdraw_override
from bottleneck_lab.cohort.grading.rules import extend, load_rules, set_rules
from bottleneck_lab.cohort.members import changes, joining, people, sessions
from bottleneck_lab.cohort.members.membership import load_membership
from bottleneck_lab.cohort.members.secrets import is_code, new_code, new_token
from bottleneck_lab.cohort.moments import iso
from bottleneck_lab.cohort.protocol import Join
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.settings import change_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.room import load_room
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.cohort.workshop import choose_labs
from bottleneck_lab.errors import ExitCode
from bottleneck_lab.grading.verdict import Outcome

from .serving import Visitor, serving
from .test_exports import grades, measured
from .test_grades import pages, saved


def view(room):
    with room.cohort.database.reading() as connection:
        return load_room(connection, verdict_reader_of(room.cohort.public_key), room.clock())


def test_the_projectors_page_shows_how_to_join_and_nobody(sqlite_room):
    room = sqlite_room
    room.join("Ada")
    with room.cohort.database.writing() as connection:
        people.add_person(connection, "learner", "Grace", 0.0, student_id="1")
        (code,) = joining.join_codes(connection)
    with pages(room) as (instructor, _, port):
        page = instructor.get("/room/joining").text
        tiles = re.findall(r"<b>(\d+)</b> ([a-z ]*join[a-z ]*)<", instructor.get("/room").text)
        assert Visitor(port).get("/room/joining").status == 303
    command = re.sub("</?span[^>]*>", "", page)
    assert f"lab join http://127.0.0.1:{port} {code}" in command
    assert re.search("<svg [^>]*viewBox=", page), "a style sheet can make it larger"
    assert "Ada" not in page
    assert tiles == [("1", "joined"), ("1", "not joined yet")]


def test_a_learners_page_says_who_they_are_and_an_extension_is_withdrawn_there(sqlite_room):
    room = sqlite_room
    fields = {"canvas_id": "90002", "sis_login": "ada1", "section": "B"}
    with room.cohort.database.writing() as connection:
        ada = people.add_person(connection, "learner", "Ada", 0.0, **fields)
        bob = people.add_person(connection, "learner", "Bob", 0.0)
    _, token = room.join(student_id="ada1")
    measured(room, token, Outcome.FAIL)
    path = f"/people/{ada.handle}"
    with pages(room) as (instructor, _, _):
        due = iso(room.clock() - DAY_S)
        assert instructor.post("/labs/slow", due=due, action="save").status == 200
        assert saved(instructor, "/labs/slow", due=due)
        page = instructor.get(path).text
        for shown in ("<dd>90002</dd>", "<dd>ada1</dd>", "<dd>B</dd>", "slow 45.0</a>"):
            assert shown in page
        assert "Ada (ada1)</option>" in instructor.get(f"/people/{bob.handle}").text
        later = iso(room.clock() + DAY_S)
        assert saved(instructor, f"{path}/extend", lab="slow", due=later)
        assert "Withdraw" in instructor.get(path).text
        assert "more submission" not in instructor.get(path).text, "there are none"
        assert "slow 50.0</a>" in instructor.get(path).text
        shown = instructor.post(f"{path}/extend", lab="slow", action="save").text
        assert "50.0 → 45.0" in shown
        assert re.search(r"Points \(not saved yet\)</dt><dd>45.0", shown)
        assert saved(instructor, f"{path}/extend", lab="slow")
        assert "Withdraw" not in instructor.get(path).text
    assert room.rows(tables.extensions) == []


def test_a_labs_page_names_whose_submission_waits(sqlite_room):
    _, token = sqlite_room.join("Ada")
    handle = sqlite_room.submit(token).receipt.submission
    with pages(sqlite_room) as (instructor, _, _):
        assert f'<a href="/submissions/{handle}">Ada</a>' in instructor.get("/labs/slow").text


def test_the_command_to_join_breaks_before_an_option_and_the_code_stands_on_top(
    sqlite_room, browser
):
    room = sqlite_room
    with room.cohort.database.writing() as connection:
        change_settings(connection, roster_only=True)
        link = sessions.new_link(connection, people.the_instructor(connection, 0.0), time.time())
    with serving(room.cohort.folder) as (port, _):
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/login/{link}")
        page.goto(f"http://127.0.0.1:{port}/room/joining")
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 800})
            lines = "every => every.map(one => one.getClientRects().length)"
            assert page.locator(".option").evaluate_all(lines) == [1, 1], "each on one line"
            box = page.locator(".qr svg").bounding_box()
            assert box["y"] + box["height"] <= 800, f"the QR code is in view at {width}"


def test_a_token_in_a_terminal_opens_no_page_of_staff(sqlite_room):
    room = sqlite_room
    with room.cohort.database.writing() as connection:
        instructor = people.the_instructor(connection, room.clock())
        link = sessions.new_link(connection, instructor, room.clock())
        _, token = joining.join(connection, Join(link, "whoever"), room.clock())
    _, learners = room.join("Ada")
    with pages(room) as (_, _, port):
        for owner, status in ((token, 403), (learners, 200)):
            assert Visitor(port, token=owner).ask("POST", "/api/login-link").status == status


def staff_command(room, *words: str):
    return CliRunner().invoke(app, ["cohort", "staff", *words, "--folder", str(room.cohort.folder)])


def test_an_assistant_is_removed_and_brought_back_and_gets_a_new_password(sqlite_room):
    room = sqlite_room
    assert staff_command(room, "Grace").exit_code == 0
    taken = staff_command(room, "grace").exception
    assert "--new-password" in taken.remedy
    nobody = staff_command(room, "Nobody", "--remove").exception
    assert (taken.exit_code, nobody.exit_code) == (ExitCode.USAGE, ExitCode.USAGE)
    assert RefusedError("busy", "", "").exit_code == ExitCode.ERROR, "the machine's fault"
    with room.cohort.database.reading() as connection:
        grace = people.find_staff(connection, "Grace")

    def can_log_in(port: int, password: str) -> bool:
        return Visitor(port).post("/login", name="Grace", password=password).status == 303

    with pages(room) as (instructor, visit, port):
        page = instructor.get("/settings").text
        assert page.count(f'action="/people/{grace.handle}/remove"') == 1
        assert page.count(">Remove</summary>") == 1, "nobody removes themselves"
        assistant = visit(grace)
        path = f"/settings/staff/{grace.handle}/password"
        assert instructor.post(path, password="short").status == 400
        assert instructor.post(path, password="another long one").status == 303
        assert assistant.get("/room").status in (303, 401, 403), "logged out"
        assert can_log_in(port, "another long one")
        by_command = staff_command(room, "Grace", "--new-password").output.split()[-1]
        assert (can_log_in(port, "another long one"), can_log_in(port, by_command)) == (False, True)
        assistant = visit(grace)
        assert instructor.post(f"/people/{grace.handle}/remove").status == 303
        assert assistant.get("/room").status in (303, 401, 403), "logged out"
        assert not can_log_in(port, by_command)
        assert "Grace, removed" in instructor.get("/settings").text
        assert instructor.post(f"/people/{grace.handle}/remove", how="restore").status == 303
        assert can_log_in(port, by_command)
        assert "removed and logged out" in staff_command(room, "Grace", "--remove").output
        assert not can_log_in(port, by_command)
        assert staff_command(room, "Grace").exit_code == 0, "the name is free again"
        two = instructor.post(f"/people/{grace.handle}/remove", how="restore")
        assert (two.status, "is called" in two.text) == (409, True)


def names(room) -> list[str]:
    return [row.name for row in view(room).rows]


def test_a_second_one_of_a_name_is_asked_who_they_are(room):
    first, _ = room.join("Ada")
    with pytest.raises(RefusedError) as refused:
        room.join("ada")
    assert refused.value.code == "same-name"
    assert "--same" in refused.value.remedy
    other, _ = room.join("Ada", same=False)
    again, _ = room.join("Ada", same=True)
    assert names(room) == ["Ada", "Ada (2)", "Ada (3)"]
    (claim,) = view(room).claims
    assert (claim.handle, claim.earlier) == (again.handle, "Ada")
    with room.cohort.database.writing() as connection:
        changes.decide_claim(connection, again, same=True, at=room.clock())
        with pytest.raises(RefusedError, match="claims to be nobody else"):
            changes.decide_claim(connection, other, same=True, at=room.clock())
    assert (names(room), view(room).claims) == (["Ada", "Ada (2)"], [])
    assert first.handle in {row.handle for row in view(room).rows}


def test_merged_learners_count_as_one_and_can_be_separated(room):
    (ada, first), (twin, second) = room.join("Ada"), room.join("Ada L.")
    with room.cohort.database.writing() as connection:
        set_rules(connection, "slow", 0.0, budget=3)
    measured(room, first, Outcome.FAIL)
    handle = measured(room, second)
    with room.cohort.database.writing() as connection:
        changes.merge(connection, twin, ada, room.clock())
    (row,) = view(room).rows
    assert (row.name, row.passed, row.cells[0].attempts) == ("Ada", 1, 2)
    assert view(room).altered == []
    grade = grades(room)[ada.handle, "slow"]
    assert (grade.score, grade.submission, grade.attempts) == (100.0, handle, 2)
    with pages(room) as (instructor, visit, port):
        for token in (first, second):
            mine = Visitor(port, token=token).get("/api/me").json()
            assert len(mine["submissions"]) == 2
            assert {lab["left"] for lab in mine["labs"] if lab["slug"] == "slow"} == {1}
        assert "PASS" in visit(ada).get(f"/me/submissions/{handle}").text
        assert "Ada L. counts as Ada" in instructor.get("/settings").text
        for who, label, other in ((ada, "Includes", "Ada L."), (twin, "Counts as", "Ada")):
            page = instructor.get(f"/people/{who.handle}").text
            assert re.search(rf"<dt>{label}</dt><dd>(<a [^>]*>)?{re.escape(other)}<", page)
            assert f'<a href="/people/{ada.handle}/grades/slow">slow 100.0</a>' in page
            assert page.count(f"<small>by {other}</small>") == 1
        assert saved(instructor, f"/people/{twin.handle}/extend", lab="slow", extra_budget="1")
        (extension,) = room.rows(tables.extensions)
        assert extension.person == ada.id
        assert "Withdraw" in instructor.get(f"/people/{twin.handle}").text
        assert saved(instructor, f"/people/{twin.handle}/extend", lab="slow")
        path = f"/people/{twin.handle}/merge"
        assert saved(instructor, path, how="separate")
        assert names(room) == ["Ada", "Ada L."]
        assert saved(instructor, path, into=ada.handle)
    assert names(room) == ["Ada"]
    assert room.submit(first).left == 0
    with pytest.raises(RefusedError, match="used all 3"):
        room.submit(second)


def test_an_extension_of_a_guest_is_that_of_the_learner_whom_they_count_as(room):
    (ada, _), (guest, _) = room.join("Ada"), room.join("Guest")
    now = room.clock()

    def rules(connection):
        return load_rules(connection, "slow", ada.id)

    with room.cohort.database.writing() as connection:
        set_rules(connection, "slow", 0.0, due=now + 100, budget=3)
        extend(connection, guest.id, "slow", now + 900, 2, now)
        assert (rules(connection).due, rules(connection).budget) == (now + 100, 3)
        changes.merge(connection, guest, ada, now)
        assert (rules(connection).due, rules(connection).budget) == (now + 900, 5)
        extend(connection, ada.id, "slow", now + 300, 0, now)
        assert (rules(connection).due, rules(connection).budget) == (now + 300, 3), "in its place"
        extend(connection, ada.id, "slow", None, 0, now)
        assert rules(connection).due == now + 100


def test_an_override_of_a_guest_is_that_of_the_learner_whom_they_count_as(room):
    (ada, _), (guest, _) = room.join("Ada"), room.join("Guest")
    with room.cohort.database.writing() as connection:
        staff = people.the_instructor(connection, 0.0)
        override_grade(connection, guest, "slow", 12.5, "At the board", staff, 1.0)
        changes.merge(connection, guest, ada, room.clock())
    assert grades(room)[ada.handle, "slow"].override.points == 12.5
    with room.cohort.database.writing() as connection:
        withdraw_override(connection, ada, "slow", staff, 2.0)
    assert grades(room)[ada.handle, "slow"].override is None


def test_a_guest_merged_and_separated_leaves_nothing_behind(sqlite_room):
    room = sqlite_room
    with room.cohort.database.writing() as connection:
        ada = people.add_person(connection, "learner", "Ada", room.clock(), student_id="s1")
    guest, token = room.join("Guest")

    def tiles(instructor) -> tuple[int, list[str], list[str]]:
        page = instructor.get("/room").text
        assert ("(not joined yet)" in page) == any(row.gone for row in view(room).rows)
        (learners,) = re.findall(r"lab_cohort_learners (\d)", instructor.get("/metrics").text)
        assert int(learners) == view(room).joined
        return (
            view(room).joined,
            [row.name for row in view(room).rows if row.gone],
            [row.name for row in view(room).asking_for_help],
        )

    with pages(room) as (instructor, _, port):
        Client(f"http://127.0.0.1:{port}", token).call_for_help("where is line 3?")
        assert tiles(instructor) == (1, ["Ada"], ["Guest"])
        path = f"/people/{guest.handle}/merge"
        assert saved(instructor, path, into=ada.handle)
        assert tiles(instructor) == (1, [], ["Ada"]), "one learner, who has joined and calls"
        assert saved(instructor, path, how="separate")
        assert tiles(instructor) == (1, ["Ada"], ["Guest"]), "as before the merge"
        assert saved(instructor, path, into=ada.handle)
        assert instructor.post(f"/people/{ada.handle}/helped").status == 303
        assert saved(instructor, path, how="separate")
        assert tiles(instructor) == (1, ["Ada"], [])


def test_an_id_that_is_on_no_roster_is_refused_with_the_one_that_may_be_meant(sqlite_room):
    room = sqlite_room

    def remedy(student_id: str) -> str:
        with pytest.raises(RefusedError) as refused:
            room.join("x", student_id=student_id)
        assert refused.value.code == "not-on-roster"
        return refused.value.remedy

    assert remedy("999") == "Join without `--id`."
    with room.cohort.database.writing() as connection:
        people.add_person(connection, "learner", "Ada", 0.0, student_id="0020264")
        people.add_person(connection, "learner", "Bob", 0.0, sis_id="999")
    assert "`--id 0020264`" in remedy("20264")
    assert "`--id 999`" in remedy("0999"), "the roster's file lost it"
    with room.cohort.database.writing() as connection:
        people.add_person(connection, "learner", "Brian", 0.0, sis_login="boneill")
    assert "`--id boneill`" in remedy("BOneill"), "typed as the name is written"
    assert "ask your instructor" in remedy("12")
    assert "--id" not in remedy("12"), "it was given"


def test_who_is_on_the_roster_and_gives_a_name_reads_which_id_to_give(sqlite_room):
    room, name = sqlite_room, "Wei Zhang"
    with room.cohort.database.writing() as connection:
        for login in ("wzhang", "wzhang2"):
            people.add_person(connection, "learner", name, 0.0, sis_id=f"0{login}", sis_login=login)
        (code,) = joining.join_codes(connection)
    with pages(room) as (_, _, port):
        words = ["join", f"http://127.0.0.1:{port}", code, "--name", name]
        refused = CliRunner().invoke(app, words).exception
        assert refused.message == "Wei Zhang is on the roster and has not joined yet."
        assert "`--id` and your SIS user id or SIS login id" in refused.remedy
        visitor = Visitor(port)
        page = visitor.post(f"/join/{code}", name=name).text
        assert "give your SIS user id or SIS login id below" in page
        assert "has already joined" not in page
        assert visitor.post(f"/join/{code}", name=name, student_id="wzhang").status == 303
        assert Visitor(port).post(f"/join/{code}", name=name, same="no").status == 303
        refused = CliRunner().invoke(app, words).exception
        assert "has already joined" in refused.message, "one of them has"


def test_nobody_is_merged_into_a_third_or_into_staff(room):
    (ada, _), (bob, _), (eve, _) = room.join("Ada"), room.join("Bob"), room.join("Eve")
    with room.cohort.database.writing() as connection:
        staff = people.the_instructor(connection, 0.0)
        changes.merge(connection, bob, ada, room.clock())
        for one, into in ((eve, bob), (ada, ada), (eve, staff)):
            with pytest.raises(RefusedError, match="cannot be merged"):
                changes.merge(connection, one, into, room.clock())
        changes.merge(connection, ada, eve, room.clock())
    assert names(room) == ["Eve"]


def test_a_removal_can_be_undone_with_the_token_that_was(room):
    ada, token = room.join("Ada")
    measured(room, token)
    with pages(room) as (instructor, _, port):
        learner = Visitor(port, token=token)
        page = instructor.get(f"/people/{ada.handle}").text
        assert "You can bring them back under Settings" in page
        assert saved(instructor, f"/people/{ada.handle}/remove")
        assert learner.get("/api/me").status == 401
        assert names(room) == []
        assert "Bring back" in instructor.get("/settings").text
        assert saved(instructor, f"/people/{ada.handle}/remove", how="restore")
        assert learner.get("/api/me").status == 200
    assert [row.passed for row in view(room).rows] == [1]


def test_who_is_to_join_again_reads_how_also_on_a_roster(sqlite_room):
    room = sqlite_room
    with room.cohort.database.writing() as connection:
        change_settings(connection, roster_only=True)
        ada = people.add_person(connection, "learner", "Ada", 0.0, student_id="s1")
    _, token = room.join(student_id="s1")
    with room.cohort.database.writing() as connection:
        people.let_join_again(connection, ada)
        with pytest.raises(RefusedError) as refused:
            people.by_token(connection, token)
    assert "--id STUDENT_ID" in refused.value.remedy
    assert room.join(student_id="s1")[0].id == ada.id


def test_a_code_that_is_typed_is_told_from_a_links_token():
    assert is_code(new_code().lower())
    assert is_code(new_code().replace("-", " "))
    assert not any(is_code(new_token()) for _ in range(20))


def test_a_name_that_is_too_long_is_refused_with_the_limit(room):
    with pytest.raises(RefusedError, match="at most 80 characters; this one has 81"):
        room.join("x" * 81)
    ada, _ = room.join("x" * 80)
    with room.cohort.database.writing() as connection:
        changes.rename(connection, ada, "  Ada \n Lovelace ", room.clock())
        with pytest.raises(RefusedError, match="at most 80"):
            changes.rename(connection, ada, "y" * 100, room.clock())
        with pytest.raises(RefusedError, match="needed"):
            changes.rename(connection, ada, " \n", room.clock())
    assert names(room) == ["Ada Lovelace"]


def test_the_room_sees_who_needs_help(room):
    ada, token = room.join("Ada")
    with pages(room) as (instructor, visit, port):
        url = f"http://127.0.0.1:{port}"
        Client(url, token).call_for_help("the capture is empty")
        page = instructor.get("/room").text
        assert "Need help" in page
        assert "the capture is empty" in page
        me = visit(ada)
        assert "that you need help" in me.get("/me").text
        assert instructor.post(f"/people/{ada.handle}/helped").status == 303
        assert "Need help" not in instructor.get("/room").text
        assert me.post("/me/help", text="").status == 303
        assert [row.name for row in view(room).asking_for_help] == ["Ada"]
        assert "needs help: Ada" in status(room)
        twin, again = room.join("Ada L.")
        with room.cohort.database.writing() as connection:
            changes.merge(connection, ada, twin, room.clock())
        assert [row.name for row in view(room).asking_for_help] == ["Ada L."]
        Client(url, token).call_for_help(None)
        assert view(room).asking_for_help == []
        Client(url, token).call_for_help("still empty")
        assert [row.help_text for row in view(room).asking_for_help] == ["still empty"]
        Client(url, again).call_for_help(None)
        assert view(room).asking_for_help == []


def status(room) -> str:
    words = ["cohort", "status", "--folder", str(room.cohort.folder)]
    return CliRunner().invoke(app, words).output


def test_joining_again_on_the_same_machine_makes_no_second_learner(room):
    with room.cohort.database.reading() as connection:
        code = joining.join_codes(connection)[0]
    with pages(room) as (_, _, port):
        url = f"http://127.0.0.1:{port}"

        def join(*words: str):
            return CliRunner().invoke(app, ["join", url, code, *words])

        assert "You have joined" in join("--name", "Ada").output
        assert "◆ is a lab of 'Autumn workshop'" in CliRunner().invoke(app, ["list"]).output
        with room.cohort.database.writing() as connection:
            choose_labs(connection, ["slow"], room.clock())
        assert CliRunner().invoke(app, ["status"]).exit_code == 0
        listed = json.loads(CliRunner().invoke(app, ["list", "--json"]).output)
        assert [one["lab"] for one in listed if one["workshop"]] == ["slow"]
        first = load_membership().joined.learner
        assert "You have already joined" in join("--name", "Ada").output
        assert names(room) == ["Ada"]
        assert join("--name", "Bob").exit_code == 0
        refused = join("--name", "Ada")
        assert "already joined" in refused.exception.message
        assert "--same" in refused.exception.remedy
        assert "will confirm it" in join("--name", "Ada", "--same").output
        assert load_membership().joined.learner != first
        assert len(view(room).claims) == 1


def test_what_was_revoked_or_withdrawn_comes_back(room):
    with room.cohort.database.reading() as connection:
        code = joining.join_codes(connection)[0]
    with pages(room) as (instructor, _, _):
        assert f"Revoke {code}" in instructor.get("/settings").text
        instructor.post("/settings/codes", revoke=code)
        assert "Make valid again" in instructor.get("/settings").text
        instructor.post("/settings/codes", restore=code)
        instructor.post("/room/announce", text="Pizza at noon")
        instructor.post("/room/announce", withdraw="1")
        assert "Announce again" in instructor.get("/room").text
        instructor.post("/room/announce", again="1")
    assert [text for _, text in view(room).announcements] == ["Pizza at noon"]
    assert room.join("Ada")[0].name == "Ada"
    assert Join(code, "x").same is None
    assert {row.revoked for row in room.rows(tables.join_codes)} == {None}


def test_two_of_one_name_are_shown_with_their_ids(sqlite_room):
    room = sqlite_room
    with room.cohort.database.writing() as connection:
        for student_id in ("s1", "s2"):
            people.add_person(connection, "learner", "Ada", 0.0, student_id=student_id)
        people.add_person(connection, "learner", "Bob", 0.0, student_id="s3")
    assert names(room) == ["Ada (s1)", "Ada (s2)", "Bob"]
    with pages(room) as (instructor, _, _):
        page = instructor.get("/grades").text
        for shown in (">Ada (s1)<", ">Ada (s2)<", ">Bob<"):
            assert shown in page
