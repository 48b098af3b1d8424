"""Running the server, and a runner next to it that is restarted if it dies."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from bottleneck_lab.cohort.server.app import create_app
from bottleneck_lab.errors import ExitCode, MachineError

if TYPE_CHECKING:
    from pathlib import Path

    from fastapi import FastAPI

    from bottleneck_lab.cohort.folder import Cohort

log = logging.getLogger("bottleneck_lab.cohort.serve")
STOP_S = 5
"""Seconds that open requests may go on after the server was told to stop."""


class _Server(uvicorn.Server):
    """Ends the event streams when it is told to stop: they would never end by themselves."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        app: FastAPI = self.config.app  # type: ignore[assignment]  # uvicorn takes any ASGI application
        # Before uvicorn waits for open requests, of which event streams would be some.
        app.state.shared.hub.close()
        super().handle_exit(sig, frame)


def serve(
    cohort: Cohort, host: str, port: int, url: str, *, tls: tuple[Path, Path] | None = None
) -> None:
    """Serve until SIGINT or SIGTERM, over HTTPS with the certificate and key of `tls`.

    Raises MachineError if the address cannot be had.
    """
    certificate, key = tls or (None, None)
    config = uvicorn.Config(
        create_app(cohort, url),
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,  # nobody needs to know which version to attack
        timeout_graceful_shutdown=STOP_S,
        limit_concurrency=2000,
        backlog=2048,  # a room that joins at once connects faster than it is accepted
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    server = _Server(config)
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn raises a signal once more after it has stopped; the default would end us with it.
        signal.signal(number, lambda _signum, _frame: None)
    server.run()
    if not server.started:
        raise MachineError(
            f"The server could not be started at {host}:{port}.",
            "Another program may be using that port: choose another with --port.",
        )


REFUSALS = (ExitCode.USAGE, ExitCode.ERROR)
"""Exit statuses of a runner that has said why it cannot work here."""
MOST_REFUSALS = 4
WORKED_S = 30.0
"""A runner that has lasted this long can work here, whatever ends it later."""


class Keeper:
    """Keeps a command running: starts it again when it ends, after a pause that doubles.

    One that refuses `MOST_REFUSALS` times before it has ever worked is given up: `refused` is its
    exit status then, and this process is asked to stop.
    """

    def __init__(self, command: list[str], pause_s: float = 1.0) -> None:
        self._command, self._pause_s = command, pause_s
        self.refused: int | None = None
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="keeper", daemon=True)

    def __enter__(self) -> Keeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._thread.join()

    def _keep(self) -> None:
        pause_s, refusals, worked = self._pause_s, 0, False
        while not self._stopping.is_set():
            began = time.monotonic()
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, start_new_session=True
            )
            if self._stopping.is_set():  # since the loop looked; __exit__ saw no process then
                self._process.terminate()
            status = self._process.wait()
            worked = worked or time.monotonic() - began >= WORKED_S
            refusals += status in REFUSALS
            # More than once: the runner of a server that was killed takes a moment to end.
            if refusals >= MOST_REFUSALS and not worked and not self._stopping.is_set():
                self.refused = status
                os.kill(os.getpid(), signal.SIGTERM)
                return
            if not self._stopping.is_set():
                log.warning(
                    "the runner exited with status %d and will be restarted in %.0f s",
                    status,
                    pause_s,
                )
                self._stopping.wait(pause_s)
                pause_s = min(30.0, pause_s * 2)
