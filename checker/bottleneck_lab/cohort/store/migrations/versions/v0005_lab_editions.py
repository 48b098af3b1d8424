"""Every attempt keeps the edition of the lab that it measured; a regrade may be of a later one."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; attempts so far measured the edition that was submitted."""
    op.add_column("leases", sa.Column("lab_hash", sa.String(64), nullable=False, server_default=""))
    op.execute(
        "UPDATE leases SET lab_hash = (SELECT lab_hash FROM submissions"
        " WHERE submissions.id = leases.submission)"
    )


def downgrade() -> None:
    """Drop it: earlier versions measure only the edition that was submitted."""
    op.drop_column("leases", "lab_hash")
