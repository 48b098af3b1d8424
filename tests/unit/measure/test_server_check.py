"""What a check makes of what it measured of a server: both servers, their load and their answers
are made up here.
"""

from __future__ import annotations

from shutil import copytree
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.grading.conclusion import conclude
from bottleneck_lab.grading.verdict import Outcome
from bottleneck_lab.measure.channel.messages import Ran
from bottleneck_lab.measure.clock import PhaseClock
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.http_server import check as loading
from bottleneck_lab.measure.kinds.http_server.bench import HttpBench, Plateau
from bottleneck_lab.measure.kinds.http_server.load.level import Level
from bottleneck_lab.measure.kinds.inference_server import (
    KIND,
    InferenceServerSettings,
    check,
)
from bottleneck_lab.measure.kinds.inference_server import bench as inference_bench
from bottleneck_lab.measure.kinds.inference_server.bench import CLOSED_S, InferenceBench
from bottleneck_lab.measure.kinds.inference_server.sizing import Sizing, size_models
from bottleneck_lab.report.verdict_words import format_measured

LAB = find_lab("past-the-plateau")
SPECS = {spec.id: spec for spec in LAB.spec.devices["virtual"].criteria}
CONTEXT = SimpleNamespace(required=SPECS.__getitem__, criterion=SPECS.get)


class Server:
    """Answers `rate` requests a second; its device works for `busy` of the time. In an open loop
    each takes `latency_s`.

    `harmed`: how many requests after a bad one are refused with it.
    """

    batches = ()  # of which pixels were kept
    scores_alone = None
    waited = 0.0  # share of a loop
    as_shipped = False

    def __init__(
        self, rate, busy=0.95, latency_s=0.2, late_s=0.0, refuses=0, bad_status=400, harmed=0
    ) -> None:
        self.rate, self.busy, self.latency_s, self.late_s = rate, busy, latency_s, late_s
        self.refuses, self.bad_status, self.harmed = refuses, bad_status, harmed
        self.asked_rates, self.frozen, self.address = [], False, "here"
        self.loops = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def freeze(self):
        self.frozen = True

    def thaw(self):
        self.frozen = False

    def cpu_s(self):
        return 0.0

    def follow(self, seconds):
        pass

    def waiting(self):
        return SimpleNamespace(seconds=lambda: self.waited * self.loops[-1])

    def batches_of(self, level):
        assert not self.frozen, "a server that rests is not loaded"
        result = level()
        period = 16 / self.rate * 1e9
        ends = np.arange(1, int(self.rate * (self.loops or [7])[-1] / 16)) * period
        none = np.zeros(0)
        return result, [
            Ran(
                int(end - self.busy * period),
                int(end - self.busy * period),
                int(end),
                none,
                np.zeros((16, 588)),
                none,
                none,
            )
            for end in ends
        ]

    def level(self, due_s, latency_s):
        begun = (np.asarray(due_s) * 1e9).astype(np.int64)
        status = np.full(len(begun), 200)
        status[: self.refuses] = 503
        taken = (latency_s * 1e9 * np.ones(len(begun))).astype(np.int64)
        sent = begun + int(self.late_s * 1e9)
        return Level(
            np.zeros((len(begun), 8), np.int64),
            begun,
            sent,
            begun + taken,
            status,
            [b""] * len(begun),
            0.1,
        )


class Bench(InferenceBench):
    """Loads made-up servers: the shipped one first, then the learner's."""

    def start(self, role, folder):
        return self.learner

    def as_shipped(self):
        return self.learner.as_shipped

    def closed(self, server, seconds, broken=(), disconnects=()):
        server.loops.append(seconds)
        level = server.level(np.linspace(0, seconds, int(server.rate * seconds)), 0.5)
        if broken:
            level.status[np.arange(min(broken), min(broken) + 1 + server.harmed)] = 400
            sent = len(level.status)  # a slow server is not sent all of them
            level.status[[number for number in broken if number < sent]] = server.bad_status
            level.status[[number for number in disconnects if number < sent]] = 0
        return server.batches_of(lambda: level)

    def answers(self, level, batches):
        share = (level.status == 200).mean()
        return {batch.ended_ns: share * len(batch.means) for batch in batches}


class Load:
    def __init__(self, server) -> None:
        self.server = server

    def open(self, address, rate, seconds, follow):
        self.server.asked_rates.append(rate)
        return self.server.level(np.arange(0, seconds, 1 / rate), self.server.latency_s)


def bench_of(context, load=None):
    bad = "A body that is not a JPEG file"
    strips = SimpleNamespace(header=b"\xff\xd8")
    clients = context.settings.clients
    return Bench(context, np.random.default_rng(0), load, clients, CLOSED_S, bad, strips=strips)


@pytest.fixture
def checked(monkeypatch):
    """Function: the outcome of a check of a learner's server beside a shipped one, its reason and
    all results by id.
    """
    monkeypatch.setattr(
        inference_bench, "check_answers", lambda level, *_, all_of: check_refused(level, all_of)
    )

    def check_refused(level, all_of):
        if all_of is None or (level.status[all_of] == 200).all():
            return None
        return "2 of 64 good requests got status 503."

    def run(learner, shipped=None, shipped_again=None, other_cores=0.0):
        shipped = shipped or Server(50.0, busy=0.33)
        monkeypatch.setattr(loading.LoadMeter, "cores", lambda _: other_cores)
        context = SimpleNamespace(
            progress=lambda *_: None,
            submission=None,
            settings=InferenceServerSettings(),
            required=SPECS.__getitem__,
            criterion=SPECS.get,
        )
        bench = bench_of(context, Load(learner))
        bench.learner = learner
        if shipped_again is not None:
            thaw = shipped.thaw
            shipped.thaw = lambda: (thaw(), setattr(shipped, "rate", shipped_again))
        observed = loading.measure_both(bench, shipped)
        results = check.grade(context, observed, 100, bench.idle(*observed.closed))
        conclusion = conclude(results, specs=list(SPECS.values()))
        return conclusion.outcome, conclusion.reason, {result.id: result for result in results}

    return run


def test_a_server_that_is_fast_and_right_passes(checked):
    learner = Server(140.0)
    outcome, _, results = checked(learner)
    assert outcome is Outcome.PASS
    assert results["throughput"].value == pytest.approx(2.8, rel=0.02)
    assert results["p99-ms"].value == pytest.approx(200)
    assert learner.asked_rates == pytest.approx([100] * len(learner.asked_rates), rel=0.02), (
        "twice the shipped server's plateau"
    )


def test_a_slow_one_fails_and_is_not_asked_for_a_rate_that_it_cannot_keep_up(checked):
    learner = Server(60.0, busy=0.4)
    outcome, reason, results = checked(learner)
    assert (outcome, reason) == (Outcome.FAIL, "correct but slow")
    assert results["idle"].holds is False
    assert not learner.asked_rates


def test_one_that_is_far_too_slow_fails_by_the_first_look_alone(checked):
    shipped = Server(90.0, busy=0.33)
    learner = Server(40.0, busy=0.3)  # 0.44x, where 2x is asked for
    outcome, reason, results = checked(learner, shipped, shipped_again=1.0)
    assert (outcome, reason) == (Outcome.FAIL, "correct but slow")
    assert results["bad-requests"].holds is None
    assert (len(shipped.loops), len(learner.loops)) == (1, 1)
    beside = Server(40.0, busy=0.3)
    beside.waited = 0.9
    assert checked(beside, Server(90.0), other_cores=1.5)[0] is Outcome.INCONCLUSIVE
    assert len(beside.loops) == 2, "other programs may have caused it: it is measured in full"
    beside = Server(40.0, busy=0.3)
    assert checked(beside, Server(90.0), other_cores=1.5)[0] is Outcome.FAIL
    assert len(beside.loops) == 1, "they cost it nothing"
    slow = Server(70.0, busy=0.3)
    assert checked(slow, Server(90.0))[:2] == (Outcome.FAIL, "correct but slow")
    assert len(slow.loops) == 2, "0.78x is looked at as ever"


def test_one_that_answers_too_little_for_a_decision_is_loaded_longer(checked):
    learner = Server(12.0)
    assert checked(learner)[:2] == (Outcome.FAIL, "correct but slow")
    assert learner.loops == [CLOSED_S, loading.MOST_CLOSED_S]


def test_one_that_lets_requests_wait_fails_by_its_p99(checked):
    outcome, reason, results = checked(Server(140.0, latency_s=2.0))
    assert (outcome, reason) == (Outcome.FAIL, "correct but slow")
    assert [id_ for id_, result in results.items() if result.holds is False] == ["p99-ms"]


def test_one_whose_device_idles_fails_by_the_mechanism(checked):
    outcome, reason, _ = checked(Server(140.0, busy=0.6))
    assert (outcome, reason) == (Outcome.FAIL, "the mechanism is still there")


def test_one_that_turns_clients_away_fails(checked):
    outcome, reason, results = checked(Server(140.0, refuses=2))
    assert (outcome, reason) == (Outcome.FAIL, "wrong output")
    assert "503" in results["right-answers"].sentence


@pytest.mark.parametrize(
    ("status", "words"),
    [(200, "status 200"), (500, "status 500"), (404, "status 404"), (-1, "no answer")],
)
def test_what_is_no_picture_has_to_get_400(checked, status, words):
    outcome, reason, results = checked(Server(140.0, bad_status=status))
    assert (outcome, reason) == (Outcome.FAIL, "wrong output")
    assert words in results["bad-requests"].sentence


def test_only_a_body_of_many_megabytes_may_get_413():
    bench = bench_of(SimpleNamespace(settings=InferenceServerSettings()))
    sent = bench.bad_requests()
    accepted = [bench.refuses(request, 413) for request in sent]
    assert accepted == [len(request) > 1 << 20 for request in sent]
    assert accepted.count(True) == 1
    assert all(bench.refuses(request, 400) for request in sent)


def test_a_bad_picture_may_not_fail_those_of_its_batch(checked):
    outcome, reason, results = checked(Server(140.0, harmed=40))
    assert (outcome, reason) == (Outcome.FAIL, "wrong output")
    assert "good requests sent among bad ones were not answered" in results["bad-requests"].sentence


def test_a_shipped_server_that_changed_its_speed_decides_only_what_holds_at_either(checked):
    outcome, _, results = checked(Server(120.0), shipped_again=75.0)
    assert outcome is Outcome.INCONCLUSIVE
    assert results["throughput"].holds is None
    assert checked(Server(200.0), shipped_again=75.0)[0] is Outcome.PASS


def test_an_undecided_speed_says_why_where_its_interval_alone_would_decide(checked):
    summary = checked(Server(120.0), shipped_again=75.0)[2]["throughput"].sentence
    assert "undecided" in summary
    assert "answered 50 requests/s before and 75 after" in summary


def disturbed() -> Server:
    """The shipped server, whose threads waited for a core for two fifths of the time."""
    server = Server(50.0, busy=0.33)
    server.waited = 0.4
    return server


def test_what_the_shipped_server_loses_to_others_is_suspect(checked):
    outcome, _, results = checked(Server(120.0), disturbed(), other_cores=1.0)
    assert outcome is Outcome.INCONCLUSIVE
    reason = "1.0 cores busy and slowed the shipped server, to 50 of up to 83 requests/s"
    at = "the latency was measured at 2x 50 requests/s."
    assert results["throughput"].sentence.endswith(f"{reason}; {at}")
    assert checked(Server(180.0), disturbed(), other_cores=1.0)[0] is Outcome.PASS
    assert checked(Server(120.0), disturbed())[0] is Outcome.PASS, "it waited for itself alone"


def test_a_doubtful_baseline_measures_no_gain():
    observed = loading.Observed(rates=[120.0] * 16)
    for lost, gain in ((0.0, 2.4), (0.4, None)):
        observed.shipped = Plateau(50.0, lost), Plateau(50.0)
        assert loading.measured_speedup(CONTEXT, observed) == gain


IN_TURNS = InferenceServerSettings(in_turns=True)


def turns_of(members=0, settings=IN_TURNS):
    """The bench of a machine where 16 pictures take 162 ms to prepare and 81 ms to run."""
    bench = bench_of(SimpleNamespace(settings=settings))
    bench.sizing, bench.device_s = Sizing(0.162 / 16, 0.081, members=members), 0.081
    bench.shortest_picture_s = 0.162 / 16
    return bench


def test_a_server_that_prepares_and_computes_in_turns_has_a_limit():
    assert turns_of().limit() == pytest.approx(16 / (0.081 + 0.162 / 1.2))
    assert turns_of().limit() > 16 / (0.081 + 0.162), "calibration may have been disturbed"
    assert turns_of(members=9).limit() == pytest.approx(16 / (0.081 / 1.1 + 0.162 / 1.2))
    assert turns_of().most_gain() == pytest.approx(3.0)
    side_by_side = turns_of(settings=InferenceServerSettings())
    assert side_by_side.limit() == pytest.approx(16 / 0.081), "preparing may cost no time at all"
    assert side_by_side.most_gain() == np.inf


def test_a_limit_caps_what_a_server_might_have_answered_and_never_what_it_did():
    assert Plateau(27.0, 0.9).alone == pytest.approx(270.0)
    capped = Plateau(27.0, 0.9, limit=74.0)
    assert capped.alone == 74.0
    assert capped.lost == pytest.approx(1 - 27 / 74)
    assert Plateau(27.0, 0.5, limit=74.0).alone == 54.0
    assert Plateau(80.0, 0.0, limit=74.0).alone == 80.0
    assert Plateau(80.0, 0.5, limit=74.0).alone == 80.0, "a limit that was exceeded is wrong"


@pytest.mark.parametrize(
    ("rate", "limit", "outcome"),
    [
        (155.0, 74.0, Outcome.PASS),
        (155.0, np.inf, Outcome.INCONCLUSIVE),
        (140.0, 74.0, Outcome.INCONCLUSIVE),
        (20.0, 74.0, Outcome.FAIL),
    ],
)
def test_the_doubt_about_the_shipped_server_ends_at_what_it_can_do(
    checked, monkeypatch, rate, limit, outcome
):
    monkeypatch.setattr(Bench, "limit", lambda _: limit)
    shipped = Server(27.0, busy=0.14)
    shipped.waited = 0.9
    got, _, results = checked(Server(rate), shipped, other_cores=0.5)
    assert got is outcome
    sentence = results["throughput"].sentence
    capped = outcome is Outcome.INCONCLUSIVE and limit == 74.0
    assert ("to 27 of up to 74 requests/s" in sentence) == capped


def test_a_gain_that_no_fix_can_reach_is_not_measured():
    observed = loading.Observed(rates=[155.0] * 16, most_gain=3.0)
    for waited, gain in ((0.0, 155 / 27), (0.9, None)):
        observed.shipped = (Plateau(27.0, waited, limit=74.0),) * 2
        assert loading.measured_speedup(CONTEXT, observed) == gain
        assert (loading.notes(observed)[0] == "The shipped server answers 27 requests/s here.") == (
            gain is not None
        )
    (note,) = loading.notes(observed)
    assert note.startswith("No fix can gain more than 3.0x here. Other programs slowed the")
    assert "slowed the shipped server to 27 requests/s; alone it might answer up to 74." in note


def test_a_gain_that_no_fix_can_reach_is_given_against_what_the_server_might_do_alone():
    observed = loading.Observed(rates=[216.0] * 16, most_gain=3.0)
    observed.shipped = (Plateau(30.0, 0.9, limit=90.0),) * 2
    gain, *_ = loading.grade_load(CONTEXT, observed)
    assert gain.sentence.endswith(": at least 2.4x, against the 90/s that it might answer alone.")
    assert format_measured(gain) == "at least 2.4x, against the 90/s that it might answer alone"
    assert (gain.value, gain.low, gain.high) == pytest.approx((2.4, 2.4, 2.4))
    assert gain.holds is True


def test_the_bounds_of_an_undecided_gain_hold_what_puts_it_in_doubt():
    observed = loading.Observed(rates=[170.0, 212.0] * 8, most_gain=3.0)
    for after, alone, least in ((84.0, 120.0, "1.42"), (110.0, 84.0, "1.55")):
        observed.shipped = (
            Plateau(84.0, 1 - 84.0 / alone, limit=alone),
            Plateau(after, 0.0, limit=alone),
        )
        gain, *_ = loading.grade_load(CONTEXT, observed)
        assert gain.holds is None
        assert ": undecided, because " in gain.sentence
        assert format_measured(gain) == f"{least}–2.52x"


def test_an_undecided_gain_ends_at_what_the_device_can_do_and_says_what_rate_the_latency_is_at():
    observed = loading.Observed(rates=[120.0, 141.0] * 8, windows_ms=[130.0] * 16, most_gain=3.0)
    observed.shipped = (Plateau(38.0, 0.6, limit=92.0),) * 2
    results = {each.id: each for each in check.grade(CONTEXT, observed, 24, [0.1] * 16)}
    gain = results["throughput"]
    assert gain.holds is None
    assert gain.low == pytest.approx(120 / 92, abs=0.01)
    assert (gain.value, gain.high) == (3.0, 3.0)
    assert gain.sentence.endswith("; the latency was measured at 2x 38 requests/s.")
    assert results["p99-ms"].holds
    observed.windows_ms = [2000.0] * 16
    gain = next(each for each in check.grade(CONTEXT, observed, 24, []) if each.id == gain.id)
    assert "the latency was measured" not in gain.sentence


def test_a_prediction_is_held_against_the_figure_of_the_criterion():
    observed = loading.Observed(rates=[152.0, 156.0] * 7 + [153.0], most_gain=3.0)
    observed.shipped = (Plateau(100.0, 0.0, limit=110.0),) * 2
    gain, *_ = loading.grade_load(CONTEXT, observed)
    assert loading.measured_speedup(CONTEXT, observed) == gain.value


def test_a_baseline_that_lost_time_excuses_no_slow_server(checked):
    assert checked(Server(24.0, busy=0.4), disturbed(), other_cores=0.3)[0] is Outcome.FAIL


def test_what_the_generator_or_others_may_have_spoilt_is_not_held_against_the_learner(checked):
    late = checked(Server(60.0, busy=0.4, late_s=0.05))
    assert late[0] is Outcome.INCONCLUSIVE
    assert "the load generator sent" in late[2]["throughput"].sentence
    assert checked(waiting(60.0, 0.3), other_cores=1.0)[0] is Outcome.INCONCLUSIVE


def waiting(rate, share) -> Server:
    """A server whose threads waited for a core for that share of the time."""
    server = Server(rate, busy=0.4)
    server.waited = share
    return server


def test_the_shipped_server_misses_however_long_it_waits_for_a_core(checked):
    learner = waiting(50.0, 0.9)
    assert checked(learner, other_cores=1.5)[0] is Outcome.INCONCLUSIVE
    learner.as_shipped = True
    outcome, reason, results = checked(learner, other_cores=1.5)
    assert (outcome, reason) == (Outcome.FAIL, "correct but slow")
    assert "no, 1x" in results["throughput"].sentence


def test_a_server_is_as_shipped_until_a_file_that_learners_edit_differs(tmp_path):
    copytree(LAB.path, tmp_path, dirs_exist_ok=True)
    bench = bench_of(
        SimpleNamespace(settings=InferenceServerSettings(), lab=LAB, submission=tmp_path), None
    )
    assert HttpBench.as_shipped(bench)
    (tmp_path / LAB.spec.editable[-1]).write_text("changed")
    assert not HttpBench.as_shipped(bench)


@pytest.mark.parametrize(
    ("rate", "share", "outcome"),
    [
        (50.0, 0.0, Outcome.FAIL),  # as fast as the shipped one, where 2x is asked for
        (50.0, 0.35, Outcome.FAIL),  # 0.92 of the target, slower caches and waits given back
        (50.0, 0.45, Outcome.INCONCLUSIVE),
        (80.0, 0.0, Outcome.FAIL),
        (90.0, 0.0, Outcome.INCONCLUSIVE),  # slower caches may be all
        (20.0, 0.7, Outcome.FAIL),
    ],
)
def test_a_server_that_misses_whatever_other_programs_cost_it_fails_beside_them(
    checked, rate, share, outcome
):
    got, _, results = checked(waiting(rate, share), other_cores=1.0)
    assert got is outcome
    assert ("undecided, because" in results["throughput"].sentence) == (got is not Outcome.FAIL)


class Hasty(Server):
    """Takes 740 ms for a request; the generator sends late by 50 ms in its first open loops, so
    many of them.
    """

    def __init__(self, late_loops) -> None:
        super().__init__(140.0, latency_s=0.74)
        self.late_loops = late_loops

    def level(self, due_s, latency_s):
        loops = len(self.asked_rates)
        self.late_s = 0.05 if 0 < loops <= self.late_loops else 0.0
        return super().level(due_s, latency_s + self.late_s)


def test_a_p99_that_the_generator_may_have_made_a_miss_is_measured_again(checked):
    outcome, _, results = checked(Hasty(late_loops=2))
    assert outcome is Outcome.PASS
    assert results["p99-ms"].value == pytest.approx(740)


def test_a_p99_that_stays_in_doubt_is_not_held_against_the_learner(checked):
    learner = Hasty(late_loops=99)
    outcome, _, results = checked(learner)
    assert outcome is Outcome.INCONCLUSIVE
    assert "50.0 ms late" in results["p99-ms"].sentence
    assert len(learner.asked_rates) == loading.TRIES


def test_a_late_generator_excuses_no_p99_that_it_cannot_have_made(checked):
    learner = Server(140.0, latency_s=2.0, late_s=0.05)
    outcome, _, results = checked(learner)
    assert outcome is Outcome.FAIL
    assert results["p99-ms"].holds is False
    assert len(learner.asked_rates) == 1


def test_the_device_takes_its_share_of_the_pre_processing():
    settings = InferenceServerSettings(batch=16, device_share=0.5, fixed_share=0.2)
    device = Gpu()
    size = size_models(
        SimpleNamespace(device="virtual", settings=settings, clock=PhaseClock()), 0.010, [device]
    )
    assert [vars(sent) for sent in device.sizes] == [vars(size.message())]
    assert size.fixed_s + 16 * size.image_s == pytest.approx(16 * 0.005)
    assert size.fixed_s == pytest.approx(0.2 * 16 * 0.005)
    assert size.members == 0


class Gpu:
    """A GPU that takes 2 ms for a batch's copies, and 5 ms for each member of the ensemble; with
    `members` 0 a device that takes the time it is set to. `measured`: the members of each
    ensemble that was timed.
    """

    def __init__(self) -> None:
        self.sizes, self.measured = [], []

    def begin_size(self, size):
        self.sizes.append(size)

    def wait_until_sized(self):
        assert self.sizes

    def measure_step(self):
        size = self.sizes[-1]
        self.measured.append(size.members)
        if not size.members:
            return size.fixed_s + 16 * size.image_s
        return 0.002 + 0.005 * size.members


@pytest.fixture
def on_gpu():
    """The context of a check on `cuda`."""
    return SimpleNamespace(device="cuda", settings=InferenceServerSettings(), clock=PhaseClock())


def test_on_a_gpu_the_ensemble_has_as_many_members_as_take_the_device_its_share(on_gpu):
    shipped, learners = Gpu(), Gpu()
    size = size_models(on_gpu, 0.020, [shipped, learners])
    assert size.batch_s == pytest.approx(0.160)
    assert size.members == 29, "160 ms at 5.5 ms each, as four of them take"
    assert shipped.measured == [4, 29]
    assert [each.members for each in learners.sizes] == [29], "both servers have the same model"
    assert not learners.measured, "two devices would slow each other"


def test_a_gpu_too_slow_beside_its_cpu_ends_a_check_in_an_error_that_says_both_times(on_gpu):
    with pytest.raises(VerifierFault, match=r"takes 7 ms for a batch of 16 pictures.* about 3 ms"):
        size_models(on_gpu, 0.0004, [Gpu()])


@pytest.mark.parametrize(
    ("members", "named", "not_named"),
    [
        (0, "The device is emulated: it takes 150 ms", "GPU"),
        (23, "an ensemble of 23 networks on the GPU", "emulated"),
    ],
)
def test_the_verdict_says_what_the_model_ran_on(members, named, not_named):
    bench = bench_of(SimpleNamespace(settings=InferenceServerSettings()))
    bench.sizing, bench.device_s = Sizing(0.02, 0.16, members=members), 0.15
    note = check.device_note(bench)
    assert named in note
    assert "150 ms for a batch of 16 images" in note
    assert not_named not in note


@pytest.mark.parametrize("apart", [1e-4, 0.2])
def test_a_model_that_scores_a_picture_otherwise_in_another_batch_can_judge_nothing(apart):
    bench = bench_of(SimpleNamespace(settings=InferenceServerSettings()))
    images, scores = np.zeros((1, 3, 224, 224), np.uint8), np.zeros((1, 10), np.float32)
    batch = Ran(0, 0, 1, scores, np.zeros((1, 588)), np.zeros(1, np.int64), images)
    server = SimpleNamespace(batches=[batch], scores_alone=lambda _: scores + apart)
    if apart > 0.1:
        with pytest.raises(VerifierFault, match=r"differ by 0\.2 from one batch to another"):
            bench.after_load(server)
    else:
        bench.after_load(server)
        assert bench.apart == pytest.approx(1e-4)


def test_a_slow_machine_is_given_the_time_that_a_decision_needs():
    bench = bench_of(SimpleNamespace(settings=InferenceServerSettings()))
    assert loading.long_enough_s(bench, 100.0, CLOSED_S) == CLOSED_S
    assert loading.long_enough_s(bench, 100.0, loading.AGAIN_S) == loading.AGAIN_S
    assert loading.long_enough_s(bench, 16.0, CLOSED_S) == pytest.approx(13.0)
    assert loading.long_enough_s(bench, 1.0, CLOSED_S) == loading.MOST_CLOSED_S


def test_the_shipped_server_is_loaded_again_only_as_long_as_it_needs(checked):
    for rate, seconds in ((50.0, 4.84), (90.0, loading.AGAIN_S), (20.0, CLOSED_S)):
        shipped = Server(rate, busy=0.33)
        checked(Server(2.8 * rate), shipped)
        assert shipped.loops == [CLOSED_S, pytest.approx(seconds)]


def test_a_lab_on_cuda_needs_a_network(tmp_path):
    judge = (LAB.path / "judge.py").read_text()
    (tmp_path / "judge.py").write_text(judge.replace("def member(", "def network("))
    lab = replace(LAB, path=tmp_path)
    assert [each for each in KIND.problems(lab) if "`member` is missing" in each]
    assert not list(KIND.problems(LAB))


def test_a_latency_at_a_rate_that_was_not_tried_is_not_measured():
    observed = loading.Observed(rates=[60.0] * 16, other_cores=1.0)
    observed.shipped = (Plateau(50.0),) * 2
    p99 = next(each for each in loading.grade_load(CONTEXT, observed) if each.id == "p99-ms")
    assert p99.holds is None
    assert p99.sentence.endswith("not measured, because the server is too slow for that rate.")
