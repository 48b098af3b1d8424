"""The filter of kernel calls, run by a few lines of an interpreter: the kernel's own run is in tests/exploits (memory_nobody_counts)."""

import struct

import pytest

from bottleneck_lab.measure.sandbox.seccomp import program, threads_only

X86, ARM, OTHER = 0xC000003E, 0xC00000B7, 0x40000003
ALLOWED, REFUSED = 0x7FFF0000, 0x00050000 | 38


def answer(code: bytes, arch: int, number: int, argument: int = 0, second: int = 0) -> int:
    """What the filter says of a call with these arguments."""
    lines, at, value = list(struct.iter_unpack("<HBBI", code)), 0, 0
    while True:
        what, if_so, if_not, constant = lines[at]
        if what == 0x06:
            return constant
        if what == 0x20:
            value, at = {0: number, 4: arch, 16: argument, 24: second}[constant], at + 1
        else:
            holds = {0x15: value == constant, 0x35: value >= constant, 0x45: bool(value & constant)}[what]
            at += 1 + (if_so if holds else if_not)


@pytest.mark.parametrize(
    ("machine", "arch", "shmget", "io_setup", "timer_create"),
    [("x86_64", X86, 29, 206, 222), ("aarch64", ARM, 194, 0, 107)],
)
def test_only_the_named_calls_are_refused(machine, arch, shmget, io_setup, timer_create):
    code = program(machine)
    assert [answer(code, arch, number) for number in (shmget, io_setup, timer_create, 425)] == [REFUSED] * 4
    assert [answer(code, arch, number) for number in (1, 3, 63, 439)] == [ALLOWED] * 4


def test_another_numbering_of_the_same_calls_is_refused_whole():
    assert answer(program("x86_64"), OTHER, 1) == REFUSED
    assert answer(program("x86_64"), X86, 0x40000000 | 29) == REFUSED


def test_a_machine_whose_numbers_are_not_known_has_no_filter():
    assert program("riscv64") == b""


@pytest.mark.parametrize(("machine", "arch", "socket"), [("x86_64", X86, 41), ("aarch64", ARM, 198)])
def test_sockets_are_for_this_machine_alone_unless_ranks_have_to_meet(machine, arch, socket):
    unix, inet, netlink, inet6 = 1, 2, 16, 10
    alone, open_ = program(machine), program(machine, network=True)
    assert [answer(alone, arch, socket, family) for family in (unix, netlink)] == [ALLOWED] * 2
    assert [answer(alone, arch, socket, family) for family in (inet, inet6)] == [0x00050000 | 97] * 2
    assert answer(open_, arch, socket, inet) == ALLOWED
    assert answer(open_, arch, 425) == REFUSED


@pytest.mark.parametrize(("machine", "arch", "prlimit"), [("x86_64", X86, 302), ("aarch64", ARM, 261)])
def test_limits_are_ones_own(machine, arch, prlimit):
    own, first = 0, 1
    assert answer(program(machine), arch, prlimit, own) == ALLOWED
    assert answer(program(machine), arch, prlimit, first) == REFUSED
    assert answer(program(machine), arch, prlimit + 1, first) == ALLOWED


@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize(("machine", "arch", "fcntl"), [("x86_64", X86, 72), ("aarch64", ARM, 25)])
def test_a_file_sends_no_signal_of_ones_choice(machine, arch, fcntl, network):
    code, duplicate, get_flags, set_signal, notify = program(machine, network=network), 0, 3, 10, 1026
    assert [answer(code, arch, fcntl, 5, what) for what in (set_signal, notify)] == [REFUSED] * 2
    assert [answer(code, arch, fcntl, set_signal, what) for what in (duplicate, get_flags)] == [ALLOWED] * 2
    assert answer(code, arch, fcntl + 1, 5, set_signal) == ALLOWED


@pytest.mark.parametrize(
    ("machine", "arch", "clone", "others"),
    [("x86_64", X86, 56, (57, 58, 59, 322, 435)), ("aarch64", ARM, 220, (221, 281, 435))],
)
def test_threads_can_be_started_and_nothing_else(machine, arch, clone, others):
    code, process, thread = threads_only(machine), 0x11, 0x3D0F00
    assert [answer(code, arch, number) for number in others] == [REFUSED] * len(others)
    assert answer(code, arch, clone, process) == REFUSED
    assert answer(code, arch, clone, process | 0x100) == REFUSED  # sharing its memory
    assert answer(code, arch, clone, thread) == ALLOWED
    assert [answer(code, arch, number, process) for number in (1, 63, 202)] == [ALLOWED] * 3
    assert answer(code, OTHER, clone, thread) == REFUSED
    assert threads_only("riscv64") == b""
