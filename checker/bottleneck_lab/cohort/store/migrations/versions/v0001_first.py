"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create every table; those that others refer to come first."""
    _create_course()
    _create_people()
    _create_of_people()
    _create_submissions()
    _create_verdicts()


def _create_course() -> None:
    """Create what stands before anybody has joined."""
    op.create_table(
        "cohort",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("public_key", sa.Text(), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cohort")),
    )
    op.create_table(
        "labs",
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("due", sa.Float(), nullable=True),
        sa.Column("closes", sa.Float(), nullable=True),
        sa.Column("points", sa.Float(), nullable=False),
        sa.Column("budget", sa.Integer(), nullable=True),
        sa.Column("hints_open", sa.Integer(), nullable=True),
        sa.Column("feedback_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("slug", name=op.f("pk_labs")),
    )
    op.create_table(
        "runners",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("executor", sa.String(length=16), nullable=False),
        sa.Column("slots", sa.Text(), nullable=False),
        sa.Column("seen", sa.Float(), nullable=False),
        sa.Column("health", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_runners")),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("person", sa.Integer(), nullable=True),
        sa.Column("submission", sa.Text(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_table(
        "join_codes",
        sa.Column("code", sa.String(length=32), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("revoked", sa.Float(), nullable=True),
        sa.Column("uses", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("code", name=op.f("pk_join_codes")),
    )


def _create_people() -> None:
    """Create learners and staff."""
    op.create_table(
        "people",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("handle", sa.String(length=32), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("pseudonym", sa.Text(), nullable=False),
        sa.Column("on_leaderboard", sa.Boolean(), nullable=False),
        sa.Column("student_id", sa.Text(), nullable=True),
        sa.Column("first_name", sa.Text(), nullable=False),
        sa.Column("last_name", sa.Text(), nullable=False),
        sa.Column("email", sa.Text(), nullable=False),
        sa.Column("section", sa.Text(), nullable=False),
        sa.Column("sis_id", sa.Text(), nullable=False),
        sa.Column("sis_login", sa.Text(), nullable=False),
        sa.Column("token_sha256", sa.String(length=64), nullable=True),
        sa.Column("password_hash", sa.Text(), nullable=True),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("joined", sa.Float(), nullable=True),
        sa.Column("seen", sa.Float(), nullable=True),
        sa.Column("removed", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_people")),
        sa.UniqueConstraint("handle", name=op.f("uq_people_handle")),
        sa.UniqueConstraint("student_id", name=op.f("uq_people_student_id")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_people_token_sha256")),
    )


def _create_of_people() -> None:
    """Create what belongs to a person."""
    op.create_table(
        "announcements",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("author", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("withdrawn", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["author"], ["people.id"], name=op.f("fk_announcements_author")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_announcements")),
    )
    op.create_table(
        "extensions",
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("lab", sa.Text(), nullable=False),
        sa.Column("due", sa.Float(), nullable=True),
        sa.Column("extra_budget", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["person"], ["people.id"], name=op.f("fk_extensions_person")),
        sa.PrimaryKeyConstraint("person", "lab", name=op.f("pk_extensions")),
    )
    op.create_table(
        "login_links",
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("expires", sa.Float(), nullable=False),
        sa.Column("used", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["person"], ["people.id"], name=op.f("fk_login_links_person")),
        sa.PrimaryKeyConstraint("token_sha256", name=op.f("pk_login_links")),
    )
    op.create_table(
        "sessions",
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("csrf", sa.String(length=64), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("expires", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["person"], ["people.id"], name=op.f("fk_sessions_person")),
        sa.PrimaryKeyConstraint("token_sha256", name=op.f("pk_sessions")),
    )
    op.create_index(op.f("ix_sessions_person"), "sessions", ["person"], unique=False)


def _create_submissions() -> None:
    """Create what learners submit."""
    op.create_table(
        "submissions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("handle", sa.String(length=32), nullable=False),
        sa.Column("person", sa.Integer(), nullable=False),
        sa.Column("lab", sa.Text(), nullable=False),
        sa.Column("device", sa.String(length=16), nullable=False),
        sa.Column("lab_hash", sa.String(length=64), nullable=False),
        sa.Column("request_key", sa.Text(), nullable=False),
        sa.Column("blob", sa.String(length=64), nullable=False),
        sa.Column("received", sa.Float(), nullable=False),
        sa.Column("receipt", sa.Text(), nullable=False),
        sa.Column("told", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("queued", sa.Float(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("counts", sa.Boolean(), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["person"], ["people.id"], name=op.f("fk_submissions_person")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_submissions")),
        sa.UniqueConstraint("handle", name=op.f("uq_submissions_handle")),
        sa.UniqueConstraint(
            "person", "request_key", name=op.f("uq_submissions_person_request_key")
        ),
    )
    op.create_index(op.f("ix_submissions_blob"), "submissions", ["blob"], unique=False)
    op.create_index(
        "ix_submissions_open",
        "submissions",
        ["state"],
        unique=False,
        sqlite_where=sa.text("state IN ('queued', 'running')"),
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )
    op.create_index(
        op.f("ix_submissions_person_lab"), "submissions", ["person", "lab"], unique=False
    )


def _create_verdicts() -> None:
    """Create attempts at measuring, and verdicts."""
    op.create_table(
        "leases",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("submission", sa.Integer(), nullable=False),
        sa.Column("nonce", sa.String(length=64), nullable=False),
        sa.Column("runner", sa.Text(), nullable=False),
        sa.Column("slot", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("taken", sa.Float(), nullable=False),
        sa.Column("expires", sa.Float(), nullable=False),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.Column("why", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["submission"], ["submissions.id"], name=op.f("fk_leases_submission")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leases")),
        sa.UniqueConstraint("nonce", name=op.f("uq_leases_nonce")),
    )
    op.create_index(op.f("ix_leases_submission"), "leases", ["submission"], unique=False)
    op.create_index(
        "ux_leases_active",
        "leases",
        ["submission"],
        unique=True,
        sqlite_where=sa.text("state = 'active'"),
        postgresql_where=sa.text("state = 'active'"),
    )
    op.create_table(
        "verdicts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("submission", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("lease", sa.Integer(), nullable=False),
        sa.Column("checker", sa.Text(), nullable=False),
        sa.Column("recorded", sa.Float(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["lease"], ["leases.id"], name=op.f("fk_verdicts_lease")),
        sa.ForeignKeyConstraint(
            ["submission"], ["submissions.id"], name=op.f("fk_verdicts_submission")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_verdicts")),
        sa.UniqueConstraint("lease", name=op.f("uq_verdicts_lease")),
        sa.UniqueConstraint("submission", "round", name=op.f("uq_verdicts_submission_round")),
    )


def downgrade() -> None:
    """Remove them again."""
    op.drop_table("verdicts")
    op.drop_index(
        "ux_leases_active",
        table_name="leases",
        sqlite_where=sa.text("state = 'active'"),
        postgresql_where=sa.text("state = 'active'"),
    )
    op.drop_index(op.f("ix_leases_submission"), table_name="leases")
    op.drop_table("leases")
    op.drop_index(op.f("ix_submissions_person_lab"), table_name="submissions")
    op.drop_index(
        "ix_submissions_open",
        table_name="submissions",
        sqlite_where=sa.text("state IN ('queued', 'running')"),
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )
    op.drop_index(op.f("ix_submissions_blob"), table_name="submissions")
    op.drop_table("submissions")
    op.drop_index(op.f("ix_sessions_person"), table_name="sessions")
    op.drop_table("sessions")
    op.drop_table("login_links")
    op.drop_table("extensions")
    op.drop_table("announcements")
    op.drop_table("runners")
    op.drop_table("people")
    op.drop_table("labs")
    op.drop_table("join_codes")
    op.drop_table("events")
    op.drop_table("cohort")
