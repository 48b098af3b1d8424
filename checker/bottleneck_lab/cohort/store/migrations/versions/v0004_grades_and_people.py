"""Grades can be overridden; people can be merged, call for help, and keep their Canvas id."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table of overrides, and columns of people."""
    op.create_table(
        "overrides",
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("lab", sa.Text(), nullable=False),
        sa.Column("points", sa.Float(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("author", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["person"], ["people.id"], name=op.f("fk_overrides_person")),
        sa.ForeignKeyConstraint(["author"], ["people.id"], name=op.f("fk_overrides_author")),
        sa.PrimaryKeyConstraint("person", "lab", name=op.f("pk_overrides")),
    )
    for column in (
        sa.Column("canvas_id", sa.Text(), nullable=False, server_default=""),
        sa.Column("merged_into", sa.Integer(), nullable=True),
        sa.Column("claims", sa.Integer(), nullable=True),
        sa.Column("needs_help", sa.Float(), nullable=True),
        sa.Column("help_text", sa.Text(), nullable=False, server_default=""),
    ):
        op.add_column("people", column)


def downgrade() -> None:
    """Drop them; overrides are lost, and merged people stand apart again."""
    op.drop_table("overrides")
    for column in ("canvas_id", "merged_into", "claims", "needs_help", "help_text"):
        op.drop_column("people", column)
