"""Is the learner's capture a genuine one of this model, made now, on this machine? Pure functions:
each returns a sentence on what is wrong, or None.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from bottleneck_lab.measure.kinds.operator_profile.capture import OperatorCapture
from bottleneck_lab.measure.kinds.operator_profile.figures import (
    PLACES,
    Truth,
    by_pass,
    undisturbed_shares,
)

FORGED_SHARE = 0.15
"""A capture of the same work on the same machine differs less than this in any operator's share."""
COLD_RATIO = 1.3
"""Where the reference's own first pass takes no more than this, a warm-up makes no measurable
difference.
"""
CLOCK_SLACK_S = 2.0
ROUNDING_NS = 2


class TimingComplaint(str):
    """A problem that depends on measured times, and may be due to other programs. Every other
    problem is exact.
    """

    __slots__ = ()


def not_genuine(
    capture: OperatorCapture,
    truth: Truth,
    passes: int,
    begin_s: float,
    end_s: float,
    warm_ups: int | None = None,
) -> str | None:
    """Say why the learner's capture is not one of `passes` passes of this model, made between two
    moments (Unix time, s). `warm_ups`: how often the script ran the model before that.
    """
    return (
        _incomplete(capture, truth)
        or " ".join(_alterations(capture))
        or _other_time(capture, begin_s, end_s)
        or _other_work(capture, truth, passes)
        or _left_out(capture, truth)
        or _beside(capture, truth)
        or _copied_passes(capture, truth, passes)
        or _not_warm(capture, truth, passes, warm_ups)
    )


MARK = "aten::neg"
"""After each pass a check's own script leaves one call of this a picture, on a vector whose length
is the class that the model gave it.
"""
MARKS_SHARE = 0.75
"""Of the marks that must be right: where two classes are as likely, rounding decides."""


def not_of_this_run(
    capture: OperatorCapture, classes: Sequence[int], passes: int, seconds: float
) -> str | None:
    """Say why the capture cannot be of the run that took `seconds` on the verifier's clock, on
    pictures of these classes.
    """
    if capture.end_s - capture.begin_s > seconds:
        return (
            "The passes in the capture took longer than your script ran, so they are not from this"
            " run."
        )
    marks = Counter(call.dims[0] for call in capture.calls if call.name == MARK and call.dims)
    wanted = Counter((index + 1,) for index in classes)
    right = sum(min(marks[length], passes * count) for length, count in wanted.items())
    if right >= MARKS_SHARE * passes * len(classes):
        return None
    return (
        "The capture does not show this model at work on the pictures that `record` was given: run "
        "`model(images)` itself inside the profiler, once a pass."
    )


def _incomplete(capture: OperatorCapture, truth: Truth) -> str | None:
    if truth.capture.has_device and not capture.has_device:
        return NO_DEVICE
    return None if has_shapes(capture) else NO_SHAPES


def script_faults(
    capture: OperatorCapture, passes: int, warm_ups: int | None, *, on_gpu: bool
) -> list[str]:
    """Return all that is wrong with a script by its capture alone, in sentences: nothing here needs
    times, or captures of the check's own. `warm_ups` as for `not_genuine`.
    """
    recorded = _recorded_passes(capture, passes)
    faults = {
        NO_DEVICE: on_gpu and not capture.has_device,
        NO_SHAPES: not has_shapes(capture),
        _describe_passes(recorded, passes): recorded != passes,
        NOT_RUN_BEFORE: warm_ups == 0,
    }
    return [
        *_alterations(capture),
        *(sentence for sentence, applies in faults.items() if applies),
    ]


ALTERATIONS = {
    "training": "The model was recorded in training mode. Record it as it is given, for inference.",
    "precision": (
        "The model was recorded in another precision, such as under autocast. Record it as it is"
        " given, in float32."
    ),
    "layout": (
        "The model or the pictures were recorded in another memory layout, such as channels_last."
        " Record both as they are given."
    ),
    "threads": (
        "The model was recorded on several threads. Leave `torch.set_num_threads` as it is, at 1."
    ),
}
"""Sentences by the names that the lab's `workload.altered` gives."""


def _alterations(capture: OperatorCapture) -> list[str]:
    return [sentence for name, sentence in ALTERATIONS.items() if name in capture.altered]


def _recorded_passes(capture: OperatorCapture, passes: int) -> int:
    """Count the calls of the network's one fully connected layer. Returns `passes` in another
    precision: autocast records a layer twice.
    """
    return passes if "precision" in capture.altered else capture.count("aten::linear")


def _describe_passes(recorded: float, passes: int) -> str:
    more = "Does the profiler stop too early, or its schedule spend passes on waiting and warm-up?"
    if recorded > passes:
        more = "Are the warm-up passes in it?"
    return f"The capture holds {recorded:g} passes; `record` was told to record {passes}. {more}"


NO_DEVICE = (
    "The capture has no GPU work in it: `activities` needs ProfilerActivity.CUDA, and the script"
    " must wait for the GPU before the profiler stops."
)
NOT_RUN_BEFORE = (
    "The script did not run the model before the recorded passes: the first run allocates and"
    " prepares, so run it a few times without recording."
)
NO_SHAPES = "The capture has no shapes: pass record_shapes=True to the profiler."


def has_shapes(capture: OperatorCapture) -> bool:
    """Return True if any input of an operator has its shape recorded."""
    shapes: list[Any] = [shape for call in capture.calls for shape in call.dims]
    return any(isinstance(shape, tuple) and shape for shape in shapes)


def missing_parts(capture: OperatorCapture, passes: int) -> list[str]:
    """Return what a capture of the learner's own lacks of what the brief asks for, in sentences."""
    missing = _alterations(capture)
    if not has_shapes(capture):
        missing.append(NO_SHAPES)
    recorded = _recorded_passes(capture, passes)
    if recorded != passes:
        missing.append(f"The capture holds {recorded} passes; {passes} are asked for.")
    if capture.runs_before == 0:
        missing.append(NOT_RUN_BEFORE)
    return missing


def _other_time(capture: OperatorCapture, begin_s: float, end_s: float) -> str | None:
    if begin_s - CLOCK_SLACK_S <= capture.begin_s and capture.end_s <= end_s + CLOCK_SLACK_S:
        return None
    return (
        "The times in the capture are not those of the call of `record`: it is an old one, or was"
        " changed."
    )


def _other_work(capture: OperatorCapture, truth: Truth, passes: int) -> str | None:
    """Say so unless the layers' operators met exactly the model's shapes, each once a pass."""
    # Whatever runs below them, a model's layers are called so.
    layers = {"aten::conv2d", "aten::batch_norm", "aten::linear", "aten::max_pool2d"} & set(
        truth.capture.operators
    )
    want, got = truth.capture.shapes(layers), capture.shapes(layers)
    unit = math.gcd(*want.values()) or 1
    if set(want) != set(got):
        return (
            "The operators and shapes in the capture are not those of this model on these pictures."
        )
    # Counts may have a common factor in the reference: it was captured for several passes, too.
    ratios = {got[shape] * unit / want[shape] for shape in want}
    if len(ratios) > 1:
        return (
            "Some layers of the model appear more often than others: the capture holds incomplete"
            " passes."
        )
    # The network has one fully connected layer.
    recorded = ratios.pop() * truth.capture.count("aten::linear") / unit
    return None if recorded == passes else _describe_passes(recorded, passes)


def _left_out(capture: OperatorCapture, truth: Truth) -> str | None:
    """Say so if the operator that takes most of the time is missing."""
    # The layers' names may be there without the operators that they call.
    top = truth.ranked()[0]
    if top.name in capture.times:
        return None
    return (
        "The capture lacks the operator that does most of this model's work: this is not a"
        " recording of the model."
    )


def _beside(capture: OperatorCapture, truth: Truth) -> str | None:
    """Name operators that the passes do not have: work on the pictures or the scores is no part of
    them.
    """
    more = sorted(name for name in capture.operators if "::" in name and name not in truth.allowed)
    if not more:
        return None
    return (
        f"The capture holds more than the passes: {', '.join(more[:5])}. Do everything else before"
        " or after recording."
    )


def _copied_passes(capture: OperatorCapture, truth: Truth, passes: int) -> str | None:
    """Say so if two passes agree in every call: the same work never takes the same time to the
    nanosecond in each of many calls.
    """
    rows = by_pass(capture, truth.ranked()[0].name, passes)
    if any(np.abs(one - other).max() <= ROUNDING_NS for one, other in combinations(rows, 2)):
        return (
            "Two passes in the capture agree to the nanosecond in every call: one is a copy of the"
            " other."
        )
    return None


def _not_warm(
    capture: OperatorCapture, truth: Truth, passes: int, warm_ups: int | None
) -> str | None:
    """Say so if the script did not run the model before the recorded passes, or if the first of
    them stands out half as much as that of the reference's own cold capture.
    """
    if warm_ups == 0:
        return NOT_RUN_BEFORE
    cold = first_pass_ratio(truth.cold, max(truth.cold.count("aten::linear"), 1))
    if cold < COLD_RATIO or first_pass_ratio(capture, passes) < math.sqrt(cold):
        return None
    return TimingComplaint(
        "The first pass in the capture takes longer than the others: it allocates and prepares. Run"
        " the model a few times without recording first."
    )


def first_pass_ratio(capture: OperatorCapture, passes: int) -> float:
    """Return the time of the first pass over the median of the others; 1 where there is nothing to
    compare.
    """
    rows = [
        times.reshape(passes, -1).sum(axis=1)
        for times in capture.times.values()
        if len(times) % passes == 0
    ]
    if passes < 3 or not rows:
        return 1.0
    total = np.sum(rows, axis=0)
    return float(total[0] / max(np.median(total[1:]), 1))


def other_times(capture: OperatorCapture, truth: Truth, passes: int) -> str | None:
    """Say why the times in a capture that is genuine otherwise are not those of this machine."""
    shares = undisturbed_shares([capture], passes)
    for share in truth.ranked()[: len(PLACES)]:
        recorded = shares.get(share.name, 0.0)
        if abs(recorded - share.share) > FORGED_SHARE:
            return TimingComplaint(
                f"{share.name} takes a different share of the self time in the capture than in"
                " captures made here: the passes were not recorded as they run, or the machine was"
                " busy."
            )
    return None
