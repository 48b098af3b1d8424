"""Structured logs: one JSON object a line, for journald or a file."""

from __future__ import annotations

import json
import logging
import sys
import traceback

from bottleneck_lab.cohort.moments import iso


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "at": iso(record.created),
            "level": record.levelname.lower(),
            "from": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(fields, ensure_ascii=False)


def log_json(level: int = logging.INFO) -> None:
    """Send everything that is logged to stderr, as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("alembic", "sqlalchemy", "asyncio", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
