"""People can sign in with accounts that they have elsewhere; courses can launch the cohort."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables of accounts and of courses."""
    op.create_table(
        "identities",
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("person", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["person"], ["people.id"], name=op.f("fk_identities_person")),
        sa.PrimaryKeyConstraint("issuer", "subject", name=op.f("pk_identities")),
    )
    op.create_index(op.f("ix_identities_person"), "identities", ["person"])
    op.create_table(
        "lti_courses",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("context", sa.Text(), nullable=False),
        sa.Column("client_id", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("memberships", sa.Text(), nullable=False),
        sa.Column("lineitems", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lti_courses")),
        sa.UniqueConstraint("issuer", "context", name=op.f("uq_lti_courses_issuer_context")),
    )


def downgrade() -> None:
    """Drop them: people stay, and join by code again."""
    op.drop_table("lti_courses")
    op.drop_table("identities")
