"""The `operator_profile` kind: nothing is made faster; the learner's answers about a workload are
checked against the verifier's own captures.

The reference worker captures the pristine workload again and again until the operators' shares are
known well enough; the learner's script then must make a capture of its own, of secret pictures and
a secret number of passes. Answers are graded against the first, by pure functions.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from bottleneck_lab.errors import BusyMachineError, CaptureError
from bottleneck_lab.grading.conclusion import Conditions
from bottleneck_lab.grading.criteria import BUSY_CORES, grade_check, not_held_against, not_measured
from bottleneck_lab.grading.verdict import WHEN_QUIET, CriterionResult
from bottleneck_lab.measure.ceilings import stored_ceilings
from bottleneck_lab.measure.channel.session import CallSession, limits_of
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.kinds.operator_profile import OperatorProfileSettings
from bottleneck_lab.measure.kinds.operator_profile.capture import OperatorCapture, read_capture
from bottleneck_lab.measure.kinds.operator_profile.figures import (
    Truth,
    estimate_shares,
    intensities,
    reached_shares,
    uncertainty,
    with_fresh,
)
from bottleneck_lab.measure.kinds.operator_profile.genuine import (
    TimingComplaint,
    not_genuine,
    not_of_this_run,
    other_times,
    script_faults,
)
from bottleneck_lab.measure.kinds.operator_profile.judging import (
    MISFIT,
    described_answers,
    either_order,
    wrong_bounds,
    wrong_ceiling,
    wrong_operators,
    wrong_share,
)
from bottleneck_lab.measure.machine import LoadMeter, own_cpu_s
from bottleneck_lab.workspace.diagnosis_file import load_answers

CRITERIA = ("genuine-capture", "top-operators", "share", "bounds", "ceiling")
LEARNER_TRIES = 3
PROBES = 4
"""Measurements of the machine's ceilings, each of which takes a fraction of a second."""
PASSES = range(3, 7)
"""The learner's script is told to record one of these numbers of passes, but not the lab's own,
which a script could know.
"""


def measure(context: Context[OperatorProfileSettings]) -> Measured:
    """Look at the learner's script, capture the pristine workload until its shares are known, then
    the learner's script again, and grade the answers.
    """
    judge, generator = context.judge(), np.random.default_rng(context.rng.getrandbits(128))
    # A script that is wrong whatever the times is told so at once, not after a minute of captures.
    if script := _script_faults(context, judge, generator):
        capture, *others = (context.required(id_) for id_ in CRITERIA)
        return Measured(
            [
                grade_check(capture, " ".join(script), 1, "captures"),
                *(not_measured(each, "because your script comes first") for each in others),
            ]
        )
    answers = load_answers(context.workspace)
    context.progress("starting the reference", 0.05)
    with CallSession.start(
        context, "reference", context.pristine(), "reference.py", limits_of(context.settings)
    ) as reference:
        worker = reference.worker
        meter = LoadMeter(lambda: own_cpu_s() + worker.cpu_s())
        truth, captures, too_busy = _find_truth(context, reference, judge, generator)
        other_cores = meter.cores()
        tasks = [_draw_task(context, reference, judge, generator) for _ in range(LEARNER_TRIES)]
    faults = [
        wrong_operators(answers, truth),
        wrong_share(answers, truth),
        wrong_bounds(answers, truth),
        wrong_ceiling(answers, truth),
    ]
    if too_busy is not None:
        faults[-1] = wrong_ceiling(answers)  # by the answers alone: no share is known well enough
        return _certain_faults(context, faults, captures, too_busy)
    context.progress("running your script", 0.8)
    with CallSession.start(
        context, "learner", context.submission, "check_record.py", limits_of(context.settings)
    ) as learner:
        worker = learner.worker
        meter = LoadMeter(lambda: own_cpu_s() + worker.cpu_s())
        capture_problem = _capture_problem(learner, tasks, truth)
        beside_script = max(other_cores, meter.cores())
    results = []
    for id_, problem in zip(CRITERIA, [capture_problem, *faults], strict=True):
        result = grade_check(context.required(id_), problem, captures, "captures")
        # Beside a busy core other operators are the slowest, and a genuine capture has other times;
        # a problem that does not depend on times stays one.
        if isinstance(problem, TimingComplaint):
            beside = beside_script if id_ == "genuine-capture" else other_cores
            result = not_held_against(result, beside)
        results.append(result)
    notes = []
    if other_cores > BUSY_CORES:
        notes.append(
            f"Other programs kept {other_cores:.1f} cores busy during the check's captures, so its"
            " figures are less certain."
        )
    return Measured(
        _with_figures(results, answers, truth),
        details=_details(truth, captures),
        notes=notes + _other_balance(answers, truth, context.settings.threads),
        conditions=Conditions(other_cores=beside_script, cores=os.cpu_count()),
    )


def _with_figures(
    results: Sequence[CriterionResult], answers: Mapping[str, Any], truth: Truth
) -> list[CriterionResult]:
    """Return the results with what the check has to say of those that hold."""
    figures = {"top-operators": either_order(answers, truth)}
    if all(result.holds for result in results):
        figures = described_answers(answers, truth)
    return [
        replace(each, counted=figure) if each.holds and (figure := figures.get(each.id)) else each
        for each in results
    ]


def _script_faults(
    context: Context[OperatorProfileSettings], judge: ModuleType, generator: np.random.Generator
) -> list[str]:
    """Have the learner's script capture secret pictures in a process of its own. Returns what is
    wrong with it whatever the times, in sentences.
    """
    context.progress("looking at your script", 0.02)
    pixels = judge.make_inputs(generator, context.data, context.settings.judge)
    passes = _draw_passes(context, generator)
    with CallSession.start(
        context, "learner", context.submission, "check_record.py", limits_of(context.settings)
    ) as learner:
        _, answer = learner.call([pixels, passes])
    capture = _read_recorded(answer)
    if isinstance(capture, str):
        return [capture]
    on_gpu = context.device.startswith("cuda")
    return script_faults(capture, passes, _warm_ups(answer), on_gpu=on_gpu)


def _read_recorded(answer: Sequence[Any]) -> OperatorCapture | str:
    """Return the capture in a reply of the learner's worker, or why it has none, in a sentence."""
    if len(answer) != 3 or not isinstance(answer[0], np.ndarray) or answer[0].size == 0:
        return (
            "`record` wrote no trace: wrap the passes in torch.profiler.profile and export the"
            " trace to the file it is given."
        )
    try:
        capture = read_capture(answer[0].tobytes())
    except CaptureError as error:
        return f"{error.message} {error.remedy}"
    return dataclasses.replace(capture, altered=tuple(str(answer[2]).split()))


def _warm_ups(answer: Sequence[Any]) -> int | None:
    return answer[1] if isinstance(answer[1], int) else None


def _certain_faults(
    context: Context[OperatorProfileSettings],
    faults: Sequence[str | None],
    captures: int,
    too_busy: BusyMachineError,
) -> Measured:
    """Grade the answers that are wrong however busy the machine is; the rest stays open. Raises
    `too_busy` if there are none.
    """
    certain = {
        id_: fault
        for id_, fault in zip(CRITERIA[1:], faults, strict=True)
        if fault is not None and not isinstance(fault, TimingComplaint)
    }
    if certain.get("ceiling") == MISFIT:
        certain.setdefault("share", MISFIT)
    if not certain:
        raise too_busy
    why = "because the machine was too busy"
    return Measured(
        [
            grade_check(context.required(id_), certain[id_], captures, "captures")
            if id_ in certain
            else not_measured(context.required(id_), why)
            for id_ in CRITERIA
        ],
        notes=[too_busy.message],
    )


def _other_balance(answers: Mapping[str, Any], truth: Truth, threads: int) -> list[str]:
    """Say so if `bounds` is wrong, and would be right by the balance that is saved here."""
    stored = None if truth.capture.has_device else stored_ceilings("cpu", threads)
    if stored is None:
        return []
    saved = stored.flops["fp32"] / stored.bytes_per_s
    by_saved = dataclasses.replace(truth, balance=saved)
    if not wrong_bounds(answers, truth) or wrong_bounds(answers, by_saved):
        return []
    return [
        f"Your `bounds` fit the balance that `lab doctor --measure` saved here, {saved:.2g}"
        f" FLOP/byte. The check measured {truth.balance:.2g}: other programs disturbed one of them."
        " `lab doctor --measure --again` measures anew."
    ]


def _find_truth(
    context: Context[OperatorProfileSettings],
    reference: CallSession,
    judge: ModuleType,
    generator: np.random.Generator,
) -> tuple[Truth, int, BusyMachineError | None]:
    """Capture until the shares are known. Returns the truth, the number of captures, and an error
    if the shares are not known well enough in the time there is.
    """
    settings, began = context.settings, time.monotonic()
    passes, max_s = settings.passes, settings.max_s

    def capture(job: str) -> OperatorCapture:
        pixels = judge.make_inputs(generator, context.data, settings.judge)
        return read_capture(reference.call([job, pixels, passes])[1][0].tobytes())

    context.progress("capture 1 of the workload", 0.1)
    cold = capture("cold")
    captures, error, spent_s = [capture("warm")], 1.0, 0.0
    while len(captures) < settings.least_captures or (
        error > settings.precision and spent_s < max_s
    ):
        known = f": shares ±{100 * error:.1f} points" if error < 1 else ""
        done = min(1.0, max(spent_s / max_s, 0.1 * len(captures)))
        context.progress(f"capture {len(captures) + 1} of the workload{known}", 0.1 + 0.7 * done)
        captures.append(capture("warm"))
        error, spent_s = uncertainty(estimate_shares(captures, passes)), time.monotonic() - began
    too_busy = None
    if error > settings.loosest:
        too_busy = BusyMachineError(
            f"After {len(captures)} captures in {spent_s:.0f} s the operators' shares are still"
            f" uncertain by {100 * error:.0f} points: this machine is too busy.",
            WHEN_QUIET,
        )
    quietest = min(captures, key=lambda one: sum(int(times.sum()) for times in one.times.values()))
    ceilings = _probe(reference)
    allowed = frozenset(capture("marked").operators)
    reached: dict[str, float] = {}
    if quietest.has_device:
        reached = reached_shares(quietest, judge.work, ceilings.bytes_per_s, ceilings.flop_per_s)
    # A known GPU's balance is the published one: the probe reaches neither ceiling quite.
    published = [value for key, value in judge.KNOWN_BALANCE.items() if key in ceilings.device]
    truth = Truth(
        with_fresh(estimate_shares(captures, passes), cold, passes),
        quietest,
        cold,
        balance=published[0] if published else ceilings.flop_per_s / ceilings.bytes_per_s,
        intensity=intensities(quietest, judge.work),
        allowed=allowed,
        balance_range=() if published else ceilings.balance_range,
        reached=reached,
    )
    return truth, len(captures), too_busy


class _Ceilings(NamedTuple):
    """The most that any probe of the machine reached, the device that it ran on, and the balances
    at which the probes' lowest and highest figures leave the machine.
    """

    bytes_per_s: float
    flop_per_s: float
    device: str
    balance_range: tuple[float, float]


def _probe(reference: CallSession) -> _Ceilings:
    """Measure the ceilings a few times. Other programs only ever lower one, so the best counts."""
    replies = [reference.call(["probe", np.zeros(1, np.uint8), 0])[1] for _ in range(PROBES)]
    bandwidths, rates = ([float(reply[0][index]) for reply in replies] for index in (0, 1))
    least, most = min(rates) / max(bandwidths), max(rates) / min(bandwidths)
    return _Ceilings(max(bandwidths), max(rates), str(replies[0][1]), (least, most))


class _Task(NamedTuple):
    """A task for the learner's script: secret pictures in a secret number of passes, and the class
    that the model gives each picture.
    """

    pixels: np.ndarray[Any, Any]
    passes: int
    classes: list[int]


def _draw_task(
    context: Context[OperatorProfileSettings],
    reference: CallSession,
    judge: ModuleType,
    generator: np.random.Generator,
) -> _Task:
    pixels = judge.make_inputs(generator, context.data, context.settings.judge)
    classes = reference.call(["classes", pixels, 0])[1][0]
    passes = _draw_passes(context, generator)
    return _Task(pixels, passes, [int(index) for index in classes])


def _draw_passes(context: Context[OperatorProfileSettings], generator: np.random.Generator) -> int:
    others = [number for number in PASSES if number != context.settings.passes]
    return int(generator.choice(others))


def _capture_problem(learner: CallSession, tasks: list[_Task], truth: Truth) -> str | None:
    """Have the learner's script capture secret pictures, again where its times are off. Returns why
    the last trace is not genuine, or None.
    """
    for pixels, passes, classes in tasks:
        begin_s, clock_s = time.time(), _wall_clock_s()
        seconds, answer = learner.call([pixels, passes])
        capture = _read_recorded(answer)
        if isinstance(capture, str):
            return capture
        set_by_s = abs(_wall_clock_s() - clock_s)
        earliest_s, latest_s = begin_s - set_by_s, time.time() + set_by_s
        warm_ups = _warm_ups(answer)
        if problem := not_genuine(capture, truth, passes, earliest_s, latest_s, warm_ups):
            return problem
        if problem := not_of_this_run(capture, classes, passes, seconds):
            return problem
        # Another program may have disturbed the times: these are looked at again.
        if not (problem := other_times(capture, truth, passes)):
            return None
    return problem


def _wall_clock_s() -> float:
    """Return the wall clock, which traces are written by, less the one that nobody can set, s."""
    return time.time() - time.monotonic()


def _details(truth: Truth, captures: int) -> dict[str, Any]:
    """Return the figures that `measured_answers` and the write-up read."""
    return {
        "captures": captures,
        "balance_flop_per_byte": truth.balance,
        "operators": [
            {
                "name": share.name,
                "share": share.share,
                "half_width": share.half_width,
                "fresh_share": share.fresh,
                "flop_per_byte": truth.intensity.get(share.name),
                "roof_share": truth.reached.get(share.name),
            }
            for share in truth.ranked()[:6]
        ],
    }
