"""Canvas's own number is nobody's student id: it stood as one for learners of its gradebooks."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_PEOPLE = sa.table("people", sa.column("student_id"), sa.column("canvas_id"))
_OF_CANVAS = _PEOPLE.c.canvas_id != ""


def upgrade() -> None:
    """Keep it as `canvas_id` alone."""
    stands_in = _PEOPLE.c.student_id == _PEOPLE.c.canvas_id
    op.execute(_PEOPLE.update().where(_OF_CANVAS, stands_in).values(student_id=None))


def downgrade() -> None:
    """Let it stand as the student id again, where there is none and nobody else has it."""
    taken = sa.select(_PEOPLE.alias().c.student_id).where(sa.column("student_id").is_not(None))
    free = _PEOPLE.c.student_id.is_(None) & _PEOPLE.c.canvas_id.not_in(taken)
    op.execute(_PEOPLE.update().where(_OF_CANVAS, free).values(student_id=_PEOPLE.c.canvas_id))
