"""Signing in at an OpenID provider: the authorization-code flow with PKCE."""

from __future__ import annotations

from typing import Any

import requests
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.requests_client import OAuth2Session

from bottleneck_lab.cohort.members.people import Role
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.sign_in.identities import Profile
from bottleneck_lab.cohort.sign_in.providers import OpenIdProvider
from bottleneck_lab.cohort.sign_in.tokens import TIMEOUT_S, Begun, fetch, unreachable, verify

SCOPE = "openid profile email"


class OpenId:
    """One provider, for a cohort whose callback is at `redirect_uri`."""

    def __init__(self, provider: OpenIdProvider, redirect_uri: str) -> None:
        self.provider, self._redirect_uri = provider, redirect_uri

    def _session(self) -> OAuth2Session:
        return OAuth2Session(
            self.provider.client_id,
            self.provider.client_secret or None,
            scope=SCOPE,
            redirect_uri=self._redirect_uri,
            code_challenge_method="S256",
            default_timeout=TIMEOUT_S,
        )

    def _discover(self) -> dict[str, Any]:
        """Return the provider's addresses (OpenID Connect Discovery 1.0, section 4)."""
        url = f"{self.provider.issuer.rstrip('/')}/.well-known/openid-configuration"
        described = fetch(url)
        if described.get("issuer") != self.provider.issuer:
            raise unreachable(url, ValueError(f"it is about the issuer {described.get('issuer')}"))
        return described

    def begin(self, state: str, begun: Begun) -> str:
        """Return the address at the provider that a browser is sent to."""
        url, _ = self._session().create_authorization_url(
            self._discover()["authorization_endpoint"],
            state=state,
            nonce=begun.nonce,
            code_verifier=begun.verifier,
        )
        return str(url)

    def end(self, code: str, begun: Begun, now: float) -> Profile:
        """Exchange the code for an id token, and return what it says.

        Raises RefusedError if the provider refuses, or says nothing that can be trusted.
        """
        addresses = self._discover()
        try:
            answer = self._session().fetch_token(
                addresses["token_endpoint"],
                grant_type="authorization_code",
                code=code,
                code_verifier=begun.verifier,
            )
        except (AuthlibBaseError, requests.RequestException, ValueError) as error:
            raise RefusedError(
                "forbidden", f"The provider did not let you in: {error}.", "Begin again."
            ) from error
        claims = verify(
            str(answer.get("id_token", "")),
            addresses["jwks_uri"],
            {"iss": self.provider.issuer, "nonce": begun.nonce},
            now,
            self.provider.client_id,
        )
        return self._profile(claims)

    def _profile(self, claims: dict[str, Any]) -> Profile:
        # Anybody can write any address into an account of their own: only a verified one counts.
        email = str(claims.get("email", "")) if claims.get("email_verified") is True else ""
        role: Role = "learner"
        if email.lower() in map(str.lower, self.provider.instructors):
            role = "instructor"
        elif email.lower() in map(str.lower, self.provider.assistants):
            role = "assistant"
        names = (claims.get("name"), claims.get("preferred_username"), email)
        return Profile(
            self.provider.issuer,
            claims["sub"],
            next((str(name) for name in names if name), ""),
            role,
            email,
            str(claims.get(self.provider.student_id) or "") if self.provider.student_id else "",
            str(claims.get("given_name", "")),
            str(claims.get("family_name", "")),
        )
