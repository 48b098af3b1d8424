"""Alembic's entry: runs the migrations on the connection that it is handed."""

from alembic import context

from bottleneck_lab.cohort.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite changes a table by making it again
    transactional_ddl=True,
)
context.run_migrations()
