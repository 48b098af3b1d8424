"""Signing in with an account elsewhere, and a learning platform's roster and gradebook.

Only served where `cohort.toml` declares a provider or a platform: this needs the extra `sign-in`.
"""

from __future__ import annotations

from typing import Annotated, cast

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.responses import RedirectResponse, Response

from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.server.guard import (
    INSTRUCTOR,
    OPEN,
    AsInstructor,
    Fields,
    client,
    form,
    let_in,
    read_form,
)
from bottleneck_lab.cohort.server.state import State, state
from bottleneck_lab.cohort.sign_in import lti
from bottleneck_lab.cohort.sign_in.courses import (
    enter_members,
    find_course,
    keep_course,
    load_courses,
    load_scores,
)
from bottleneck_lab.cohort.sign_in.identities import sign_in
from bottleneck_lab.cohort.sign_in.openid import OpenId
from bottleneck_lab.cohort.sign_in.tokens import BEGUN_S, BegunSignIns
from bottleneck_lab.wording import counted

router = APIRouter()
COOKIE = "bottleneck_lab_sign_in"
ForeignForm = Annotated[Fields, Depends(read_form)]
"""A form that another site sends: what it says is believed only once its token is verified."""


class SignIns:
    """State that these routes share: sign-ins under way, the providers, and our key."""

    def __init__(self, shared: State) -> None:
        config = shared.cohort.config
        self.begun = BegunSignIns(shared.cohort.database.clock)
        self.openid = OpenId(config.oidc, f"{shared.url}/oidc/callback") if config.oidc else None
        self.platforms = config.lti
        self.launch_url = f"{shared.url}/lti/launch"
        self.key = lti.load_tool_key(shared.cohort.key_file.with_name("lti.pem"))


def mount(app: FastAPI, shared: State) -> None:
    """Serve these routes too."""
    app.state.sign_ins = SignIns(shared)
    app.include_router(router)


def _sign_ins(request: Request) -> SignIns:
    return cast("SignIns", request.app.state.sign_ins)


def _send(request: Request, url: str, token: str) -> Response:
    """Send a browser to a provider, with the state of its sign-in in a cookie."""
    secure = state(request).url.startswith("https:")
    answer = RedirectResponse(url, status_code=303)
    # A platform answers with a form of its own site, which carries cookies of ours only if they say
    # so; browsers take that from https alone.
    answer.set_cookie(
        COOKIE,
        token,
        httponly=True,
        samesite="none" if secure else "lax",
        secure=secure,
        max_age=int(BEGUN_S),
    )
    return answer


@router.get("/oidc/login", dependencies=[Depends(OPEN)])
def openid_login(request: Request) -> Response:
    """Send a browser to the OpenID provider."""
    kept = _sign_ins(request)
    state(request).joins.count(client(request))
    openid = _require(kept.openid)
    token, begun = kept.begun.begin(openid.provider.issuer, openid.provider.client_id)
    return _send(request, openid.begin(token, begun), token)


@router.get("/oidc/callback", dependencies=[Depends(OPEN)])
def openid_callback(
    request: Request,
    code: str = "",
    error: str = "",
    token: Annotated[str, Query(alias="state")] = "",
) -> Response:
    """Let somebody in whom the OpenID provider sends back."""
    kept, database = _sign_ins(request), state(request).cohort.database
    openid = _require(kept.openid)
    begun = kept.begun.end(token, request.cookies.get(COOKIE, ""))
    if error or not code:
        raise RefusedError(
            "forbidden", f"The provider did not let you in: {error or 'no code'}.", "Begin again."
        )
    profile = openid.end(code, begun, database.clock())
    with database.writing() as connection:
        person = sign_in(connection, profile, database.clock())
    return let_in(request, person, "/")


def _require(openid: OpenId | None) -> OpenId:
    if openid is None:
        raise RefusedError(
            "not-found", "This cohort has no OpenID provider.", "`[oidc]` in cohort.toml names one."
        )
    return openid


@router.get("/lti/login", dependencies=[Depends(OPEN)])
def lti_login(request: Request) -> Response:
    """Answer a platform that announces a launch."""
    return _announced(request, dict(request.query_params))


@router.post("/lti/login", dependencies=[Depends(OPEN)])
def lti_login_form(request: Request, fields: ForeignForm) -> Response:
    """Answer a platform that announces a launch by a form."""
    return _announced(request, fields)


def _announced(request: Request, fields: dict[str, str]) -> Response:
    kept = _sign_ins(request)
    state(request).joins.count(client(request))
    platform = lti.find_platform(kept.platforms, fields.get("iss", ""), fields.get("client_id", ""))
    token, begun = kept.begun.begin(platform.issuer, platform.client_id)
    return _send(request, lti.begin(platform, fields, token, begun, kept.launch_url), token)


@router.post("/lti/launch", dependencies=[Depends(OPEN)])
def lti_launch(request: Request, fields: ForeignForm) -> Response:
    """Let somebody in who comes from a learning platform, and keep the course's services."""
    kept, database = _sign_ins(request), state(request).cohort.database
    begun = kept.begun.end(fields.get("state", ""), request.cookies.get(COOKIE, ""))
    if "error" in fields:
        raise RefusedError(
            "forbidden", f"The platform did not let you in: {fields['error']}.", "Begin again."
        )
    platform = lti.find_platform(kept.platforms, begun.issuer, begun.client_id)
    launch = lti.end(platform, fields.get("id_token", ""), begun, database.clock())
    with database.writing() as connection:
        person = sign_in(connection, launch.profile, database.clock())
        keep_course(connection, launch.course)
    return let_in(request, person, "/")


@router.get("/lti/keys", dependencies=[Depends(OPEN)])
def lti_keys(request: Request) -> Response:
    """Return the public key of this cohort's requests to platforms."""
    keys = lti.public_keys(_sign_ins(request).key)
    return Response(msgspec.json.encode(keys), media_type="application/json")


@router.get("/courses")
def courses(request: Request, session: AsInstructor) -> Response:
    """Show the courses that have launched this cohort, and what platforms need to know of it."""
    return _courses(request, session, "")


@router.post("/courses/{number}", dependencies=[Depends(INSTRUCTOR)])
def use_service(
    request: Request,
    session: AsInstructor,
    number: int,
    fields: Annotated[Fields, Depends(form)],
) -> Response:
    """Fetch the roster of a course, or send it the grades. Raises RefusedError if that fails."""
    kept, shared = _sign_ins(request), state(request)
    database = shared.cohort.database
    with database.reading() as connection:
        course = find_course(connection, number)
        scores = load_scores(connection, shared.judge, course)
    platform = lti.find_platform(kept.platforms, course.issuer, course.client_id)
    services = lti.Services(platform, course, kept.key)
    if fields.get("service") == "roster":
        members = services.members()
        with database.writing() as connection:
            added, corrected = enter_members(connection, course, members, database.clock())
        done = f"Added: {counted(added, 'learner')}; corrected: {corrected}."
    else:
        done = f"{services.push(scores.grades)} grades were sent."
        if scores.unknown:
            done += f" Not in that course: {', '.join(scores.unknown)}."
    return _courses(request, session, done)


def _courses(request: Request, session: AsInstructor, done: str) -> Response:
    with state(request).cohort.database.reading() as connection:
        listed = load_courses(connection)
    names = {each.issuer: each.name for each in _sign_ins(request).platforms}
    return state(request).page("courses.html", session, courses=listed, names=names, done=done)
