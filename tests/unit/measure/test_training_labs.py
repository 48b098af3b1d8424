"""The labs on the virtual GPU: what a capture of the shipped script shows first, and that each
criterion fails for its own reason alone.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace

import msgspec
import numpy as np
import psutil
import pytest

from bottleneck_lab.analysis.summary import Summary, summarise
from bottleneck_lab.catalog import Lab, load_labs
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import LearnerFault, VerifierFault
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.kinds.training import (
    COUNT_WORK,
    TRAIN,
    TRAIN_ON_HOST,
    TrainingSettings,
    check,
    session,
)
from bottleneck_lab.measure.kinds.training import run as run_module
from bottleneck_lab.measure.kinds.training.judging import wrong_reports
from bottleneck_lab.measure.kinds.training.session import (
    OwnFigures,
    Training,
    collect_training,
    modelled_worker,
)
from bottleneck_lab.measure.lab_rules.mutants import load_mutants, write_mutant
from bottleneck_lab.measure.lab_rules.variants import variants
from bottleneck_lab.measure.sandbox.janitor import Janitor
from bottleneck_lab.measure.submission import collect_pristine
from bottleneck_lab.measure.virtual_gpu.books import Figures
from bottleneck_lab.measure.virtual_gpu.owner import engine_process
from bottleneck_lab.trace import load

from .device_program import run

LABS = [lab for lab in load_labs().values() if lab.spec.measure == "training"]
CRITERIA = [(lab, spec.id) for lab in LABS for spec in lab.spec.devices["virtual"].criteria]
REPEATED = [lab for lab in LABS if kind_of(lab).settings(lab, "virtual").runs > 1]
"""Labs whose shipped script trains on the host, too."""
STEPS = 60


@pytest.fixture
def context_of(tmp_path: Path) -> Iterator[object]:
    with Janitor() as janitor:

        def made(lab: Lab, workspace: Path) -> Context[TrainingSettings]:
            settings = kind_of(lab).settings(lab, "virtual")
            assert isinstance(settings, TrainingSettings)
            return Context(
                lab,
                "virtual",
                settings,
                workspace,
                workspace,
                tmp_path,
                janitor,
                lambda _doing, _share: None,
            )

        yield made


@pytest.fixture(scope="module", params=LABS, ids=lambda lab: lab.slug)
def captured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Lab, Summary]:
    """A lab with the summary of a capture of its shipped script, of ten steps, as `lab profile`
    makes it.
    """
    lab: Lab = request.param
    folder = tmp_path_factory.mktemp(lab.slug)
    for name in lab.spec.files:
        shutil.copy(lab.path / name, folder)
    recipe = (folder / "recipe.py").read_text(encoding="utf-8")
    shorter, changed = re.subn(r"(BATCH, STEPS, LOG_EVERY = \d+), \d+,", r"\1, 10,", recipe)
    assert changed == 1
    (folder / "recipe.py").write_text(shorter, encoding="utf-8")
    with (folder / "train.py").open("a", encoding="utf-8") as script:
        script.write("\n\nimport atexit\n\natexit.register(print, 'goodbye')\n")
    with Janitor() as janitor:
        settings = kind_of(lab).settings(lab, "virtual")
        context = Context(
            lab, "virtual", settings, folder, folder, folder, janitor, lambda *_: None
        )
        lines: list[str] = []
        assert kind_of(lab).profile(context, folder / "trace.json.gz", lines.append) == 0, lines
    assert lines[-1] == "goodbye\n", "what a script does at its end is done"
    return lab, summarise(load(folder / "trace.json.gz"))


@pytest.mark.long
@pytest.mark.parametrize("capacity_mib", [28, 32])
def test_a_run_that_is_out_of_memory_says_so_in_a_backward_as_in_a_forward(
    capacity_mib, context_of
) -> None:
    lab = load_labs()["forecaster-out-of-memory"]
    context = context_of(lab, lab.path)
    context.settings = msgspec.structs.replace(context.settings, run_capacity_mib=capacity_mib)
    lines: list[str] = []
    assert kind_of(lab).run(context, lines.append) == 1
    assert any(line.startswith("torch.OutOfMemoryError: virtual GPU") for line in lines)
    assert any("loss.backward()" in line for line in lines) == (capacity_mib == 32)


def test_a_run_ends_with_what_a_check_measures_of_time_launches_and_memory(
    context_of, monkeypatch
) -> None:
    lab = load_labs()["busy-ensemble"]
    modelled = SimpleNamespace(
        races=[],
        steps=4,
        step_us=[9e3, 9e3, 2e3, 3e3],
        step_launches=[2000, 1300, 1102, 1103],
        peak_bytes=1 << 20,
    )
    books = SimpleNamespace(figures=modelled)
    monkeypatch.setattr(run_module, "_run_modelled", lambda *_, **__: (0, books))
    lines: list[str] = []
    assert kind_of(lab).run(context_of(lab, lab.path), lines.append) == 0
    assert lines == [
        "2.50 ms per step, 1,102.5 operators launched in a step besides copies, at most 1.0 MiB"
        " allocated (modelled: an H200 and its host; a hint, not a verdict)"
    ]


@pytest.mark.long
def test_what_is_taught_is_the_first_finding_of_the_shipped_script(
    captured: tuple[Lab, Summary],
) -> None:
    lab, summary = captured
    assert [finding.id for finding in summary.findings][:1] == [lab.spec.taught]
    assert summary.emulated


@pytest.mark.long
@pytest.mark.parametrize("no_grad", [False, True], ids=["as shipped", "held-out without graphs"])
def test_blocks_times_their_size_are_the_memory_that_a_report_tells(
    no_grad, context_of, tmp_path: Path
) -> None:
    """In the capture of a whole run, where each report has garbage collected."""
    lab = load_labs()["forecaster-out-of-memory"]
    folder = tmp_path / "work"
    shutil.copytree(lab.path, folder)
    script = (lab.path / "train.py").read_text(encoding="utf-8")
    held_out = "        held_out.append("
    if no_grad:
        script = script.replace(held_out, f"        with torch.no_grad():\n    {held_out}")
    (folder / "train.py").write_text(script, encoding="utf-8")
    trace = tmp_path / "trace.json.gz"
    lines: list[str] = []
    assert kind_of(lab).profile(context_of(lab, folder), trace, lines.append) == 0, lines
    (use,) = summarise(load(trace)).memory
    assert use.growth_bytes_per_step == (40 << 10 if no_grad else 732 << 10)
    assert use.late_bytes // (use.period_steps - 1) == (704 << 10 if no_grad else 352 << 10)
    rows = [row for row in use.holders if row.a_step.kept or row.a_step.freed_late]
    late = [row for row in rows if row.a_step.freed_late]
    assert all(row.smallest_bytes == row.largest_bytes for row in late)
    assert sum(row.a_step.freed_late * row.largest_bytes for row in late) == (
        use.late_bytes // (use.period_steps - 1)
    )
    # Two that `forecast` keeps have two sizes.
    sizes = [(row.smallest_bytes + row.largest_bytes) / 2 for row in rows]
    assert sum(row.a_step.kept * size for row, size in zip(rows, sizes, strict=True)) == (
        use.growth_bytes_per_step
    )
    (gradients,) = [row.a_step for row in use.holders if row.a_step.freed_in_next]
    assert (gradients.freed_in_next, gradients.freed_late) == (6, 0)


@pytest.mark.long
def test_the_capture_has_what_the_questions_ask_for(captured: tuple[Lab, Summary]) -> None:
    lab, summary = captured
    if lab.spec.taught == "sync-stalls":
        waits = [row for row in summary.syncs if row.line]
        assert waits, "every wait has its line"
        assert all(row.awaited_line for row in waits if row.awaited)
    if lab.spec.taught == "memory-growth":
        (use,) = summary.memory
        assert use.growth_bytes_per_step > 0.01 * use.peak_bytes
    assert all(row.line.startswith(("train.py(", "recipe.py(")) for row in summary.lines)


def trained(**changed: object) -> Training:
    """One training that meets every criterion of every lab, but for what is changed."""
    usual = {
        "total_us": 4000.0,
        "step_us": [100.0] * STEPS,
        "step_launches": [50] * STEPS,
        "waits": 6,
        "step_waits": [int(step % 10 == 9) for step in range(STEPS)],
        "setup_waits": 0,
        "report_waits": [1, 2, 3, 4, 5, 6],
        "returned_bytes": 1000,
        "lives": [],
        "flops": 1e9,
        "useful_flops": 1e9,
        "step_flops": [step * 1e9 / STEPS for step in range(STEPS)],
        "report_flops": [step * 1e9 / STEPS for step in range(10, STEPS + 1, 10)],
        "peak_bytes": 2 << 20,
        "reserved_bytes": 4 << 20,
        "step_bytes": [1 << 20] * STEPS,
        "steps": STEPS,
    }
    reports = [(step, {"loss": 1.0 / step}) for step in range(10, STEPS + 1, 10)]
    parameters = {"weight": np.arange(4.0) + 1}
    figures = Figures(**{key: value for key, value in (usual | changed).items() if key in usual})
    return Training(changed.get("reports", reports), changed.get("parameters", parameters), figures)


BREAKS = {
    "right-reports": {
        "reports": [(step, {"loss": 1.01 / step}) for step in range(10, STEPS + 1, 10)]
    },
    "right-parameters": {"parameters": {"weight": np.array([1.0, 2.0, 3.0, 4.1])}},
    "step-speedup": {"step_us": [5000.0] * STEPS},
    "waits-per-interval": {"report_waits": [1, 2, 3, 5, 6, 7], "waits": 7},
    "launches-per-step": {"step_launches": [300] * STEPS},
    "peak-mib": {"peak_bytes": 5 << 20},
    "kept-tensors": {"lives": [(step, STEPS, 1, "", "") for step in range(1, STEPS)]},
    "growth-kib-per-step": {"step_bytes": [(1 << 20) + (step << 10) for step in range(STEPS)]},
}
"""What breaks a criterion, and no other."""
SHIPPED = trained(step_us=[500.0] * STEPS)


def failed(
    context: Context[TrainingSettings], yours: Training, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The criteria that a training fails, beside a shipped one that takes 500 µs a step."""
    monkeypatch.setattr(check, "_is_shipped", lambda _context: False)
    monkeypatch.setattr(check, "train_both", lambda *_: (pair for pair in [(yours, SHIPPED)]))
    monkeypatch.setattr(Context, "pristine", lambda context: context.workspace)
    return [result.id for result in check.measure(context).results if result.holds is False]


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.slug)
def test_what_is_still_as_shipped_trains_once(lab, context_of, tmp_path, monkeypatch) -> None:
    context, trained_with = context_of(lab, tmp_path / "submission"), list[Path]()
    collect_pristine(lab, context.submission)
    monkeypatch.setattr(
        check, "train_trusted", lambda _, folder, __: trained_with.append(folder) or SHIPPED
    )
    assert check.measure(context).speedup == 1.0
    assert trained_with == [context.pristine()]
    entry = context.submission / lab.spec.entry
    entry.write_text(entry.read_text() + "\n# mine\n")
    assert not check._is_shipped(context)


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.slug)
@pytest.mark.parametrize(("broken", "needed"), [(False, 3), (True, 1)], ids=["right", "wrong"])
def test_only_work_that_has_not_failed_is_trained_again(
    lab, broken, needed, context_of, tmp_path, monkeypatch
) -> None:
    trainings = []

    def pairs(*_):
        for seed in range(3):
            trainings.append(seed)
            yield trained(**BREAKS["right-reports"] if broken else {}), SHIPPED

    monkeypatch.setattr(check, "_is_shipped", lambda _context: False)
    monkeypatch.setattr(check, "train_both", pairs)
    monkeypatch.setattr(Context, "pristine", lambda context: context.workspace)
    check.measure(context_of(lab, tmp_path))
    assert len(trainings) == needed


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.slug)
def test_a_right_training_fails_nothing(lab, context_of, tmp_path, monkeypatch) -> None:
    assert failed(context_of(lab, tmp_path), trained(), monkeypatch) == []


@pytest.mark.parametrize(
    ("lab", "criterion"), CRITERIA, ids=lambda part: getattr(part, "slug", part)
)
def test_each_criterion_fails_alone(lab, criterion, context_of, tmp_path, monkeypatch) -> None:
    assert failed(context_of(lab, tmp_path), trained(**BREAKS[criterion]), monkeypatch) == [
        criterion
    ]


@pytest.mark.parametrize(
    ("lab", "criterion"), CRITERIA, ids=lambda part: getattr(part, "slug", part)
)
def test_each_criterion_has_a_wrong_fix_that_it_must_catch(lab, criterion) -> None:
    assert criterion in {mutant.criterion for mutant in load_mutants(lab, "virtual")}


@pytest.mark.parametrize(
    "less",
    [
        {"steps": STEPS - 1},
        {"useful_flops": 0.5e9},
        {"step_flops": [1e9] * STEPS},
        {"returned_bytes": 40_000},
    ],
    ids=["a batch left out", "work left out", "work before the steps", "values sent back"],
)
def test_work_that_the_device_did_not_do_is_refused(
    less, context_of, tmp_path, monkeypatch
) -> None:
    with pytest.raises(check.LearnerFault, match=r"batches were used|arithmetic|sent back"):
        failed(context_of(LABS[0], tmp_path), trained(**less), monkeypatch)


@pytest.mark.parametrize("useful", [0.0, 0.2e9])
def test_a_right_training_that_returns_another_model_is_told_that(
    useful, context_of, tmp_path, monkeypatch
) -> None:
    other = trained(useful_flops=useful, **BREAKS["right-parameters"])
    context = context_of(LABS[0], tmp_path)
    monkeypatch.setattr(check, "_is_shipped", lambda _context: False)
    monkeypatch.setattr(check, "train_both", lambda *_: (pair for pair in [(other, SHIPPED)]))
    monkeypatch.setattr(Context, "pristine", lambda context: context.workspace)
    (wrong,) = [each for each in check.measure(context).results if each.holds is False]
    assert wrong.id == "right-parameters"
    assert "weight differs" in wrong.sentence
    assert "return the model that was trained" in wrong.sentence


ON_HOST = """
from bottleneck_lab.measure.kinds.training.child import Program, use_size_of

use_size_of("virtual")
program = Program(Path(sys.argv[2]), "virtual", driver, steps=10)
reports = [program.train(3)[0]]
for secret in (77, 78):
    with program.on_host(secret):
        reports.append(program.train(3)[0])
print(json.dumps(reports))
"""


@pytest.mark.parametrize("lab", REPEATED, ids=lambda lab: lab.slug)
def test_a_training_on_the_host_is_that_on_a_device_with_the_same_secret(lab, tmp_path) -> None:
    (device, host, other), _ = run(ON_HOST, tmp_path, str(lab.path / lab.spec.entry), secret=77)
    assert device
    assert wrong_reports(host, device, 1e-6) is None
    assert wrong_reports(other, device, 1e-4)


@pytest.mark.parametrize("smaller", [False, True])
def test_the_shipped_script_is_on_its_device_once_and_then_on_the_host(
    monkeypatch, smaller
) -> None:
    begun = []

    class Worker:
        def __init__(self, role: str) -> None:
            self.role = role
            self.session = SimpleNamespace(hand_over=lambda call: begun.append((role, *call[:2])))

        def begin(self, run: session.Run) -> None:
            begun.append((self.role, run.seed, TRAIN))
            assert run.smaller == (smaller and run.seed != 5)

        def end(self) -> Training:
            begun.append((self.role, "ended"))
            return SHIPPED

    monkeypatch.setattr(
        session, "_trusted_worker", lambda *_, **__: nullcontext((Worker("reference"), [None]))
    )
    monkeypatch.setattr(session, "modelled_worker", lambda _, role, *__: nullcontext(Worker(role)))
    on_host = replace(trained(reports=[(10, {"loss": 2.0})]), figures=None)
    monkeypatch.setattr(session, "collect_training", lambda *_: on_host)
    context = SimpleNamespace(
        pristine=Path,
        submission=Path(),
        progress=lambda *_: None,
        rng=Random(0),
        settings=TrainingSettings(smaller=smaller),
    )
    assert list(session.train_both(context, [5, 6, 7])) == [
        (SHIPPED, SHIPPED),
        (SHIPPED, on_host),
        (SHIPPED, on_host),
    ]
    assert [each[1:] for each in begun if each[0] == "reference"] == [
        (5, TRAIN),
        ("ended",),
        (6, TRAIN_ON_HOST),
        (7, TRAIN_ON_HOST),
    ]
    ended = begun.index(("reference", "ended"))
    assert ("learner", 6, TRAIN) in begun[:ended], "nobody waits for the slower of the two"


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("raise ValueError('no tagger here')", "crashed: .*ValueError: no tagger here"),
        ("import os\nos._exit(3)", "crashed: the other side closed the channel"),
    ],
)
def test_a_shipped_script_that_fails_is_the_verifier_s_fault(
    code, detail, context_of, tmp_path, capfd
) -> None:
    (lab,) = (lab for lab in LABS if lab.slug == "stuttering-tagger")
    context = context_of(lab, tmp_path / "submission")
    collect_pristine(lab, context.submission)
    (context.pristine() / lab.spec.entry).write_text(code)
    with pytest.raises(VerifierFault, match=f"(?s)The shipped code failed .*{detail}"):
        next(session.train_both(context, [1]))
    assert capfd.readouterr() == ("", ""), "its traceback is in the verdict, not on the terminal"


def test_later_trainings_have_no_work_to_compare() -> None:
    settings = TrainingSettings()
    idle = trained(useful_flops=0.0)
    check._refuse_pair(idle, replace(SHIPPED, figures=None), settings)
    with pytest.raises(LearnerFault, match="arithmetic"):
        check._refuse_pair(idle, SHIPPED, settings)


@pytest.mark.parametrize(
    ("reason", "again", "raised", "trainings"),
    [
        ("wrong output", "wrong output", LearnerFault, 2),
        ("wrong output", None, VerifierFault, 2),
        ("crashed", None, LearnerFault, 1),
    ],
)
def test_a_fault_that_does_not_recur_is_nobody_s(
    monkeypatch, reason, again, raised, trainings
) -> None:
    """A right script was FAIL once, for a NaN in the second of its trainings that came up in none
    of 200 others.
    """
    begun, ends = [], iter([reason, again])

    class Worker:
        def begin(self, run: session.Run) -> None:
            begun.append(run)

        def end(self) -> Training:
            if (wrong := next(ends)) is not None:
                raise LearnerFault(wrong, "A report's max_grad_norm is nan.")
            return SHIPPED

    reference = SimpleNamespace(begin=lambda _: None, end=lambda: SHIPPED)
    monkeypatch.setattr(
        session, "_trusted_worker", lambda *_, **__: nullcontext((reference, [None]))
    )
    monkeypatch.setattr(session, "engine_processes", lambda count: nullcontext((None,) * count))
    monkeypatch.setattr(session, "modelled_worker", lambda *_: nullcontext(Worker()))
    context = SimpleNamespace(
        pristine=Path,
        submission=Path(),
        progress=lambda *_: None,
        rng=Random(0),
        settings=TrainingSettings(),
    )
    with pytest.raises(raised, match="max_grad_norm is nan"):
        list(session.train_both(context, [5, 6]))
    assert len(begun) == trainings
    assert len(set(begun)) == 1, "the same data and the same start"


def test_a_shipped_script_that_never_ends_ends_with_a_killed_verifier(tmp_path: Path) -> None:
    lab = load_labs()["busy-ensemble"]
    folder = shutil.copytree(lab.path, tmp_path / "shipped")
    (folder / "train.py").write_text(
        "import os\n\nprint(os.getpid(), file=open('began', 'w'))\nwhile True:\n    pass\n",
        encoding="utf-8",
    )
    verifier = textwrap.dedent(
        f"""
        from pathlib import Path

        from bottleneck_lab.catalog import load_labs
        from bottleneck_lab.measure.context import Context
        from bottleneck_lab.measure.kinds.registry import kind_of
        from bottleneck_lab.measure.kinds.training.session import train_trusted
        from bottleneck_lab.measure.sandbox.janitor import Janitor

        lab, folder = load_labs()["{lab.slug}"], Path({str(folder)!r})
        settings = kind_of(lab).settings(lab, "virtual")
        with Janitor() as janitor:
            context = Context(
                lab, "virtual", settings, folder, folder, folder, janitor, lambda *_: None
            )
            train_trusted(context, folder, 1)
        """
    )
    began = folder / "began"
    with subprocess.Popen([sys.executable, "-c", verifier]) as process:
        try:
            while process.poll() is None and not (began.exists() and began.read_text()):
                time.sleep(0.05)
            shipped = psutil.Process(int(began.read_text()))
        finally:
            process.kill()
    left = psutil.wait_procs([shipped], timeout=10)[1]
    for one in left:
        one.kill()
    assert left == []


def test_made_up_figures_are_complete() -> None:
    assert set(msgspec.structs.asdict(SHIPPED.figures)) == {
        field.name for field in msgspec.structs.fields(Figures)
    }


def counted(context: Context[TrainingSettings], files: Path) -> OwnFigures:
    """Return what a check on `cuda` counts of these files, on a device whose operators pass the
    dispatcher as those of `cuda` do.
    """
    collect_pristine(context.lab, context.submission, files)
    with (
        engine_process() as engine,
        modelled_worker(context, "learner", context.submission, engine) as worker,
    ):
        worker.session.wait_ready()
        engine.begin(worker.gpu)
        engine.wait_started()
        began = worker.session.hand_over([1, COUNT_WORK])
        return collect_training(worker.session, began).own_figures


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.slug)
def test_right_work_keeps_the_host_idle_and_trainings_on_the_host_do_not(
    lab, context_of, tmp_path
) -> None:
    context = context_of(lab, tmp_path / "submission")
    needed, most = counted(context, lab.path).work, context.settings.most_host_work
    for folder in (lab.solution, *variants(lab, "cuda")):
        check.refuse_work_on_the_host(counted(context, folder).host_work, needed, most)
    wrong = [each for each in load_mutants(lab) if each.id.startswith("trains-on-the-host")]
    for number, mutant in enumerate(wrong):
        write_mutant(lab, mutant, tmp_path / str(number))
        host_work = counted(context, tmp_path / str(number)).host_work
        with pytest.raises(check.LearnerFault, match="The host did"):
            check.refuse_work_on_the_host(host_work, needed, most)
    assert wrong
