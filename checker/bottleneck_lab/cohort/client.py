"""The learner's client: plain HTTP from the standard library, patient with a server that is down
for a while.
"""

from __future__ import annotations

import hashlib
import http.client
import math
import ssl
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from bottleneck_lab.cohort.protocol import (
    VERSION_HEADER,
    Accepted,
    Allowed,
    Help,
    Join,
    Joined,
    LoginLink,
    Me,
    OpenHelp,
    Refusal,
    Standing,
    Stored,
    Submission,
    content_of,
    files_of,
)
from bottleneck_lab.errors import LabError, MachineError, UsageError

Answer = TypeVar("Answer", Accepted, Allowed, Joined, LoginLink, Me, OpenHelp, Standing, Stored)
MAX_ANSWER_BYTES = 32 << 20
TIMEOUT_S = 40.0
CONNECT_S = 5.0
"""A machine that is switched off refuses nothing: it must not cost the time of a slow answer."""
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Pauses between tries; the last is repeated."""
PATIENCE_S = 120.0

OnRetry = Callable[[str], None]
"""Called with a sentence whenever the server does not answer."""


class _Unanswered(Exception):  # noqa: N818 - what happened, not an error yet
    """The server did not answer, or asked to be asked again."""

    def __init__(self, why: str, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.wait_s = wait_s


class RefusedByServerError(UsageError):
    """A refusal by the server, with its code."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(_one_line(refusal.message), _one_line(refusal.remedy))
        self.code = refusal.code


class Client:
    """A connection to one cohort's server. `token` is the learner's, once there is one."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        on_retry: OnRetry = lambda _why: None,
        *,
        patience_s: float = PATIENCE_S,
        timeout_s: float = TIMEOUT_S,
        most_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"'{url}' is not a server's address.", "It looks like http://192.168.1.20:8321."
            )
        self._parts, self._token, self._on_retry = parts, token, on_retry
        self._patience_s, self._timeout_s = patience_s, timeout_s
        self._most_bytes = most_bytes
        self.server_version = ""
        """As the latest answer named it; empty before there was one."""

    @property
    def url(self) -> str:
        """The server's address, without a path."""
        return f"{self._parts.scheme}://{self._parts.netloc}"

    def join(self, request: Join) -> Joined:
        """Join the cohort. Raises UsageError for a refusal, MachineError without an answer.

        Never repeated: a request that did arrive would make a second learner.
        """
        try:
            reply = self._ask("POST", "/api/join", msgspec.json.encode(request))
            return self._decoded(reply, Joined)
        except _Unanswered as error:
            raise self._gone(error) from error

    def submit(self, submission: Submission) -> Accepted:
        """Submit. Raises UsageError for a refusal, MachineError without an answer.

        Repeated until the server has answered: the submission's key makes that harmless.
        """
        return self._patiently(
            "POST", "/api/submissions", Accepted, msgspec.json.encode(submission)
        )

    def require_allowed(self, lab: str) -> None:
        """Raise UsageError, as `submit` would, if the lab takes nothing of this learner now."""
        self._patiently("GET", f"/api/labs/{quote(lab)}/allowed", Allowed)

    def send_capture(self, files: dict[str, bytes]) -> str:
        """Have the server store the files of a capture, unless it has them.

        Returns the name by which a submission refers to them.
        """
        content = content_of(files)
        name = hashlib.sha256(content).hexdigest()
        try:
            return self._patiently("GET", f"/api/captures/{name}", Stored).sha256
        except RefusedByServerError as refused:
            if refused.code != "not-found":
                raise
        return self._patiently("POST", "/api/captures", Stored, content).sha256

    def call_for_help(self, text: str | None) -> None:
        """Show the room that this learner needs help; None takes the call back."""
        self._patient_bytes("POST", "/api/help", msgspec.json.encode(Help(text)))

    def me(self) -> Me:
        """Return the learner's view of the cohort."""
        return self._patiently("GET", "/api/me", Me)

    def open_help(self, lab: str) -> OpenHelp:
        """Return which hints of a lab, and whether its solution, the instructor has opened."""
        return self._patiently("GET", f"/api/labs/{quote(lab)}/help", OpenHelp)

    def standing(self, handle: str, after: int = -1, wait_s: float = 0.0) -> Standing:
        """Return where one submission is.

        With `after`, the server answers once the version is a later one or `wait_s` have passed.
        """
        return self._patiently(
            "GET", f"/api/submissions/{handle}?after={after}&wait={wait_s:.0f}", Standing
        )

    def fetch_capture(self, handle: str) -> dict[str, bytes]:
        """Return the files of the capture that a runner made for a submission."""
        data = self._patient_bytes("GET", f"/api/submissions/{handle}/capture")
        try:
            return files_of(data)
        except msgspec.DecodeError as error:
            raise self.unreadable(str(error)) from error

    def login_path(self) -> str:
        """Return the path of a link that opens the learner's own page, once."""
        return self._patiently("POST", "/api/login-link", LoginLink).path

    def post(self, path: str, body: bytes) -> bytes:
        """Return the answer to a message that may be sent twice.

        Raises UsageError for a refusal, MachineError without an answer.
        """
        return self._patient_bytes("POST", path, body)

    def _patiently(
        self, method: str, path: str, type_: type[Answer], body: bytes | None = None
    ) -> Answer:
        return self._decoded(self._patient_bytes(method, path, body), type_)

    def _patient_bytes(self, method: str, path: str, body: bytes | None = None) -> bytes:
        end, tries = time.monotonic() + self._patience_s, 0
        while True:
            try:
                return self._ask(method, path, body)
            except _Unanswered as error:
                pause_s = error.wait_s or PAUSES_S[min(tries, len(PAUSES_S) - 1)]
                tries += 1
                # Rather an error now than a pause after which there is no time left for a try.
                if time.monotonic() + pause_s > end:
                    raise self._gone(error) from error
                self._on_retry(f"{error}; trying again in {math.ceil(pause_s)} s.")
                time.sleep(pause_s)

    def _decoded(self, data: bytes, type_: type[Answer]) -> Answer:
        try:
            return msgspec.json.decode(data, type=type_)
        except msgspec.DecodeError as error:
            raise self.unreadable(str(error)) from error

    def unreadable(self, problem: str) -> MachineError:
        """Return the error for an answer that cannot be read, which says whose version is at fault.

        Only what a client needs and cannot understand is such a problem: fields that it does not
        know are ignored.
        """
        own = version("bottleneck-lab")
        if self.server_version in ("", own):
            return MachineError(
                f"{self.url} does not answer like a cohort server: {problem}.",
                "Check the address: `lab join URL CODE`.",
            )
        return MachineError(
            f"{self.url} has bottleneck-lab {self.server_version}, and this is {own}, which cannot"
            f" read its answer: {problem}.",
            f"Install bottleneck-lab {self.server_version} here.",
        )

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Make one request and return the body of the reply.

        Raises _Unanswered for whatever may be better next time, RefusedByServerError for a refusal.
        """
        host, port = str(self._parts.hostname), self._parts.port
        connect_s = min(CONNECT_S, self._timeout_s)
        connection = http.client.HTTPConnection(host, port, timeout=connect_s)
        if self._parts.scheme == "https":
            connection = http.client.HTTPSConnection(host, port, timeout=connect_s)
        headers = {
            "Content-Type": "application/json",
            **({"Authorization": f"Bearer {self._token}"} if self._token else {}),
        }
        try:
            connection.connect()
            connection.sock.settimeout(self._timeout_s)
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            # Bounded, since the address may lead to anything.
            data = reply.read(self._most_bytes + 1)
            named = reply.headers.get(VERSION_HEADER, self.server_version)
            self.server_version = _one_line(named)[:40]
        except ssl.SSLCertVerificationError as error:
            raise MachineError(
                f"The certificate of {self.url} is not trusted: {error.verify_message}.",
                "Ask your instructor what to expect.",
            ) from error
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise _Unanswered(f"{self.url} does not answer ({why})") from error
        finally:
            connection.close()
        if reply.status < 300:
            return data
        raise _error_of(reply.status, data)

    def _gone(self, error: _Unanswered) -> LabError:
        return MachineError(
            f"{error}.",
            "Your files are untouched. Check the address and the network, then run the same command"
            " again.",
        )


def _error_of(status: int, data: bytes) -> Exception:
    """Map an error response to a retry (`_Unanswered`) or a refusal."""
    try:
        refusal = msgspec.json.decode(data, type=Refusal)
    except msgspec.DecodeError:
        if status >= 500:  # a proxy in front of a server that is starting answers so
            return _Unanswered(f"the server answers with status {status}")
        return MachineError(
            f"That is not a cohort's server: it answers with status {status}.",
            "Check the address: `lab join URL CODE`.",
        )
    if refusal.code in ("busy", "too-fast"):
        wait_s = min(60.0, max(0.5, refusal.retry_after_s or 2.0))
        return _Unanswered(_one_line(refusal.message).rstrip("."), wait_s)
    return RefusedByServerError(refusal)


def _one_line(text: str) -> str:
    """Return text from a server on one line, without characters that drive a terminal."""
    return "".join(char for char in text if char.isprintable())[:400]
