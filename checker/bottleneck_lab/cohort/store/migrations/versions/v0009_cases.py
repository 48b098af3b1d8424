"""Cases can be answered in a browser."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table of answered cases."""
    op.create_table(
        "answered_cases",
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("results", sa.Text(), nullable=False),
        sa.Column("past", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["person"], ["people.id"], name=op.f("fk_answered_cases_person")),
        sa.PrimaryKeyConstraint("person", "name", name=op.f("pk_answered_cases")),
    )


def downgrade() -> None:
    """Drop it, and the answers in it."""
    op.drop_table("answered_cases")
