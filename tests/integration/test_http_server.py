"""A lab of the `http_server` kind, as `lab dev new --kind http_server` makes it: a server of JSON
whose hot path is serialised, with a judge of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bottleneck_lab.grading.margins import Margin

from ..tools import NO_SANDBOX
from ..weather import asked_again
from .test_cli import Learner

SERVED = Path(__file__).parents[2] / "docs" / "example-http-server"


@pytest.fixture
def author(tmp_path) -> Learner:
    return Learner(tmp_path, SERVED)


def proved(author: Learner, part: str) -> list[dict[str, Any]]:
    """What `lab dev check` says of the files and of a part of the lab; a busy machine is asked
    again.
    """
    return asked_again(
        lambda: author.json("dev", "check", "price-board", "--only", part),
        lambda rows: "\n".join(problem for row in rows for problem in row["problems"]),
    )


@pytest.mark.timed
@pytest.mark.parametrize("part", ["starter", pytest.param("solution", marks=pytest.mark.slow)])
def test_the_shipped_server_is_too_slow_and_the_solution_is_not(author, part):
    files, measured = proved(author, part)
    assert files["problems"] == []
    assert measured["problems"] == []
    margins = {
        margin.criterion: margin
        for margin in msgspec.convert(measured["proof"]["margins"], list[Margin])
    }
    if part == "starter":
        assert margins["throughput"].most < 0.7
    else:
        assert min(margins["throughput"].least, margins["p99-ms"].least) > 1.1


@pytest.mark.slow
@pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX)
def test_each_wrong_server_fails_for_its_reason(author):
    assert [row["problems"] for row in proved(author, "mutants")] == [[]] * 6


@pytest.mark.slow
def test_a_run_shows_the_rate_by_clients_and_both_loops(author):
    workspace = author.start("price-board")
    done = author.lab("run", at=workspace)
    assert done.returncode == 0, done.stderr
    rates = [
        float(line.split()[1]) for line in done.stdout.splitlines() if line.strip().endswith("█")
    ]
    assert len(rates) >= 5
    assert max(rates[:5]) < 1.5 * rates[0], "one lock: more clients get no more answers"
    assert "Open loop:" in done.stdout
