"""Compare the same server in a closed and an open loop: two p99s, one plot. The waits that a closed
loop leaves out are called coordinated omission.
"""

from __future__ import annotations

import numpy as np

from bottleneck_lab.measure.kinds.http_server.figures import generator_doubt
from bottleneck_lab.measure.kinds.http_server.load.drawing import bar, ms
from bottleneck_lab.measure.kinds.http_server.load.level import Level

PERCENTILES = (50, 75, 90, 95, 99, 100)
WIDTH = 46


def compare_loops(closed: Level, opened: Level, clients: int, rate: float) -> str:
    """Return text for a terminal: both loops' latencies by percentile, drawn to one scale."""
    rows = [(share, _at(closed, share), _at(opened, share)) for share in PERCENTILES]
    finite = [value for _, *pair in rows for value in pair if np.isfinite(value)]
    most = max(finite, default=1.0)
    lines = [
        (
            f"Closed loop: {clients} clients, each waiting for its answer before it sends again:"
            f" {rate:.0f} requests/s."
        ),
        (
            f"Open loop:   {rate:.0f} requests/s on their own schedule (Poisson), measured from"
            " when each was due."
        ),
        "",
        f"latency, ms  {'closed':>7} {'open':>7}  (▒ closed, █ open)",
    ]
    for share, first, second in rows:
        name = "slowest" if share == 100 else f"p{share}"
        lines.append(
            f"{name:<12} {ms(first):>7} {ms(second):>7}  {bar(first, most, width=WIDTH, mark='▒')}"
        )
        lines.append(f"{'':<28}  {bar(second, most, width=WIDTH)}")
    lines += ["", _lesson(_at(closed, 99), _at(opened, 99))]
    lines += [
        f"Treat these latencies with care: {doubt}."
        for level in (closed, opened)
        if (doubt := generator_doubt(level))
    ]
    return "\n".join(lines) + "\n"


def _at(level: Level, share: int) -> float:
    """Return that percentile of the latencies in seconds; infinite if too few were answered."""
    return float(np.quantile(level.latencies_s(), share / 100, method="higher"))


def _lesson(closed_s: float, open_s: float) -> str:
    if open_s > 1.5 * closed_s:
        waits = "forever"
        if np.isfinite(open_s):
            waits = f"{open_s / closed_s:.1f} times as long"
        return (
            f"At the same rate, clients that arrive on their own schedule wait {waits} (p99). In a"
            " closed loop nobody arrives while the server is late, so those waits are missing from"
            " its figures (coordinated omission)."
        )
    return (
        "The server keeps this rate with clients that arrive on their own schedule, too. Only the"
        " open loop's p99 is what users see who arrive so: it counts from when each was due. That"
        " of the closed loop depends on how many clients there are, since each waits for those"
        " before it."
    )
