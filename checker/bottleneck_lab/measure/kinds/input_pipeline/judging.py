"""Decide if a script trained what it was handed: every sample once, in order, and genuine."""

from __future__ import annotations

from types import ModuleType

from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.input_pipeline import InputPipelineSettings
from bottleneck_lab.measure.kinds.input_pipeline.records import PipelineRun
from bottleneck_lab.measure.machine import loading_cores

MAX_CORES_SHARE = 1.1
"""CPU time a second that the script may seem to use over its cores: without a control group it is
counted in hundredths of a second.
"""


def refuse_more_cores(busy: float) -> None:
    """Raise LearnerFault if a script kept more cores `busy` than loading is pinned to."""
    # The pinning itself stops nobody: a process may move itself to other cores.
    allowed = len(loading_cores())
    if busy > MAX_CORES_SHARE * allowed:
        raise LearnerFault(
            "tampered",
            f"The script may use {allowed} cores for loading, but it moved to others and kept"
            f" {busy:.1f} busy.",
        )


def expect_steps(run: PipelineRun, steps: int) -> None:
    """Raise LearnerFault unless exactly as many batches were trained as were handed out."""
    due = sum(assignment.batches for assignment in run.assignments)
    if steps != due:
        raise LearnerFault(
            "wrong output",
            f"{steps} batches were trained, not {due}: train every sample exactly once, in batches"
            f" of {run.batch}.",
        )


def check_batches(
    run: PipelineRun, judge: ModuleType, context: Context[InputPipelineSettings]
) -> tuple[str | None, int]:
    """Compare every batch's size and labels with what was due.

    Returns what is wrong with the first wrong batch, if any, and how many samples were looked at.
    """
    batches = 0
    for assignment in run.assignments:
        # Fewer steps than the epoch has batches where a check of far-off work ended within it.
        steps = run.steps[batches : batches + assignment.batches]
        orders = assignment.order.reshape(-1, run.batch)[: len(steps)]
        for order, step in zip(orders, steps, strict=True):
            labels = step.labels
            batches += 1
            if labels.tolist() == [judge.label(context.data, int(index)) for index in order]:
                continue
            problem = "labels that do not match its samples"
            if len(labels) != run.batch:
                called = context.settings.samples.called
                problem = f"{len(labels)} {called} instead of {run.batch}"
            return (
                f"Batch {batches} has {problem}: train every sample exactly once, in the given"
                " order.",
                batches * run.batch,
            )
    return None, batches * run.batch


def check_kept(
    run: PipelineRun, judge: ModuleType, context: Context[InputPipelineSettings]
) -> tuple[str | None, int]:
    """Compare the samples that the device kept with the judge's own.

    Returns what is wrong with the first wrong sample, if any, and how many were compared.
    """
    steps, checked = iter(run.steps), 0
    for assignment in run.assignments:
        orders = assignment.order.reshape(-1, run.batch)
        for order, rows, step in zip(orders, assignment.rows, steps, strict=False):
            for row, sample in zip(rows, step.kept, strict=False):
                checked += 1
                expected = judge.reference_sample(
                    context.data, int(order[row]), assignment.seed, assignment.number
                )
                if complaint := judge.compare(sample, expected):
                    return f"Sample {order[row]} of epoch {assignment.number}: {complaint}", checked
    return None, checked
