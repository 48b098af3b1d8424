"""Labs are stored under the names that they have now, and a column gets a better name."""

import sqlalchemy as sa
from alembic import op

from bottleneck_lab.catalog import load_labs

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_NAMES = (("labs", "slug"), ("extensions", "lab"), ("submissions", "lab"))
"""Where a lab is named. Signed receipts and verdicts keep the name under which they were signed:
changing it would break their signatures.
"""


def upgrade() -> None:
    """Replace every older name by the current one, as the catalogue's `aliases` give them."""
    op.execute("ALTER TABLE submissions RENAME COLUMN told TO circumstances")
    for slug, lab in load_labs().items():
        for alias in lab.spec.aliases:
            for name, column in _NAMES:
                table = sa.table(name, sa.column(column))
                older = table.c[column] == alias
                op.execute(table.update().where(older).values({column: slug}))
            # An event of this kind carries the lab whose rules were changed.
            events = sa.table("events", sa.column("kind"), sa.column("text"))
            older = (events.c.kind == "settings") & (events.c.text == alias)
            op.execute(events.update().where(older).values(text=slug))


def downgrade() -> None:
    """Keep the current names of labs: which of several aliases it was is not recorded."""
    op.execute("ALTER TABLE submissions RENAME COLUMN circumstances TO told")
