"""Measure what an inference server sustains against the shipped one, on the verifier's device.

It is loaded like any server. In addition the device reports how long it was idle between batches,
and every answer is traced to the batch that gave its scores.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from statistics import median

import msgspec

from bottleneck_lab.grading.criteria import OPEN_BECAUSE
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.channel.session import Role
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.kinds.http_server import check
from bottleneck_lab.measure.kinds.http_server.check import Observed
from bottleneck_lab.measure.kinds.inference_server import InferenceServerSettings, figures
from bottleneck_lab.measure.kinds.inference_server.bench import (
    InferenceBench,
    preprocess_s,
    start_calibrator,
)
from bottleneck_lab.measure.kinds.inference_server.judging import check_pixels
from bottleneck_lab.measure.kinds.inference_server.session import DeviceSession
from bottleneck_lab.measure.kinds.inference_server.sizing import size_models
from bottleneck_lab.measure.kinds.inference_server.triton.server import environment_for


def measure(context: Context[InferenceServerSettings]) -> Measured:
    """Run the whole check. Raises LearnerFault or VerifierFault if it ends early."""
    with contextlib.ExitStack() as processes:
        bench = prepare(context, processes)
        with bench.start("reference", context.pristine()) as shipped:
            observed = check.measure_both(bench, shipped)
    context.progress("checking pictures", 0.95)
    with context.clock.phase("judging"):
        problem, compared = check_pixels(
            observed.levels, observed.batches, bench.strips, context.judge()
        )
    if problem:
        observed.problems["right-pixels"] = problem
    idle = bench.idle(*observed.closed) if observed.closed else []
    servers = ["Both servers ran on a Triton Inference Server."] if bench.triton else []
    return Measured(
        grade(context, observed, compared, idle),
        details={
            **bench.sizing.details(),
            "measured_device_s_a_batch": bench.device_s,
            "shortest_preprocess_s_a_picture": bench.shortest_picture_s,
            "device_ms_by_images": figures.device_ms(observed.batches),
            "scores_apart": bench.apart,
            "block_idle": idle,
            **check.details(observed),
        },
        notes=[*servers, *check.notes(observed), device_note(bench)],
        speedup=check.measured_speedup(context, observed),
        conditions=check.conditions(observed),
    )


def prepare(
    context: Context[InferenceServerSettings], processes: contextlib.ExitStack
) -> InferenceBench:
    """Start both servers' devices and processes, which load no code of the learner's yet, calibrate
    this machine and give the devices their model. Returns the bench; `processes` ends them.
    """
    triton = environment_for(context.submission / context.lab.spec.entry)
    context.progress("starting the shipped server and the devices", 0.01)
    folders: dict[Role, Path] = {"reference": context.pristine(), "learner": context.submission}
    # All at once: a process imports PyTorch for seconds, and nothing may start beside what is
    # measured from then on.
    servers = {
        role: processes.enter_context(DeviceSession.open(context, role, folder, triton))
        for role, folder in folders.items()
    }
    with start_calibrator(context) as calibrator:
        bench = InferenceBench.prepare(context, triton)
        for server in servers.values():
            server.wait_until_open()
        context.progress("calibrating this machine with the shipped pre-processing", 0.04)
        pictures_s = preprocess_s(calibrator, bench)
    devices = [server.device for server in servers.values()]
    # The median: one may fall on a moment in which something else ran.
    bench.sizing = size_models(context, median(pictures_s), devices)
    bench.device_s, bench.servers = devices[0].step_s, servers
    bench.shortest_picture_s = min(pictures_s)
    return bench


def grade(
    context: Context[InferenceServerSettings],
    observed: Observed,
    compared: int,
    idle: list[float],
) -> list[CriterionResult]:
    """Grade all criteria. compared: pictures whose pixels were compared. idle: the share of each
    block in which the device did nothing for an answer.
    """
    checked = {
        "right-answers": (observed.checked, "answers"),
        "right-pixels": (compared, "pictures"),
    }
    results = check.grade_problems(context, observed, checked)
    if not observed.problems:
        results += _explain_rate(check.grade_load(context, observed, [("idle", idle)]), observed)
    return results


def _explain_rate(results: list[CriterionResult], observed: Observed) -> list[CriterionResult]:
    """Return the results with an undecided gain cut at what the device can do, and with the rate at
    which a latency that holds was measured, since that seems to decide the gain.
    """
    by_id = {each.id: each for each in results}
    gain, latency = by_id["throughput"], by_id.get("p99-ms")
    if gain.holds is not None:
        return results
    most, sentence = observed.most_gain, gain.sentence
    low, value, high = (
        None if each is None else min(each, most) for each in (gain.low, gain.value, gain.high)
    )
    if latency and latency.holds and OPEN_BECAUSE in sentence:
        base = max(plateau.rate for plateau in observed.shipped)
        at = f"the latency was measured at {gain.target:g}x {base:.0f} requests/s"
        sentence = f"{sentence.rstrip('.')}; {at}."
    cut = msgspec.structs.replace(gain, low=low, value=value, high=high, sentence=sentence)
    return [cut if each is gain else each for each in results]


def device_note(bench: InferenceBench) -> str:
    """Describe the model and how long it takes."""
    batch, share = bench.context.settings.batch, bench.context.settings.device_share
    duration = f"{1000 * bench.device_s:.0f} ms for a batch of {batch} images"
    basis = f"{share:g} of the CPU time in which the shipped server prepares them"
    members = bench.sizing.members
    if members:
        networks = "1 network" if members == 1 else f"{members} networks"
        return (
            f"The model is an ensemble of {networks} on the GPU, which took {duration} when nothing"
            f" else ran. The number of networks is set for {basis}."
        )
    return f"The device is emulated: it takes {duration}, {basis}."
