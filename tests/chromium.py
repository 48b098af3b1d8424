"""A headless Chromium for tests, driven through Playwright."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .tools import NO_BROWSER, browser_path

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def open_chromium() -> Iterator[object]:
    """Yield the system's Chromium, ended with the block; without one, skip the test."""
    if NO_BROWSER:
        pytest.skip(NO_BROWSER)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=FLAGS)
        yield browser
        browser.close()
