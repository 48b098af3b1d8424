"""A page at Perfetto's address can fetch the trace from this machine; no other page can."""

from __future__ import annotations

from contextlib import suppress

import pytest
from playwright.sync_api import Error

from bottleneck_lab.report.perfetto import serve_trace

pytestmark = [pytest.mark.browser, pytest.mark.long]

FETCH = """async (url) => {
  try {
    return await (await fetch(url)).text();
  } catch (error) {
    return String(error);
  }
}"""


@pytest.fixture
def visit(chromium):
    """`visit(address)` → a page at that address, made here: the network is not used."""
    context = chromium.new_context()
    with suppress(
        Error
    ):  # Chromium before version 142 does not ask, and does not know the permission.
        context.grant_permissions(["local-network-access"])
    context.route(
        "https://**", lambda route: route.fulfill(body="<!doctype html><title>stand-in</title>")
    )

    def visited(address):
        page = context.new_page()
        page.goto(address)
        return page

    yield visited
    context.close()


@pytest.fixture
def trace(tmp_path):
    """A small trace."""
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": []}')
    return path


def test_perfetto_may_fetch_the_trace(visit, trace):
    with serve_trace(trace, port=0) as served:
        page = visit(served.link)
        assert page.evaluate(FETCH, served.trace_url) == trace.read_text()
        assert served.wait(60)


def test_no_other_page_may(visit, trace):
    with serve_trace(trace, port=0) as served:
        page = visit("https://attacker.example/")
        assert page.evaluate(FETCH, served.trace_url) == "TypeError: Failed to fetch"
