"""A database of an earlier version is brought to the schema and the settings of this one."""

from __future__ import annotations

import json
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext

from bottleneck_lab.cohort import store
from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.members import people
from bottleneck_lab.cohort.settings import change_settings, load_settings
from bottleneck_lab.cohort.store import tables


def downgrade(connection: sa.Connection, revision: str) -> None:
    """Put a database back to the schema of an earlier version."""
    config = Config()
    config.set_main_option("script_location", str(Path(store.__file__).with_name("migrations")))
    config.attributes["connection"] = connection
    command.downgrade(config, revision)


def test_the_migrations_make_the_tables_that_the_code_uses(room):
    with room.cohort.database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []


def test_a_setting_that_was_dropped_does_not_keep_a_cohort_from_opening(room):
    with room.cohort.database.writing() as connection:
        change_settings(connection, max_waiting=7)
        downgrade(connection, "0011")
        (text,) = connection.execute(sa.select(tables.cohort.c.settings)).scalars()
        older = json.dumps({**json.loads(text), "max_bytes": 262144})
        connection.execute(tables.cohort.update().values(settings=older))
    with open_cohort(room.cohort.folder) as cohort, cohort.database.reading() as connection:
        assert load_settings(connection).max_waiting == 7


def test_canvass_number_that_stood_for_a_student_id_is_its_number_alone(room):
    with room.cohort.database.writing() as connection:
        for fields in ({"canvas_id": "7"}, {"student_id": "s2", "canvas_id": "8"}, {}):
            people.add_person(connection, "learner", "Ada", 0.0, **fields)
        downgrade(connection, "0012")
        ids = sa.select(tables.people.c.student_id).order_by(tables.people.c.id)
        assert list(connection.execute(ids).scalars()) == ["7", "s2", None]
    with open_cohort(room.cohort.folder) as cohort, cohort.database.reading() as connection:
        assert list(connection.execute(ids).scalars()) == [None, "s2", None]
