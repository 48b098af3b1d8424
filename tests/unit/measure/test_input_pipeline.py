"""How a run of a training script is graded, by made-up runs on a made-up clock."""

import subprocess
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from bottleneck_lab.catalog import CriterionSpec, DeviceSpec, find_lab
from bottleneck_lab.errors import MachineError
from bottleneck_lab.judging import close
from bottleneck_lab.measure.channel.messages import DeviceReady, Gone, MeasureStep, Trained
from bottleneck_lab.measure.channel.wire import Channel
from bottleneck_lab.measure.faults import LearnerFault, VerifierFault
from bottleneck_lab.measure.kinds.input_pipeline import KIND, InputPipelineSettings, check, judging
from bottleneck_lab.measure.kinds.input_pipeline.device import CudaEngine, EmulatedEngine
from bottleneck_lab.measure.kinds.input_pipeline.device_process import DeviceProcess, _step_s
from bottleneck_lab.measure.kinds.input_pipeline.records import (
    KEPT_ROWS,
    WARM_UP_BATCHES,
    PipelineRun,
    plan_epoch,
)
from bottleneck_lab.measure.kinds.input_pipeline.samples import Samples
from bottleneck_lab.measure.kinds.input_pipeline.session import PipelineSession

MS = 1_000_000
STEP_S = 0.1
ROWS = Samples(shape=(8,), called="rows")
SPECS = [
    CriterionSpec("useful-utilisation", "target", "useful utilisation", 0.8, unit="share"),
    CriterionSpec("data-wait", "mechanism", "data wait", 0.15, "at_most", unit="share"),
]


def context():
    lab = SimpleNamespace(spec=SimpleNamespace(devices={"virtual": DeviceSpec(SPECS)}))
    specs = {spec.id: spec for spec in SPECS}
    return SimpleNamespace(
        lab=lab,
        device="virtual",
        settings=InputPipelineSettings(samples=ROWS),
        data=None,
        required=specs.__getitem__,
        criterion=specs.get,
    )


def run_of(every_ms: list[float], count: int = 2000, step_ms: int = 100) -> PipelineRun:
    """A run in which a batch arrives `every_ms[n]` after the one before, on a device that needs 100
    ms for each, or `step_ms` beside the script.
    """
    rng, run = np.random.default_rng(0), PipelineRun(16)
    sizes = [WARM_UP_BATCHES, len(every_ms)]
    for _ in sizes:
        plan_epoch(rng, run, count, sizes)
    orders = [order for given in run.assignments for order in given.order.reshape(-1, 16)]
    clock = end = run.assignments[1].given_ns = 0
    for at, order in enumerate(orders):
        clock += round((every_ms[at - WARM_UP_BATCHES] if at >= WARM_UP_BATCHES else 0) * MS)
        start = max(clock, end) if at >= WARM_UP_BATCHES else -step_ms * MS
        end = start + step_ms * MS
        run.steps.append(Trained(clock, start, end, order % 10, np.zeros((3, 8), np.float32)))
    return run


def graded(run, drift=1.0, foreign=0.0):
    return {
        result.id: result.holds for result in check.grade(context(), run, STEP_S, drift, foreign)
    }


@pytest.mark.parametrize(
    ("every_ms", "utilisation"),
    [([250.0] * 32, 0.4), ([100.0] * 32, 1.0), ([50.0] * 32, 1.0), ([125.0] * 32, 0.8)],
)
def test_utilisation_is_device_time_over_wall_time(every_ms, utilisation):
    blocks = run_of(every_ms).utilisation(STEP_S)
    assert len(blocks) == 10
    assert blocks[1:] == pytest.approx([utilisation] * 9, rel=0.01)


def test_fed_well_passes_starved_fails():
    assert graded(run_of([100.0] * 96)) == {"useful-utilisation": True, "data-wait": True}
    assert graded(run_of([250.0] * 96)) == {"useful-utilisation": False, "data-wait": False}


def test_a_script_that_is_far_off_fails_after_eight_batches():
    run = run_of([400.0] * 32)  # a quarter of the time, where 0.8 is asked for
    del run.steps[WARM_UP_BATCHES + 8 :]
    assert check.far_off(context(), run, STEP_S, 0.0).samples == 8
    assert graded(run) == {"useful-utilisation": False, "data-wait": None}
    assert judging.check_batches(run, JUDGE, context()) == (None, 12 * 16)
    # Other programs are not to blame for a tenth of what is asked for.
    assert graded(run, foreign=0.6)["useful-utilisation"] is False
    assert graded(run, foreign=0.8)["useful-utilisation"] is None


@pytest.mark.parametrize(
    "every_ms", [[370.0] * 32, [400.0] * 7, [400.0] * 7 + [100.0] * 25], ids=["near", "few", "one"]
)
def test_nobody_is_far_off_by_less_or_by_fewer_batches(every_ms):
    assert check.far_off(context(), run_of(every_ms), STEP_S, 0.0) is None


def test_steady_blocks_do_not_make_up_for_a_long_stall():
    stalled = [100.0] * 96
    stalled[16] = 3000.0
    assert graded(run_of(stalled))["useful-utilisation"] is False


def test_a_miss_beside_busy_programs_is_not_held_against_anybody_but_a_pass_stands():
    assert graded(run_of([250.0] * 96), foreign=0.6) == {
        "useful-utilisation": None,
        "data-wait": None,
    }
    assert graded(run_of([100.0] * 96), foreign=0.6) == {
        "useful-utilisation": True,
        "data-wait": True,
    }


def test_utilisation_that_others_cannot_have_halved_is_held_against():
    assert graded(run_of([250.0] * 96), foreign=0.3) == {
        "useful-utilisation": False,
        "data-wait": None,
    }


def test_a_machine_that_changed_speed_decides_only_what_holds_at_either():
    close = run_of([118.0] * 96)
    assert graded(close)["useful-utilisation"] is True
    assert graded(close, drift=0.8)["useful-utilisation"] is None
    assert graded(run_of([250.0] * 96), drift=0.8)["useful-utilisation"] is False


def test_the_wait_and_the_whole_run_too_are_decided_only_where_they_hold_at_either_speed():
    waits = run_of([120.0] * 96)  # idle for a sixth of the time
    assert graded(waits)["data-wait"] is False
    assert graded(waits, drift=1.1)["data-wait"] is None
    assert graded(waits, drift=1.01)["data-wait"] is False
    assert graded(run_of([115.0] * 96), drift=0.9)["data-wait"] is None
    stalled = [100.0] * 96
    stalled[16] = 3000.0  # 0.77 of the time on the whole
    assert graded(run_of(stalled), drift=1.05) == {"useful-utilisation": None, "data-wait": True}
    assert graded(run_of(stalled), drift=1.01)["useful-utilisation"] is False


def attempt(every_ms, loader_s, loader_after_s):
    return check.Attempt(run_of(every_ms), loader_s, loader_after_s, STEP_S, STEP_S, 0.0)


@pytest.mark.parametrize(
    ("every_ms", "after_s", "again"),
    [
        (105.0, 1.0, False),  # 95%, and the target is 80%
        (105.0, 0.97, False),
        (105.0, 0.8, True),  # 76% for a machine that is so much faster
        (150.0, 1.05, False),  # 67%, or 70%
        (150.0, 1.3, True),
        (250.0, 1.5, False),  # far off at any speed
    ],
)
def test_a_check_that_only_the_machine_s_speed_leaves_open_is_made_again(every_ms, after_s, again):
    assert attempt([every_ms] * 96, 1.0, after_s).open_for_drift(context()) is again


@pytest.mark.parametrize(
    ("speeds", "measured"),
    [((1.0,), 1), ((0.7, 1.0), 2), ((0.7, 0.7, 0.7), 3)],
    ids=["steady", "once faster", "ever faster"],
)
def test_the_next_attempt_is_at_the_speed_that_the_machine_has_now(monkeypatch, speeds, measured):
    loaders_s, changes = [], iter(speeds)

    def measure_at(_context, _judge, loader_s):
        loaders_s.append(loader_s)
        return attempt([105.0] * 96, loader_s, loader_s * next(changes))

    monkeypatch.setattr(check, "measure_at", measure_at)
    monkeypatch.setattr(check, "calibrate", lambda *_: 0.01)
    monkeypatch.setattr(check, "check_kept", lambda *_: (None, 1))
    monkeypatch.setattr(check, "check_batches", lambda *_: (None, 1))
    checked = context()
    checked.judge, checked.progress = Mock, lambda *_: None
    specs = {
        id_: CriterionSpec(id_, "correctness", "") for id_ in ("every-sample-once", "right-samples")
    }
    checked.required = {**specs, **{spec.id: spec for spec in SPECS}}.__getitem__
    outcome = check.measure(checked)
    assert len(loaders_s) == measured
    assert loaders_s == pytest.approx([0.01 * np.prod(speeds[:at]) for at in range(measured)])
    useful = next(result for result in outcome.results if result.id == "useful-utilisation")
    assert useful.holds is (True if speeds[-1] == 1.0 else None)


@pytest.mark.parametrize("drift", [0.5, 0.9, 1.1, 2.0])
def test_the_figures_shown_are_those_of_the_speed_before(drift):
    def values(drift):
        return [
            result.value
            for result in check.grade(context(), run_of([118.0] * 96), STEP_S, drift, 0.0)
        ]

    assert values(drift) == pytest.approx(values(1.0), rel=0.02), (
        "over all blocks, where it is undecided"
    )


JUDGE = SimpleNamespace(label=lambda _photos, index: index % 10)


def test_labels_and_sizes_are_checked_batch_by_batch():
    run = run_of([100.0] * 8)
    assert judging.check_batches(run, JUDGE, context()) == (None, 12 * 16)
    swapped = run.steps[5]
    run.steps[5] = Trained(
        *[getattr(swapped, name) for name in ("arrived_ns", "started_ns", "ended_ns")],
        swapped.labels[::-1],
        swapped.kept,
    )
    assert "Batch 6 has labels" in judging.check_batches(run, JUDGE, context())[0]
    run.steps[5] = Trained(
        *[getattr(swapped, name) for name in ("arrived_ns", "started_ns", "ended_ns")],
        swapped.labels[:8],
        swapped.kept,
    )
    assert "8 rows instead of 16" in judging.check_batches(run, JUDGE, context())[0]


def test_a_script_that_asks_for_more_before_it_has_trained_all_is_found_out():
    run = run_of([100.0] * 8)
    judging.expect_steps(run, 12)
    with pytest.raises(LearnerFault, match="11 batches were trained, not 12"):
        judging.expect_steps(run, 11)


def test_an_epoch_is_a_permutation_with_rows_drawn_in_each_batch():
    run = PipelineRun(16)
    epoch = plan_epoch(np.random.default_rng(1), run, 640, [32])
    assert len(set(epoch.order.tolist())) == 32 * 16
    assert epoch.rows.shape == (32, KEPT_ROWS)
    assert all(len(set(rows)) == KEPT_ROWS for rows in epoch.rows.tolist())
    assert plan_epoch(np.random.default_rng(1), run, 640, [32]).batches == 0


def test_kept_rows_are_shown_to_the_judge_as_the_device_was_given_them():
    run = run_of([100.0] * 8)
    judge = SimpleNamespace(reference_sample=lambda *_: np.zeros(8), compare=close(atol=0.1))
    assert judging.check_kept(run, judge, context()) == (None, 12 * KEPT_ROWS)
    run.steps[5].kept[1] = 0.5
    problem, checked = judging.check_kept(run, judge, context())
    assert problem.startswith(
        f"Sample {run.assignments[1].order[16 + run.assignments[1].rows[1][1]]} of epoch 1: "
    )
    assert "is off by 0.5" in problem
    assert checked == 5 * KEPT_ROWS + 2


def test_the_verdict_says_what_an_emulated_device_stands_for_if_the_lab_says_so():
    emulated = SimpleNamespace(device="virtual", settings=InputPipelineSettings(samples=ROWS))
    plain = check.device_note(emulated, 0.4, 0.05)
    assert plain == (
        "The device is emulated. It takes 400 ms for 16 rows, 2x as fast as the shipped loader"
        " makes them."
    )
    named = check.device_note(
        SimpleNamespace(device="virtual", settings=KIND.settings(find_lab("idle-gpu"), "virtual")),
        0.4,
        0.05,
    )
    assert "emulated: an A100-like GPU training ResNet-50, slowed 63x. It takes 400 ms" in named


class MadeUpGpu(CudaEngine):
    """A GPU that needs 12 ms for a training step, and 2 ms for the batch."""

    def __init__(self, wanted_s: float) -> None:
        self._wanted_s, self._repeats = wanted_s, 1

    def _measured_s(self, batch: int) -> float:
        return 0.002 + 0.012 * self._repeats


@pytest.mark.parametrize(("wanted_s", "step_s"), [(0.14, 0.122), (0.014, 0.014), (0.001, 0.014)])
def test_a_gpu_repeats_its_step_to_take_the_time_that_was_asked_for_and_says_what_it_takes(
    wanted_s, step_s
):
    assert MadeUpGpu(wanted_s).step_s(16) == pytest.approx(step_s)


def test_the_gain_is_shown_with_the_two_rates_that_it_is_a_ratio_of():
    run = run_of([200.0] * 96)
    (note,) = check.gain_notes(context(), run, 0.01)
    assert "trained 79.6 rows/s, 0.80x the 100 that the shipped loader makes with a core" in note
    (note,) = check.gain_notes(context(), run, 0.01, foreign_cores=1.3)
    assert "79.6 rows/s beside other programs, 0.80x the 100 that the shipped loader" in note
    assert check.gain_notes(context(), PipelineRun(16), 0.01) == []


def test_the_verdict_says_that_a_gpu_s_step_is_repeated():
    gpu = SimpleNamespace(
        device="cuda", settings=InputPipelineSettings(samples=ROWS, device_share=0.5)
    )
    note = check.device_note(gpu, 0.39, 0.05)
    assert "to take about 400 ms, and 390 ms in practice" in note


def on_a_gpu(run, drift):
    gpu = context()
    gpu.device, gpu.lab.spec.devices = "cuda", {"cuda": DeviceSpec(SPECS)}
    return {result.id: result.holds for result in check.grade(gpu, run, STEP_S, drift, 0.0)}


@pytest.mark.parametrize(("step_ms", "useful"), [(110, True), (140, False)])
def test_what_a_script_does_on_the_gpu_is_taken_from_training_and_said(step_ms, useful):
    """Loading on the GPU with a tenth of it leaves enough; with more than a quarter it does not,
    though the GPU never waits.
    """
    run = run_of([100.0] * 96, step_ms=step_ms)
    assert on_a_gpu(run, drift=1.0) == {"useful-utilisation": useful, "data-wait": True}
    (note,) = check.sharing_notes(run, STEP_S)
    assert f"took {step_ms} ms alongside your script and 100 ms alone" in note
    assert check.sharing_notes(run_of([100.0] * 96), STEP_S) == []


def test_a_gpu_that_slowed_down_is_not_held_against_the_script():
    """Alone, afterwards, a step takes as long as it took beside the script: it was the clocks, not
    the script.
    """
    run = run_of([100.0] * 96, step_ms=140)
    assert on_a_gpu(run, drift=1.4) == {"useful-utilisation": None, "data-wait": True}
    assert check.sharing_notes(run, 1.4 * STEP_S) == []


def test_a_device_says_how_long_its_step_takes_also_when_the_script_has_gone():
    ours, theirs = Channel.pair()
    device, verifier = Channel(theirs), Channel(ours)
    device.send(Gone())
    device.send(DeviceReady(0.25))
    with subprocess.Popen(["true"]) as process:
        assert DeviceProcess(process, verifier, Mock(), Mock(), 0.2, Mock()).step_again_s(1) == 0.25
    assert isinstance(device.receive(1), MeasureStep)
    for channel in (device, verifier):
        channel.close()


def test_the_step_is_measured_again_as_often_repeated_as_before():
    gpu = MadeUpGpu(0.14)
    assert gpu.step_s(16) == gpu.step_again_s(16) == pytest.approx(0.122)


def test_the_emulated_engine_keeps_ideal_times_however_late_it_is_asked():
    engine = EmulatedEngine(step_s=0.016, batch=16)
    images = np.zeros((16, 1))
    assert engine.start(images, images, 1000) == 1000
    assert engine.start(images, images, 2000) == 1000 + 16 * MS
    assert engine.start(images[:8], images, 90 * MS) == 90 * MS
    assert engine.start(images, images, 0) == 98 * MS
    assert engine.step_s(16) == pytest.approx(0.016)


def test_who_has_ended_is_to_blame():
    worker = Mock(
        process=Mock(poll=lambda: 3), log_tail=lambda: "", ending=lambda: "exited with status 3"
    )
    with subprocess.Popen(["sleep", "60"]) as device:
        session = PipelineSession(
            worker, DeviceProcess(device, Mock(), Mock(), Mock(), 0.1, Mock()), 1
        )
        assert isinstance(session.script.closed("training"), VerifierFault), "no code was loaded"
        session.script._loading = True
        assert isinstance(session.script.closed("training"), LearnerFault), "the device lives"
        device.kill()
        assert isinstance(session.script.closed("training"), VerifierFault)


def test_a_script_that_moves_to_more_cores_is_found(monkeypatch):
    monkeypatch.setattr(judging, "loading_cores", lambda: {0, 1})
    judging.refuse_more_cores(2.05)
    with pytest.raises(LearnerFault, match="moved to others"):
        judging.refuse_more_cores(3.9)


def test_a_device_that_does_not_come_is_a_problem_of_the_machine_for_every_command():
    ours, theirs = Channel.pair()
    theirs.close()
    with pytest.raises(MachineError, match="The device process did not start") as raised:
        _step_s(Channel(ours), 1, "start")
    assert raised.value.remedy.startswith("Try again")
    ours.close()


def test_the_figure_of_a_pass_is_that_of_the_whole_run_which_the_gain_follows_from():
    late = [100.0] * 96
    late[0] = 900.0  # the wait for the first batch, which the median of blocks leaves out
    run = run_of(late)
    busy, *_ = check.grade(context(), run, STEP_S, 1.0, 0.0)
    assert busy.holds
    assert busy.value == pytest.approx(run.samples_per_s() * STEP_S / run.batch)
    assert busy.value < 0.95


def test_a_lab_that_asks_for_no_data_wait_gets_none():
    without = context()
    without.criterion = {}.get
    (busy,) = check.grade(without, run_of([100.0] * 96), STEP_S, 1.0, 0.0)
    assert busy.holds
    (miss,) = check.grade(without, run_of([400.0] * 32), STEP_S, 1.0, 0.0)
    assert miss.holds is False


def test_an_undecided_utilisation_says_why():
    """The figure is that over all blocks; where every block lies on one side of the target, the
    sentence says what keeps it open.
    """
    torn = [520.0 if number // 8 % 2 else 100.0 for number in range(96)]
    busy = check.grade(context(), run_of(torn), STEP_S, 1.0, 0.0)[0]
    assert busy.holds is None
    assert "over all" in busy.sentence
    assert busy.value == pytest.approx(run_of(torn).samples_per_s() * STEP_S / 16)
    slower = check.grade(context(), run_of([118.0] * 96), STEP_S, 0.8, 0.0)[0]
    assert (
        "The machine was 20% faster afterwards, and at that speed the result would be different."
        in slower.sentence
    )
