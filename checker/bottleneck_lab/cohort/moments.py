"""Moments in time as people and programs read them."""

from __future__ import annotations

import os
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from bottleneck_lab.errors import UsageError


def iso(at: float) -> str:
    """Format seconds since the epoch in ISO 8601, UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def find_zone(name: str) -> tzinfo:
    """Return a time zone by its IANA name. Raises UsageError if there is none of that name."""
    if name == "UTC":  # also on a system without the data of time zones
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:  # its own error is a KeyError
        raise UsageError(
            f"'{name[:60]}' is not a time zone that this machine knows.",
            "Name one as in Europe/Zurich or America/New_York, or UTC.",
        ) from error


def machine_zone() -> str:
    """Return the name of this machine's time zone; UTC where it has none that can be named."""
    # The name is in the link, not in the file (man 5 localtime).
    _, _, name = os.path.realpath("/etc/localtime").partition("/zoneinfo/")
    zone = os.environ.get("TZ", "").removeprefix(":") or name
    try:
        find_zone(zone)
    except UsageError:
        return "UTC"
    return "UTC" if zone == "Etc/UTC" else zone  # by the name that people know


def local(at: float, zone: str, form: str = "%Y-%m-%dT%H:%M") -> str:
    """Format seconds since the epoch in a time zone, by default as a date picker's value."""
    return datetime.fromtimestamp(at, find_zone(zone)).strftime(form)


def spoken(at: float, zone: str) -> str:
    """Format seconds since the epoch for people, with the time zone that it is in."""
    return local_iso(iso(at), zone)


def local_iso(text: str, zone: str = "") -> str:
    """Format an ISO 8601 moment for people, in `zone`; without one, in this machine's."""
    try:
        shown = find_zone(zone) if zone else None
    except UsageError:  # a learner's machine may have no data of time zones
        shown = None
    moment = datetime.fromisoformat(text).astimezone(shown)
    return moment.strftime("%Y-%m-%d %H:%M %Z").rstrip()


def parse_moment(text: str, zone: str = "UTC") -> float:
    """Return seconds since the epoch of an ISO 8601 date or moment, in `zone` if it names none.

    Raises UsageError for anything else.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise UsageError(
            f"'{text}' is not a date and time.", f"Write it as 2026-11-30T17:00, in {zone}."
        ) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=find_zone(zone))).timestamp()
