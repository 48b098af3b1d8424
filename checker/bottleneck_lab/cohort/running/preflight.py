"""Checks before a server or a runner starts: every reason why it cannot, reported at once."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bottleneck_lab.cohort.folder import Config
from bottleneck_lab.cohort.running.job import HOW_TO_LIMIT
from bottleneck_lab.cohort.running.slot_users import free_uids, parse_uids, require_slot_users
from bottleneck_lab.errors import LabError, MachineError, UsageError
from bottleneck_lab.measure.sandbox.bubblewrap import bubblewrap
from bottleneck_lab.measure.sandbox.cgroup import limits_problem, take_charge
from bottleneck_lab.needs import EXTRAS, require_packages


class Preflight:
    """Collects what stands in the way; `finish` raises all of it as one error.

    An instructor corrects them in one go that way, instead of one per start with a room waiting.
    """

    def __init__(self) -> None:
        self._problems: list[LabError] = []

    @contextmanager
    def step(self) -> Iterator[None]:
        """Keep the LabError of this step for later, and go on."""
        try:
            yield
        except LabError as error:
            self._problems.append(error)

    def check_address(self, host: str, port: int) -> None:
        """Check that a server can listen there."""
        with self.step():
            try:
                family, kind, protocol, _, address = socket.getaddrinfo(
                    host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )[0]
                with socket.socket(family, kind, protocol) as probe:
                    # As the server's own socket: a port of a server that has just stopped is free.
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(address)
            except OSError as error:
                raise MachineError(
                    f"The server cannot listen on {host}:{port}: {error.strerror or error}.",
                    "Stop what uses that port, or choose another with --port and --host.",
                ) from error

    def check_certificate(self, certificate: Path, key: Path) -> None:
        """Check that a TLS certificate and its key can be used together."""
        with self.step():
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            except (OSError, ssl.SSLError) as error:
                raise UsageError(
                    f"{certificate} and {key} cannot be used for TLS: {error}.",
                    "Name a certificate chain and its private key, both in PEM format.",
                ) from error

    def check_sign_in(self, config: Config) -> None:
        """Check that the packages are there by which people sign in as `cohort.toml` declares."""
        if config.oidc or config.lti:
            with self.step():
                require_packages("sign-in", **EXTRAS["sign-in"])

    def check_containment(self, *, allow_unsandboxed: bool, allow_no_cgroup: bool) -> None:
        """Check that code under test can be contained, unless doing without was allowed.

        A runner would otherwise sign verdicts on code that could have read the key.
        """
        with self.step():
            if bubblewrap() is None and not allow_unsandboxed:
                raise MachineError(
                    "bubblewrap does not work here, so learners' code could read the key that"
                    " signs verdicts.",
                    "Install bubblewrap (`lab doctor` shows whether it works), or go on without"
                    " it: --allow-unsandboxed. Every verdict will then say so.",
                )
        with self.step():
            take_charge()
            problem = "" if allow_no_cgroup else limits_problem()
            if problem:
                raise MachineError(
                    f"Learners' code cannot be limited by a control group here: {problem}.",
                    HOW_TO_LIMIT,
                )

    def check_slot_users(
        self, uids: str | None, slots: int, *, allow_unsandboxed: bool
    ) -> list[int]:
        """Return the users to run checks as, once they have been tried.

        `uids` is the option as given; None picks free ones where this is root. Empty if all slots
        share the runner's own user.
        """
        with self.step():
            chosen = parse_uids(uids or "")
            if chosen and os.geteuid() != 0:
                raise UsageError(
                    "Only root can run checks as other users.",
                    "Start the runner as root, or leave out --uids.",
                )
            if uids is None and os.geteuid() == 0:
                chosen = free_uids(slots)
            # Where bubblewrap is missing for everybody, that has been reported already.
            sandbox_required = not allow_unsandboxed and bubblewrap() is not None
            require_slot_users(chosen[:slots], sandbox_required=sandbox_required)
            return chosen
        return []

    def finish(self, purpose: str) -> None:
        """Raise what was found; nothing if all is well.

        A single problem is raised as it is. Several become a MachineError that begins with
        `purpose`, or a UsageError if only arguments were wrong.
        """
        if len(self._problems) == 1:
            raise self._problems[0]
        if self._problems:
            reasons = [f"- {each.message} {each.remedy}" for each in self._problems]
            usage = all(isinstance(each, UsageError) for each in self._problems)
            raise (UsageError if usage else MachineError)(
                "\n".join([f"{purpose}, for {len(reasons)} reasons:", *reasons]),
                "Correct them, or add the options that they name, and run the command again.",
            )
