"""Signing in with OpenID Connect and LTI 1.3, against a provider on loopback."""

from __future__ import annotations

import re
import time
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
from joserfc.jwk import RSAKey

from bottleneck_lab.cohort.grading.grades import override_grade
from bottleneck_lab.cohort.members import joining, people
from bottleneck_lab.cohort.members.changes import remove
from bottleneck_lab.cohort.members.roster import enter_roster
from bottleneck_lab.cohort.protocol import Join
from bottleneck_lab.cohort.server.guard import Needs, declared
from bottleneck_lab.cohort.server.sign_in import router
from bottleneck_lab.cohort.settings import change_settings
from bottleneck_lab.cohort.sign_in.lti import CLAIM, role_of
from bottleneck_lab.cohort.store import tables

from ..processes import PATIENCE_S
from .conftest import opened_room
from .pages import look
from .provider import CLIENT, DEPLOYMENT, SECRET, provider
from .serving import serving

CONFIG = """
[oidc]
issuer = "{issuer}"
client_id = "{client}"
client_secret = "{secret}"
name = "Example University"
student_id = "matriculation"
instructors = ["Prof@example.org"]

[[lti]]
issuer = "{issuer}"
client_id = "{client}"
deployments = ["{deployment}"]
courses = ["c1"]
authorization_url = "{issuer}/authorize"
token_url = "{issuer}/token"
keys_url = "{issuer}/keys"
name = "Example LMS"
"""


class House:
    """A served cohort, and the provider that it declares."""

    def __init__(self, room, port, accounts) -> None:
        self.room, self.accounts, self.url = room, accounts, f"http://127.0.0.1:{port}"
        accounts.tool_keys = f"{self.url}/lti/keys"

    def openid(self, browser=None, **claims):
        """The page that a browser comes to after signing in with these claims."""
        self.accounts.claims = claims
        return (browser or requests.Session()).get(f"{self.url}/oidc/login", timeout=PATIENCE_S)

    def announce(self, browser) -> dict[str, str]:
        """Announce a launch; return what our server asks of the platform."""
        hints = {"iss": self.accounts.issuer, "login_hint": "u", "client_id": CLIENT}
        reply = browser.post(
            f"{self.url}/lti/login", hints, allow_redirects=False, timeout=PATIENCE_S
        )
        query = parse_qs(urlsplit(reply.headers["Location"]).query)
        return {name: values[0] for name, values in query.items()}

    def launch(self, subject: str, *roles: str, browser=None, state=None, **claims):
        browser = browser or requests.Session()
        query = self.announce(browser)
        token = self.accounts.launch(query["nonce"], [*roles], sub=subject, **claims)
        fields = {"state": state or query["state"], "id_token": token}
        return browser.post(f"{self.url}/lti/launch", fields, timeout=PATIENCE_S)

    def people(self) -> dict[str, str]:
        return {row.name: row.role for row in self.room.rows(tables.people)}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    from bottleneck_lab import catalog

    from .conftest import MINI

    folder = tmp_path_factory.mktemp("sign-in") / "cohort"
    with pytest.MonkeyPatch.context() as patch, provider() as accounts:
        patch.setenv("BOTTLENECK_LAB_CONTENT", str(MINI))
        patch.setenv("BOTTLENECK_LAB_HOME", str(folder.parent / "home"))
        catalog.load_labs.cache_clear()
        with opened_room(folder) as room:
            room.cohort.database.clock = room.clock = time.time
            with (folder / "cohort.toml").open("a") as config:
                names = {"issuer": accounts.issuer, "client": CLIENT, "secret": SECRET}
                config.write(CONFIG.format(**names, deployment=DEPLOYMENT))
            with serving(folder) as (port, _):
                yield House(room, port, accounts)
        catalog.load_labs.cache_clear()


@pytest.fixture
def house(shared):
    """With nobody in it, and no roster needed."""
    with shared.room.cohort.database.writing() as connection:
        change_settings(connection, roster_only=False)
        for name in ("overrides", "identities", "sessions", "lti_courses", "people"):
            connection.execute(tables.metadata.tables[name].delete())
    shared.accounts.members, shared.accounts.columns, shared.accounts.scores = [], [], []
    return shared


def test_an_openid_account_is_the_same_person_at_every_sign_in(house):
    browser = requests.Session()
    page = house.openid(browser, sub="1", name="Ada", email="ada@example.org")
    assert page.url == f"{house.url}/me"
    assert "Ada" in page.text
    house.openid(sub="1", name="Ada Lovelace")
    assert house.people() == {"Ada": "learner"}
    assert (
        "Log in with Example University"
        in requests.get(f"{house.url}/login", timeout=PATIENCE_S).text
    )


def test_an_address_counts_only_if_the_provider_has_verified_it(house):
    false = house.openid(sub="2", name="Mallory", email="prof@example.org", email_verified=False)
    assert false.url == f"{house.url}/me"
    prof = house.openid(sub="3", name="Prof", email="prof@example.org", email_verified=True)
    assert prof.url == f"{house.url}/room"
    assert house.people() == {"Mallory": "learner", "Prof": "instructor"}


def test_the_roster_is_met_by_its_id_or_a_verified_address(house):
    learners = [
        {"student_id": "s1", "name": "Ada"},
        {"student_id": "s2", "name": "Bob", "email": "Bob@example.org"},
    ]
    with house.room.cohort.database.writing() as connection:
        enter_roster(connection, learners, time.time())
        change_settings(connection, roster_only=True)
    assert house.openid(sub="1", matriculation="s1").status_code == 200
    assert house.openid(sub="2", email="bob@EXAMPLE.org", email_verified=True).status_code == 200
    for claims in ({"matriculation": "s1"}, {"email": "bob@example.org"}, {}):
        answer = house.openid(sub="9", name="Eve", email_verified=True, **claims)
        assert answer.status_code == 403
        assert "not on this cohort" in answer.text
    accounts = {row.subject: row.person for row in house.room.rows(tables.identities)}
    names = {row.id: row.name for row in house.room.rows(tables.people)}
    assert {subject: names[number] for subject, number in accounts.items()} == {
        "1": "Ada",
        "2": "Bob",
    }


def test_who_was_removed_stays_out(house):
    house.openid(sub="1", name="Ada")
    with house.room.cohort.database.writing() as connection:
        (row,) = house.room.rows(tables.people)
        remove(connection, people.by_handle(connection, row.handle), time.time())
    assert "You were removed" in house.openid(sub="1", name="Ada").text


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "another"},
        {"iss": "http://evil.example"},
        {"nonce": "guessed"},
        {"exp": 1},
        {"azp": "another"},
        {"aud": [CLIENT, "another"], "azp": "another"},
    ],
    ids=str,
)
def test_an_id_token_that_is_not_for_us_lets_nobody_in(house, claims):
    answer = house.openid(sub="1", name="Ada", **claims)
    assert answer.status_code == 403
    assert "not genuine" in answer.text
    assert house.people() == {}


def test_an_answer_counts_once_and_in_the_browser_that_asked(house):
    mine, other = requests.Session(), requests.Session()
    house.accounts.claims = {"sub": "1", "name": "Ada"}
    begun = mine.get(f"{house.url}/oidc/login", allow_redirects=False, timeout=PATIENCE_S)
    back = mine.get(begun.headers["Location"], allow_redirects=False, timeout=PATIENCE_S)
    callback = back.headers["Location"]
    assert other.get(callback, timeout=PATIENCE_S).status_code == 403
    assert mine.get(callback, timeout=PATIENCE_S).url == f"{house.url}/me"
    assert mine.get(callback, timeout=PATIENCE_S).status_code == 403, "used up"
    refused = requests.Session()
    begun = refused.get(f"{house.url}/oidc/login", allow_redirects=False, timeout=PATIENCE_S)
    state = parse_qs(urlsplit(begun.headers["Location"]).query)["state"][0]
    answer = refused.get(
        f"{house.url}/oidc/callback?error=access_denied&state={state}", timeout=PATIENCE_S
    )
    assert "access_denied" in answer.text


def test_a_launch_brings_role_and_course(house):
    assert house.launch("t1", "membership#Instructor", name="Prof").url == f"{house.url}/room"
    assert house.launch("s1", "membership#Learner", name="Ada").url == f"{house.url}/me"
    assert house.people() == {"Prof": "instructor", "Ada": "learner"}
    house.launch("s1", "membership#Learner", name="Ada")
    assert len(house.people()) == 2
    (course,) = house.room.rows(tables.lti_courses)
    assert (course.title, course.context) == ("GPU 101", "c1")


@pytest.mark.parametrize(
    ("roles", "role"),
    [
        (["membership#Instructor"], "instructor"),
        (["membership/Instructor#TeachingAssistant", "membership#Instructor"], "assistant"),
        (["membership#Learner", "institution/person#Instructor"], "learner"),
        (["system/person#Administrator"], "learner"),
        ([], "learner"),
    ],
)
def test_only_a_role_in_the_course_counts(roles, role):
    assert role_of(f"http://purl.imsglobal.org/vocab/lis/v2/{each}" for each in roles) == role


def test_a_launch_that_is_not_genuine_lets_nobody_in(house):
    browser = requests.Session()
    query = house.announce(browser)
    stranger = RSAKey.generate_key(2048, {"use": "sig"})
    stranger.ensure_kid()
    forged = house.accounts.launch(query["nonce"], [], stranger, sub="s1")
    fields = {"state": query["state"], "id_token": forged}
    assert browser.post(f"{house.url}/lti/launch", fields, timeout=PATIENCE_S).status_code == 403
    assert house.launch("s1", state="guessed").status_code == 403
    assert house.launch("s1", **{f"{CLAIM}deployment_id": "2"}).status_code == 403
    assert house.launch("s1", **{f"{CLAIM}version": "1.1"}).status_code == 403
    elsewhere = {f"{CLAIM}context": {"id": "c2", "title": "Poetry"}}
    refused = house.launch("t2", "membership#Instructor", **elsewhere)
    assert refused.status_code == 403, "who teaches another course is no instructor here"
    assert "Poetry&#39; with the id c2" in refused.text
    unknown = {"iss": "http://evil.example", "login_hint": "u"}
    assert requests.post(f"{house.url}/lti/login", unknown, timeout=PATIENCE_S).status_code == 403
    assert house.people() == {}


def test_roster_and_grades_go_there_and_back(house):
    room, accounts = house.room, house.accounts
    accounts.members = [
        {"user_id": "t1", "roles": ["Instructor"], "name": "Prof"},
        {"user_id": "s1", "roles": ["Learner"], "name": "Ada L.", "lis_person_sourcedid": "77"},
        {"user_id": "s2", "roles": ["Learner"], "given_name": "Bob", "family_name": "B."},
        {"user_id": "s3", "roles": ["Learner"], "name": "Gone", "status": "Inactive"},
    ]
    with room.cohort.database.writing() as connection:
        enter_roster(connection, [{"student_id": "77", "name": "Ada"}], time.time())
    browser = requests.Session()
    house.launch("t1", "membership#Instructor", name="Prof", browser=browser)
    page = browser.get(f"{house.url}/courses", timeout=PATIENCE_S).text
    csrf = re.search(r'name="csrf" value="([^"]+)"', page).group(1)
    number = re.search(r"/courses/(\d+)", page).group(1)

    def use(service: str) -> str:
        fields = {"csrf": csrf, "service": service}
        return browser.post(f"{house.url}/courses/{number}", fields, timeout=PATIENCE_S).text

    for expected in ("Added: 1 learner; corrected: 1.", "Added: 0 learners; corrected: 0."):
        assert expected in use("roster")
    learners = {row.name: row for row in room.rows(tables.people) if row.role == "learner"}
    assert {name: row.student_id for name, row in learners.items()} == {
        "Ada L.": "77",
        "Bob B.": "s2",
    }
    with room.cohort.database.writing() as connection:
        prof = next(row for row in room.rows(tables.people) if row.name == "Prof")
        author = people.by_handle(connection, prof.handle)
        outsider, _ = joining.join(
            connection,
            Join(joining.join_codes(connection)[0], "Eve"),
            time.time(),
        )
        for handle, points in ((learners["Ada L."].handle, 80.0), (outsider.handle, 10.0)):
            who = people.by_handle(connection, handle)
            override_grade(connection, who, "slow", points, "seen", author, time.time())
    for _ in range(2):  # what was sent can be sent again
        assert "1 grades were sent. Not in that course: Eve." in use("grades")
    assert [(each["resourceId"], each["scoreMaximum"]) for each in accounts.columns] == [
        ("slow", 100.0)
    ]
    path, score = accounts.scores[-1]
    assert path == "/columns/0/scores"
    assert (score["userId"], score["scoreGiven"], score["comment"]) == ("s1", 80.0, "seen")
    assert len(accounts.scores) == 2
    house.launch("s1", "membership#Learner", browser=browser)
    assert browser.get(f"{house.url}/courses", timeout=PATIENCE_S).status_code == 403


@pytest.mark.browser
def test_a_browser_goes_there_and_back(house, browser):
    """By the button on the login page; then what an instructor sees of courses."""
    house.launch("t1", "membership#Instructor", name="Prof")
    house.accounts.claims = {"sub": "t1", "name": "Prof"}
    page = browser.new_page()
    page.goto(f"{house.url}/login")
    look(page, "login-openid")
    page.click("text=Log in with Example University")
    page.wait_for_selector("h1:has-text('Prof')")
    house.accounts.claims |= {"email": "prof@example.org", "email_verified": True}
    page.click("text=Log out")
    page.click("text=Log in with Example University")
    page.click("nav >> text=Grades")
    page.click("text=Courses of learning platforms")
    look(page, "courses")
    page.click("button:has-text('Fetch the roster')")
    page.wait_for_selector("text=Added: 0 learners")


def test_every_route_of_signing_in_declares_who_may_use_it():
    for route in router.routes:
        guards = [each for each in declared(route.dependant) if isinstance(each, Needs)]
        staff = route.path.startswith("/courses")
        assert [each.role for each in guards] == ["instructor" if staff else None]


def test_a_provider_that_is_silent_is_named(tmp_path, house):
    issuer = house.accounts.issuer
    house.accounts.issuer = "http://another.example"
    try:
        answer = house.openid(sub="1")
    finally:
        house.accounts.issuer = issuer
    assert answer.status_code == 503
    assert "does not answer as it should" in answer.text
