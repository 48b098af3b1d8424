"""Every reply of a server is traced to the batch that gave its scores: what is refused, and in
which words.
"""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bottleneck_lab.measure.channel.messages import Ran
from bottleneck_lab.measure.kinds.http_server.load.level import Level
from bottleneck_lab.measure.kinds.inference_server import figures
from bottleneck_lab.measure.kinds.inference_server.judging import (
    answers_of_batches,
    check_answers,
    check_pixels,
)
from bottleneck_lab.measure.kinds.inference_server.pictures import STRIPS, Strips

N = 12
MS = 1_000_000


@pytest.fixture
def strips():
    means = (
        np.random.default_rng(0).integers(0, 256, size=(30, STRIPS, 2, 14, 3)).astype(np.float32)
    )
    return Strips(b"head", [[b"x"] * STRIPS for _ in range(30)], means)


@pytest.fixture
def served(strips):
    """A level that was served rightly, in three batches, to be spoilt."""
    pictures = strips.draw(N, np.random.default_rng(1))
    scores = np.random.default_rng(2).normal(size=(N, 10)).astype(np.float32)
    begun = np.arange(N) * MS
    batches = []
    for at in range(0, N, 4):
        means = strips.seen(pictures[at : at + 4]).astype(np.uint8)
        rows, images = np.array([0], np.int64), np.zeros((1, 3, 224, 224), np.uint8)
        begin, end = at * MS, (at + 20) * MS
        batches.append(Ran(begin, begin, end, scores[at : at + 4], means, rows, images))
    replies = [
        json.dumps({"scores": row.round(5).tolist()}).encode() for row in scores.astype(float)
    ]
    ended = begun + 30 * MS
    return SimpleNamespace(
        pictures=pictures,
        batches=batches,
        replies=replies,
        begun=begun,
        ended=ended,
        status=np.full(N, 200),
    )


def level_of(served):
    return Level(
        served.pictures,
        served.begun,
        served.begun,
        served.ended,
        served.status,
        served.replies,
        0.1,
    )


def problem_of(served, strips, all_of=None):
    return check_answers(level_of(served), served.batches, strips, all_of=all_of)


def test_right_answers_are_right(served, strips):
    assert problem_of(served, strips, np.arange(N)) is None


def test_another_pictures_scores(served, strips):
    served.replies[5] = served.replies[6]
    assert "not those that the model gave for its picture" in problem_of(served, strips)


def test_a_picture_that_the_model_never_got(served, strips):
    served.pictures[7] = strips.draw(1, np.random.default_rng(9))[0]
    assert "never given its picture" in problem_of(served, strips)


def test_an_answer_before_the_model_had_run(served, strips):
    served.ended[2] = served.batches[0].ended_ns - MS
    assert "before the model had run" in problem_of(served, strips)


@pytest.mark.parametrize(
    "reply",
    [b"", b"[]", b'{"scores": [1, 2]}', b'{"scores": null}', b'{"scores": [NaN]}', b"{" * 9999],
)
def test_a_reply_of_another_form(served, strips, reply):
    served.replies[3] = reply
    assert "its reply is not JSON" in problem_of(served, strips)


def test_refusing_is_wrong_only_where_all_are_to_be_answered(served, strips):
    served.status[4:6] = 503
    assert problem_of(served, strips) is None
    assert problem_of(served, strips, np.arange(N)) == "2 of 12 good requests got status 503."


def test_answers_without_any_batch(served, strips):
    served.batches.clear()
    assert "the model was never asked" in problem_of(served, strips)


def test_kept_pixels_are_compared_with_those_of_their_own_picture(served, strips):
    level = level_of(served)
    files = []
    judge = SimpleNamespace(
        reference_pixels=lambda file: files.append(file) or file,
        compare=lambda got, want: None if got.shape == (3, 224, 224) else "odd",
    )
    assert check_pixels([level], served.batches, strips, judge) == (None, 3)
    judge.compare = lambda got, want: "it is grey"
    problem, checked = check_pixels([level], served.batches, strips, judge)
    assert "it is grey" in problem
    assert checked == 3, "at once, not up to the first that is wrong"


def test_rates_and_idle_time_come_from_batches_and_count_only_what_was_answered(served):
    def ran(number):
        end = (number + 1) * 100 * MS
        means = np.zeros((10, 14, 14, 3), np.uint8)
        return Ran(
            end - 75 * MS,
            end - 75 * MS,
            end,
            np.zeros((10, 10), np.float32),
            means,
            np.zeros(0),
            np.zeros(0),
        )

    batches = [ran(number) for number in range(60)]
    begun = (np.arange(600) * 10 * MS).astype(np.int64)
    level = Level(np.zeros((600, 8)), begun, begun, begun + MS, np.full(600, 200), [b""] * 600, 0.1)
    answers = {batch.ended_ns: 10 for batch in batches}
    rates, idle = (figure(level, batches, answers) for figure in (figures.rates, figures.idle))
    assert rates == pytest.approx([100.0] * len(rates))
    assert len(rates) >= 12
    assert idle == pytest.approx([0.25] * len(idle))
    half = dict.fromkeys(answers, 5)
    assert figures.rates(level, batches, half)[0] == pytest.approx(50.0)
    assert figures.idle(level, batches, half)[0] == pytest.approx(1 - 0.75 / 2)


def test_images_that_nobody_asked_for_are_no_work(served, strips):
    """Neither noise, nor the same picture once more, makes the device busy."""
    level = level_of(served)
    assert answers_of_batches(level, served.batches, strips) == {
        batch.ended_ns: 4 for batch in served.batches
    }
    again, noise = served.batches[0], served.batches[1]
    served.batches += [
        replace(again, ended_ns=again.ended_ns + 100 * MS),
        replace(noise, ended_ns=noise.ended_ns + 100 * MS, means=255 - noise.means),
    ]
    assert sum(answers_of_batches(level, served.batches, strips).values()) == N
    served.status[:4] = 503
    assert again.ended_ns not in answers_of_batches(level, served.batches, strips)
