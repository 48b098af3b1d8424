"""Moments in time as people and programs read them."""

from __future__ import annotations

from datetime import UTC, datetime

from bottleneck_lab.errors import UsageError


def iso(at: float) -> str:
    """Format seconds since the epoch in ISO 8601, UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_moment(text: str) -> float:
    """Return seconds since the epoch of an ISO 8601 date or moment, in UTC if it names no zone.

    Raises UsageError for anything else.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise UsageError(
            f"'{text}' is not a date and time.", "Write it as 2026-11-30T17:00, in UTC."
        ) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
