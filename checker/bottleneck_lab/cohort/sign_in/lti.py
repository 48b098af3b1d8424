"""LTI 1.3: launches from a learning platform, its roster, and grades pushed into its gradebook.

Specifications: LTI Core 1.3; Names and Role Provisioning Services 2.0; Assignment and Grade
Services 2.0 (1EdTech). The flows are those of OpenID Connect and OAuth 2, so Authlib does them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
import requests
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.requests_client import OAuth2Session
from authlib.oauth2.rfc7523 import PrivateKeyJWT
from joserfc.jwk import KeySet, RSAKey

from bottleneck_lab.cohort.grading.grades import Grade
from bottleneck_lab.cohort.members.people import Role
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.sign_in.identities import Profile
from bottleneck_lab.cohort.sign_in.providers import LtiPlatform
from bottleneck_lab.cohort.sign_in.tokens import TIMEOUT_S, Begun, unreachable, verify
from bottleneck_lab.workspace.atomic import write_bytes

CLAIM = "https://purl.imsglobal.org/spec/lti/claim/"
MEMBERS = "https://purl.imsglobal.org/spec/lti-nrps/claim/namesroleservice"
GRADES = "https://purl.imsglobal.org/spec/lti-ags/claim/endpoint"
READ_MEMBERS = "https://purl.imsglobal.org/spec/lti-nrps/scope/contextmembership.readonly"
LINE_ITEMS = "https://purl.imsglobal.org/spec/lti-ags/scope/lineitem"
SCORES = "https://purl.imsglobal.org/spec/lti-ags/scope/score"
_MEMBERSHIP = "http://purl.imsglobal.org/vocab/lis/v2/membership"
_MEMBER_LIST = "application/vnd.ims.lti-nrps.v2.membershipcontainer+json"
_ITEM, _ITEM_LIST = (f"application/vnd.ims.lis.v2.lineitem{end}+json" for end in ("", "container"))
_SCORE = "application/vnd.ims.lis.v1.score+json"
MOST_PAGES = 100


class Course(msgspec.Struct, frozen=True):
    """A course that launches this cohort. Its services are empty if the platform grants none."""

    id: int
    issuer: str
    client_id: str
    context: str
    title: str
    memberships: str
    lineitems: str


class Launch(msgspec.Struct, frozen=True):
    """A genuine launch: who came, and from which course (whose `id` is not known yet)."""

    profile: Profile
    course: Course


def load_tool_key(file: Path) -> RSAKey:
    """Return the key with which this cohort signs its requests, drawn where there is none.

    Another than the one for verdicts: LTI prescribes RSA.
    """
    if not file.exists():
        write_bytes(file, RSAKey.generate_key(2048).as_pem(private=True))
        file.chmod(0o600)
    key = RSAKey.import_key(file.read_bytes(), {"use": "sig", "alg": "RS256"})
    key.ensure_kid()
    return key


def public_keys(key: RSAKey) -> dict[str, Any]:
    """Return the key set that platforms fetch."""
    return dict(KeySet([key]).as_dict(private=False))


def find_platform(platforms: Iterable[LtiPlatform], issuer: str, client_id: str) -> LtiPlatform:
    """Return the platform that a launch comes from. Raises RefusedError if it is not declared."""
    for platform in platforms:
        if platform.issuer == issuer and client_id in ("", platform.client_id):
            return platform
    raise RefusedError(
        "forbidden",
        f"This cohort does not know the platform {issuer[:100]}.",
        "Its issuer and client id belong into cohort.toml.",
    )


def begin(
    platform: LtiPlatform, fields: dict[str, str], state: str, begun: Begun, launch_url: str
) -> str:
    """Return the address at the platform that answers a login initiation with a launch."""
    query = {
        "scope": "openid",
        "response_type": "id_token",
        "response_mode": "form_post",
        "prompt": "none",
        "client_id": platform.client_id,
        "redirect_uri": launch_url,
        "state": state,
        "nonce": begun.nonce,
        "login_hint": fields.get("login_hint", ""),
    }
    if hint := fields.get("lti_message_hint"):
        query["lti_message_hint"] = hint
    mark = "&" if "?" in platform.authorization_url else "?"
    return f"{platform.authorization_url}{mark}{urlencode(query)}"


def end(platform: LtiPlatform, id_token: str, begun: Begun, now: float) -> Launch:
    """Return what a launch says. Raises RefusedError for one that is not genuine."""
    expected = {
        "iss": platform.issuer,
        "nonce": begun.nonce,
        f"{CLAIM}version": "1.3.0",
        f"{CLAIM}message_type": "LtiResourceLinkRequest",
    }
    claims = verify(id_token, platform.keys_url, expected, now, platform.client_id)
    context = claims.get(f"{CLAIM}context", {})
    deployment, course_id = claims.get(f"{CLAIM}deployment_id"), str(context.get("id", ""))
    title = str(context.get("title") or context.get("label") or "Course")
    if deployment not in platform.deployments:
        raise _unknown(f"deployment {deployment}", "deployments")
    if course_id not in platform.courses:
        raise _unknown(f"course '{title}' with the id {course_id}", "courses")
    profile = Profile(
        platform.issuer,
        claims["sub"],
        str(claims.get("name", "")),
        role_of(claims.get(f"{CLAIM}roles", [])),
        str(claims.get("email", "")),
        str(claims.get(f"{CLAIM}lis", {}).get("person_sourcedid", "")),
        str(claims.get("given_name", "")),
        str(claims.get("family_name", "")),
    )
    course = Course(
        0,
        platform.issuer,
        platform.client_id,
        course_id,
        title,
        str(claims.get(MEMBERS, {}).get("context_memberships_url", "")),
        str(claims.get(GRADES, {}).get("lineitems", "")),
    )
    return Launch(profile, course)


def _unknown(what: str, setting: str) -> RefusedError:
    return RefusedError(
        "forbidden",
        f"This cohort does not know the {what}.",
        f"Your instructor can add it to `{setting}` in cohort.toml.",
    )


def role_of(roles: Iterable[str]) -> Role:
    """Return the role in the course. What somebody is elsewhere in the institution is no role here.

    Who assists has the role of an instructor as well, by the specification's vocabulary.
    """
    names = {
        role.rpartition("#")[2]
        for role in roles
        if "#" not in role or role.startswith((f"{_MEMBERSHIP}#", f"{_MEMBERSHIP}/"))
    }
    if "TeachingAssistant" in names:
        return "assistant"
    return "instructor" if "Instructor" in names else "learner"


class Services:
    """The services that a platform offers for one course."""

    def __init__(self, platform: LtiPlatform, course: Course, key: RSAKey) -> None:
        self._platform, self._course, self._key = platform, course, key

    def members(self) -> list[dict[str, Any]]:
        """Return the active members of the course, as the platform describes them."""
        session = self._session(READ_MEMBERS)
        pages = self._pages(session, self._course.memberships, _MEMBER_LIST)
        members = [member for page in pages for member in page.get("members", [])]
        return [member for member in members if member.get("status", "Active") == "Active"]

    def push(self, grades: Iterable[tuple[str, Grade]]) -> int:
        """Send grades, each with the account that it is of, and return how many.

        A lab's column is made where the platform has none. What was sent once can be sent again.
        """
        session = self._session(f"{LINE_ITEMS} {SCORES}")
        pages = self._pages(session, self._course.lineitems, _ITEM_LIST)
        columns = {
            str(item["resourceId"]): str(item["id"])
            for page in pages
            for item in page
            if item.get("resourceId")
        }
        sent = 0
        for subject, grade in grades:
            if grade.lab not in columns:
                columns[grade.lab] = self._add_column(session, grade)
            # The address of a column may have a query, as Moodle's do: the path goes before it.
            path, mark, query = columns[grade.lab].partition("?")
            score = {
                "userId": subject,
                "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "scoreGiven": grade.score,
                "scoreMaximum": grade.max_score,
                "comment": grade.override.comment if grade.override else _explain(grade),
                "activityProgress": "Completed",
                "gradingProgress": "FullyGraded",
            }
            self._send(session, f"{path}/scores{mark}{query}", _SCORE, score)
            sent += 1
        return sent

    def _add_column(self, session: OAuth2Session, grade: Grade) -> str:
        item = {"scoreMaximum": grade.max_score, "label": grade.lab, "resourceId": grade.lab}
        made = self._send(session, self._course.lineitems, _ITEM, item).json()
        return str(made["id"])

    def _session(self, scope: str) -> OAuth2Session:
        """Return a session with a token for `scope`, got by an assertion signed with our key."""
        session = OAuth2Session(
            self._platform.client_id,
            self._key,
            scope=scope,
            token_endpoint_auth_method="private_key_jwt",
            default_timeout=TIMEOUT_S,
        )
        url = self._platform.token_url
        session.register_client_auth_method(PrivateKeyJWT(url, headers={"kid": self._key.kid}))
        try:
            session.fetch_token(url, grant_type="client_credentials", scope=scope)
        except (AuthlibBaseError, requests.RequestException, ValueError) as error:
            raise unreachable(url, error) from error
        return session

    def _pages(self, session: OAuth2Session, url: str, kind: str) -> Iterator[Any]:
        host = urlsplit(url).netloc
        for _ in range(MOST_PAGES):
            try:
                reply = session.get(url, headers={"Accept": kind})
                reply.raise_for_status()
                yield reply.json()
            except (requests.RequestException, ValueError) as error:
                raise unreachable(url, error) from error
            url = reply.links.get("next", {}).get("url", "")
            if not url or urlsplit(url).netloc != host:  # our token goes nowhere else
                return

    def _send(
        self, session: OAuth2Session, url: str, kind: str, message: dict[str, Any]
    ) -> requests.Response:
        data = msgspec.json.encode(message)
        try:
            reply: requests.Response = session.post(url, data=data, headers={"Content-Type": kind})
            reply.raise_for_status()
        except requests.RequestException as error:
            raise unreachable(url, error) from error
        return reply


def _explain(grade: Grade) -> str:
    """Return where points come from, in one line."""
    late = f", {grade.penalty:g} off for being late" if grade.penalty else ""
    return f"{grade.outcome}: {grade.held} of {grade.total} criteria{late}"
