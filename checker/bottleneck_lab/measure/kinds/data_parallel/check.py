"""A check on emulated GPUs: the learner's script and the shipped one, each on few and on many
ranks, with the same secret batches.
"""

from __future__ import annotations

import contextlib
from functools import partial

import msgspec
import numpy as np

from bottleneck_lab.measure.channel.session import Role
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.faults import LearnerFault, VerifierFault
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import (
    FEW,
    MANY,
    CostTable,
    load_costs,
    load_fabric,
)
from bottleneck_lab.measure.kinds.data_parallel.fabric.rules import Violation
from bottleneck_lab.measure.kinds.data_parallel.figures import (
    EmulatedRun,
    RanksMeasurement,
    results,
)
from bottleneck_lab.measure.kinds.data_parallel.judging import same_training
from bottleneck_lab.measure.kinds.data_parallel.session import (
    MANY_STEPS,
    Crew,
    Secret,
    crew,
)
from bottleneck_lab.measure.kinds.data_parallel.sweep import RANKS, curves
from bottleneck_lab.measure.settings import Settings

"""One node of GPUs, and two."""
Trial = tuple[int, Secret]
"""A number of ranks, and what is drawn for their run."""


def measure(context: Context[Settings]) -> Measured:
    """Measure on the device: two runs of each script. Raises LearnerFault for a fault of the
    script, VerifierFault when the shipped script itself fails.
    """
    if context.device == "cuda":
        from bottleneck_lab.measure.kinds.data_parallel.check_gpu import measure_on_gpus

        return measure_on_gpus(context)
    return measure_emulated(context)


def measure_emulated(context: Context[Settings]) -> Measured:
    """Run each script on few and on many emulated ranks, and compare them."""
    rng = np.random.default_rng(context.rng.getrandbits(128))
    # Many steps of a small model show what goes wrong now and then; few of the whole one are timed.
    trials = [
        (MANY, Secret.draw_many(rng)),
        (MANY, Secret.draw(rng)),
        (FEW, Secret.draw(rng)),
    ]
    theirs, shipped = run_both(context, trials)
    measurement = compare(theirs, shipped)
    specs = context.lab.spec.devices[context.device].criteria
    return Measured(
        results(measurement, specs),
        details=measurement.details()
        | {"steps": [run.clocks[0].step for run in theirs]}
        | {"curves": msgspec.to_builtins(curves(timed(theirs), RANKS))},
        notes=notes(measurement, load_costs(context.lab.path)),
        speedup=measurement.speedup if measurement.problem is None else None,
    )


def run_both(
    context: Context[Settings], trials: list[Trial]
) -> tuple[list[EmulatedRun], list[EmulatedRun]]:
    """Return the runs of the learner's script and of the shipped one, in the order of `trials`."""
    # A script that is still what was shipped, byte for byte, has the same runs.
    if all(
        (context.submission / name).read_bytes() == (context.lab.path / name).read_bytes()
        for name in context.lab.spec.editable
    ):
        runs = run_alone(context, trials[1:])
        return runs, runs
    # The reference's worker imports torch beside the learner's, and waits.
    with _crew(context, "reference", trials, many_steps=True) as reference:
        with _crew(context, "learner", trials, many_steps=True) as learner:
            theirs = _runs(context, learner, "learner", trials, 0.0, 0.5)
        return theirs, _runs(context, reference, "reference", trials, 0.5, 1.0)


def _crew(
    context: Context[Settings], role: Role, trials: list[Trial], *, many_steps: bool
) -> contextlib.AbstractContextManager[Crew]:
    folder = context.submission if role == "learner" else context.pristine()
    costs = load_costs(context.lab.path)
    return crew(
        folder,
        context.lab.spec.entry,
        costs,
        [world for world, _ in trials],
        context.janitor.folder / f"{role}-ranks",
        context.janitor,
        many_steps=many_steps,
        as_one=_as_one(trials, costs) if role == "reference" else 0,
    )


def _as_one(trials: list[Trial], costs: CostTable) -> int:
    """Return how many of the shipped script's runs a single rank makes, with the samples of all: it
    trains the same in a third of the time. How fast several are is only known from their own run,
    or from the table.
    """
    return len(trials) if costs.shipped_samples_per_s else 1


def _runs(
    context: Context[Settings],
    ranks: Crew,
    role: Role,
    trials: list[Trial],
    start: float,
    end: float,
) -> list[EmulatedRun]:
    """Run the script for each of `trials`, in their order. Progress goes from `start` to `end`, by
    ranks and steps.
    """
    context.isolation.update(ranks.isolation)
    runs: list[EmulatedRun] = []
    owner = "your" if role == "learner" else "the shipped"
    done, each = start, (end - start) / sum(world for world, _ in trials)
    for world, secret in trials:
        doing = f"{owner} script on {world} emulated ranks"
        if role == "reference":
            # Its results cannot be kept from another check: they are compared batch by batch.
            doing = f"{owner} script with the batches of {world} ranks, drawn for this check"
        context.progress(doing, done)
        try:
            with context.clock.phase(role):
                share = partial(_show, context, doing, done, each * world)
                runs.append(ranks.run(secret, share))
        except Violation as violation:
            if role == "learner":
                where = ", in the run of many steps" if secret.steps >= MANY_STEPS else ""
                sentence = f"On {world} emulated ranks{where}: {violation.sentence}"
                raise LearnerFault(violation.reason, sentence) from violation
            raise VerifierFault(
                f"The shipped script failed on {world} emulated ranks: {violation.sentence}"
            ) from violation
        done += each * world
    return runs


def run_alone(context: Context[Settings], trials: list[Trial]) -> list[EmulatedRun]:
    """Run the learner's script alone for each of `trials`, with the whole model."""
    with _crew(context, "learner", trials, many_steps=False) as ranks:
        return _runs(context, ranks, "learner", trials, 0.0, 1.0)


def timed(runs: list[EmulatedRun]) -> dict[int, EmulatedRun]:
    """Return the runs of the whole model, by their number of ranks."""
    return {run.world: run for run in runs if not run.trained_with}


def _show(context: Context[Settings], doing: str, start: float, part: float, share: float) -> None:
    context.progress(doing, start + share * part)


def compare(all_theirs: list[EmulatedRun], all_shipped: list[EmulatedRun]) -> RanksMeasurement:
    """Return the figures of a check from the runs of both scripts, in the same order."""
    problems = [same_training(*both) for both in zip(all_theirs, all_shipped, strict=True)]
    theirs, shipped = timed(all_theirs), timed(all_shipped)
    many = theirs[MANY]
    # What a table says is of other runs: those of the script as shipped are at hand.
    kept = {} if all_shipped is all_theirs else many.costs.shipped_samples_per_s
    baseline = kept or {world: run.samples_per_s for world, run in shipped.items()}
    return RanksMeasurement(
        few=FEW,
        many=MANY,
        few_samples_per_s=theirs[FEW].samples_per_s,
        many_samples_per_s=many.samples_per_s,
        baseline_few_samples_per_s=baseline[FEW],
        baseline_many_samples_per_s=baseline[MANY],
        step_ms=many.step_ms,
        compute_ms=many.compute_ms,
        communication_ms=many.communication_ms,
        exposed_ms=many.exposed_ms,
        exchange_ms=many.exchange_ms,
        hidden_ms=many.hidden_ms,
        overlap_share=many.overlap_share,
        bytes_per_step=min(many.reduced_bytes),
        difference=max(theirs[world].difference(shipped[world]) for world in (FEW, MANY)),
        checked=FEW + MANY,
        problem=next((problem for problem in problems if problem), None),
    )


def notes(measurement: RanksMeasurement, costs: CostTable) -> list[str]:
    """Return the notes of a verdict: the few figures that explain it, then what they rest on."""
    m = measurement
    # Of the figures as they are printed, so that the parts add up; never -0.00.
    idle_ms = max(0.0, round(m.step_ms, 2) - round(m.compute_ms, 2) - round(m.exposed_ms, 2))
    left_ms = max(0.0, round(m.exchange_ms, 2) - round(m.hidden_ms, 2))
    lines = [
        (
            f"modelled, {m.many} virtual GPUs: {m.step_ms:.2f} ms per step = {m.compute_ms:.2f}"
            f" computing + {m.exposed_ms:.2f} communicating only + {idle_ms:.2f} idle;"
            f" {m.communication_ms:.2f} ms of communication in all. The update waits for"
            f" {m.exchange_ms:.2f} ms of it: {m.hidden_ms:.2f} ms ({m.overlap_share:.0%}) hidden"
            f" behind the model's passes and {left_ms:.2f} ms not;"
            f" {m.bytes_per_step / 1e6:.1f} MB of gradients per step"
        ),
        (
            f"modelled throughput, {costs.called}/s: {m.few_samples_per_s:.0f} on {m.few},"
            f" {m.many_samples_per_s:.0f} on {m.many}; the shipped script"
            f" {m.baseline_few_samples_per_s:.0f} and {m.baseline_many_samples_per_s:.0f}"
        ),
    ]
    if m.few_samples_per_s < 0.999 * m.baseline_few_samples_per_s:
        lines.append(
            f"on {m.few} ranks the shipped script is faster, so {m.many} ranks are compared with"
            " its throughput"
        )
    return [
        *lines,
        (
            f"{m.few} ranks are one node, {m.many} ranks are two: only the larger run uses the"
            " slower link between nodes"
        ),
        *load_fabric().assumptions(),
        f"cost table: {costs.gpu}. {costs.source}",
    ]
