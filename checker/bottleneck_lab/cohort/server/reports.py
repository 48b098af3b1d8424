"""Reports of captures as pages: read one at a time, and kept for whoever looks next."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.submissions.capture_reading import render_report
from bottleneck_lab.errors import CaptureError

PAGE_OF_ITS_OWN = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src"
    " 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
)
"""Policy of a page made from a learner's file: it runs its own scripts, but as a site that is
nobody's, without cookies and without a way out.
"""
MOST_BYTES = 64 << 20
"""Of all pages that are kept together; one has about 0.1 MB."""


class Reports:
    """The pages made last. Reading a capture takes up to 3 GiB, so one is read at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)
        self._pages: OrderedDict[tuple[str, str, bool], bytes] = OrderedDict()

    async def page(
        self, name: str, title: str, load: Callable[[], dict[str, bytes]], *, blind: bool = False
    ) -> Response:
        """Return the report of a capture; `load` reads the files that always have this `name`.

        Raises RefusedError if the capture cannot be read.
        """
        key = (name, title, blind)
        # Waiting for one's turn holds no thread: a room that opens reports at once stops nobody.
        async with self._turn:
            if key not in self._pages:
                self._pages[key] = await run_in_threadpool(_render, load, title, blind=blind)
            self._pages.move_to_end(key)
            while sum(map(len, self._pages.values())) > MOST_BYTES and len(self._pages) > 1:
                self._pages.popitem(last=False)
            page = self._pages[key]
        return Response(
            page,
            media_type="text/html; charset=utf-8",
            headers={"Content-Security-Policy": PAGE_OF_ITS_OWN},
        )


def _render(load: Callable[[], dict[str, bytes]], title: str, *, blind: bool) -> bytes:
    try:
        return render_report(load(), title, blind=blind)
    except CaptureError as error:
        raise RefusedError("bad-capture", error.message, error.remedy) from error
