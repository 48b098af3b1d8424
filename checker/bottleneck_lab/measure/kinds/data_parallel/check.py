"""A check on emulated GPUs: the learner's script and the shipped one, each on few and on many
ranks, with the same secret batches.
"""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from bottleneck_lab.analysis.ranks.scaling import Sweep
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.faults import LearnerFault, VerifierFault
from bottleneck_lab.measure.kinds.data_parallel.emulation import (
    WARMUP_STEPS,
    Crew,
    EmulatedRun,
    Secret,
    crew,
)
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import (
    CostTable,
    load_costs,
    load_fabric,
)
from bottleneck_lab.measure.kinds.data_parallel.fabric.rules import Violation
from bottleneck_lab.measure.kinds.data_parallel.figures import (
    GRADIENT_TOLERANCE,
    TOLERANCE,
    RanksMeasurement,
    results,
)
from bottleneck_lab.measure.kinds.data_parallel.sweep import RANKS, sweep
from bottleneck_lab.measure.kinds.data_parallel.trace import write_traces
from bottleneck_lab.measure.sandbox.children import OnLine
from bottleneck_lab.measure.settings import Settings

FEW, MANY = 4, 8
"""One node of GPUs, and two."""


def measure_virtual(context: Context[Settings]) -> Measured:
    """Two emulated runs of each script. Raises LearnerFault for what the script did, VerifierFault
    when the shipped script itself fails.
    """
    rng = np.random.default_rng(context.rng.getrandbits(128))
    secrets = {world: Secret.draw(rng) for world in (MANY, FEW)}
    theirs, shipped = run_both(context, secrets)
    measurement = compare(theirs, shipped)
    specs = context.lab.spec.devices[context.device].criteria
    return Measured(
        results(measurement, specs),
        details=measurement.details()
        | {f"steps_{world}": secret.steps for world, secret in secrets.items()}
        | {"curves": msgspec.to_builtins(curves(theirs, RANKS))},
        notes=notes(measurement, load_costs(context.lab.path)),
        speedup=measurement.speedup if measurement.problem is None else None,
    )


def run_both(
    context: Context[Settings], secrets: dict[int, Secret]
) -> tuple[dict[int, EmulatedRun], dict[int, EmulatedRun]]:
    """The runs of the learner's script and of the shipped one. While these are the same, so are
    their runs, and one of each will do.
    """
    if _unchanged(context):
        runs = _runs_alone(context, secrets)
        return runs, runs
    with _crew(
        context, "reference", list(secrets)
    ) as reference:  # it imports torch beside the learner's worker, and waits
        with _crew(context, "learner", list(secrets)) as learner:
            theirs = _runs(context, learner, "learner", secrets, 0.0, 0.5)
        return theirs, _runs(context, reference, "reference", secrets, 0.5, 1.0)


def _unchanged(context: Context[Settings]) -> bool:
    """Whether what is checked is what was shipped, byte for byte."""
    return all(
        (context.submission / name).read_bytes() == (context.lab.path / name).read_bytes()
        for name in context.lab.spec.editable
    )


def _crew(
    context: Context[Settings], role: str, worlds: list[int]
) -> contextlib.AbstractContextManager[Crew]:
    folder = context.submission if role == "learner" else context.pristine()
    costs, scratch = load_costs(context.lab.path), context.janitor.folder / f"{role}-ranks"
    return crew(folder, context.lab.spec.entry, costs, worlds, scratch, context.janitor)


def _runs(
    context: Context[Settings],
    ranks: Crew,
    role: str,
    secrets: dict[int, Secret],
    start: float,
    end: float,
) -> dict[int, EmulatedRun]:
    """A run for each number of ranks in `secrets`, in their order; progress from `start` to `end`,
    by ranks and steps.
    """
    context.isolation.update(ranks.isolation)
    found: dict[int, EmulatedRun] = {}
    owner = "your" if role == "learner" else "the shipped"
    done, each = start, (end - start) / sum(secrets)
    for world, secret in secrets.items():
        doing = f"{owner} script on {world} emulated ranks"
        context.progress(doing, done)
        try:
            found[world] = ranks.run(secret, partial(_show, context, doing, done, each * world))
        except Violation as violation:
            raise _blame(violation, role, world) from violation
        done += each * world
    return found


def _runs_alone(context: Context[Settings], secrets: dict[int, Secret]) -> dict[int, EmulatedRun]:
    """The learner's script, with nothing to compare it with."""
    with _crew(context, "learner", list(secrets)) as ranks:
        return _runs(context, ranks, "learner", secrets, 0.0, 1.0)


def _show(context: Context[Settings], doing: str, start: float, part: float, share: float) -> None:
    context.progress(doing, start + share * part)


def _blame(violation: Violation, role: str, world: int) -> LearnerFault | VerifierFault:
    if role == "learner":
        return LearnerFault(violation.reason, f"On {world} emulated ranks: {violation.sentence}")
    return VerifierFault(
        f"The shipped script failed on {world} emulated ranks: {violation.sentence}"
    )


def compare(theirs: dict[int, EmulatedRun], shipped: dict[int, EmulatedRun]) -> RanksMeasurement:
    """The figures of a check from its runs by rank count; the few-rank and many-rank runs of both
    scripts.
    """
    many = theirs[MANY]
    problems = [same_training(theirs[world], shipped[world]) for world in (MANY, FEW)]
    return RanksMeasurement(
        few=FEW,
        many=MANY,
        few_samples_per_s=theirs[FEW].samples_per_s,
        many_samples_per_s=many.samples_per_s,
        baseline_few_samples_per_s=shipped[FEW].samples_per_s,
        baseline_many_samples_per_s=shipped[MANY].samples_per_s,
        step_ms=many.step_ms,
        compute_ms=many.compute_ms,
        communication_ms=many.communication_ms,
        exposed_ms=many.exposed_ms,
        overlap_share=many.overlap_share,
        bytes_per_step=min(many.reduced_bytes),
        difference=max(theirs[world].difference(shipped[world]) for world in (FEW, MANY)),
        checked=FEW + MANY,
        problem=next((problem for problem in problems if problem), None),
    )


def same_training(run: EmulatedRun, reference: EmulatedRun) -> str | None:
    """Why these parameters are not the reference's, or None: equal on every rank, near the
    reference, made of the same gradients.
    """
    for rank, parameters in enumerate(run.parameters):
        if not np.isfinite(parameters).all():
            return (
                f"After {run.clocks[0].step} steps rank {rank} of {run.world} has parameters that"
                " are not finite."
            )
        if not np.array_equal(parameters, run.parameters[0]):
            return (
                f"After {run.clocks[0].step} steps rank {rank} of {run.world} has different"
                " parameters from rank 0."
            )
    apart = run.difference(reference)
    if not apart <= TOLERANCE:
        steps = run.clocks[0].step
        return (
            f"After {steps} steps on {run.world} ranks the parameters differ from the reference's"
            f" by {apart:.1%} of how far training moved them; {TOLERANCE:.0%} is allowed."
        )
    if any(order != reference.orders[0] for order in run.orders):
        return (
            f"A rank of {run.world} reported forward and backward in a different order from the"
            " model's."
        )
    for step, (found, (right, *_)) in enumerate(
        zip(run.gradients, reference.gradients, strict=True), start=1
    ):
        apart = min(one.differs_from(right) for one in found)
        if not apart <= GRADIENT_TOLERANCE:
            return (
                f"What was all-reduced in step {step} on {run.world} ranks is not the gradient, at"
                f" any scale: the spread of its values differs from the reference's by {apart:.0%};"
                f" {GRADIENT_TOLERANCE:.0%} is allowed."
            )
    return None


def notes(measurement: RanksMeasurement, costs: CostTable) -> list[str]:
    """What a reader must know of these figures: the few that explain the verdict, then what they
    rest on.
    """
    m = measurement
    slowed = m.few_samples_per_s < 0.999 * m.baseline_few_samples_per_s
    told = [
        f"on {m.few} ranks the shipped script is faster, so {m.many} ranks are compared with its"
        " throughput"
    ]
    return [
        (
            f"modelled, {m.many} virtual GPUs: {m.step_ms:.2f} ms per step = {m.compute_ms:.2f}"
            f" compute + {m.exposed_ms:.2f} exposed communication + waiting;"
            f" {m.communication_ms:.2f} ms of communication; {m.overlap_share:.0%} of what the"
            f" update waits for is hidden behind compute; {m.bytes_per_step / 1e6:.1f} MB of"
            " gradients per step"
        ),
        (
            f"modelled throughput, {costs.called}/s: {m.few_samples_per_s:.0f} on {m.few},"
            f" {m.many_samples_per_s:.0f} on {m.many}; the shipped script"
            f" {m.baseline_few_samples_per_s:.0f} and {m.baseline_many_samples_per_s:.0f}"
        ),
        *(told if slowed else []),
        (
            f"{m.few} ranks are one node, {m.many} ranks are two: only the larger run uses the"
            " slower link between nodes"
        ),
        *load_fabric().assumptions(),
        f"cost table: {costs.gpu}. {costs.source}",
    ]


def profile_virtual(context: Context[Settings], trace: Path, on_line: OnLine) -> int:
    """One emulated run on many ranks, written as one trace per rank; 1 when it failed, else 0."""
    secret = Secret(WARMUP_STEPS + 2, context.rng.getrandbits(62))
    try:
        run = _runs_alone(context, {MANY: secret})[MANY]
    except LearnerFault as fault:
        on_line(f"{fault.detail}\n")
        return 1
    for file in write_traces(run, trace):
        on_line(f"emulated: {file.name}\n")
    return 0


def run_virtual(context: Context[Settings], ranks: list[int]) -> list[Sweep]:
    """The script on few and many emulated ranks, and its curve over `ranks` for both shapes of
    all-reduce that the link model has.
    """
    secrets = {
        world: Secret(WARMUP_STEPS + 1, context.rng.getrandbits(62)) for world in (MANY, FEW)
    }
    return curves(_runs_alone(context, secrets), ranks)


def curves(runs: dict[int, EmulatedRun], ranks: list[int]) -> list[Sweep]:
    """The curve through one rank, two, those that ran, and `ranks`, with a ring and with a tree."""
    return [sweep(runs, sorted({*ranks, 1, 2, *runs}), algorithm) for algorithm in ("ring", "tree")]
