"""The limit on uploads is the protocol's; the setting of that name was read by nothing."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_COHORT = sa.table("cohort", sa.column("settings"))


def upgrade() -> None:
    """Drop it from the settings, among which no unknown name may be."""
    for text in op.get_bind().execute(sa.select(_COHORT.c.settings)).scalars().all():
        settings = json.loads(text)
        settings.pop("max_bytes", None)
        op.execute(_COHORT.update().values(settings=json.dumps(settings)))


def downgrade() -> None:
    """Do nothing: earlier versions take their default for a setting that is missing."""
