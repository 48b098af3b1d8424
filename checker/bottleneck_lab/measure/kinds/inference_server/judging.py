"""Whether a server's answers are right: every reply is traced to the batch that gave its scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from bottleneck_lab.measure.channel.messages import Ran
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
    """All images that the device has run, one row each: what the model saw, its scores, and when
    the batch ended.
    """

    means: Array
    scores: Array
    ended_ns: Array

    @classmethod
    def of(cls, batches: Sequence[Ran]) -> Runs:
        """Those of these batches, in order."""
        if not batches:
            return cls(np.zeros((0, 588), np.float32), np.zeros((0, 10)), np.zeros(0, np.int64))
        means = np.concatenate(
            [batch.means.reshape(len(batch.means), -1) for batch in batches]
        ).astype(np.float32)
        ended_ns = np.concatenate([np.full(len(batch.means), batch.ended_ns) for batch in batches])
        return cls(means, np.concatenate([batch.scores for batch in batches]), ended_ns)

    def nearest(self, seen: Array) -> tuple[Array, Array]:
        """For pictures of which the model must have seen `seen` (N×588): the row most like each,
        and by how many levels of 255 they differ.
        """
        square = (seen**2).sum(1)[:, None] + (self.means**2).sum(1)[None] - 2 * seen @ self.means.T
        rows = square.argmin(1)
        return rows, np.abs(self.means[rows] - seen).mean(1)


def seen_by_model(strips: Strips, pictures: Array) -> Array:
    """What the model must see of pictures, N×588, float32."""
    return strips.seen(pictures).reshape(len(pictures), -1).astype(np.float32)


def check_answers(
    level: Level, batches: Sequence[Ran], strips: Strips, *, all_of: Array | None = None
) -> str | None:
    """What is wrong with the answers of a level, as a sentence, or None. `all_of`: those that must
    have been answered; others may be refused.
    """
    if all_of is not None and (problem := _refused(level, all_of)):
        return problem
    answered = np.flatnonzero(level.status == OK)
    runs = Runs.of(batches)
    if not len(answered) or not len(runs.means):
        return "Requests were answered, but the model was never asked." if len(answered) else None
    rows, apart = runs.nearest(seen_by_model(strips, level.asked[answered]))
    for number, row, difference in zip(answered, rows, apart, strict=True):
        if problem := _wrong(level, int(number), runs, int(row), float(difference)):
            return f"Request {number + 1} of {len(level.status)}: {problem}"
    return None


def scores_of(reply: bytes) -> Array | None:
    """The scores that a request was answered with; None where the reply is not of that form."""
    try:
        scores = np.array(json.loads(reply)["scores"], np.float64)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return scores if scores.ndim == 1 and np.isfinite(scores).all() else None


def _refused(level: Level, all_of: Array) -> str | None:
    missed = all_of[level.status[all_of] != OK]
    if not len(missed):
        return None
    how = int(level.status[missed[0]])
    words = f"status {how}" if how > 0 else "no answer"
    return f"{len(missed)} of {len(all_of)} good requests got {words}."


def _wrong(level: Level, number: int, runs: Runs, row: int, apart: float) -> str | None:
    scores = scores_of(level.replies[number])
    if scores is None or len(scores) != runs.scores.shape[1]:
        return 'its reply is not JSON of the form {"scores": [10 numbers]}.'
    if apart > LIGHT_AT_MOST:
        return (
            "it was answered, but the model was never given its picture; the closest one that it"
            f" got differs by {apart:.0f} levels of 255."
        )
    if runs.ended_ns[row] > level.ended_ns[number]:
        return "it was answered before the model had run its picture."
    if np.abs(scores - runs.scores[row]).max() > SCORES_WITHIN:
        return "its scores are not those that the model gave for its picture."
    return None


def check_pixels(
    levels: Sequence[Level], batches: Sequence[Ran], strips: Strips, judge: ModuleType
) -> tuple[str | None, int]:
    """What is wrong with the kept pixels, if anything, and how many pictures were compared."""
    pictures = np.concatenate([level.asked for level in levels])
    sent = Runs(
        seen_by_model(strips, pictures), np.zeros((len(pictures), 1)), np.zeros(len(pictures))
    )
    checked = 0
    for means, image in _spread(list(_kept(batches)), MAX_COMPARED):
        rows, apart = sent.nearest(means.reshape(1, -1).astype(np.float32))
        if apart[0] > LIGHT_AT_MOST:
            continue  # of no request: a warm-up of the server's own
        want = judge.reference_pixels(strips.file(pictures[rows[0]]))
        checked += 1
        if complaint := judge.compare(as_pixels(image), want):
            return f"The model was given a wrong picture: {complaint}.", checked
    return None, checked


def scores_apart(batches: Sequence[Ran], alone: Callable[[Array], Array]) -> float:
    """The largest difference between a score that the model gave in a batch and the one that it
    gives the same picture alone, over the score where that is larger than 1.

    `alone` gives the scores of images, each run by itself. 0 where no pixels were kept.
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


def _kept(batches: Sequence[Ran]) -> Iterator[tuple[Array, Array]]:
    for batch in batches:
        for row, image in zip(batch.kept, batch.kept_images, strict=True):
            yield batch.means[row], image


def _spread(items: list[tuple[Array, Array]], most: int) -> list[tuple[Array, Array]]:
    """At most `most` of them, spread evenly."""
    return items[:: max(1, -(-len(items) // most))]
