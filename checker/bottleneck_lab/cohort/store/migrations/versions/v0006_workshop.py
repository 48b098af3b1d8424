"""Labs open at a moment, and so do their hints and solutions."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_MOMENTS = ("opens", "hints_at", "solution_at")


def upgrade() -> None:
    """Labs so far have none of these moments: everything is open."""
    for name in _MOMENTS:
        op.add_column("labs", sa.Column(name, sa.Float(), nullable=True))


def downgrade() -> None:
    """Drop them: earlier versions open everything at once."""
    for name in _MOMENTS:
        op.drop_column("labs", name)
