"""State of a cohort in its database, SQLite or PostgreSQL."""
