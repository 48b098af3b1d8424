"""The filter of system calls, run by a few lines of an interpreter: the kernel's own run is in
tests/exploits (memory_nobody_counts).
"""

import struct

import pytest

from bottleneck_lab.measure.sandbox.seccomp import program, threads_only

X86, ARM, OTHER = 0xC000003E, 0xC00000B7, 0x40000003
ALLOWED, REFUSED = 0x7FFF0000, 0x00050000 | 38


def answer(code: bytes, arch: int, number: int, argument: int = 0) -> int:
    """What the filter says of a call with this first argument."""
    lines, at, value = list(struct.iter_unpack("<HBBI", code)), 0, 0
    while True:
        what, if_so, if_not, constant = lines[at]
        if what == 0x06:
            return constant
        if what == 0x20:
            value, at = {0: number, 4: arch, 16: argument}[constant], at + 1
        else:
            holds = {
                0x15: value == constant,
                0x35: value >= constant,
                0x45: bool(value & constant),
            }[what]
            at += 1 + (if_so if holds else if_not)


@pytest.mark.parametrize(
    ("machine", "arch", "shmget", "keyctl", "bpf"),
    [("x86_64", X86, 29, 250, 321), ("aarch64", ARM, 194, 219, 280)],
)
def test_only_the_named_calls_are_refused(machine, arch, shmget, keyctl, bpf):
    code = program(machine)
    assert [answer(code, arch, number) for number in (shmget, keyctl, bpf, 425)] == [REFUSED] * 4
    assert [answer(code, arch, number) for number in (1, 3, 63, 439)] == [ALLOWED] * 4


def test_another_numbering_of_the_same_calls_is_refused_whole():
    assert answer(program("x86_64"), OTHER, 1) == REFUSED
    assert answer(program("x86_64"), X86, 0x40000000 | 29) == REFUSED


def test_a_machine_whose_numbers_are_not_known_has_no_filter():
    assert program("riscv64") == b""


@pytest.mark.parametrize(
    ("machine", "arch", "socket"), [("x86_64", X86, 41), ("aarch64", ARM, 198)]
)
def test_sockets_are_for_this_machine_alone_unless_ranks_have_to_meet(machine, arch, socket):
    unix, inet, netlink, inet6 = 1, 2, 16, 10
    alone, open_ = program(machine), program(machine, network=True)
    assert [answer(alone, arch, socket, family) for family in (unix, netlink)] == [ALLOWED] * 2
    assert [answer(alone, arch, socket, family) for family in (inet, inet6)] == [
        0x00050000 | 97
    ] * 2
    assert answer(open_, arch, socket, inet) == ALLOWED
    assert answer(open_, arch, 425) == REFUSED


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
