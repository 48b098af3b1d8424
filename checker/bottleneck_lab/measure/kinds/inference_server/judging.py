"""Decide if a server's answers are right: each is traced to the batch that gave its scores."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from bottleneck_lab.measure.channel.messages import Ran
from bottleneck_lab.measure.kinds.http_server.judging import refused
from bottleneck_lab.measure.kinds.http_server.load.level import OK, Level
from bottleneck_lab.measure.kinds.inference_server.pictures import Strips
from bottleneck_lab.measure.kinds.inference_server.pixels import as_pixels

LIGHT_AT_MOST = 3.0
"""Levels of 255 by which a picture's block means may differ from the right ones: filters and
decoders differ by 2, other pictures by 20.
"""
SCORES_WITHIN = 1e-3
"""Scores may be rounded to three digits, and a GPU's differ by 1e-4 with the size of the batch.
Those of two pictures differ by 0.5.
"""
MAX_COMPARED = 150
"""Pictures whose pixels are compared: each costs as much time as a server spends on one."""
SCORED_AGAIN = 16
"""Pictures that the model runs again, each alone."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Runs:
    """All images that the device has run, one row each.

    means: (N, 588) block means that the model saw, levels of 255. scores: (N, 10). ended_ns: (N,)
    when the image's batch ended.
    """

    means: Array
    scores: Array
    ended_ns: Array

    @classmethod
    def of(cls, batches: Sequence[Ran]) -> Runs:
        """Collect the images of these batches, in order."""
        if not batches:
            return cls(np.zeros((0, 588), np.float32), np.zeros((0, 10)), np.zeros(0, np.int64))
        means = np.concatenate(
            [batch.means.reshape(len(batch.means), -1) for batch in batches]
        ).astype(np.float32)
        ended_ns = np.concatenate([np.full(len(batch.means), batch.ended_ns) for batch in batches])
        return cls(means, np.concatenate([batch.scores for batch in batches]), ended_ns)

    def nearest(self, seen: Array) -> tuple[Array, Array]:
        """Find the row most like each of N pictures, of which the model must have seen `seen`
        (N, 588). Returns the rows, and by how many levels of 255 they differ.
        """
        # |a - b|² = |a|² + |b|² - 2ab: a matrix product instead of N × rows differences.
        square = (seen**2).sum(1)[:, None] + (self.means**2).sum(1)[None] - 2 * seen @ self.means.T
        rows = square.argmin(1)
        return rows, np.abs(self.means[rows] - seen).mean(1)


def seen_by_model(strips: Strips, pictures: Array) -> Array:
    """Return what the model must see of pictures: (N, 588) float32."""
    return strips.seen(pictures).reshape(len(pictures), -1).astype(np.float32)


def check_answers(
    level: Level, batches: Sequence[Ran], strips: Strips, *, all_of: Array | None = None
) -> str | None:
    """Return what is wrong with the answers of a level, as a sentence, or None.

    `all_of`: numbers of the requests that must have been answered; others may be refused.
    """
    if all_of is not None and (problem := refused(level, all_of)):
        return problem
    answered = np.flatnonzero(level.status == OK)
    runs = Runs.of(batches)
    if not len(answered):
        return None
    if not len(runs.means):
        return "Requests were answered, but the model was never asked."
    rows, apart = runs.nearest(seen_by_model(strips, level.requests[answered]))
    for number, row, difference in zip(answered, rows, apart, strict=True):
        scores, problem = scores_of(level.replies[number]), None
        if scores is None or len(scores) != runs.scores.shape[1]:
            problem = 'its reply is not JSON of the form {"scores": [10 numbers]}.'
        elif difference > LIGHT_AT_MOST:
            problem = (
                "it was answered, but the model was never given its picture; the closest one that"
                f" it got differs by {difference:.0f} levels of 255."
            )
        elif runs.ended_ns[row] > level.ended_ns[number]:
            problem = "it was answered before the model had run its picture."
        elif np.abs(scores - runs.scores[row]).max() > SCORES_WITHIN:
            problem = "its scores are not those that the model gave for its picture."
        if problem:
            return f"Request {number + 1} of {len(level.status)}: {problem}"
    return None


def answers_of_batches(level: Level, batches: Sequence[Ran], strips: Strips) -> dict[int, int]:
    """Return how many answers of a level rest on each batch, by when it ended (ns)."""
    runs, answered = Runs.of(batches), level.status == OK
    if not len(runs.means) or not answered.any():
        return {}
    rows, apart = runs.nearest(seen_by_model(strips, level.requests[answered]))
    # A picture that was run twice is found once.
    ends, counts = np.unique(runs.ended_ns[rows[apart <= LIGHT_AT_MOST]], return_counts=True)
    return dict(zip(ends.tolist(), counts.tolist(), strict=True))


def scores_of(reply: bytes) -> Array | None:
    """Return the scores in a reply; None if it is not of that form."""
    try:
        scores = np.array(json.loads(reply)["scores"], np.float64)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return scores if scores.ndim == 1 and np.isfinite(scores).all() else None


def check_pixels(
    levels: Sequence[Level], batches: Sequence[Ran], strips: Strips, judge: ModuleType
) -> tuple[str | None, int]:
    """Compare the kept pixels with the judge's own pre-processing. Returns what is wrong, if
    anything, and how many pictures were compared.
    """
    pictures = np.concatenate([level.requests for level in levels])
    sent = Runs(
        seen_by_model(strips, pictures), np.zeros((len(pictures), 1)), np.zeros(len(pictures))
    )
    kept = [
        (batch.means[row], image)
        for batch in batches
        for row, image in zip(batch.kept, batch.kept_images, strict=True)
    ]
    compared = []
    for means, image in _spread(kept, MAX_COMPARED):
        rows, apart = sent.nearest(means.reshape(1, -1).astype(np.float32))
        # Others are of no request: the server's own warm-up.
        if apart[0] <= LIGHT_AT_MOST:
            compared.append((image, pictures[rows[0]]))

    def complaint(pair: tuple[Array, Array]) -> str | None:
        image, picture = pair
        expected = judge.reference_pixels(strips.file(picture))
        wrong: str | None = judge.compare(as_pixels(image), expected)
        return wrong

    # Decoding takes nearly all of it, beside which other threads run.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        wrong = next(filter(None, pool.map(complaint, compared)), None)
    return (f"The model was given a wrong picture: {wrong}." if wrong else None), len(compared)


def scores_apart(batches: Sequence[Ran], alone: Callable[[Array], Array]) -> float:
    """Return the largest difference between a score that the model gave in a batch and the one that
    it gives the same picture alone, relative to the score if that is larger than 1.

    `alone` returns the scores of images, each run by itself. 0 if no pixels were kept.
    """
    kept = [
        (image, batch.scores[row])
        for batch in batches
        for row, image in zip(batch.kept, batch.kept_images, strict=True)
        if batch.kept_images.dtype == batches[0].kept_images.dtype
    ]
    chosen = _spread(kept, SCORED_AGAIN)
    if not chosen:
        return 0.0
    images, scores = (np.stack(each) for each in zip(*chosen, strict=True))
    return float((np.abs(alone(images) - scores) / np.maximum(1, np.abs(scores))).max())


def _spread(items: list[tuple[Array, Array]], most: int) -> list[tuple[Array, Array]]:
    """Return at most `most` of the items, spread evenly."""
    return items[:: max(1, -(-len(items) // most))]
