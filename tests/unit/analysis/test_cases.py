"""Findings against cases of the library whose cause was measured by switching it off: what the
report once got wrong.
"""

from __future__ import annotations

import pytest

from bottleneck_lab import load, merge_ranks, summarise
from bottleneck_lab.catalog import content_root
from bottleneck_lab.report.capture_words import describe_gain
from bottleneck_lab.workspace.cases import find_case, traces_of

FIRST = {
    "bird-calls": "file-stalls",  # with the copies of the checkpoint, and before uneven steps
    "dose-planner": "straggler",  # by what one rank waits, not by the mean of all
    "night-exams": "allocator-churn",  # without memory records
    "museum-guide": "interrupted-kernels",  # by a process with longer turns
    "old-sermons": "allocator-churn",  # in blocks that are always a little too small
    "river-levels": "interrupted-kernels",  # by another process on the device
    "tiny-stories": "tensor-cores-unused",  # although launches wait for room in the queue
}


@pytest.mark.parametrize(("name", "finding"), FIRST.items())
def test_the_first_finding_is_the_cause_and_its_gain_near_the_measured_one(name: str, finding: str):
    case = find_case(name)
    folder = content_root() / "datasets" / "cases" / name
    first = summarise(merge_ranks([load(folder / trace) for trace in case.traces])).findings[0]
    assert (first.id, first.cause) == (finding, case.cause)
    assert first.expected_gain_ratio == pytest.approx(case.gain, rel=0.2)


def test_a_late_ranks_work_can_go_or_be_spread_over_the_ranks():
    """Two causes alike in the capture: the fix of one leaves the work out, and of the other deals
    it out evenly.
    """
    for name, bound in (("dose-planner", "expected"), ("letter-sorter", "shared")):
        case = find_case(name)
        first = summarise(merge_ranks([load(path) for path in traces_of(case)])).findings[0]
        ratio = getattr(first, f"{bound}_gain_ratio")
        assert case.gain <= 1.02 * ratio < 1.05 * case.gain
        assert first.shared_gain_ratio < first.expected_gain_ratio
        assert f"{first.shared_gain_ratio:.2f}x with the same work" in describe_gain(first)


def test_products_in_double_precision_are_a_finding():
    """Of star-catalogue, whose device is busy with them; what else runs then moves half the
    bytes.
    """
    case = find_case("star-catalogue")
    (only,) = summarise(load(traces_of(case)[0])).findings
    assert only.id == "double-precision"
    assert not only.at_most
    assert only.expected_gain_ratio == pytest.approx(case.gain, rel=0.05)


def test_of_elementwise_kernels_in_a_row_one_remains():
    """Of gene-tokens, which ran 1.82x as fast compiled; without all of them it would be 2.39x."""
    case = find_case("gene-tokens")
    (only,) = summarise(load(traces_of(case)[0])).findings
    assert only.id == "unfused-elementwise"
    assert only.expected_gain_ratio == pytest.approx(case.gain, rel=0.05)


def test_requests_of_other_sizes_are_no_interruptions():
    """Of route-times: most kernels of a request take 0.14 to 2.7 times as long as another's."""
    case = find_case("route-times")
    summary = summarise(load(traces_of(case)[0]))
    assert "interrupted-kernels" not in [each.id for each in summary.findings]
