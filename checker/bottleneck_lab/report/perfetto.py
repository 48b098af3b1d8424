"""A trace handed to Perfetto's web interface from this machine, without uploading it anywhere.

The interface takes `#!/?url=` and fetches the trace itself
(https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui); its own content policy lets
it fetch from 127.0.0.1 on port 9001 and from no other port of this machine.
"""

from __future__ import annotations

import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

from bottleneck_lab.errors import CaptureError, MachineError

ORIGIN = "https://ui.perfetto.dev"
PORT = 9001

# Since version 142, Chrome asks before a public page may reach this machine (Local Network
# Access).
PERMISSION = (
    "If the browser asks whether ui.perfetto.dev may reach this device, allow it: Perfetto fetches"
    " the trace from here."
)


@dataclass(frozen=True)
class Served:
    """A trace that is being served: open `link` in a browser, then `wait` until it was fetched."""

    link: str
    trace_url: str
    _fetched: threading.Event

    def wait(self, seconds: float) -> bool:
        """Return True if the trace was fetched whole within `seconds`."""
        return self._fetched.wait(seconds)


@contextmanager
def serve_trace(trace: Path, *, port: int = PORT) -> Iterator[Served]:
    """Serve `trace`, and nothing else, on loopback until the block ends.

    The address holds a random part, only Perfetto's origin may read the answer, and a foreign Host
    is refused: no other page can reach the trace. Raises MachineError when the port is taken,
    CaptureError when the file cannot be read.
    """
    if not trace.is_file():
        raise CaptureError(f"{trace} is not a file.", "Record a capture with `lab profile`.")
    path = f"/{secrets.token_urlsafe(16)}/{quote(trace.name)}"
    fetched = threading.Event()
    handler = type("Handler", (_Handler,), {"trace": trace, "served": path, "fetched": fetched})
    server = _bind(handler, port)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    )
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}{path}"
    try:
        yield Served(f"{ORIGIN}/#!/?url={quote(url, safe='')}", url, fetched)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def explain_by_hand(trace: Path) -> list[str]:
    """Return how to look at a trace without this server: what to open, and which file to choose
    there.
    """
    return [
        (
            f"Open {ORIGIN}, choose 'Open trace file' and select {trace}. The file stays on this"
            " machine."
        ),
        f"Or open chrome://tracing in Chrome or Chromium, press 'Load' and select {trace}.",
    ]


def _bind(handler: type[BaseHTTPRequestHandler], port: int) -> ThreadingHTTPServer:
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        remedy = (
            "Stop the program that uses it, or load the trace by hand: `lab report --open` shows"
            " how."
        )
        raise MachineError(
            f"Port {port} on this machine is taken ({error.strerror}).", remedy
        ) from error


class _Handler(BaseHTTPRequestHandler):
    """Answers one path with one trace; a subclass says which."""

    trace: Path
    served: str
    fetched: threading.Event

    def do_OPTIONS(self) -> None:
        """Answer the question of Chrome whether a public page may reach this machine (Private
        Network Access).
        """
        if self._refused():
            return
        self.send_response(204)
        self._allow()
        self.send_header("Access-Control-Allow-Methods", "GET, HEAD")
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()

    def do_HEAD(self) -> None:
        """Answer with the trace's size."""
        if not self._refused():
            self._start()

    def do_GET(self) -> None:
        """Send the trace."""
        if self._refused():
            return
        self._start()
        with self.trace.open("rb") as file:
            shutil.copyfileobj(file, self.wfile)
        self.fetched.set()

    def _refused(self) -> bool:
        own = self.connection.getsockname()
        # A page elsewhere could reach loopback by a name of its own that resolves to it (DNS
        # rebinding): the Host must be this address.
        if self.path == self.served and self.headers.get("Host") == f"{own[0]}:{own[1]}":
            return False
        self.send_error(404)
        return True

    def _start(self) -> None:
        self.send_response(200)
        self._allow()
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(self.trace.stat().st_size))
        self.end_headers()

    def _allow(self) -> None:
        self.send_header("Access-Control-Allow-Origin", ORIGIN)
        self.send_header("Cache-Control", "no-store")

    def log_message(self, *_: object) -> None:
        """Log nothing: the terminal belongs to the report."""
