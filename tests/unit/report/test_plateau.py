"""Throughput and latency against the maximum batch size, in the HTML report."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest

from bottleneck_lab.analysis.plateau import FILE, Plateau, Point, read_plateau, write_plateau
from bottleneck_lab.measure.kinds.http_server.load.level import Level
from bottleneck_lab.measure.kinds.inference_server.plateau import (
    long_enough_s,
    point,
    show_plateau,
)
from bottleneck_lab.report.page.html import render_html

PLATEAU = Plateau(
    64,
    [
        Point(1, 25.0, 2.1, 2.6, 1.0),
        Point(16, 50.0, 1.2, 1.4, 15.5),
        Point(32, 50.0, None, None, 30.0),
    ],
)


def test_the_plateau_is_drawn_and_its_figures_stand_beside_it():
    page = render_html(title="a server", plateau=PLATEAU)
    assert "64 concurrent clients, one" in page
    heights = [
        float(each)
        for each in re.findall(r"<rect[^>]*height=\"([\d.]+)\"[^>]*class=\"fill-value\"", page)
    ]
    assert heights == pytest.approx([45, 90, 90, 90, 90 * 1.4 / 2.6, 0], abs=0.1), (
        "rates, then p99s"
    )
    assert '<td class="number">15.5</td>' in page
    assert page.count(">–<") == 3, "of the last one p50 and p99, and over its column"
    assert "A latency is missing (–) where most clients had no second answer" in page
    assert "Your server without the recording, which slows it, under load from" in page
    answered = Plateau(64, PLATEAU.points[:2])
    assert "is missing" not in render_html(title="a server", plateau=answered)


def test_without_points_there_is_no_such_section():
    assert "Maximum batch size" not in render_html(title="a server")
    assert "Maximum batch size" not in render_html(title="a server", plateau=Plateau(64, []))


def test_it_is_kept_beside_the_capture_and_what_is_no_plateau_is_none(tmp_path):
    write_plateau(PLATEAU, tmp_path)
    assert read_plateau(tmp_path) == PLATEAU
    (tmp_path / FILE).write_text('{"clients": 64, "points": [{"size": "many"}]}')
    assert read_plateau(tmp_path) is None
    assert read_plateau(tmp_path / "elsewhere") is None


def test_too_few_answers_have_no_p99(tmp_path):
    nothing = np.zeros(4, np.int64)
    level = Level(nothing, nothing, nothing, nothing, nothing, [b""] * 4, 0.1)
    write_plateau(Plateau(64, [point(8, level, 1.0, 64, [])]), tmp_path)
    found = read_plateau(tmp_path)
    assert found is not None
    assert found.points[0].p99_s is None


def closed_loop(rate, clients, seconds, size):
    """A server that answers `size` requests at once, `rate` a second; each client sends again at
    once. Returns the level and the device's batches.
    """
    period_ns = size / rate * 1e9
    begun, ended, batches = [0.0] * clients, [], []
    while len(ended) < len(begun):
        end = (len(batches) + 1) * period_ns
        answered = len(begun[len(ended) : len(ended) + size])
        ended += [end] * answered
        batches.append(SimpleNamespace(ended_ns=end, means=[0] * answered))
        begun += [end] * (answered if end < seconds * 1e9 else 0)
    arrays = [np.array(each, np.int64) for each in (begun, begun, ended)]
    status = np.full(len(begun), 200)
    return Level(arrays[0], *arrays, status, [b""] * len(begun), 0.1), batches


@pytest.mark.parametrize(("rate", "seconds"), [(60.0, 2.5), (25.0, 8.0), (200.0, 1.5)])
def test_rate_and_latency_of_a_size_agree_by_littles_law(rate, seconds):
    level, batches = closed_loop(rate, 64, seconds, 32)
    found = point(32, level, seconds, 64, batches)
    assert found.rate == pytest.approx(rate, rel=0.05)
    assert found.rate * found.p50_s == pytest.approx(64, rel=0.1)


def test_a_loop_in_which_most_clients_were_answered_once_shows_no_latency():
    level, batches = closed_loop(10.0, 64, 1.5, 32)
    found = point(32, level, 1.5, 64, batches)
    assert found.rate == pytest.approx(10.0, rel=0.05), "5 a second, by what came within 1.5 s"
    assert found.p50_s is None
    assert long_enough_s(64, found.rate, 1.5) == 6.0
    assert long_enough_s(64, 40.0, 1.5) == 2.4
    assert long_enough_s(64, 400.0, 1.5) == 1.5


def test_rates_measured_beside_other_programs_are_marked():
    points = [Point(8, 100.0, 0.01, 0.02, 7.5)]
    quiet, busy = Plateau(16, points, other_cores=0.1), Plateau(16, points, other_cores=1.4)
    assert show_plateau(busy).count("Other programs kept 1.4 cores busy meanwhile") == 1
    assert "Other programs" not in show_plateau(quiet)
    assert "1.4 cores busy" in render_html(title="Server", plateau=busy)


@pytest.mark.parametrize(
    ("rates", "images", "words"),
    [
        ((25.0, 50.0, 44.0), 32.0, "At 32 the rate is 12% below that at 16. A large size"),
        ((25.0, 50.0, 44.0), 27.0, "below that at 16, and its batches hold only 27 images. A"),
        ((50.0, 40.0, 45.0), 32.0, "At 16 the rate is 20% below that at 1. A"),
        ((25.0, 50.0, 49.5), 27.0, ""),
        ((25.0, 49.0, 50.0), 27.0, ""),
    ],
)
def test_a_rate_that_falls_at_a_larger_size_is_explained(rates, images, words):
    held = (1.0, 16.0, images)
    points = [
        Point(size, rate, 1.0, 1.0, mean)
        for size, rate, mean in zip((1, 16, 32), rates, held, strict=True)
    ]
    dipping = Plateau(64, points)
    assert words in dipping.dip
    assert bool(words) == bool(dipping.dip)
    assert dipping.dip in show_plateau(dipping)
    assert dipping.dip in render_html(title="a server", plateau=dipping)
