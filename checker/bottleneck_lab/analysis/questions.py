"""Ready questions over a capture's tables, for `lab report --ask`. They count what a report does:
the work within the steps, where there are steps. One that counts the whole capture says so.

A question is one row of QUESTIONS; docs/files.md documents the tables, and lists the questions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import dedent

from bottleneck_lab.analysis.query import TIME_LIMIT_S, QueryResult, query
from bottleneck_lab.analysis.what_if.gain import replayed
from bottleneck_lab.analysis.what_if.removal import Removal
from bottleneck_lab.errors import UsageError
from bottleneck_lab.trace.names import FIXED_PRICE, LINES_OF
from bottleneck_lab.trace.timeline import Timeline

_DIGITS = "'0123456789'"
_FOLDED = f"""CASE
                 WHEN ranges.name GLOB '*[0-9]' AND rtrim(
                     replace(replace(rtrim(lower(ranges.name), {_DIGITS}), ' ', ''), '_', ''), ':#-'
                   ) IN ('profilerstep', 'step', 'iteration', 'iter', 'trainstep', 'trainiteration',
                         'trainiter', 'trainingstep', 'trainingiteration', 'trainingiter')
                 THEN rtrim(ranges.name, {_DIGITS}) || 'N'
                 ELSE ranges.name
               END"""
"""The name of a range, of all those that `trace.names.STEP_NAME` marks as steps the same: each has
a number of its own.
"""


_ONCE = """(SELECT *, max(start, coalesce(max(end) OVER (PARTITION BY thread, name
                ORDER BY start, end DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
                start)) AS begun FROM {})"""
"""The rows of a table of the host, each with when its own time has `begun`: after the end of those
of its name and thread around it, whose time holds it. So does `lab report --gap` count.
"""
_LAUNCHES = """(SELECT rank, correlation, min(start), line, undoes FROM runtime
                    WHERE correlation > 0 GROUP BY rank, correlation)"""
"""The call that launched each piece of a device's work: of a copy that is waited for, the wait has
its number, too.
"""
_STARTED = f"""SELECT coalesce(nullif(runtime.undoes, ''), runtime.line) AS line,
                   count(*) AS launches, sum(device.duration) AS ns,
                   nullif(sum(CASE WHEN runtime.undoes != '' THEN device.duration ELSE 0 END), 0)
                     AS backward_ns
            FROM device JOIN {_LAUNCHES} AS runtime
              ON runtime.correlation = device.correlation AND runtime.rank = device.rank
            JOIN counted ON counted.rank = device.rank AND device.start >= counted.start
              AND device.start < counted."end"
            WHERE device.kind != 'sync' AND device.correlation > 0 GROUP BY 1"""
"""The work on devices that each line starts; of a backward's, the line of the forward."""
_EARLIER = f"""SELECT count(*) FROM device JOIN counted ON counted.rank = device.rank
                              AND device.start >= counted.start AND device.start < counted."end"
                            LEFT JOIN {_LAUNCHES} AS runtime
                              ON runtime.correlation = device.correlation
                                AND runtime.rank = device.rank
                            WHERE device.kind != 'sync' AND runtime.rank IS NULL"""
"""How much work on devices no recorded call launched: it was queued before the capture began."""
_STEPS = f"""(SELECT count(*) AS many FROM ranges JOIN counted
                    ON counted.rank = ranges.rank AND ranges.start >= counted.start
                      AND ranges.start < counted.host_end
                  WHERE ranges.name != {_FOLDED}
                  GROUP BY {_FOLDED}
                  ORDER BY {_FOLDED} LIKE 'ProfilerStep%' DESC, many DESC LIMIT 1)"""
"""How many steps there are, of all ranks together; no row without any."""
_MARKED = """SELECT ranges.name, count(*) AS times, sum(ranges.duration) AS ns
                   FROM ranges JOIN counted ON counted.rank = ranges.rank
                     AND ranges.start >= counted.start AND ranges.start < counted.host_end
                   WHERE ranges.name LIKE 'enumerate(DataLoader)%'
                     OR ranges.name LIKE '%(modelled)' OR ranges.name = 'gc.collect()'
                   GROUP BY ranges.name"""
"""The host's time in a step besides its lines: loading, what a model charges, collections."""
_CALLS_A_STEP = f"1.0 * count(*) / (SELECT many FROM {_STEPS}) AS calls_a_step"
_LATE = """SELECT sum("end" - host_end) FROM counted"""
"""The time from the end of the host's last step to that of the work that it had launched."""
_LEAST_SHOWN_NS = 5_000
"""A rest of a step below that is 0.00 ms."""
_TOTAL = "sum(max(end - begun, 0)) / 1e6"
"""The time of rows that are counted so, ms."""


SUM, IDLE, NOW = "sum", "idle", "a step now"
AFTER_THE_HOST = "after the last step on the host"
"""Rows with the sums of a step, and with what belongs to no line."""
NO_ROWS = "the capture holds nothing of this kind"
_NO_LINES = "no lines were recorded; `lab profile --stack` records them"


_BUDGET = (
    "saves percent: by how much a step is shorter when this line alone is left out, while others"
    " still wait; what takes its place may wait as well, and then less is saved."
    " `--without 9,12-14` says it of several. Means over all steps and ranks. Launches are those of"
    " these steps, of kernels and copies; a backward's count for {backward}."
)
_LINES = (
    "Sums over all steps, if some are marked; `--ask budget` has what a step takes. Lines are"
    " {called} the lines that they call. launches and device_ms are of the kernels and copies that"
    " a line starts; those of a backward count for {backward}. Of several processes, host_ms is the"
    " sum, and host_percent is of the mean one."
)


@dataclass(frozen=True)
class Question:
    """A question's name, the question itself, the SELECT that answers it, what its figures are of,
    how many of its rows are shown at most, why a capture may have none, and the columns that a
    narrow terminal is without, the first of them first.

    `emulated_notes`: what the figures are of on an emulated device, where that differs. `complete`
    adds what no SELECT can say.
    """

    name: str
    asks: str
    sql: str
    notes: str = ""
    most: int = 20
    without: str = NO_ROWS
    spare: tuple[str, ...] = ()
    emulated_notes: str = ""
    complete: Callable[[QueryResult, Timeline], QueryResult] | None = None

    def describe(self, *, emulated: bool) -> str:
        """Return what the figures of a capture are of."""
        return (emulated and self.emulated_notes) or self.notes

    def answer(self, timeline: Timeline, *, limit_s: float = TIME_LIMIT_S) -> QueryResult:
        """Return the first rows of the answer."""
        answer = query(timeline, dedent(self.sql).strip(), self.most, limit_s=limit_s)
        return self.complete(answer, timeline) if self.complete else answer


_ALLOCATIONS = f"""
    SELECT runtime.line, sum(runtime.duration) / 1e6 / many AS ms
    FROM runtime JOIN counted
      ON counted.rank = runtime.rank AND runtime.start >= counted.start
        AND runtime.start < counted.host_end
    JOIN {_STEPS} AS steps
    WHERE runtime.name = 'cudaMalloc' AND runtime.line != '' GROUP BY 1 ORDER BY 2 DESC
"""


def time_of_allocations(timeline: Timeline) -> dict[str, float]:
    """Return how long each line asks the driver for memory (ms a step), which a budget has in the
    line's time on the host.
    """
    return dict(query(timeline, dedent(_ALLOCATIONS).strip(), SAVINGS_OF).rows)


SAVINGS_OF = 20
"""Of so many parts of a step, a budget says what each alone saves: each takes a replay."""


def add_savings(answer: QueryResult, timeline: Timeline) -> QueryResult:
    """Return the answer to `budget` with by how much a step is shorter without each part alone, in
    percent, by a replay of the capture, what saves most first. None for sums, and for what a model
    charges whatever runs: these stay behind, in their order.
    """
    what_if, named = replayed(timeline), set(timeline.strings)
    rows = []
    for number, (part, *figures) in enumerate(answer.rows):
        saved = None
        if number < SAVINGS_OF and part in named and not FIXED_PRICE.search(part):
            gain = what_if.gain(Removal(scopes=(part,)))
            saved = gain and 100 * (1 - 1 / gain)
        rows.append([part, *figures, saved])
    rows.sort(key=lambda row: (row[-1] is None, -(row[-1] or 0.0)))
    return QueryResult([*answer.columns, "saves_percent"], rows, answer.cut)


QUESTIONS = (
    Question(
        "top-kernels",
        "Which kernels took most time, and what part of the wall time is that?",
        """
        SELECT name, count(*) AS calls, sum(duration) / 1e6 AS total_ms,
               avg(duration) / 1e3 AS mean_us, max(duration) / 1e3 AS longest_us,
               100.0 * sum(min(duration, counted."end" - device.start))
                 / (SELECT sum(duration) FROM recorded) AS percent
        FROM device JOIN counted
          ON counted.rank = device.rank AND device.start >= counted.start
            AND device.start < counted.end
        WHERE kind IN ('kernel', 'communication')
        GROUP BY name ORDER BY total_ms DESC
        """,
    ),
    Question(
        "top-operators",
        "Which operators took most of the host's time, with what they call?",
        f"""
        SELECT name, count(*) AS calls, sum(max(operators.end - begun, 0)) / 1e6 AS total_ms,
               avg(duration) / 1e3 AS mean_us
        FROM {_ONCE.format("operators")} AS operators JOIN counted
          ON counted.rank = operators.rank AND operators.start >= counted.start
            AND operators.start < counted.host_end
        GROUP BY name ORDER BY total_ms DESC
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
        GROUP BY name ORDER BY total_ms DESC
        """,
    ),
    Question(
        "start-up",
        "Which calls began before the first work of each device, and how long had they taken?",
        """
        SELECT runtime.rank, runtime.name, count(*) AS calls,
               sum(min(runtime.end, work.first) - runtime.start) / 1e6 AS total_ms
        FROM runtime JOIN (SELECT rank, min(start) AS first FROM device GROUP BY rank) AS work
          ON runtime.rank = work.rank AND runtime.start < work.first
        GROUP BY runtime.rank, runtime.name ORDER BY total_ms DESC
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
        GROUP BY device.name ORDER BY mean_delay_us DESC
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
        "step",
        "What does a step take on the host and on the device, part by part?",
        f"""
        WITH marked AS MATERIALIZED ({_MARKED}),
        waited AS MATERIALIZED (SELECT count(*) AS times, sum(duration) AS ns FROM waits),
        worked AS MATERIALIZED (
            SELECT CASE kind WHEN 'copy' THEN 'copying' WHEN 'kernel' THEN 'computing' ELSE kind
                   END AS part, count(*) AS times, sum(duration) AS ns
            FROM device JOIN counted ON counted.rank = device.rank
              AND device.start >= counted.start AND device.start < counted."end"
            WHERE kind != 'sync' GROUP BY kind),
        parts AS (
            SELECT 1 AS nth, 'host' AS side,
                   CASE WHEN EXISTS (SELECT 1 FROM worked)
                        THEN 'starting kernels and copies, and Python'
                        ELSE 'operators and Python' END AS part,
                   (SELECT nullif(sum(times) - ({_EARLIER}), 0) FROM worked) AS times,
                   (SELECT sum(host_end - start) FROM counted) - coalesce(ns, 0)
                     - (SELECT coalesce(sum(ns), 0) FROM marked) AS ns FROM waited
            UNION ALL SELECT 2, 'host', name, times, ns FROM marked
            UNION ALL SELECT 3, 'host', 'waiting for the device', times, ns FROM waited WHERE times
            UNION ALL SELECT 3.5, 'host', '{AFTER_THE_HOST}', NULL, ({_LATE})
            UNION ALL SELECT 4, 'device', part, times, ns FROM worked
            UNION ALL SELECT 5, 'device', 'idle', count(*), sum(duration) FROM idle)
        SELECT side, part, 1.0 * times / many AS times, ns / 1e3 / times AS each_us,
               ns / 1e6 / many AS ms_a_step
        FROM (SELECT * FROM parts
              UNION ALL
              SELECT 2.5, 'host', 'all but waits', NULL, sum(ns) FROM parts WHERE nth < 2.5
              UNION ALL
              SELECT 4.5, 'device', 'all but idle time', NULL,
                     (SELECT sum(duration) FROM recorded) - sum(duration) FROM idle)
        JOIN {_STEPS} AS steps
        WHERE (side = 'host' OR EXISTS (SELECT 1 FROM worked))
          AND (nth != 3.5 OR ns > many * {_LEAST_SHOWN_NS})
        ORDER BY nth, ns DESC
        """,
        notes="Means over all steps and ranks. What streams do at once is in each of their parts.",
        most=30,
        without="no steps are marked: call the profiler's step(), or `lab profile --schedule`",
    ),
    Question(
        "budget",
        "What does each line launch, and take of a step on the host and on the device?",
        f"""
        WITH own AS (
            SELECT python.name AS part,
                   sum(min(python."end", counted.host_end) - max(python.start, counted.start)) AS ns
            FROM python JOIN threads ON threads.thread = python.thread
            JOIN counted ON counted.rank = python.rank
              AND python.start < counted.host_end AND python."end" > counted.start
            WHERE threads.tid LIKE '{LINES_OF}%' GROUP BY 1),
        waited AS (SELECT line, sum(duration) AS ns FROM waits GROUP BY line),
        started AS ({_STARTED}),
        parts AS (
            SELECT 1 AS nth, part, started.launches AS starts,
                   own.ns - coalesce(waited.ns, 0) AS host, waited.ns AS waiting,
                   started.ns AS device
            FROM own LEFT JOIN waited ON waited.line = own.part
            LEFT JOIN started ON started.line = own.part
            UNION ALL SELECT 1, name, NULL, ns, NULL, NULL FROM ({_MARKED})),
        whole AS (
            SELECT nullif(starts - earlier, 0) AS starts, waiting, coalesce(({_LATE}), 0) AS late,
                   (SELECT sum(host_end - start) FROM counted) - coalesce(waiting, 0) AS host,
                   CASE WHEN starts THEN recorded - coalesce(idle, 0) END AS device,
                   CASE WHEN starts THEN coalesce(idle, 0) END AS idle
            FROM (SELECT (SELECT nullif(count(*), 0)
                          FROM device JOIN counted ON counted.rank = device.rank
                            AND device.start >= counted.start AND device.start < counted."end"
                          WHERE kind != 'sync') AS starts,
                         ({_EARLIER}) AS earlier,
                         (SELECT sum(duration) FROM waits) AS waiting,
                         (SELECT sum(duration) FROM recorded) AS recorded,
                         (SELECT sum(duration) FROM idle) AS idle)),
        others AS (
            SELECT nullif(starts - (SELECT coalesce(sum(starts), 0) FROM parts), 0) AS starts,
                   nullif(host - (SELECT coalesce(sum(host), 0) FROM parts), 0) AS host,
                   nullif(waiting - (SELECT coalesce(sum(waiting), 0) FROM parts), 0) AS waiting,
                   nullif(device - (SELECT coalesce(sum(device), 0) FROM parts), 0) AS device
            FROM whole)
        SELECT part, 1.0 * starts / many AS launches, host / 1e6 / many AS host_ms,
               waiting / 1e6 / many AS waiting_ms, device / 1e6 / many AS device_ms
        FROM (SELECT *, CASE WHEN (SELECT device > host FROM whole) THEN coalesce(device, 0)
                        ELSE host + coalesce(waiting, 0) END AS slower FROM parts
              UNION ALL
              SELECT 2, 'on no line, or launched earlier', starts, host, waiting,
                     max(device, 0), 0 FROM others
              UNION ALL
              SELECT 3, 'at once on several streams', NULL, NULL, NULL, min(device, 0), 0
              FROM others
              UNION ALL SELECT 4, '{SUM}', starts, host, waiting, device, 0 FROM whole
              UNION ALL SELECT 5, '{IDLE}', NULL, NULL, NULL, idle, 0 FROM whole
              UNION ALL SELECT 6, '{AFTER_THE_HOST}', NULL, NULL, late, NULL, 0 FROM whole
              UNION ALL
              SELECT 7, '{NOW}', NULL, host + coalesce(waiting, 0) + late, NULL, device + idle, 0
              FROM whole)
        JOIN {_STEPS} AS steps
        WHERE EXISTS (SELECT 1 FROM own)
          AND (nth NOT IN (2, 3, 6) OR starts >= many * 0.05
            OR max(abs(coalesce(host, 0)), coalesce(waiting, 0), abs(coalesce(device, 0)))
              > many * {_LEAST_SHOWN_NS})
          AND (nth != 5 OR device IS NOT NULL)
        ORDER BY nth, slower DESC, max(host, coalesce(device, 0)) DESC, starts DESC, part
        """,
        notes=_BUDGET.format(backward="the line of the forward"),
        emulated_notes=_BUDGET.format(backward="the line that calls it"),
        most=60,
        without="no steps are marked, or no lines were recorded: `lab profile --stack` records"
        " them",
        complete=add_savings,
    ),
    Question(
        "ranges",
        "How long did each marked range take on the host, in the whole capture?",
        f"""
        SELECT {_FOLDED} AS name, count(*) AS times, {_TOTAL} AS total_ms,
               avg(duration) / 1e6 AS mean_ms, min(duration) / 1e6 AS shortest_ms,
               max(duration) / 1e6 AS longest_ms
        FROM {_ONCE.format("ranges")} AS ranges GROUP BY 1 ORDER BY total_ms DESC
        """,
        notes="All steps are one row. A step in a report ends with its work on the device.",
        most=50,
    ),
    Question(
        "idle-in-ranges",
        "While a device was idle, which marked ranges was the host in, on which thread, and for how"
        " long?",
        f"""
        SELECT name, thread, stretches, idle_ms, percent FROM (
            SELECT 1 AS part, 'all idle time' AS name, NULL AS thread, count(*) AS stretches,
                   sum(duration) / 1e6 AS idle_ms,
                   100.0 * sum(duration) / (SELECT sum(duration) FROM recorded) AS percent
            FROM idle HAVING EXISTS (SELECT 1 FROM ranges)
            UNION ALL
            SELECT 2 AS part, ranges.name,
                   CASE WHEN count(DISTINCT threads.name) > 1
                     THEN count(DISTINCT threads.thread) || ' threads'
                     ELSE substr(max(threads.name), 1, instr(max(threads.name) || ' (', ' (') - 1)
                   END AS thread,
                   count(*) AS stretches,
                   sum(max(0, min(idle.end, ranges.end) - max(idle.start, begun))) / 1e6 AS idle_ms,
                   100.0 * sum(max(0, min(idle.end, ranges.end) - max(idle.start, begun)))
                     / (SELECT sum(duration) FROM recorded) AS percent
            FROM {_ONCE.format("ranges").replace("thread, name", "rank, name")} AS ranges
            CROSS JOIN idle
              ON idle.rank = ranges.rank AND idle.start < ranges.end AND idle.end > ranges.start
            LEFT JOIN threads ON threads.thread = ranges.thread
            WHERE ranges.name = {_FOLDED}
            GROUP BY ranges.name)
        ORDER BY part, idle_ms DESC
        """,
        notes="All idle time is that outside of ranges, too. Percent: of the steps' time, or of"
        " that from a device's first work to its last. Of several threads, what they do at once"
        " counts once.",
    ),
    Question(
        "idle-in-calls",
        "While a device was idle, which calls that copy or wait was the host in, and for how long?",
        f"""
        SELECT name, stretches, idle_ms, percent FROM (
            SELECT 1 AS part, 'all idle time' AS name, count(*) AS stretches,
                   sum(duration) / 1e6 AS idle_ms,
                   100.0 * sum(duration) / (SELECT sum(duration) FROM recorded) AS percent
            FROM idle HAVING EXISTS (SELECT 1 FROM runtime)
            UNION ALL
            SELECT 2 AS part, runtime.name, count(*) AS stretches,
                   sum(max(0, min(idle.end, runtime.end) - max(idle.start, begun))) / 1e6
                     AS idle_ms,
                   100.0 * sum(max(0, min(idle.end, runtime.end) - max(idle.start, begun)))
                     / (SELECT sum(duration) FROM recorded) AS percent
            FROM {_ONCE.format("runtime").replace("thread, name", "rank, name")} AS runtime
            CROSS JOIN idle
              ON idle.rank = runtime.rank AND idle.start < runtime.end AND idle.end > runtime.start
            WHERE runtime.name LIKE '%Synchronize%' OR runtime.name LIKE '%Memcpy%'
            GROUP BY runtime.name)
        ORDER BY part, idle_ms DESC
        """,
        notes="Idle time after a wait, until the host has started work again, is in no call."
        " Percent: of the time from a device's first work to its last, or of the marked steps. One"
        " call may have several stretches of idle time, or none.",
    ),
    Question(
        "waits",
        "For what part of the wall time did the host wait for the device, on which lines and in"
        " which operators?",
        f"""
        WITH each AS MATERIALIZED (
            SELECT nullif(line, '') AS line, nullif(operator, '') AS operator, name, duration,
                   min(duration, counted."end" - waits.start) AS counted_ns, idle_after
            FROM waits JOIN counted ON counted.rank = waits.rank)
        SELECT line, operator, name, count(*) AS calls, sum(duration) / 1e6 AS total_ms,
               {_CALLS_A_STEP}, sum(duration) / 1e6 / (SELECT many FROM {_STEPS}) AS ms_a_step,
               100.0 * sum(counted_ns) / (SELECT sum(duration) FROM recorded) AS waiting_percent,
               sum(idle_after) / 1e6 / coalesce((SELECT many FROM {_STEPS}), 1) AS idle_after_ms
        FROM (SELECT 1 AS part, 'all of these' AS line, NULL AS operator, NULL AS name, duration,
                     counted_ns, idle_after FROM each
              UNION ALL SELECT 2, * FROM each)
        GROUP BY part, line, operator, name
        ORDER BY part, sum(idle_after) DESC, total_ms DESC
        """,
        notes="Percent: of the wall time; idle_after_ms: a step. A wait costs the idle time after"
        " it: how long the device has nothing to do until the host, on whatever line, has launched"
        " more. A wait without any is harmless: the device works meanwhile. What a step saves"
        " without a line is another figure: `--ask budget` has it.",
        spare=("name", "calls", "total_ms"),
    ),
    Question(
        "interruptions",
        "Which kernels took longer than the same ones in other steps, and what part is that?",
        """
        SELECT name, times, longer_ms,
               1e8 * longer_ms / (SELECT sum(duration) FROM recorded) AS percent
        FROM (SELECT 1 AS part, 'all of these' AS name, count(*) AS times,
                     sum(excess) / 1e6 AS longer_ms
              FROM interruptions HAVING count(*)
              UNION ALL
              SELECT 2, name, count(*), sum(excess) / 1e6 FROM interruptions GROUP BY name)
        ORDER BY part, longer_ms DESC
        """,
        most=21,
    ),
    Question(
        "communication",
        "For what part of the wall time did devices communicate, and compute nothing meanwhile?",
        """
        WITH work AS MATERIALIZED (
            SELECT kind, nullif(bytes, 0) AS bytes, device.rank, device.device,
                   replace(replace(CASE WHEN instr(name, '(') > 1
                     THEN rtrim(substr(name, 1, instr(name, '(') - 1)) ELSE name END,
                     'ncclDevKernel_', ''), 'ncclKernel_', '') AS name,
                   max(device.start, recorded.start) AS start, min(device.end, recorded.end) AS end
            FROM device JOIN recorded
              ON recorded.rank = device.rank AND recorded.device = device.device
                AND recorded.start < device.end AND recorded.end > device.start
            WHERE kind IN ('kernel', 'communication')),
        sent AS MATERIALIZED (
            SELECT name, bytes, end - start AS ns, end - begun
              - (SELECT coalesce(sum(min(work.end, outer.end) - max(work.start, outer.begun)), 0)
                 FROM work WHERE work.kind = 'kernel' AND work.rank = outer.rank
                   AND work.device = outer.device
                   AND work.start < outer.end AND work.end > outer.begun) AS alone
            FROM (SELECT *, min(end, max(start, coalesce(max(end) OVER earlier, start))) AS begun
                  FROM work WHERE kind = 'communication'
                  WINDOW earlier AS (PARTITION BY rank, device ORDER BY start
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) AS outer)
        SELECT name, bytes, times, total_ms, alone_ms,
               1e8 * alone_ms / (SELECT sum(duration) FROM recorded) AS percent
        FROM (SELECT 1 AS part, 'all of these' AS name, NULL AS bytes, count(*) AS times,
                     sum(ns) / 1e6 AS total_ms, sum(alone) / 1e6 AS alone_ms
              FROM sent HAVING count(*)
              UNION ALL
              SELECT 2, name, bytes, count(*), sum(ns) / 1e6, sum(alone) / 1e6
              FROM sent GROUP BY name, bytes)
        ORDER BY part, alone_ms DESC
        """,
        most=21,
    ),
    Question(
        "device-time",
        "For what part of the wall time was each device busy or idle?",
        """
        SELECT recorded.rank, recorded.device, sum(recorded.duration) / 1e6 AS recorded_ms,
               (SELECT sum(idle.duration) FROM idle WHERE idle.rank = recorded.rank
                 AND idle.device = recorded.device) / 1e6 AS idle_ms,
               (SELECT 100.0 * sum(idle.duration) FROM idle WHERE idle.rank = recorded.rank
                 AND idle.device = recorded.device) / sum(recorded.duration) AS percent_idle
        FROM recorded GROUP BY recorded.rank, recorded.device ORDER BY recorded.rank
        """,
        most=50,
    ),
    Question(
        "lines",
        "Which lines or functions of Python took most time, where recorded?",
        f"""
        WITH wall AS (SELECT rank, start, min(host_end, "end") AS until, "end" - start AS ns
                      FROM counted),
        ran AS MATERIALIZED (
            SELECT each.name, kind, each.rank, max(each.start, wall.start) AS start,
                   max(begun, wall.start) AS begun, min(each.end, wall.until) AS until, wall.ns,
                   threads.pid || ' ' ||
                     CASE WHEN threads.name LIKE 'DataLoader worker%' THEN threads.tid ELSE '' END
                     AS process
            FROM (SELECT 'line' AS kind, * FROM {_ONCE.format("visits")}
                  UNION ALL SELECT 'function', * FROM {_ONCE.format("python")}) AS each
            JOIN wall ON wall.rank = each.rank AND each.start < wall.until
              AND max(each.end, each.start + 1) > wall.start
            LEFT JOIN threads ON threads.thread = each.thread
            WHERE kind = 'line' OR threads.tid NOT LIKE '{LINES_OF}%'),
        started AS ({_STARTED})
        SELECT name, kind, times, processes, host_ms, host_percent, shortest_ms, longest_ms,
               launches, started.ns / 1e6 AS device_ms,
               100.0 * started.ns / (SELECT sum(duration) FROM recorded) AS device_percent,
               backward_ns / 1e6 AS backward_ms
        FROM (SELECT name, kind, sum(times) AS times, count(*) AS processes,
                     sum(spent) / 1e6 AS host_ms,
                     min(shortest) / 1e6 AS shortest_ms, max(longest) / 1e6 AS longest_ms,
                     100.0 * sum(spent) / sum(ns) AS host_percent
              FROM (SELECT name, kind, rank, process, ns, count(*) AS times,
                           sum(max(until - begun, 0)) AS spent,
                           min(until - start) AS shortest, max(until - start) AS longest
                    FROM ran GROUP BY name, kind, rank, process) AS each
              GROUP BY name, kind)
        LEFT JOIN started ON started.line = name AND kind = 'line'
        ORDER BY host_ms DESC
        """,
        notes=_LINES.format(called="with", backward="the line of the forward"),
        emulated_notes=_LINES.format(called="without", backward="the line that calls it"),
        without=_NO_LINES,
        spare=(
            *("device_percent", "processes", "shortest_ms", "longest_ms"),
            *("backward_ms", "kind"),
        ),
    ),
    Question(
        "line-operators",
        "Which operators does each line call, and how long do they take on the host?",
        f"""
        SELECT line, name, count(*) AS calls, {_CALLS_A_STEP}, sum(duration) / 1e6 AS total_ms,
               min(duration) / 1e3 AS shortest_us, max(duration) / 1e3 AS longest_us
        FROM operators WHERE outermost AND line != ''
        GROUP BY line, name
        ORDER BY sum(sum(duration)) OVER (PARTITION BY line) DESC, line, total_ms DESC
        """,
        notes="Each operator with what it calls.",
        most=50,
        spare=("longest_us", "shortest_us"),
        without=f"{_NO_LINES}; where a capture has Python's frames, `--ask lines` lists functions",
    ),
    Question(
        "graph-nodes",
        "Inside CUDA or HIP graphs: what did each node take, over all replays?",
        """
        SELECT graph, node, name, stream, replays, mean_us, shortest_us, longest_us, percent
        FROM graph_nodes ORDER BY percent DESC
        """,
        most=50,
    ),
    Question(
        "tokens",
        "Why is a token (or step) slow: what did host and device take for each?",
        """
        SELECT steps.rank, steps.name, steps.duration / 1e6 AS host_ms,
               (SELECT sum(device.duration) FROM device WHERE device.rank = steps.rank
                 AND device.kind != 'sync' AND device.start >= steps.start
                 AND device.start < steps.end) / 1e6 AS device_ms,
               (SELECT count(*) FROM device WHERE device.rank = steps.rank
                 AND device.kind = 'kernel' AND device.start >= steps.start
                 AND device.start < steps.end) AS kernels,
               (SELECT sum(runtime.duration) FROM runtime WHERE runtime.rank = steps.rank
                 AND (runtime.name LIKE '%Synchronize%' OR runtime.name LIKE '%Memcpy%')
                 AND runtime.start >= steps.start AND runtime.start < steps.end) / 1e6 AS waits_ms
        FROM ranges AS steps
        WHERE steps.name LIKE 'ProfilerStep#%' OR lower(steps.name) GLOB '*token*'
           OR lower(steps.name) GLOB '*decode*' OR lower(steps.name) GLOB 'step *'
        ORDER BY host_ms DESC
        """,
        most=50,
    ),
)


def find_question(name: str) -> Question:
    """Return the question of this name. Raises UsageError, with all of them, for another name."""
    for question in QUESTIONS:
        if question.name == name:
            return question
    raise UsageError(
        f"There is no question '{name}'.",
        "Ask one of:\n" + "\n".join(f"  {each.name:15} {each.asks}" for each in QUESTIONS),
    )


def ask(timeline: Timeline, name: str) -> QueryResult:
    """Return the answer to a ready question. Raises UsageError for a name that is none."""
    return find_question(name).answer(timeline)
