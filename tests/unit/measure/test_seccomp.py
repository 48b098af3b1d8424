"""The filter of kernel calls, run by a few lines of an interpreter: the kernel's own run is in tests/exploits (memory_nobody_counts)."""

import struct

import pytest

from bottleneck_lab.measure.seccomp import program

X86, ARM, OTHER = 0xC000003E, 0xC00000B7, 0x40000003
ALLOWED, REFUSED = 0x7FFF0000, 0x00050000 | 38


def answer(code: bytes, arch: int, number: int) -> int:
    """What the filter says of a call."""
    lines, at, value = list(struct.iter_unpack("<HBBI", code)), 0, 0
    while True:
        what, if_so, if_not, constant = lines[at]
        if what == 0x06:
            return constant
        if what == 0x20:
            value, at = {0: number, 4: arch}[constant], at + 1
        else:
            holds = value == constant if what == 0x15 else value >= constant
            at += 1 + (if_so if holds else if_not)


@pytest.mark.parametrize(("machine", "arch", "shmget"), [("x86_64", X86, 29), ("aarch64", ARM, 194)])
def test_only_the_named_calls_are_refused(machine, arch, shmget):
    code = program(machine)
    assert answer(code, arch, shmget) == REFUSED
    assert answer(code, arch, 425) == REFUSED
    assert [answer(code, arch, number) for number in (0, 1, 63, 439)] == [ALLOWED] * 4


def test_another_numbering_of_the_same_calls_is_refused_whole():
    assert answer(program("x86_64"), OTHER, 1) == REFUSED
    assert answer(program("x86_64"), X86, 0x40000000 | 29) == REFUSED


def test_a_machine_whose_numbers_are_not_known_has_no_filter():
    assert program("riscv64") == b""
