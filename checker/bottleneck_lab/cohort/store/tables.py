"""Tables of the database.

Times are seconds since the epoch (UTC); secrets are stored as their SHA-256 or as an argon2 hash.
"""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    select,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

cohort = Table(
    "cohort",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", Text, nullable=False),
    Column("created", Float, nullable=False),
    Column("public_key", Text, nullable=False),
    Column("settings", Text, nullable=False),
)

people = Table(
    "people",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("handle", String(32), nullable=False, unique=True),
    Column("role", String(16), nullable=False),
    Column("name", Text, nullable=False),
    Column("pseudonym", Text, nullable=False),
    Column("on_leaderboard", Boolean, nullable=False, default=False),
    Column("student_id", Text, unique=True),
    Column("first_name", Text, nullable=False, default=""),
    Column("last_name", Text, nullable=False, default=""),
    Column("email", Text, nullable=False, default=""),
    Column("section", Text, nullable=False, default=""),
    Column("sis_id", Text, nullable=False, default=""),
    Column("sis_login", Text, nullable=False, default=""),
    Column("canvas_id", Text, nullable=False, default=""),
    # Of one who joined twice: whose submissions count together. Nothing is moved, since verdicts
    # are signed for the learner who submitted.
    Column("merged_into", Integer),
    # Who this person says to be, until an instructor has decided.
    Column("claims", Integer),
    Column("needs_help", Float),
    Column("help_text", Text, nullable=False, default=""),
    Column("token_sha256", String(64), unique=True),
    Column("password_hash", Text),
    Column("created", Float, nullable=False),
    Column("joined", Float),
    Column("seen", Float),
    Column("removed", Float),
)

join_codes = Table(
    "join_codes",
    metadata,
    Column("code", String(32), primary_key=True),
    Column("created", Float, nullable=False),
    Column("revoked", Float),
    Column("uses", Integer, nullable=False, default=0),
)

sessions = Table(
    "sessions",
    metadata,
    Column("token_sha256", String(64), primary_key=True),
    Column("person", ForeignKey("people.id"), nullable=False, index=True),
    Column("csrf", String(64), nullable=False),
    Column("created", Float, nullable=False),
    Column("expires", Float, nullable=False),
)

login_links = Table(
    "login_links",
    metadata,
    Column("token_sha256", String(64), primary_key=True),
    Column("person", ForeignKey("people.id"), nullable=False),
    Column("expires", Float, nullable=False),
    Column("used", Float),
)

labs = Table(
    "labs",
    metadata,
    Column("slug", Text, primary_key=True),
    Column("due", Float),
    Column("closes", Float),
    Column("points", Float, nullable=False, default=100.0),
    Column("budget", Integer),
    Column("hints_open", Integer),
    Column("feedback_at", Float),
    Column("opens", Float),
    Column("hints_at", Float),
    Column("solution_at", Float),
)

extensions = Table(
    "extensions",
    metadata,
    Column("person", ForeignKey("people.id"), primary_key=True),
    Column("lab", Text, primary_key=True),
    Column("due", Float),
    Column("extra_budget", Integer, nullable=False, default=0),
)

overrides = Table(
    "overrides",
    metadata,
    Column("person", ForeignKey("people.id"), primary_key=True),
    Column("lab", Text, primary_key=True),
    Column("points", Float, nullable=False),
    Column("comment", Text, nullable=False),
    Column("author", ForeignKey("people.id"), nullable=False),
    Column("at", Float, nullable=False),
)

submissions = Table(
    "submissions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("handle", String(32), nullable=False, unique=True),
    Column("person", ForeignKey("people.id"), nullable=False),
    Column("lab", Text, nullable=False),
    Column("device", String(16), nullable=False),
    Column("lab_hash", String(64), nullable=False),
    # Drawn by the client: a request that is repeated after a lost answer finds its first receipt.
    Column("request_key", Text, nullable=False),
    Column("blob", String(64), nullable=False, index=True),
    Column("capture", String(64)),
    # The profiler of a capture that a runner is to make in place of a check, and what it made.
    Column("tool", String(16)),
    Column("made", String(64)),
    Column("received", Float, nullable=False),
    Column("receipt", Text, nullable=False),
    Column("circumstances", Text, nullable=False),
    Column("state", String(16), nullable=False),
    # Rises with every regrade; of each round one verdict stays on record.
    Column("round", Integer, nullable=False, default=0),
    Column("queued", Float, nullable=False),
    Column("failures", Integer, nullable=False, default=0),
    Column("version", Integer, nullable=False, default=0),
    # False once the machine failed: such a submission takes nothing off a learner's budget.
    Column("counts", Boolean, nullable=False, default=True),
    Column("note", Text),
    UniqueConstraint("person", "request_key"),
    Index(None, "person", "lab"),
    # Partial: the queue is read several times a second, and almost all submissions are done.
    Index(
        "ix_submissions_open",
        "state",
        sqlite_where=text("state IN ('queued', 'running')"),
        postgresql_where=text("state IN ('queued', 'running')"),
    ),
)

leases = Table(
    "leases",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("submission", ForeignKey("submissions.id"), nullable=False, index=True),
    # The edition of the lab that this attempt measures; a regrade may be of a later one.
    Column("lab_hash", String(64), nullable=False, default=""),
    Column("nonce", String(64), nullable=False, unique=True),
    Column("runner", Text, nullable=False),
    Column("slot", Text, nullable=False),
    Column("job", Text),
    Column("state", String(16), nullable=False),
    Column("taken", Float, nullable=False),
    Column("expires", Float, nullable=False),
    Column("ended", Float),
    Column("why", Text),
    # The database itself refuses a second lease on a submission.
    Index(
        "ux_leases_active",
        "submission",
        unique=True,
        sqlite_where=text("state = 'active'"),
        postgresql_where=text("state = 'active'"),
    ),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("submission", ForeignKey("submissions.id"), nullable=False),
    Column("round", Integer, nullable=False),
    Column("lease", ForeignKey("leases.id"), nullable=False, unique=True),
    Column("checker", Text, nullable=False),
    Column("recorded", Float, nullable=False),
    Column("document", Text, nullable=False),
    UniqueConstraint("submission", "round"),
)

# Of the library of cases, those that a learner has answered in a browser: once, and for good.
answered_cases = Table(
    "answered_cases",
    metadata,
    Column("person", ForeignKey("people.id"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("at", Float, nullable=False),
    Column("results", Text, nullable=False),
    Column("past", Text, nullable=False),
)

# Accounts that people have elsewhere, by which they sign in.
identities = Table(
    "identities",
    metadata,
    Column("issuer", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("person", ForeignKey("people.id"), nullable=False, index=True),
)

# Courses of learning platforms, with the addresses of their services.
lti_courses = Table(
    "lti_courses",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("issuer", Text, nullable=False),
    Column("context", Text, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("memberships", Text, nullable=False),
    Column("lineitems", Text, nullable=False),
    UniqueConstraint("issuer", "context"),
)

runners = Table(
    "runners",
    metadata,
    Column("name", Text, primary_key=True),
    Column("executor", String(16), nullable=False),
    Column("slots", Text, nullable=False),
    Column("seen", Float, nullable=False),
    Column("health", Text, nullable=False),
    Column("machine", Text, nullable=False, server_default=""),
    Column("missing", Text, nullable=False, server_default="[]"),
)

announcements = Table(
    "announcements",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("author", ForeignKey("people.id"), nullable=False),
    Column("text", Text, nullable=False),
    Column("withdrawn", Float),
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("kind", String(16), nullable=False),
    # No foreign keys: the log is only appended to, and outlives what it is about.
    Column("person", Integer),
    Column("submission", Text),
    Column("text", Text, nullable=False, default=""),
)


def blobs_of_submissions(connection: Connection) -> set[str]:
    """Return the names of all blobs that submissions refer to: files, and captures with them."""
    columns = (submissions.c.blob, submissions.c.capture, submissions.c.made)
    rows = connection.execute(select(*columns))
    return {name for row in rows for name in row if name is not None}
