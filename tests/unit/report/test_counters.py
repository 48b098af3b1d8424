"""Counters on a terminal and on the page, from the report that comes with the attention lab."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from bottleneck_lab.analysis.counters.kernel_counters import compare_kernels
from bottleneck_lab.analysis.summary import analyse
from bottleneck_lab.report.console.counters import render_counters
from bottleneck_lab.report.page.html import render_html
from bottleneck_lab.trace import load

CAPTURE = Path(__file__).parents[3] / "datasets" / "captures" / "synthetic-fused-attention-ncu.csv"


@pytest.fixture(scope="module")
def timeline():
    return load(CAPTURE)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_of_counters_is_wider_than_the_terminal(timeline, width):
    out = io.StringIO()
    render_counters(
        compare_kernels(timeline.counters), timeline.notes, Console(file=out, width=width)
    )
    text = out.getvalue()
    assert all(len(line) <= max(width, 71) for line in text.splitlines())
    assert text.index("synthetic: these counters were made up") < text.index(
        "1  How long each launch took"
    )
    assert text.index("1 Shared memory is read and written with bank conflicts") < text.index(
        "2 Warps wait for loads"
    )
    assert "sectors per request                     4            16          ≤ 16" in text


def test_the_page_has_them_too(timeline):
    page = render_html(title="x", capture=analyse(timeline))
    assert 'id="counters"' in page
    assert "no GPU has measured them" in page
    assert "Shared memory is read and written with bank conflicts" in page
