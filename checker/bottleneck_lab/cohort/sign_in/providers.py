"""Providers of accounts as `cohort.toml` declares them: an OpenID provider, learning platforms."""

from __future__ import annotations

import msgspec


class OpenIdProvider(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An OpenID provider, found by its `issuer`.

    `name` stands on the button. `student_id` names the claim that holds the id of the roster, if
    one does; `instructors` and `assistants` are verified addresses of email.
    """

    issuer: str
    client_id: str
    client_secret: str = ""
    name: str = "your account"
    student_id: str = ""
    instructors: list[str] = []
    assistants: list[str] = []


class LtiPlatform(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A learning platform that launches this cohort by LTI 1.3, with the addresses it gives out.

    Only its `courses` may, by their ids: who teaches another course is no instructor here.
    """

    issuer: str
    client_id: str
    deployments: list[str]
    courses: list[str]
    authorization_url: str
    token_url: str
    keys_url: str
    name: str = "the learning platform"
