"""Runners say which data sets their machine lacks."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Runners so far lack nothing."""
    op.add_column("runners", sa.Column("missing", sa.Text(), nullable=False, server_default="[]"))


def downgrade() -> None:
    """Drop it; it is reported anew every few seconds."""
    op.drop_column("runners", "missing")
