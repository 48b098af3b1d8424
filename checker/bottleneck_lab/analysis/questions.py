"""Ready questions over a capture's tables, for `lab report --ask`. They count what a report does:
the work within the steps, where there are steps. One that counts the whole capture says so.

A question is one row of QUESTIONS; docs/files.md documents the tables, and lists the questions.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

from bottleneck_lab.analysis.query import QueryResult, query
from bottleneck_lab.errors import UsageError
from bottleneck_lab.trace.timeline import Timeline


@dataclass(frozen=True)
class Question:
    """A question's name, the question itself, and the SELECT that answers it."""

    name: str
    asks: str
    sql: str


QUESTIONS = (
    Question(
        "top-kernels",
        "Which kernels took most time, and what part of the recording is that?",
        """
        SELECT name, count(*) AS calls, sum(duration) / 1e6 AS total_ms,
               avg(duration) / 1e3 AS mean_us, max(duration) / 1e3 AS longest_us,
               100.0 * sum(duration) / (SELECT sum(duration) FROM recorded) AS percent
        FROM device JOIN counted
          ON counted.rank = device.rank AND device.start >= counted.start
            AND device.start < counted.end
        WHERE kind IN ('kernel', 'communication')
        GROUP BY name ORDER BY total_ms DESC LIMIT 20
        """,
    ),
    Question(
        "top-operators",
        "Which operators took most of the host's time, with what they call?",
        """
        SELECT name, count(*) AS calls, sum(duration) / 1e6 AS total_ms,
               avg(duration) / 1e3 AS mean_us
        FROM operators JOIN counted
          ON counted.rank = operators.rank AND operators.start >= counted.start
            AND operators.start < counted.host_end
        GROUP BY name ORDER BY total_ms DESC LIMIT 20
        """,
    ),
    Question(
        "top-calls",
        "In which calls of CUDA or HIP did the host spend its time?",
        """
        SELECT name, count(*) AS calls, sum(duration) / 1e6 AS total_ms,
               max(duration) / 1e6 AS longest_ms
        FROM runtime JOIN counted
          ON counted.rank = runtime.rank AND runtime.start >= counted.start
            AND (runtime.start + runtime.end) / 2 < counted.host_end
        GROUP BY name ORDER BY total_ms DESC LIMIT 20
        """,
    ),
    Question(
        "start-up",
        "Which calls came before the first work of each device, and how long did they take?",
        """
        SELECT runtime.rank, runtime.name, count(*) AS calls,
               sum(runtime.duration) / 1e6 AS total_ms
        FROM runtime JOIN (SELECT rank, min(start) AS first FROM device GROUP BY rank) AS work
          ON runtime.rank = work.rank AND runtime.end <= work.first
        GROUP BY runtime.rank, runtime.name ORDER BY total_ms DESC LIMIT 20
        """,
    ),
    Question(
        "launch-delays",
        "Which kernels started longest after their launch?",
        """
        SELECT device.name, count(*) AS calls,
               avg(device.start - runtime.start) / 1e3 AS mean_delay_us,
               max(device.start - runtime.start) / 1e3 AS longest_delay_us
        FROM device JOIN runtime
          ON runtime.correlation = device.correlation AND runtime.rank = device.rank
        JOIN counted
          ON counted.rank = device.rank AND device.start >= counted.start
            AND device.start < counted.end
        WHERE device.kind = 'kernel' AND device.correlation > 0
        GROUP BY device.name ORDER BY mean_delay_us DESC LIMIT 20
        """,
    ),
    Question(
        "copies",
        "What was copied, in which direction, how fast?",
        """
        SELECT direction, host_memory, count(*) AS copies, sum(bytes) AS bytes,
               sum(duration) / 1e6 AS total_ms,
               CASE WHEN sum(duration) THEN 1.0 * sum(bytes) / sum(duration) END AS gb_per_s
        FROM device JOIN counted
          ON counted.rank = device.rank AND device.start >= counted.start
            AND device.start < counted.end
        WHERE kind = 'copy'
        GROUP BY direction, host_memory ORDER BY total_ms DESC
        """,
    ),
    Question(
        "ranges",
        "How long did each marked range take on the host, in the whole capture? (A step in a report"
        " ends with its work on the device.)",
        """
        SELECT name, count(*) AS times, sum(duration) / 1e6 AS total_ms,
               avg(duration) / 1e6 AS mean_ms, min(duration) / 1e6 AS shortest_ms,
               max(duration) / 1e6 AS longest_ms
        FROM ranges GROUP BY name ORDER BY total_ms DESC LIMIT 50
        """,
    ),
    Question(
        "idle-in-ranges",
        "While a device was idle, which marked ranges was the host in, on which thread, and for how"
        " long? (Percent: of the time from a device's first work to its last, or of the marked"
        " steps.)",
