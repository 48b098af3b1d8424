"""Changes, sent to everybody who watches.

The log of events in the database is followed, so that runners in other processes are heard too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from bottleneck_lab.cohort.members.people import Person
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import Database
from bottleneck_lab.cohort.view.room import latest_event

LOOK_S = 0.2
KEEP_ALIVE_S = 15.0
FOR_ALL = ("announced", "settings")
"""Kinds that concern every learner."""


class Event(NamedTuple):
    """A change; `person` is whom it concerns."""

    id: int
    kind: str
    person: int | None
    submission: str | None


class Hub:
    """One poll of the database for any number of watchers."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._watchers: dict[asyncio.Queue[Event | None], Person] = {}
        self._closing = False

    async def follow(self) -> None:
        """Hand on what happens, until cancelled."""
        # Only what happens from now on: a page that opens is up to date anyway.
        last = await run_in_threadpool(self._last)
        while not self._closing:
            await asyncio.sleep(LOOK_S)
            with contextlib.suppress(SQLAlchemyError):  # a database that restarts is asked again
                for event in await run_in_threadpool(self._since, last):
                    last = event.id
                    self._send(event)

    def _last(self) -> int:
        with self._database.reading() as connection:
            return latest_event(connection)

    def _since(self, last: int) -> list[Event]:
        table = tables.events
        query = (
            select(table.c.id, table.c.kind, table.c.person, table.c.submission)
            .where(table.c.id > last)
            .order_by(table.c.id)
        )
        with self._database.reading() as connection:
            return [Event(*row) for row in connection.execute(query)]

    def _send(self, event: Event) -> None:
        for queue, person in self._watchers.items():
            if person.may("assistant") or event.person == person.id or event.kind in FOR_ALL:
                # A page that does not read its events reloads on the next one that it gets.
                with contextlib.suppress(asyncio.QueueFull):
                    queue.put_nowait(event)

    @contextlib.contextmanager
    def _watching(self, person: Person) -> Iterator[asyncio.Queue[Event | None]]:
        # Bounded: a page that is suspended must not collect a workshop's events in memory.
        queue: asyncio.Queue[Event | None] = asyncio.Queue(100)
        self._watchers[queue] = person
        if self._closing:
            queue.put_nowait(None)
        try:
            yield queue
        finally:
            del self._watchers[queue]

    async def stream(self, person: Person) -> AsyncIterator[bytes]:
        """Yield the events that concern this person, as an EventSource reads them."""
        with self._watching(person) as queue:
            yield b"retry: 2000\n\n"
            while True:
                try:
                    event = await asyncio.wait_for(queue.get(), KEEP_ALIVE_S)
                except TimeoutError:
                    # Proxies close connections on which nothing comes for a minute.
                    yield b": still here\n\n"
                    continue
                if event is None:
                    return
                about = json.dumps({"kind": event.kind, "submission": event.submission})
                yield f"id: {event.id}\nevent: change\ndata: {about}\n\n".encode()

    async def next(self, person: Person, most_s: float) -> None:
        """Wait until something happens that concerns this person, at most `most_s` seconds."""
        with self._watching(person) as queue, contextlib.suppress(TimeoutError):
            await asyncio.wait_for(queue.get(), most_s)

    @property
    def watchers(self) -> int:
        """Return how many pages and clients are following."""
        return len(self._watchers)

    def close(self) -> None:
        """End every stream, so that the server can stop."""
        self._closing = True
        for queue in self._watchers:
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(None)
