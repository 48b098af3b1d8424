"""Where a cohort's state lives: one database, SQLite or PostgreSQL, and a folder of
content-addressed blobs.
"""
