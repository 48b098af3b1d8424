"""Pass requests on to a Triton Inference Server: clients call this gateway like any server of the
lab, and it calls Triton.

`POST /classify` with a JPEG file becomes a request of Triton's own protocol (KServe's, with the
binary extension) to the model `classify`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bottleneck_lab.measure.kinds.inference_server.triton.server import TritonError, Tritonserver

MODEL = "classify"
MOST_HEAD_BYTES = 16 << 10
MOST_BODY_BYTES = 8 << 20
LOOK_S = 0.5
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    413: "Content Too Large",
    503: "Service Unavailable",
}


class Gateway:
    """Answers on a socket with the server's answers; requests wait while it starts."""

    def __init__(self, server: Tritonserver) -> None:
        self._server = server
        self._changing = threading.Lock()
        self._complained = False

    def serve(self, listener: socket.socket) -> None:
        """Start the server and answer until it ends. Raises TritonError then."""
        with self._changing:
            self._server.start()
        asyncio.run(self._serve(listener))

    def set_max_batch(self, size: int) -> None:
        """Start the server again with another largest batch."""
        with self._changing:
            self._server.start(size)

    def capture(self, seconds: float, trace: Path | None) -> None:
        """Capture the server's models for `seconds`, to `trace` or for nsys. Raises TritonError if
        one does not answer.
        """
        self._server.capture(seconds, trace)

    def statistics(self) -> str:
        """Return the server's statistics of its models, as text."""
        return self._server.statistics()

    def close(self) -> None:
        """End the server; its end is no longer reported."""
        # Never released, so that `_serve` does not take the end for a failure.
        self._changing.acquire()
        self._server.close()

    async def _serve(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        start: Any = asyncio.start_server
        if listener.family == socket.AF_UNIX:
            start = asyncio.start_unix_server
        async with await start(self._client, sock=listener, limit=MOST_HEAD_BYTES):
            while True:
                await asyncio.sleep(LOOK_S)
                if not self._changing.locked() and self._server.ended():
                    raise TritonError(self._server.last_words())

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client, request after request."""
        gone = (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError)
        with (
            contextlib.closing(writer),
            contextlib.closing(Upstream(self._server.port)) as upstream,
            contextlib.suppress(*gone),
        ):
            while await self._answer(reader, writer, upstream):
                pass

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: Upstream
    ) -> bool:
        """Answer one request. Returns True if the connection can carry another."""
        (method, path, *_), headers = await read_head(reader)
        length = int(headers.get("content-length", "0"))
        if length > MOST_BODY_BYTES:
            writer.write(
                reply(413, {"error": f"a picture may have at most {MOST_BODY_BYTES} bytes"})
            )
            return False
        body = await reader.readexactly(length)
        # Triton is being started again: the client waits, and gets no error.
        while self._changing.locked():
            await asyncio.sleep(0.02)
        if (method, path) == ("POST", "/classify"):
            status, content = await upstream.infer(body)
        else:
            status, content = 404, {"error": "only POST /classify is served"}
        if status >= 500 and not self._complained:
            # Once: under load the same error of the learner's models comes hundreds of times.
            self._complained = True
            sys.stdout.write(f"Triton could not answer a request: {content['error']}\n")
            sys.stdout.flush()
        writer.write(reply(status, content))
        await writer.drain()
        return True


class Upstream:
    """A connection to Triton, opened when first needed and reopened after it was closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def infer(self, picture: bytes) -> tuple[int, dict[str, Any]]:
        """Return HTTP status and answer for a picture: its scores, or Triton's error."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(infer_request(picture))
            (_, status, *_), headers = await read_head(reader)
            body = await reader.readexactly(int(headers["content-length"]))
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return 503, {"error": "Triton cannot be reached"}
        return answer_of(int(status), body)

    def close(self) -> None:
        """Close it."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def read_head(reader: asyncio.StreamReader) -> tuple[list[str], Mapping[str, str]]:
    """Read the head of an HTTP message. Returns the words of its first line, and its headers with
    their names in lower case.
    """
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return first.split(), {name.strip().lower(): value.strip() for name, _, value in pairs}


def infer_request(picture: bytes) -> bytes:
    """Return a request in Triton's protocol: head, JSON description, and the picture as a string
    tensor preceded by its length.
    """
    tensor = {"name": "picture", "datatype": "BYTES", "shape": [1, 1]}
    description = {
        "inputs": [{**tensor, "parameters": {"binary_data_size": len(picture) + 4}}],
        "outputs": [{"name": "scores"}],
    }
    text = json.dumps(description).encode()
    head = (
        f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: triton\r\nContent-Type:"
        " application/octet-stream\r\nInference-Header-Content-Length:"
        f" {len(text)}\r\nContent-Length: {len(text) + 4 + len(picture)}\r\n\r\n"
    )
    return b"".join([head.encode(), text, len(picture).to_bytes(4, "little"), picture])


def answer_of(status: int, body: bytes) -> tuple[int, dict[str, Any]]:
    """Return status and content for the client: the scores, or the error with Triton's status."""
    content = json.loads(body)
    if status != 200:
        return status, {"error": content.get("error", "")}
    (scores,) = (output["data"] for output in content["outputs"] if output["name"] == "scores")
    return 200, {"scores": scores}


def reply(status: int, content: dict[str, Any]) -> bytes:
    """Return an HTTP response with JSON."""
    body = json.dumps(content).encode()
    first = f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}"
    return (
        f"{first}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
