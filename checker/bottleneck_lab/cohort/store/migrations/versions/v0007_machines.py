"""Runners say which machine they are on."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Runners so far are on machines that nobody knows."""
    op.add_column("runners", sa.Column("machine", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    """Drop it; it is reported anew every few seconds."""
    op.drop_column("runners", "machine")
