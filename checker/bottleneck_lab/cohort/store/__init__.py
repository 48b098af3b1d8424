"""Where a cohort's state lives: one database, SQLite or PostgreSQL, and a folder of content-addressed blobs.

Importing it raises MachineError where the extra `cohort` is not installed, which only instructors need.
"""

from bottleneck_lab.needs import require_packages

require_packages(
    "cohort",
    alembic="alembic",
    argon2="argon2-cffi",
    fastapi="fastapi",
    multipart="python-multipart",
    jinja2="jinja2",
    segno="segno",
    sqlalchemy="sqlalchemy",
    uvicorn="uvicorn",
)
