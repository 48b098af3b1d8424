"""Submissions may ask for a capture that a runner makes."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Submissions so far asked for a check."""
    op.add_column("submissions", sa.Column("tool", sa.String(16), nullable=True))
    op.add_column("submissions", sa.Column("made", sa.String(64), nullable=True))


def downgrade() -> None:
    """Drop them: an earlier version knows no such submissions, and measures none of them."""
    op.execute("UPDATE submissions SET state = 'failed' WHERE tool IS NOT NULL")
    op.drop_column("submissions", "tool")
    op.drop_column("submissions", "made")
