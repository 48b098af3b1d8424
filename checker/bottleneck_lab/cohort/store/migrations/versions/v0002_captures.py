"""Submissions name the capture that came with them."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Submissions so far have none."""
    op.add_column("submissions", sa.Column("capture", sa.String(length=64), nullable=True))


def downgrade() -> None:
    """Captures stay in the folder until blobs are collected."""
    op.drop_column("submissions", "capture")
