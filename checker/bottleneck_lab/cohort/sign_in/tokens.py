"""Id tokens: signed statements of a provider about who somebody is."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import requests
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from bottleneck_lab.cohort.refused import RefusedError

# Public-key algorithms alone: with a secret of its own a client could sign tokens for itself, and
# "none" signs nothing.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
LEEWAY_S = 60
TIMEOUT_S = 10.0
BEGUN_S = 600.0
"""How long a sign-in may take."""
MOST_BEGUN = 10_000


class Begun(msgspec.Struct, frozen=True):
    """A sign-in under way: with whom, and what must come back with the answer."""

    issuer: str
    client_id: str
    nonce: str
    verifier: str
    ends: float


class BegunSignIns:
    """Sign-ins under way, by their `state`; each is good for one answer."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._begun: dict[str, Begun] = {}
        self._clock, self._lock = clock, threading.Lock()

    def begin(self, issuer: str, client_id: str) -> tuple[str, Begun]:
        """Begin a sign-in and return its state, which only this browser is to know."""
        state, now = secrets.token_urlsafe(32), self._clock()
        nonce, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(48)
        begun = Begun(issuer, client_id, nonce, verifier, now + BEGUN_S)
        with self._lock:
            while len(self._begun) >= MOST_BEGUN:  # the oldest goes: nobody waits for it
                del self._begun[next(iter(self._begun))]
            self._begun[state] = begun
        return state, begun

    def end(self, state: str, cookie: str) -> Begun:
        """Return the sign-in that an answer belongs to, and forget it.

        Raises RefusedError if it is none of this browser's: `cookie` holds the state too, so that
        nobody is logged in by a link that somebody else has begun.
        """
        own = secrets.compare_digest(state.encode(), cookie.encode())
        with self._lock:
            begun = self._begun.pop(state, None) if own else None
        if begun is None or begun.ends < self._clock():
            raise RefusedError(
                "forbidden",
                "This sign-in was not begun in this browser, or took too long.",
                "Begin again. If it fails again, allow cookies for this site.",
            )
        return begun


def fetch(url: str) -> dict[str, Any]:
    """Return a JSON document of a provider. Raises RefusedError if it cannot be had."""
    try:
        reply = requests.get(url, timeout=TIMEOUT_S)
        reply.raise_for_status()
        return dict(reply.json())
    except (requests.RequestException, ValueError, TypeError) as error:
        raise unreachable(url, error) from error


def unreachable(url: str, error: Exception) -> RefusedError:
    """Return the refusal for a provider that does not answer as it should."""
    return RefusedError(
        "busy",
        f"{url} does not answer as it should: {error}.",
        "Try again; if that does not help, correct the address in cohort.toml.",
    )


def verify(
    token: str, keys_url: str, claims: Mapping[str, str], now: float, client_id: str
) -> dict[str, Any]:
    """Return the claims of an id token for `client_id`, signed with one of the keys at `keys_url`.

    `claims` must have these values. Raises RefusedError for a token that is not genuine.
    """
    try:
        keys = KeySet.import_key_set({"keys": list(fetch(keys_url)["keys"])})
        decoded = jwt.decode(token, keys, algorithms=ALGORITHMS).claims
        required = {name: {"essential": True, "value": value} for name, value in claims.items()}
        registry = jwt.JWTClaimsRegistry(
            now=int(now),
            leeway=LEEWAY_S,
            aud={"essential": True, "value": client_id},
            exp={"essential": True},
            sub={"essential": True},
            # Of a token for several clients, it names the one that the token was made for (OpenID
            # Connect Core 1.0, section 3.1.3.7).
            azp={"value": client_id},
            **required,  # type: ignore[arg-type]  # dictionaries of just these keys
        )
        registry.validate(decoded)
    except (JoseError, KeyError, ValueError, TypeError) as error:
        raise RefusedError(
            "forbidden",
            f"The provider's statement about you is not genuine: {error}.",
            "Begin again. If it fails again, tell your instructor.",
        ) from error
    return decoded
