"""Sameness of code is judged on what runs, and likeness takes time in proportion to the code."""

from __future__ import annotations

import time

import pytest

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.grading.likeness import is_the_references, likeness, same_code

SHIPPED = b"""
def total(values):
    result = 0
    for value in values:
        result += value
    return result
"""
REFERENCE = b'''
"""Add numbers."""
import math

def total(values):
    """Return the sum."""
    parts = [float(value) for value in values]  # one pass
    return math.fsum(parts)
'''
DISGUISED = b"""
import math

# my own work
def total(numbers: list[float]) -> float:
    pieces: list = [float(each)
                    for each in numbers]
    "done"
    return math.fsum( pieces )
"""
OWN = b"""
import numpy

def total(values):
    return numpy.asarray(values).sum()
"""


def files(source: bytes) -> dict[str, bytes]:
    return {"work.py": source}


def test_comments_docstrings_hints_layout_and_names_of_locals_make_no_other_code():
    assert same_code("work.py", REFERENCE, DISGUISED)
    assert is_the_references(files(DISGUISED), files(SHIPPED), files(REFERENCE))


@pytest.mark.parametrize(
    "change",
    [
        (b"fsum", b"prod"),
        (b"float(value)", b"float(values)"),
        (b"return", b"parts.sort()\n    return"),
        (b"def total(", b"def add("),
    ],
)
def test_what_runs_otherwise_is_other_code(change):
    assert not same_code("work.py", REFERENCE, REFERENCE.replace(*change))


def test_shipped_code_is_nobodys_solution():
    assert not is_the_references(files(SHIPPED + b"# mine"), files(SHIPPED), files(REFERENCE))
    assert not is_the_references(files(OWN), files(SHIPPED), files(REFERENCE))


def test_one_file_of_the_references_is_enough_and_one_file_of_ones_own_too():
    shipped, reference = {"a.py": b"a", "b.cpp": b"b"}, {"a.py": b"c", "b.cpp": b"d /* e */"}
    assert is_the_references({"a.py": b"c # mine", "b.cpp": b"b"}, shipped, reference)
    assert is_the_references({"a.py": b"a", "b.cpp": b"// mine\nd"}, shipped, reference)
    assert not is_the_references({"a.py": b"c", "b.cpp": b"e"}, shipped, reference)


def test_code_that_cannot_be_parsed_is_compared_by_its_words():
    assert same_code("work.py", b"def (:  # one", b"def(:")
    assert not same_code("work.py", b"def (:", b"def [:")


def test_likeness_is_1_for_the_same_code_and_falls_with_every_change():
    added = REFERENCE.replace(b"    return", b"    parts.sort()\n    return")
    alike = [
        likeness(files(source), files(REFERENCE)) for source in (DISGUISED, added, SHIPPED, b"x")
    ]
    assert alike[0] == 1.0
    assert sorted(alike, reverse=True) == alike
    assert 0.6 < alike[1] < 1
    assert alike[3] == 0


def test_hostile_code_takes_no_longer_than_its_size():
    began = time.process_time()
    for source in (b"a " * 60_000, b"(" * 100_000, b"-" * 100_000 + b"1"):
        assert likeness(files(source), files(REFERENCE)) < 0.1
    assert time.process_time() - began < 2


@pytest.mark.parametrize("lab", load_labs().values(), ids=load_labs())
def test_every_reference_differs_from_what_is_shipped(lab):
    shipped, reference = lab.code_of(lab.path), lab.code_of(lab.solution)
    assert is_the_references(shipped | reference, shipped, reference)
    assert likeness(shipped | reference, shipped) < 0.9
