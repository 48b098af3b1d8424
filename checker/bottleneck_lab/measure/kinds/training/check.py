"""`lab check` of a training script: the shipped script and the learner's train on the same secret
data; then results and figures are compared.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from statistics import median

import msgspec

from bottleneck_lab.analysis.statistics import largest_fall
from bottleneck_lab.grading.conclusion import Conditions
from bottleneck_lab.grading.criteria import (
    format_figure,
    format_limit,
    grade_check,
    grade_decision,
    grade_value,
    sequential_test,
)
from bottleneck_lab.grading.sequential import Decision, SequentialTest, shuffled_order
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.channel.session import CallSession, Role
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.training import (
    COUNT_WAITS,
    COUNT_WORK,
    START_LOADER,
    TrainingSettings,
    figures,
)
from bottleneck_lab.measure.kinds.training.judging import wrong_parameters, wrong_reports
from bottleneck_lab.measure.kinds.training.session import (
    OwnFigures,
    Training,
    collect_training,
    train_both,
    train_on_device,
    train_trusted,
    training_session,
)
from bottleneck_lab.measure.machine import LoadMeter, own_cpu_s
from bottleneck_lab.measure.sandbox.process import printable
from bottleneck_lab.measure.virtual_gpu.books import Figures
from bottleneck_lab.measure.virtual_gpu.spec import H200
from bottleneck_lab.trace.stacks import split_lines
from bottleneck_lab.wording import counted

MEMORY_CRITERIA = ("peak-mib", "growth-kib-per-step", "kept-tensors")
WAITING_LINES, KEEPING_LINES = 8, 5
"""So many lines that wait are named, and so many that make what is kept."""
LINE_CHARS = FORM_CHARS = 60
"""Of a line's source that are quoted, and of a tensor's dtype and shape."""


def measure(context: Context[TrainingSettings]) -> Measured:
    """Run the whole check. Raises LearnerFault or VerifierFault when it ends early."""
    return _measure_modelled(context) if context.device == "virtual" else _measure_timed(context)


def _measure_modelled(context: Context[TrainingSettings]) -> Measured:
    """Measure on the virtual GPU: every figure is counted or modelled, so one run of each side
    decides them, and no other program can disturb it.
    """
    settings = context.settings
    criteria = context.lab.spec.devices[context.device].criteria
    yours: list[Training] = []
    shipped: list[Training] = []
    with closing(_pairs(context)) as pairs:
        for mine, theirs in pairs:
            _refuse_pair(mine, theirs, settings)
            yours.append(mine)
            shipped.append(theirs)
            # Speed, waits and memory are the first pair's.
            if len(yours) == 1:
                values = _modelled_values(mine.engine_figures(), theirs.engine_figures(), settings)
                graded = [
                    grade_value(spec, values[spec.id]) for spec in criteria if spec.id in values
                ]
            results = [*_compare_results(context, yours, shipped), *graded]
            # Further pairs look for errors that are rare: work that fails needs none.
            if not all(result.holds for result in results):
                break

    device = H200.at_scale(settings.scale)
    first, reference = yours[0].engine_figures(), shipped[0].engine_figures()
    kept = figures.kept_tensors(first, settings.interval)
    return Measured(
        results,
        details={
            "figures": values,
            "shipped": {
                "step_us": figures.step_time_us(reference),
                "peak_mib": figures.peak_mib(reference),
            },
            "step_us": figures.step_time_us(first),
            "waits_by_step": first.step_waits,
            "bytes_by_step": first.step_bytes,
        },
        notes=[
            *_explain_waits(context, values, first),
            *_explain_memory(context, values, first.step_bytes, describe_kept(context, kept)),
            f"Times and memory are those of an emulated device: {device.name}. {device.source}."
            " A check trains on other data than a capture shows, and its means are of other steps:"
            " figures of the two may differ by a few percent, counts alike.",
        ],
        # A prediction is compared with this: it is about memory in some labs.
        speedup=reference.peak_bytes / first.peak_bytes
        if settings.gain == "memory"
        else values["step-speedup"],
    )


def _pairs(context: Context[TrainingSettings]) -> Generator[tuple[Training, Training]]:
    """Yield trainings of the submission and of the shipped script on the same data, `runs` times.

    A script that is still what was shipped, byte for byte, is trained once: it agrees with itself.
    """
    seeds = [context.rng.getrandbits(31) for _ in range(context.settings.runs)]
    if _is_shipped(context):
        context.progress("training with the shipped script", 0.1)
        training = train_trusted(context, context.pristine(), seeds[0])
        yield training, training
    else:
        yield from train_both(context, seeds)


def _refuse_pair(mine: Training, theirs: Training, settings: TrainingSettings) -> None:
    """Raise LearnerFault for a training whose figures or results cannot be compared."""
    refuse_races(mine.engine_figures())
    if theirs.figures is None:  # only the first pair's figures decide anything
        return
    refuse_batches_left_out(mine.engine_figures(), theirs.engine_figures())
    # Right reports show that the training was done, and wrong parameters that others came back:
    # that is what to mend.
    others_returned = wrong_parameters(mine.parameters, theirs.parameters, settings.tolerance)
    if wrong_reports(mine.reports, theirs.reports, settings.tolerance) or not others_returned:
        refuse_work_elsewhere(mine.engine_figures(), theirs.engine_figures(), settings)


def _modelled_values(
    yours: Figures, shipped: Figures, settings: TrainingSettings
) -> dict[str, float]:
    """Return the criteria's values by the engine's figures of one pair."""
    return {
        "step-speedup": figures.step_time_us(shipped) / figures.step_time_us(yours),
        "waits-per-interval": float(figures.waits_per_interval(yours)),
        "launches-per-step": figures.launches_per_step(yours),
        "peak-mib": figures.peak_mib(yours),
        "growth-kib-per-step": figures.growth_kib_per_step(yours.step_bytes, settings.interval),
        "kept-tensors": float(figures.kept_tensors(yours, settings.interval).total()),
    }


def _explain_waits(
    context: Context[TrainingSettings], values: Mapping[str, float], yours: Figures | None = None
) -> list[str]:
    """Return a note on too many waits: how many that is in a step, which is how reports and
    comparisons of captures count them, and by the engine's figures the lines with most of them.
    """
    waits, interval = "waits-per-interval", context.settings.interval
    for spec in context.lab.spec.devices[context.device].criteria:
        if spec.id == waits and values[waits] > (spec.target or 0):
            where = "`lab report --ask waits` names their lines."
            if yours is not None:
                counts = Counter(yours.line_waits)
                named = counts.most_common(WAITING_LINES)
                each = [
                    f"{count / yours.steps:.3g} on {line.partition(':')[0] or 'no line of yours'}"
                    for line, count in named
                ]
                more = len(counts) - len(named)
                if more:
                    rest = counts.total() - sum(count for _, count in named)
                    each.append(f"{rest / yours.steps:.3g} on {counted(more, 'more line')}")
                where = f"In a step: {', '.join(each)}."
            return [
                f"Two reports are {interval} steps apart: {values[waits]:g} waits are"
                f" {values[waits] / interval:.3g} a step, which is how `lab compare` counts them."
                f" {where}"
            ]
    return []


def _explain_memory(
    context: Context[TrainingSettings],
    values: Mapping[str, float],
    levels: Sequence[float],
    kept: str = "",
) -> list[str]:
    """Return notes on memory that misses its limits: what is `kept`, which lines hold it, and why a
    check's figures may differ from a capture's. `levels`: bytes allocated when each step began.
    """
    limits = {
        spec.id: spec.target or 0.0
        for spec in context.lab.spec.devices[context.device].criteria
        if spec.id in MEMORY_CRITERIA
    }
    if not any(values[id_] > limit for id_, limit in limits.items() if id_ in values):
        return []
    notes = [
        *([kept] if kept else []),
        "`lab report` names the lines that hold memory and the blocks that stay.",
    ]
    fall_mib = largest_fall(levels[1:]) / figures.MIB
    if fall_mib > limits.get("peak-mib", math.inf) / 2:
        notes.append(
            f"Memory falls by up to {fall_mib:.3g} MiB: much of what a step makes is freed only"
            " steps later. Either the script lets go of it then, or it was in reference cycles,"
            " which are collected at each report and at no other time."
        )
    return notes


def describe_kept(context: Context[TrainingSettings], kept: Counter[tuple[str, str]]) -> str:
    """Say which tensors are kept, and where they were made; empty if none are."""
    if not kept:
        return ""
    interval, made = context.settings.interval, Counter[str]()
    for (stack, form), count in kept.items():
        made[f"{printable(form[:FORM_CHARS])} made {_where(context, stack)}"] += count
    named = made.most_common(KEEPING_LINES)
    each = [f"{count / interval:.3g} {what}" for what, count in named]
    if rest := made.total() - sum(count for _, count in named):
        each.append(f"{rest / interval:.3g} more")
    return (
        f"{counted(made.total(), 'tensor')} of {interval} steps are kept; of each step:"
        f" {'; '.join(each)}."
    )


def _where(context: Context[TrainingSettings], stack: str) -> str:
    """Return `at train.py:26 (state = …), called at train.py:54 (…)` for the engine's lines: the
    innermost of the entry file's, and the outermost.
    """
    quoted = [text for line in split_lines(stack) if (text := _quote(context, line))]
    if not quoted:
        return "on no line of yours"
    own = [text for text in quoted if text.startswith(f"{context.lab.spec.entry}:")] or quoted
    return f"at {own[0]}, called at {own[-1]}" if len(own) > 1 else f"at {own[0]}"


def _quote(context: Context[TrainingSettings], line: str) -> str:
    """Return a line of the submission's files with its source; empty for any other."""
    # By the program's own word: only a line that its files have is quoted.
    match = re.fullmatch(r"([\w.]+)\((\d+)\): .*", line)
    if not match or match[1] not in context.lab.spec.files:
        return ""
    file = context.submission / match[1]
    source = file.read_text(encoding="utf-8", errors="replace").splitlines()
    number = int(match[2])
    if not 0 < number <= len(source):
        return ""
    text = printable(source[number - 1].strip())
    text = text if len(text) <= LINE_CHARS else text[: LINE_CHARS - 1] + "…"
    return f"{match[1]}:{number} (`{text}`)"


def _is_shipped(context: Context[TrainingSettings]) -> bool:
    """Return True if no editable file differs from the shipped one."""
    return all(
        (context.submission / name).read_bytes() == (context.lab.path / name).read_bytes()
        for name in context.lab.spec.editable
    )


def refuse_races(yours: Figures) -> None:
    """Raise LearnerFault if a pinned buffer was overwritten while the device may have had to read
    it.
    """
    if yours.races:
        raise LearnerFault(
            "wrong output",
            f"The pinned buffer that {yours.races[0]} copies with non_blocking=True was overwritten"
            " before anything had waited for that copy: a GPU may train on what was written over"
            " it.",
        )


def refuse_batches_left_out(yours: Figures, shipped: Figures) -> None:
    """Raise LearnerFault if another number of batches than the shipped script's was used."""
    if yours.steps != shipped.steps:
        raise LearnerFault(
            "wrong output",
            f"{yours.steps} of the {shipped.steps} batches were used. A step begins when its batch"
            " is taken from `data.batches()`, or from a DataLoader of your own with as many.",
        )


def refuse_work_elsewhere(yours: Figures, shipped: Figures, settings: TrainingSettings) -> None:
    """Raise LearnerFault if the device did too little of what this training takes, did it before
    the timed steps, or sent back more than reports need.
    """
    least_work = settings.least_work
    # What the host computed came to the device as values: no arithmetic lies behind those.
    if yours.useful_flops < least_work * shipped.useful_flops:
        share = yours.useful_flops / shipped.useful_flops
        raise LearnerFault(
            "wrong output",
            f"The parameters follow from {format_figure(share, 'share', least_work)} of the"
            " arithmetic that this training needs on the device (wanted at least"
            f" {format_limit(least_work, 'share')}): the rest was skipped, done elsewhere or led"
            " to nothing.",
        )
    # All the arithmetic may be there and yet lie before the first step that is timed.
    timed = figures.timed_flops(yours) / figures.timed_flops(shipped)
    if timed < least_work:
        raise LearnerFault(
            "wrong output",
            f"From the third batch on, only {timed:.0%} of those steps' arithmetic was done: the"
            " rest was done earlier. A step begins when its batch is taken from `data.batches()`.",
        )
    # Whoever computes on the host needs the device's values there.
    returned_kib = figures.returned_kib_per_step(yours)
    if returned_kib > settings.most_returned_kib:
        raise LearnerFault(
            "wrong output",
            "The device sent back"
            f" {format_figure(returned_kib, 'KiB', settings.most_returned_kib)} a step (wanted at"
            f" most {format_limit(settings.most_returned_kib, 'KiB')}): reports need a few numbers,"
            " and the rest is to be computed on the device.",
        )


def refuse_work_on_the_host(
    host_work: tuple[float, float], shipped_work: tuple[float, float], most: float
) -> None:
    """Raise LearnerFault if the host of a real GPU did more than this share of what the shipped
    training takes, of its products or of the bytes that it goes through.
    """
    # Nothing is demanded of the GPU's part: replays of CUDA graphs have no operators to count.
    for did, needed in zip(host_work, shipped_work, strict=True):
        if not did <= most * needed:  # so written that NaN is too much
            share = format_figure(did / needed, "share", most)
            raise LearnerFault(
                "wrong output",
                f"The host did {share} of the arithmetic that this training takes (wanted at most"
                f" {format_limit(most, 'share')}): train on the device that `train` is given.",
            )


def _compare_results(
    context: Context[TrainingSettings], yours: list[Training], shipped: list[Training]
) -> list[CriterionResult]:
    """Grade reports and parameters of all pairs; the first thing that is wrong is what is said."""
    settings = context.settings
    wrong_report = wrong_parameter = None
    for number, (mine, theirs) in enumerate(zip(yours, shipped, strict=True), 1):
        of = f"In training {number}, of the small size: " if settings.smaller and number > 1 else ""
        if wrong := _wrong_report(mine, theirs, settings):
            wrong_report = wrong_report or of + wrong
        if wrong := _wrong_parameter(mine, theirs, settings):
            wrong_parameter = wrong_parameter or of + wrong
    numbers = sum(len(values) for mine in yours for _, values in mine.reports)
    arrays = sum(len(theirs.parameters) for theirs in shipped)
    return [
        grade_check(context.required("right-reports"), wrong_report, numbers, "numbers"),
        grade_check(context.required("right-parameters"), wrong_parameter, arrays, "arrays"),
    ]


def _wrong_parameter(mine: Training, theirs: Training, settings: TrainingSettings) -> str | None:
    """Say what is wrong with the parameters, and if most of the training did not lead to them."""
    wrong = wrong_parameters(mine.parameters, theirs.parameters, settings.tolerance)
    share = _useful_share(mine, theirs)
    if wrong and share < settings.least_work:
        wrong += (
            f" What was returned follows from {format_figure(share, 'share', settings.least_work)}"
            " of the training's arithmetic: return the model that was trained."
        )
    return wrong


def _useful_share(mine: Training, theirs: Training) -> float:
    """Return how much arithmetic leads to the parameters, as a share (0–1) of the shipped
    script's; 1 on a real device, where none is counted.
    """
    if not mine.figures or not theirs.figures:
        return 1.0
    return mine.figures.useful_flops / theirs.figures.useful_flops


def _wrong_report(mine: Training, theirs: Training, settings: TrainingSettings) -> str | None:
    """Say what is wrong with the reports, and which copy to the host they may rest on that nobody
    waited for.
    """
    wrong = wrong_reports(mine.reports, theirs.reports, settings.tolerance)
    if wrong and mine.figures and mine.figures.unawaited:
        line = mine.figures.unawaited[0]
        wrong += f" At a report nobody had waited for the copy to the host of {line}."
    # Where little of the training led to the parameters, no share of it says how late a report is.
    if wrong or _useful_share(mine, theirs) < settings.least_work:
        return wrong
    return _late_report(mine, theirs, settings.interval)


def _late_report(yours: Training, shipped: Training, interval: int) -> str | None:
    """Name the report that came too late, as a sentence; None on a real device, where no
    arithmetic is counted.
    """
    if not yours.figures or not shipped.figures:
        return None
    late = figures.late_report(yours.figures, shipped.figures, interval)
    if not late:
        return None
    step, done = late
    return (
        f"The report of step {step} came when the arithmetic of {done:.1f} of"
        f" {shipped.figures.steps} steps was done; it may come {interval} steps late, in step"
        f" {min(step + interval, shipped.figures.steps)}."
    )


def _measure_timed(context: Context[TrainingSettings]) -> Measured:
    """Measure on a real device: whole trainings alternately on the verifier's clock, each pair on
    data of its own, every result compared.

    Memory and waits are the worker's own word: they can fail a script, and only speed and results,
    which are not, can pass it.
    """
    context.progress("starting both scripts", 0.1)
    with (
        training_session(context, "reference", context.pristine(), wait=False) as reference,
        training_session(context, "learner", context.submission, wait=False) as learner,
    ):
        reference.wait_ready()
        learner.wait_ready()
        meter = LoadMeter(lambda: own_cpu_s() + reference.worker.cpu_s() + learner.worker.cpu_s())
        # Measured on the trusted side: a learner's own word would let work hide in the start.
        start = train_on_device(reference, context.rng.getrandbits(31), START_LOADER)
        rounds = Rounds(context, reference, learner, start.own_figures.start_s)
        for _ in range(context.settings.warm_up_rounds):
            rounds.play(timed=False)
        decision = rounds.decide(sequential_test(context.required("step-speedup")))
        other_cores = meter.cores()
        # Trainings of their own, which nobody times: what counts makes them slower, so both sides
        # may have the GPU at once. They come last, since no code is compiled in one of them.
        seed = context.rng.getrandbits(31)
        began = reference.hand_over([seed, COUNT_WORK])
        counted = train_on_device(learner, seed, COUNT_WAITS)
        host_work = train_on_device(learner, seed, COUNT_WORK).own_figures.host_work
        work = collect_training(reference, began).own_figures.work
    refuse_work_on_the_host(host_work, work, context.settings.most_host_work)
    # The reference is trusted: memory that it keeps after a training is the libraries' workspaces.
    workspace_bytes = rounds.shipped[-1].own_figures.kept_bytes
    values = _own_values(counted.own_figures, context.settings.interval, workspace_bytes)
    criteria = context.lab.spec.devices[context.device].criteria
    return Measured(
        [
            *_compare_results(context, rounds.yours, rounds.shipped),
            grade_decision(context.required("step-speedup"), decision),
            *(grade_value(spec, values[spec.id]) for spec in criteria if spec.id in values),
        ],
        details={
            "reference_s": rounds.times["reference"],
            "learner_s": rounds.times["learner"],
            "told": msgspec.to_builtins(counted.own_figures),
            "host_work": host_work,
            "shipped_work": work,
        },
        notes=[
            *_explain_waits(context, values),
            *_explain_memory(context, values, counted.own_figures.step_bytes),
        ],
        speedup=median(rounds.ratios()) if context.settings.gain == "time" else None,
        conditions=Conditions(other_cores=other_cores, cores=os.cpu_count()),
    )


def _own_values(own_figures: OwnFigures, interval: int, workspace_bytes: float) -> dict[str, float]:
    """Return the criteria's values from a worker's own figures; NaN, which meets no target, for a
    figure that it does not send.

    A program does not allocate the workspaces of cuBLAS and cuBLASLt, 32 MiB each on an H200: of
    its peak they are subtracted.
    """
    levels = own_figures.step_bytes
    intervals = max(1, len(levels) // interval)
    return {
        "waits-per-interval": own_figures.waits / intervals,
        "peak-mib": (own_figures.peak_bytes - workspace_bytes) / figures.MIB,
        "growth-kib-per-step": figures.growth_kib_per_step(levels, interval),
    }


class Rounds:
    """Trainings of both sides alternately, in an order drawn at random: seconds of each, and all
    that came out.

    The start of a loader's worker is no step: what passes before the first batch is not timed, up
    to `start_s` seconds, which the trusted reference needs for such a start. When the first batch
    came is the worker's own word; a script can hide that much work before it, and no more.
    """

    def __init__(
        self,
        context: Context[TrainingSettings],
        reference: CallSession,
        learner: CallSession,
        start_s: float,
    ) -> None:
        self._start_s = start_s
        self._context = context
        self._sessions: dict[Role, CallSession] = {"reference": reference, "learner": learner}
        self.times: dict[str, list[float]] = {"reference": [], "learner": []}
        self.yours: list[Training] = []
        self.shipped: list[Training] = []

    def play(self, *, timed: bool = True) -> None:
        """Train both sides on the data of one fresh seed."""
        seed = self._context.rng.getrandbits(31)
        for role in shuffled_order(self._context.rng, 1)[0]:
            training = train_on_device(self._sessions[role], seed)
            (self.yours if role == "learner" else self.shipped).append(training)
            if timed:
                # Of the worker's word no more is taken off than such a start takes, and never more
                # than half of the training.
                before_s = max(training.own_figures.start_s, 0.0)
                untimed_s = min(before_s, self._start_s, training.seconds / 2)
                self.times[role].append(training.seconds - untimed_s)

    def ratios(self) -> list[float]:
        """Return reference over learner, pair by pair."""
        return [a / b for a, b in zip(self.times["reference"], self.times["learner"], strict=True)]

    def decide(self, test: SequentialTest) -> Decision:
        """Play until the test has decided or the time is up."""
        begin, decision = time.monotonic(), test.decide(self.ratios())
        while decision.wanted:
            spent_s = time.monotonic() - begin
            if spent_s > self._context.settings.max_s:
                return test.decide(self.ratios(), exhausted=True)
            self._context.progress("measuring", 0.2 + 0.75 * spent_s / self._context.settings.max_s)
            self.play()
            decision = test.decide(self.ratios())
        return decision
