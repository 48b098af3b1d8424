"""The workshop that an instructor has chosen: which labs of the course, and in which order."""

from __future__ import annotations

from sqlalchemy import Connection

from bottleneck_lab.catalog import current_name, load_labs
from bottleneck_lab.cohort.settings import change_settings, load_settings
from bottleneck_lab.cohort.store.database import note
from bottleneck_lab.errors import UsageError


def workshop_labs(connection: Connection) -> list[str]:
    """Return the workshop's labs in their order; the whole course where none were chosen.

    Labs that the course no longer has are left out, and renamed ones have their present name.
    """
    chosen, known = load_settings(connection).labs, load_labs()
    if chosen is None:
        return list(known)
    return [slug for slug in map(current_name, chosen) if slug in known]


def as_setting(labs: list[str]) -> list[str] | None:
    """Return a choice of labs as the settings keep it: None for the whole course.

    Raises UsageError for no lab, or one twice.
    """
    if not labs or len(set(labs)) < len(labs):
        raise UsageError(
            "A workshop needs at least one lab, and each lab once.", "Choose its labs again."
        )
    return None if labs == list(load_labs()) else labs


def choose_labs(connection: Connection, labs: list[str], at: float) -> None:
    """Make these the workshop's labs, in this order. Raises UsageError for none, or one twice.

    Submissions to other labs are kept, and are seen again once those are chosen again.
    """
    change_settings(connection, labs=as_setting(labs))
    note(connection, at, "settings", "The labs of the workshop were chosen.")
