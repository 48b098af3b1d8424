"""A provider of accounts on loopback: an OpenID provider and a learning platform in one.

It checks what a real one checks: the client's secret and PKCE, the assertion with which a tool asks
for a token, and the scope of every call.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_hex
from urllib.parse import parse_qs, urlencode, urlsplit

import requests
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from bottleneck_lab.cohort.sign_in.lti import CLAIM, GRADES, MEMBERS

from ..processes import PATIENCE_S

CLIENT, SECRET, DEPLOYMENT = "the-client", "the-secret", "1"


class Provider:
    """Accounts, members, columns and scores; `claims` are those of whoever signs in next."""

    def __init__(self, port: int) -> None:
        self.issuer = f"http://127.0.0.1:{port}"
        self.key = RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256"})
        self.key.ensure_kid()
        self.claims: dict[str, object] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.tokens: dict[str, str] = {}
        self.members: list[dict[str, object]] = []
        self.columns: list[dict[str, object]] = []
        self.scores: list[tuple[str, dict[str, object]]] = []
        self.tool_keys = ""

    def sign(self, nonce: str, key: RSAKey | None = None, **claims: object) -> str:
        now = int(time.time())
        whole = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 60, "nonce": nonce}
        key = key or self.key
        return jwt.encode({"alg": "RS256", "kid": key.kid}, {**whole, **claims}, key)

    def launch(self, nonce: str, roles: list[str], key: RSAKey | None = None, **claims) -> str:
        """The id token of a launch from the course "GPU 101"."""
        services = {
            MEMBERS: {"context_memberships_url": f"{self.issuer}/members"},
            GRADES: {"lineitems": f"{self.issuer}/columns?type=1"},
        }
        core = {
            "version": "1.3.0",
            "message_type": "LtiResourceLinkRequest",
            "deployment_id": DEPLOYMENT,
            "roles": [f"http://purl.imsglobal.org/vocab/lis/v2/{role}" for role in roles],
            "context": {"id": "c1", "title": "GPU 101"},
        }
        named = {f"{CLAIM}{name}": value for name, value in core.items()}
        return self.sign(nonce, key, **{**named, **services, **claims})

    def get(self, path: str, query: dict[str, str], scope: str):
        """The document at a path; a redirection is a text."""
        if path == "/.well-known/openid-configuration":
            ends = {"authorization_endpoint": "authorize", "token_endpoint": "token"}
            places = {**ends, "jwks_uri": "keys"}
            return {
                "issuer": self.issuer,
                **{name: f"{self.issuer}/{end}" for name, end in places.items()},
            }
        if path == "/keys":
            return KeySet([self.key]).as_dict(private=False)
        if path == "/authorize":
            code = token_hex(8)
            self.codes[code] = query
            answer = urlencode({"code": code, "state": query["state"]})
            return f"{query['redirect_uri']}?{answer}"
        if path == "/members" and "contextmembership" in scope:
            page = int(query.get("page", "0"))
            return {"members": self.members[page : page + 1]}
        if path == "/columns" and "lineitem" in scope:
            return self.columns
        return None

    def post(self, path: str, body: bytes, authorization: str, scope: str):
        if path == "/token":
            return self.token({k: v[0] for k, v in parse_qs(body.decode()).items()}, authorization)
        if path == "/columns" and "lineitem" in scope:
            column = json.loads(body)
            column["id"] = f"{self.issuer}/columns/{len(self.columns)}?type=1"
            self.columns.append(column)
            return column
        if path.endswith("/scores") and "scope/score" in scope:
            self.scores.append((path, json.loads(body)))
            return {}
        return None

    def token(self, fields: dict[str, str], authorization: str):
        if fields["grant_type"] == "authorization_code":
            request = self.codes.pop(fields["code"])
            basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
            verifier = hashlib.sha256(fields["code_verifier"].encode()).digest()
            challenge = base64.urlsafe_b64encode(verifier).decode().rstrip("=")
            if authorization != f"Basic {basic}" or challenge != request["code_challenge"]:
                return None
            signed = self.sign(**{"nonce": request["nonce"], **self.claims})
            return {"access_token": "x", "token_type": "Bearer", "id_token": signed}
        keys = KeySet.import_key_set(requests.get(self.tool_keys, timeout=PATIENCE_S).json())
        claims = jwt.decode(fields["client_assertion"], keys, algorithms=["RS256"]).claims
        if claims["sub"] != CLIENT or claims["aud"] != f"{self.issuer}/token":
            return None
        token = token_hex(8)
        self.tokens[token] = fields["scope"]
        return {"access_token": token, "token_type": "Bearer", "expires_in": 3600}


@contextmanager
def provider():
    """A provider that listens until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            self.reply(served.get(url.path, query, self.scope()), url.path, query)

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            path = urlsplit(self.path).path
            authorization = self.headers.get("Authorization", "")
            self.reply(served.post(path, body, authorization, self.scope()), path, {})

        def scope(self) -> str:
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            return served.tokens.get(token, "")

        def reply(self, document, path, query):
            if isinstance(document, str):
                self.send_response(302)
                self.send_header("Location", document)
            else:
                self.send_response(200 if document is not None else 403)
            following = int(query.get("page", "0")) + 1
            if path == "/members" and following < len(served.members):
                link = f'<{served.issuer}/members?page={following}>; rel="next"'
                self.send_header("Link", link)
            body = json.dumps(document).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = Provider(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
