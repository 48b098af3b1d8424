"""System calls that no lab needs and that reach past what holds a worker: refused with ENOSYS, for
the worker and everything it starts.

System V shared memory and messages lie in memory that no process is charged for; keys outlive the
process that made them; io_uring works past this filter; userfaultfd and bpf are there for holes in
the kernel. Sockets are for this machine alone. What bubblewrap takes away (mounts, namespaces,
other people's processes) needs no filter.
Source of the layouts: linux/filter.h, linux/seccomp.h, linux/audit.h.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterable

_Line = tuple[int, int, int, int]
"""An instruction: code, jump if true, jump if false, constant (linux/bpf_common.h)."""
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD, _EQUAL, _AT_LEAST, _ANY_OF, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_X32 = 0x40000000
"""x86-64's second numbering of the same calls."""

_ARCHES = {
    "x86_64": (
        0xC000003E,
        41,
        {
            "shmget": 29,
            "msgget": 68,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "bpf": 321,
            "userfaultfd": 323,
            "io_uring_setup": 425,
        },
    ),
    "aarch64": (
        0xC00000B7,
        198,
        {
            "msgget": 186,
            "shmget": 194,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "bpf": 280,
            "userfaultfd": 282,
            "io_uring_setup": 425,
        },
    ),
}
"""By kind of machine: what the kernel calls it (linux/audit.h), the number of `socket`, and those
of the refused calls.
"""
_UNIX, _NETLINK = 1, 16
"""Families of sockets (bits/socket.h)."""
_PROCESSES = {"x86_64": (56, (57, 58, 59, 322, 435)), "aarch64": (220, (221, 281, 435))}
"""By kind of machine, the numbers of `clone`, and of `fork`, `vfork`, `execve`, `execveat` and
`clone3`, whose flags a filter cannot see.
"""
_CLONE_THREAD = 0x10000
"""The flag of clone that makes a thread (linux/sched.h)."""


def program(machine: str, *, network: bool = False) -> bytes:
    """Return the filter for a kind of machine, 8 bytes per instruction; empty if its numbers are
    not known here.

    Without `network`, sockets are for this machine alone (Unix, netlink).
    """
    if machine not in _ARCHES:
        return b""
    arch, socket, calls = _ARCHES[machine]
    if network:
        return _filter(arch, calls.values(), [])
    # Another call jumps over the four lines about sockets; a family that is allowed jumps over the
    # refusal. The family is socket's first argument, of which the lower half is looked at.
    socket_lines = [
        (_EQUAL, 0, 4, socket),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_EQUAL, 2, 0, _UNIX),
        (_EQUAL, 1, 0, _NETLINK),
        (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT),
    ]
    return _filter(arch, calls.values(), socket_lines)


def threads_only(machine: str) -> bytes:
    """Return the filter that lets a process of this kind of machine start threads and nothing else;
    empty if the numbers are not known here.
    """
    if machine not in _PROCESSES:
        return b""
    clone, calls = _PROCESSES[machine]
    # The C library falls back to clone, whose flags are an argument, where clone3 answers ENOSYS.
    clone_lines = [
        (_EQUAL, 0, 3, clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_ANY_OF, 1, 0, _CLONE_THREAD),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    return _filter(_ARCHES[machine][0], calls, clone_lines)


def _filter(arch: int, refused: Iterable[int], lines: list[_Line]) -> bytes:
    """Refuse these numbers, and those of another architecture; all others go through `lines`, past
    whose end they are allowed.
    """
    # Jumps count the instructions left out. The last two: allow, refuse. Numbers from x32's first
    # on are refused as one, or a call could go by its second number.
    tests = [(_AT_LEAST, _X32), *((_EQUAL, number) for number in refused)]
    ahead = len(tests) + len(lines)
    code = [(_LOAD, 0, 0, _ARCH_AT), (_EQUAL, 0, ahead + 2, arch), (_LOAD, 0, 0, _NUMBER_AT)]
    code += [(test, ahead - at, 0, value) for at, (test, value) in enumerate(tests)]
    code += [*lines, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    return b"".join(struct.pack("<HBBI", *line) for line in code)


def refuse_calls(*, network: bool = False) -> None:
    """Install the filter for this process and its children, for good. Where the kernel does not
    know filters, nothing happens.
    """
    _install(program(platform.machine(), network=network))


def refuse_processes() -> None:
    """Let this process start threads only, for good.

    A child could escape the count of CPU time: one that the kernel reaps by itself (SIGCHLD is
    ignored) is counted nowhere.
    """
    _install(threads_only(platform.machine()))


def _install(code: bytes) -> None:
    if not code:
        return
    # struct sock_fprog: the number of instructions, and where they are (linux/filter.h). Without
    # root a process may install a filter only when it can gain no rights by exec (seccomp(2)).
    libc, buffer = ctypes.CDLL(None), ctypes.create_string_buffer(code, len(code))
    header = struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, header, 0, 0)
