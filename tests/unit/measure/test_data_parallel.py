"""The logical clock, the link, the rules and the figures: no process, no socket, no torch."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck_lab.analysis.ranks.scaling import Point, Sweep, assumptions, curves
from bottleneck_lab.catalog import CriterionSpec, find_lab
from bottleneck_lab.measure.kinds.data_parallel import check as virtual
from bottleneck_lab.measure.kinds.data_parallel.check import notes
from bottleneck_lab.measure.kinds.data_parallel.fabric.clock import RankClock, covered_us, merge
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import (
    CostTable,
    ModuleCost,
    Shape,
    StandIn,
    load_costs,
    load_fabric,
)
from bottleneck_lab.measure.kinds.data_parallel.fabric.moments import Moments
from bottleneck_lab.measure.kinds.data_parallel.fabric.rules import Ledger, Violation
from bottleneck_lab.measure.kinds.data_parallel.figures import RanksMeasurement, results
from bottleneck_lab.measure.kinds.data_parallel.judging import _first_other_step
from bottleneck_lab.measure.kinds.data_parallel.protocol import EVENT, EventKind, RankEvent, unpack

LAB = Path(__file__).parents[3] / "labs" / "ddp-scaling"
FABRIC = load_fabric()
COSTS = CostTable(
    "test",
    "made up",
    5.0,
    2,
    10,
    10,
    StandIn(4, (3, 8, 8)),
    [ModuleCost("a", 100_000, 1, 2), ModuleCost("b", 200_000, 1, 2)],
)
SPECS = [
    CriterionSpec("same-training", "correctness", "the same"),
    CriterionSpec("scaling", "target", "at least {target}", 1.8, unit="x"),
    CriterionSpec("overlap-share", "mechanism", "at least {target}", 0.7, unit="share"),
]
FIGURES = RanksMeasurement(
    few=4,
    many=8,
    few_samples_per_s=100,
    many_samples_per_s=190,
    baseline_few_samples_per_s=98,
    baseline_many_samples_per_s=130,
    step_ms=10,
    compute_ms=9,
    communication_ms=4,
    exposed_ms=0.4,
    exchange_ms=3,
    hidden_ms=2.7,
    overlap_share=0.9,
    bytes_per_step=400,
    difference=0.001,
    checked=12,
)


def test_a_bucket_of_the_whole_model_takes_5_ms_between_two_nodes_and_a_fifth_within_one():
    whole = 4 * load_costs(LAB).elements
    assert FABRIC.allreduce_us(whole, Shape(8, 2)) == pytest.approx(4_702, rel=0.01)
    assert FABRIC.allreduce_us(whole, Shape(4, 1)) == pytest.approx(198, rel=0.01)
    assert FABRIC.allreduce_us(whole, Shape(1, 1)) == 0


def test_the_modelled_step_computes_for_20_ms():
    assert load_costs(LAB).compute_us == pytest.approx(19_700, rel=1e-3)


@given(st.integers(1, 10**9), st.integers(2, 4096))
def test_more_bytes_take_longer_and_a_tree_beats_a_ring_only_in_hops(nbytes, ranks):
    shape = FABRIC.whole(ranks)
    assert FABRIC.allreduce_us(nbytes + 1_000_000, shape) > FABRIC.allreduce_us(nbytes, shape)
    if ranks > 64:
        assert FABRIC.allreduce_us(nbytes, shape, "tree") < FABRIC.allreduce_us(nbytes, shape)


def test_a_hop_costs_what_the_link_that_it_crosses_costs():
    inside, between = FABRIC.intra_hop_us, FABRIC.inter_hop_us
    assert FABRIC.spread_us(0, Shape(8, 2)) == 2 * between + 5 * inside
    assert FABRIC.allreduce_us(0, FABRIC.shape([0, 1, 2, 3])) == 2 * 3 * inside
    assert FABRIC.allreduce_us(0, FABRIC.shape([1, 5])) == 2 * between


def test_moments_know_no_scale_and_tell_a_gradient_from_zeros_and_one_number():
    def moments(values):
        sizes = [abs(value) for value in values]
        return Moments(sum(sizes), sum(v**2 for v in sizes), sum(v**4 for v in sizes))

    right = moments([0.1, -0.2, 0.3, 0.05, -0.1])
    assert moments([1024 * v for v in (0.1, -0.2, 0.3, 0.05, -0.1)]).differs_from(right) < 1e-9
    assert moments([0, 0, 0, 0, 0.4]).differs_from(right) > 0.1
    assert moments([0]).differs_from(right) == float("inf")


def test_what_broadcasts_cost_is_said_where_it_counts():
    dear = msgspec.structs.replace(CURVES[0].points[-1], step_ms=180, broadcast_ms=118)
    assert "`broadcast_buffers`" in dear.broadcast_note
    assert "96.8% of the ideal, not 33.3%" in dear.broadcast_note
    assert not msgspec.structs.replace(dear, broadcast_ms=1).broadcast_note


def test_gradients_are_ready_after_the_last_micro_batch_s_backward_not_after_the_first():
    ledger = Ledger(0, COSTS)
    for module in (0, 1, 0, 1):
        ledger.forward(module, 4)
    for module, micro_batch in ((1, 1), (0, 1), (1, 0)):
        ledger.backward(module, 4, micro_batch)
    with pytest.raises(Violation, match="last micro-batch's backward had only computed 200000"):
        ledger.reduces_gradients(0, 300_000)


def test_backward_in_another_order_than_the_graph_s_is_a_wrong_output():
    ledger = Ledger(0, COSTS)
    ledger.forward(0, 4)
    ledger.forward(1, 4)
    with pytest.raises(Violation, match="through a where the graph has b next") as caught:
        ledger.backward(0, 4, 0)
    assert caught.value.reason == "wrong output"


def test_a_micro_batch_that_a_step_does_not_have_is_made_up():
    ledger = Ledger(0, COSTS)
    ledger.forward(0, 4)
    ledger.forward(1, 4)
    with pytest.raises(Violation, match="a micro-batch that a step does not have") as caught:
        ledger.backward(1, 4, COSTS.micro_batches)
    assert caught.value.reason == "tampered"


def test_a_node_and_then_the_nodes_reduce_every_gradient_once_each():
    ledger = Ledger(0, COSTS)
    one_pass(ledger, 0)
    one_pass(ledger, 1)
    assert ledger.reduces_gradients(0, 300_000, 0b1111)
    assert ledger.reduces_gradients(0, 300_000, 0b10001)
    ledger.optimizer()


def test_what_a_node_s_leader_hands_on_is_gradients_once():
    ledger = Ledger(0, COSTS)
    one_pass(ledger, 0)
    one_pass(ledger, 1)
    assert not ledger.hands_on_gradients(0, 300_000)
    for bucket in (200_000, 100_000):
        assert ledger.reduces_gradients(0, bucket, 0b1111)
    for bucket in (200_000, 100_000):
        assert ledger.hands_on_gradients(0, bucket)
        assert not ledger.hands_on_gradients(0, bucket)


def test_communication_runs_beside_compute_and_the_optimizer_waits_for_it():
    clock = RankClock(msgspec.structs.replace(FABRIC, launch_us=0.0))
    clock.launch("backward a", 100)
    clock.communicate("all-reduce", clock.announce(), 250, 10, "float32")
    clock.launch("backward b", 100)
    assert clock.compute_us == 200
    clock.finish_step(50)
    assert clock.step_ends_us == [300]


def test_waiting_for_the_device_stops_the_host_not_the_device():
    clock = RankClock(FABRIC)
    clock.launch("forward a", 1000)
    clock.synchronise("wait for the device")
    assert clock.host_us == 1000 + FABRIC.launch_us + FABRIC.sync_us
    clock.launch("forward b", 10)
    assert clock.spans[-1].start_us == clock.host_us


def intervals():
    return st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda pair: (pair[0], sum(pair))),
        max_size=8,
    )


@given(intervals(), intervals())
def test_cover_agrees_with_counting_ticks(spans, by):
    def ticks(some):
        return {tick for start, end in some for tick in range(start, end)}

    assert covered_us(spans, by) == len(ticks(spans) & ticks(by))
    assert sum(end - start for start, end in merge(spans)) == len(ticks(spans))


def one_pass(ledger, micro_batch, images=4):
    for module in (0, 1):
        ledger.forward(module, images)
    for module in (1, 0):
        ledger.backward(module, images, micro_batch)


def test_gradients_of_the_last_micro_batch_are_enough():
    ledger = Ledger(0, COSTS)
    one_pass(ledger, 0)
    one_pass(ledger, 1)
    assert ledger.reduces_gradients(2, 300_000)
    ledger.optimizer()
    assert ledger.reduced_bytes == [600_000]


def test_statistics_may_travel_with_the_gradients():
    ledger = Ledger(0, COSTS)
    one_pass(ledger, 0)
    one_pass(ledger, 1)
    assert ledger.reduces_gradients(0, 300_000)
    assert ledger.reduces_gradients(0, 15_000)
    ledger.optimizer()


@pytest.mark.parametrize(
    ("elements", "images", "passes", "words"),
    [
        (299_999, 4, 2, "when 99% of the gradients"),
        (0, 4, 2, "when 0% of the gradients"),
        (315_001, 4, 2, "when 106% of the gradients"),
        (300_000, 3, 2, "3 of a micro-batch's 4"),
        (300_000, 8, 1, "on 8 samples at once. Here a micro-batch has 4, and each goes"),
        (300_000, 4, 1, "1 times"),
        (300_000, 4, 3, "backward through b twice for one micro-batch"),
    ],
)
def test_less_or_more_than_the_whole_step_is_a_wrong_output(elements, images, passes, words):
    ledger = Ledger(0, COSTS)
    with pytest.raises(Violation, match=words) as caught:  # noqa: PT012 - which call notices depends on the case
        for number in range(passes):
            one_pass(ledger, number % 2, images)
        ledger.reduces_gradients(0, elements)
        ledger.optimizer()
    assert caught.value.reason == "wrong output"


def test_gradients_cannot_leave_before_backward_made_them():
    ledger = Ledger(0, COSTS)
    one_pass(ledger, 1)
    ledger.forward(0, 4)
    ledger.forward(1, 4)
    ledger.backward(1, 4, 0)
    assert ledger.reduces_gradients(0, 200_000)
    with pytest.raises(Violation, match="backward had only computed 200000") as caught:
        ledger.reduces_gradients(0, 100_000)
    assert caught.value.reason == "tampered"


def test_metrics_and_flags_are_no_gradients():
    ledger = Ledger(0, COSTS)
    one_pass(ledger, 0)
    assert not ledger.reduces_gradients(0, 1)
    assert not ledger.reduces_gradients(4, 300_000)


def test_an_event_survives_the_wire_and_an_unknown_one_does_not():
    event = RankEvent(EventKind.ALLREDUCE, 2, 1, 0, 25_000_000)
    assert len(event.pack()) == EVENT.size
    assert unpack(event.pack()) == event
    with pytest.raises(ValueError, match="255"):
        unpack(b"\xff" * EVENT.size)


def test_a_slower_run_on_few_ranks_is_no_better_start():
    slowed = msgspec.structs.replace(FIGURES, few_samples_per_s=50, many_samples_per_s=130)
    assert slowed.scaling == pytest.approx(130 / 98)
    assert [result.holds for result in results(slowed, SPECS)] == [True, False, True]
    assert any("the shipped script is faster" in line for line in notes(slowed, COSTS))
    assert not any("the shipped script is faster" in line for line in notes(FIGURES, COSTS))


def test_good_figures_hold_and_wrong_training_is_all_that_is_said():
    assert [result.holds for result in results(FIGURES, SPECS)] == [True, True, True]
    wrong = msgspec.structs.replace(FIGURES, problem="rank 3 differs")
    assert [(result.id, result.holds) for result in results(wrong, SPECS)] == [
        ("same-training", False)
    ]


def point(ranks, step_ms, link_ms, source="replayed"):
    return Point(ranks, -(-ranks // 4), step_ms, 60.0, link_ms, ranks * 160 / step_ms * 1e3, source)


CURVES = [
    Sweep(
        "ring",
        [
            point(1, 60, 0),
            point(4, 62, 2, "reducer"),
            point(8, 90, 30, "reducer"),
            point(4096, 300, 240),
        ],
        ["modelled: a link"],
    ),
    Sweep(
        "tree",
        [point(1, 60, 0), point(4, 62, 2), point(8, 90, 30), point(4096, 120, 60)],
        ["modelled: a tree"],
    ),
]


def test_a_point_knows_its_ideal_its_bounds_and_what_amdahl_allows():
    eight, many = CURVES[0].points[2:]
    assert eight.amdahl == pytest.approx(1.5)
    assert eight.efficiency == pytest.approx(1 / 1.5)
    assert (eight.hidden_efficiency, many.hidden_efficiency) == (1.0, 0.25)
    assert eight.exposed_efficiency == pytest.approx(60 / 90)
    assert CURVES[0].speedup(eight) == pytest.approx(8 * 60 / 90)


def test_the_page_draws_the_curve_with_its_bounds_and_its_assumptions():
    from bottleneck_lab.report.page.html import render_html

    page = render_html(title="scaling", scaling=CURVES)
    assert "Emulated device" in page
    assert all(
        line in page for line in ("modelled: a link", "modelled: a tree", "4096", "(Amdahl)")
    )
    assert page.count('class="dot ring replayed"') == 1 + 2
    assert page.count('class="dot ring"') == 2 + 2
    assert all(
        f'class="curve {name}"' in page for name in ("ideal", "hidden", "exposed", "ring", "tree")
    )


def test_the_curve_fits_eighty_columns_and_says_which_points_ran():
    import io

    from rich.console import Console

    from bottleneck_lab.report.console.scaling import render_scaling

    out = io.StringIO()
    render_scaling(CURVES, Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if "*  " in line] == ["4*", "8*"]
    text = " ".join(out.getvalue().split())
    assert "1.50x as fast (Amdahl). On 4096" in text, "hidden or gone is the same there"
    assert "5.00x as fast (Amdahl). Hiding it gains at most 1.25x: the link takes longer" in text


def test_before_the_diagnosis_the_curve_shows_how_fast_it_is_and_not_what_that_is_lost_to():
    import io

    from rich.console import Console

    from bottleneck_lab.report.console.scaling import render_scaling

    out = io.StringIO()
    render_scaling(CURVES, Console(file=out, width=80), blind=True)
    text = out.getvalue()
    assert "4096" in text
    assert "modelled: a link" in text
    for hidden in ("Amdahl", "lost to", "tree", "if all communication"):
        assert hidden not in text


def test_what_only_one_curve_rests_on_says_which():
    shared = [msgspec.structs.replace(c, assumptions=["both", *c.assumptions]) for c in CURVES]
    assert assumptions(shared) == [
        "both",
        "the ring's figures: modelled: a link",
        "the tree's figures: modelled: a tree",
    ]


def test_a_verdict_s_curves_come_back_and_anything_else_is_none():
    assert curves({"curves": msgspec.to_builtins(CURVES)}) == CURVES
    assert curves({}) == curves({"curves": [{"algorithm": "star"}]}) == []


def test_nsys_is_put_around_every_rank_of_the_lab_on_gpus():
    from bottleneck_lab.capture.launchers import split
    from bottleneck_lab.measure.kinds.data_parallel import KIND

    lab = find_lab("ddp-scaling")
    launch = split(KIND.program(lab, "cuda", "nsys"), "python")
    assert launch.rank == "RANK"
    assert launch.around("nsys", "profile")[-4:] == ["nsys", "profile", "python", "train.py"]
    assert "--nproc-per-node=gpu" in launch.launcher
    assert split(KIND.program(lab, "virtual", "nsys"), "python").rank == ""


def test_every_modelled_figure_is_called_so_and_what_is_not_modelled_is_said():
    lines = notes(FIGURES, COSTS)
    assert "10.00 ms per step = 9.00 computing + 0.40 communicating only + 0.60 idle;" in lines[0]
    waits = "3.00 ms of it: 2.70 ms (90%) hidden behind the model's passes and 0.30 ms not"
    assert waits in lines[0]
    units = (" ms", "images/s", "GB/s")
    assert all("modelled" in line for line in lines if any(unit in line for unit in units))
    assert any(line.startswith("not modelled:") for line in lines)
    assert any("4 ranks are one node, 8 ranks are two" in line for line in lines)
    rules = " ".join((LAB / "RULES.md").read_text(encoding="utf-8").split())
    assert all(
        words in rules
        for words in (
            "**Not modelled:**",
            "Four ranks are **one node**",
            "Eight ranks are **two nodes**",
        )
    )
    for criterion in find_lab("ddp-scaling").spec.devices["virtual"].criteria:
        assert criterion.kind == "correctness" or "odelled" in criterion.text


def test_what_a_rank_said_last_is_quoted_from_what_the_terminal_may_show():
    from bottleneck_lab.measure.kinds.data_parallel.session import with_last_words
    from bottleneck_lab.measure.sandbox.process import printable

    log = printable(
        "Traceback …\n⟦Rank 3: train.py, line 2, in wrap: raise\nRuntimeError: no such layer⟧⟦Rank"
        " 0: gone⟧"
    )
    died = Violation("crashed", "Rank 3 of 8 ended before its training was over.")
    assert with_last_words(died, log).sentence.endswith("raise\nRuntimeError: no such layer")
    assert with_last_words(died, "nothing") is died
    late = Violation("timed out", "Rank 1 did not come.")
    assert with_last_words(late, log) is late


@pytest.mark.parametrize(
    ("changed", "crews"), [(False, ["learner"]), (True, ["reference", "learner"])]
)
def test_a_script_as_it_was_shipped_runs_once_and_any_other_beside_it(
    changed, crews, tmp_path, monkeypatch
):
    made = []

    @contextlib.contextmanager
    def crew(_context, role, _trials, *, many_steps):
        assert many_steps == changed
        made.append(role)
        yield role

    monkeypatch.setattr(virtual, "_crew", crew)
    monkeypatch.setattr(virtual, "_runs", lambda _context, _crew, role, *_: {8: role})
    (tmp_path / "train.py").write_text((LAB / "train.py").read_text() + "#" * changed)
    context = SimpleNamespace(lab=find_lab("ddp-scaling"), submission=tmp_path)
    theirs, shipped = virtual.run_both(context, [])
    assert made == crews
    assert (theirs, shipped) == ({8: "learner"}, {8: crews[0]})


@pytest.mark.parametrize(
    ("role", "shipped", "as_one"),
    [
        ("reference", {4: 10.0, 8: 12.0}, 3),
        ("reference", {}, 1),
        ("learner", {4: 10.0, 8: 12.0}, 0),
    ],
)
def test_only_the_shipped_script_trains_as_one_rank(role, shipped, as_one, monkeypatch):
    """Its many steps always do; the steps that are timed only if its times are known."""
    made = []
    monkeypatch.setattr(virtual, "crew", lambda *_, **options: made.append(options))
    costs = msgspec.structs.replace(load_costs(LAB), shipped_samples_per_s=shipped)
    monkeypatch.setattr(virtual, "load_costs", lambda _: costs)
    janitor = SimpleNamespace(folder=LAB)
    context = SimpleNamespace(
        lab=find_lab("ddp-scaling"), submission=LAB, pristine=lambda: LAB, janitor=janitor
    )
    virtual._crew(context, role, [(8, None), (8, None), (4, None)], many_steps=True)
    assert made == [{"many_steps": True, "as_one": as_one}]


MODULES = [SimpleNamespace(name="wide", elements=1000), SimpleNamespace(name="narrow", elements=10)]


def long_run(changes):
    """A run of one rank whose steps changed its parameters so."""
    levels = np.cumsum([np.zeros(1010), *changes], axis=0).astype(np.float32)
    return SimpleNamespace(
        world=1,
        costs=SimpleNamespace(modules=MODULES),
        trained_with=list(levels[:-1]),
        parameters=[levels[-1]],
    )


def test_what_a_step_changed_is_compared_module_by_module_and_as_a_whole():
    rng = np.random.default_rng(0)
    changes = rng.normal(size=(50, 1010))
    reference = long_run(changes)
    assert _first_other_step(long_run(changes), reference) is None

    # Half precision: a little off everywhere, by half where little is left of a gradient.
    coarse = changes + rng.normal(size=changes.shape) * np.repeat([0.02, 0.4], [1000, 10])
    assert _first_other_step(long_run(coarse), reference) is None

    once = changes.copy()
    once[20, 1000:] = 0
    assert "Step 21 on 1 ranks changed the parameters of narrow" in _first_other_step(
        long_run(once), reference
    )
    once[20, :1000] *= 0.8
    assert "Step 21" in _first_other_step(long_run(once), reference)

    always = changes + 0.3 * rng.normal(size=changes.shape)
    assert "Step 1 on 1 ranks changed the parameters otherwise" in _first_other_step(
        long_run(always), reference
    )
