"""Starting, resetting and recording: nothing of the learner's is ever lost."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from bottleneck_lab import catalog
from bottleneck_lab.catalog import FailReason
from bottleneck_lab.errors import ExitCode, MachineError, UsageError
from bottleneck_lab.grading.verdict import (
    WHEN_QUIET,
    CriterionResult,
    Outcome,
    Prediction,
    Standing,
    Verdict,
)
from bottleneck_lab.workspace import atomic, captures, next_step, progress
from bottleneck_lab.workspace.attempts import (
    Attempt,
    latest_pass,
    load_attempts,
    record,
    submission,
)
from bottleneck_lab.workspace.captures import find_capture, locked_folder, make_capture, new_folder
from bottleneck_lab.workspace.commitments import (
    commit,
    hides_remedies_at,
    is_blind,
    is_blind_at,
    load_record,
    note_revealed,
    note_solution_taken,
)
from bottleneck_lab.workspace.diagnosis_file import load_answers, save_answers
from bottleneck_lab.workspace.folder import Workspace, find_workspace, open_workspace
from bottleneck_lab.workspace.hints import load_hints, take_hint
from bottleneck_lab.workspace.lock import locked
from bottleneck_lab.workspace.looks import load_looks, note_report, note_run
from bottleneck_lab.workspace.standing import is_copied
from bottleneck_lab.workspace.start import (
    describe_given,
    given_edited,
    reset_workspace,
    start_workspace,
    take_solution,
)

MINI = Path(__file__).parents[2] / "integration" / "mini"
KILLED = """
import os, sys
from pathlib import Path
from bottleneck_lab import catalog
from bottleneck_lab.workspace import atomic, start

written = []
def write_some(path, data, **options):
    if len(written) == 2:
        os._exit(9)
    written.append(path)
    atomic.write_bytes(path, data, **options)

start.write_bytes = write_some
start.start_workspace(catalog.find_lab("slow"), Path(sys.argv[1]), "cpu")
"""
"""A start that ends after two files."""


@pytest.fixture
def content(tmp_path, monkeypatch):
    """A copy of the miniature course, which a test may change."""
    copy = tmp_path / "content"
    shutil.copytree(MINI, copy)
    monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(copy))
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "hôme"))
    catalog.load_labs.cache_clear()
    yield copy
    catalog.load_labs.cache_clear()


@pytest.fixture
def workspace(content, tmp_path) -> Workspace:
    return start_workspace(catalog.find_lab("slow"), tmp_path / "my work é", "cpu")[0]


def make_verdict(
    outcome: Outcome = Outcome.FAIL,
    predicted: float | None = None,
    reason: FailReason = "correct but slow",
) -> Verdict:
    return Verdict(
        outcome=outcome,
        reason=reason if outcome is Outcome.FAIL else None,
        summary="1.02 times as fast; 2 are asked for.",
        lab="slow",
        lab_hash="0" * 64,
        submission_hash="1" * 64,
        device="cpu",
        criteria=[
            CriterionResult(
                id="speedup",
                kind="target",
                holds=False,
                sentence="Short of the target.",
                value=1.02,
            )
        ],
        environment={},
        isolation={},
        started_at="2026-11-21T09:00:00Z",
        duration_s=1.5,
        prediction=Prediction(predicted, None) if predicted else None,
    )


def check_once(workspace: Workspace, outcome: Outcome = Outcome.FAIL) -> int:
    with workspace.working("lab check"), submission(workspace, workspace.lab) as folder:
        return record(workspace, make_verdict(outcome), folder).number


def leftovers(root: Path) -> list[str]:
    return [
        path.name for path in root.rglob("*") if path.name.startswith((".writing-", ".running-"))
    ]


class TestStart:
    def test_copies_what_the_lab_hands_out_and_never_the_judge(self, workspace):
        names = sorted(path.name for path in workspace.root.iterdir())
        assert names == [".lab", "README.md", "diagnosis.toml", "work.py"]

    def test_records_what_it_was_started_from(self, workspace):
        info = open_workspace(workspace.root).info
        assert (info.lab, info.device, info.lab_hash) == (
            "slow",
            "cpu",
            workspace.lab.content_hash(),
        )
        assert (
            info.files["work.py"]
            == hashlib.sha256((workspace.root / "work.py").read_bytes()).hexdigest()
        )

    def test_again_in_the_same_folder_changes_nothing(self, workspace):
        (workspace.root / "work.py").write_text("mine")
        again, new = start_workspace(workspace.lab, workspace.root, "cpu")
        assert not new
        assert (again.root / "work.py").read_text() == "mine"

    def test_uses_an_empty_folder_in_place(self, content, tmp_path):
        empty = tmp_path / "empty"
        empty.mkdir()
        inode = empty.stat().st_ino
        start_workspace(catalog.find_lab("slow"), empty, "cpu")
        assert empty.stat().st_ino == inode

    @pytest.mark.parametrize("name", ["notes.txt", ".hidden"])
    def test_refuses_a_folder_that_holds_something_else(self, content, tmp_path, name):
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / name).write_text("mine")
        with pytest.raises(UsageError, match="not empty"):
            start_workspace(catalog.find_lab("slow"), tmp_path / "full", "cpu")
        assert [path.name for path in (tmp_path / "full").iterdir()] == [name]

    def test_refuses_a_file(self, content, tmp_path):
        (tmp_path / "file").write_text("mine")
        with pytest.raises(UsageError, match="is a file"):
            start_workspace(catalog.find_lab("slow"), tmp_path / "file", "cpu")

    def test_refuses_the_workspace_of_another_lab(self, workspace):
        with pytest.raises(UsageError, match="already holds the lab 'slow'"):
            start_workspace(catalog.find_lab("wrong"), workspace.root, "cpu")

    def test_goes_on_after_a_start_that_was_killed(self, content, tmp_path):
        root = tmp_path / "killed"
        assert (
            subprocess.run([sys.executable, "-c", KILLED, str(root)], check=False).returncode == 9
        )
        assert (root / ".lab").is_dir()
        assert not (root / ".lab" / "workspace.json").exists()
        found, new = start_workspace(catalog.find_lab("slow"), root, "cpu")
        assert new
        assert sorted(path.name for path in found.state.iterdir()) == ["workspace.json"]

    def test_takes_back_what_it_made_when_the_disk_is_full(self, content, tmp_path, full_disk):
        full_disk(after=2)
        with pytest.raises(MachineError, match="No space left"):
            start_workspace(catalog.find_lab("slow"), tmp_path / "new", "cpu")
        assert not (tmp_path / "new").exists()


@pytest.fixture
def full_disk(monkeypatch):
    """Let so many writes through; from then on the disk is full."""

    def fill(after: int) -> None:
        left = [after]

        def write_new(path, data, mode):
            if left[0] == 0:
                path.write_bytes(data[: len(data) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            left[0] -= 1
            real(path, data, mode)

        real = atomic._write_new
        monkeypatch.setattr(atomic, "_write_new", write_new)

    return fill


class TestFind:
    def test_a_folder_below_belongs_to_the_workspace(self, workspace):
        below = workspace.root / "some" / "where"
        below.mkdir(parents=True)
        assert find_workspace(below).root == workspace.root

    def test_outside_says_how_to_begin(self, content, tmp_path):
        with pytest.raises(UsageError, match="no lab in this folder") as caught:
            find_workspace(tmp_path)
        assert "lab list" in caught.value.remedy
        assert caught.value.exit_code == ExitCode.USAGE

    def test_of_another_format_is_named(self, workspace):
        file = workspace.state / "workspace.json"
        file.write_text(file.read_text().replace('"schema": 1', '"schema": 7'))
        with pytest.raises(UsageError, match="its format is 7"):
            open_workspace(workspace.root)

    def test_that_is_damaged_names_the_file(self, workspace):
        (workspace.state / "workspace.json").write_text("{")
        with pytest.raises(MachineError, match=r"workspace\.json"):
            open_workspace(workspace.root)

    def test_of_a_lab_that_is_gone_suggests_a_near_one(self, workspace, content):
        course = content / "labs" / "course.toml"
        course.write_text(course.read_text().replace('"slow"', '"slower"'))
        (content / "labs" / "slow").rename(content / "labs" / "slower")
        catalog.load_labs.cache_clear()
        with pytest.raises(UsageError, match="no lab called 'slow'") as caught:
            _ = open_workspace(workspace.root).lab
        assert "slower" in caught.value.remedy


class TestReset:
    def test_brings_back_the_shipped_files_and_keeps_the_edited_ones(self, workspace):
        shipped = (workspace.root / "work.py").read_bytes()
        (workspace.root / "work.py").write_text("mine")
        kept = reset_workspace(workspace)
        assert (workspace.root / "work.py").read_bytes() == shipped
        assert kept is not None
        assert [path.name for path in kept.iterdir()] == ["work.py"]
        assert (kept / "work.py").read_text() == "mine"

    def test_twice_in_one_second_keeps_both(self, workspace):
        kept = []
        for text in ("first", "second"):
            (workspace.root / "work.py").write_text(text)
            kept.append(reset_workspace(workspace))
        assert [(folder / "work.py").read_text() for folder in kept] == ["first", "second"]

    def test_without_an_edit_keeps_nothing(self, workspace):
        assert reset_workspace(workspace) is None
        assert not (workspace.state / "kept").exists()

    def test_brings_back_a_deleted_file(self, workspace):
        (workspace.root / "work.py").unlink()
        assert reset_workspace(workspace) is None
        assert (workspace.root / "work.py").is_file()

    def test_leaves_other_files_history_and_hints_alone(self, workspace):
        (workspace.root / "notes.md").write_text("mine")
        take_hint(workspace)
        check_once(workspace)
        reset_workspace(workspace)
        assert (workspace.root / "notes.md").read_text() == "mine"
        assert len(load_hints(workspace)) == 1
        assert len(load_attempts(workspace)) == 1

    def test_on_a_full_disk_replaces_nothing_that_it_could_not_keep(self, workspace, monkeypatch):
        (workspace.root / "work.py").write_text("mine")

        def refuse(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

        monkeypatch.setattr(Path, "write_bytes", refuse)
        with pytest.raises(MachineError, match="No space left"):
            reset_workspace(workspace)
        assert (workspace.root / "work.py").read_text() == "mine"


class TestChangedLab:
    @pytest.fixture
    def changed(self, workspace, content):
        readme = content / "labs" / "slow" / "README.md"
        readme.write_text(readme.read_text() + "\nOne more thing.\n")
        return workspace

    def test_is_detected_and_explained(self, workspace, changed):
        with pytest.raises(UsageError, match="another version of 'slow'") as caught:
            changed.require_current()
        assert "lab reset --update" in caught.value.remedy

    def test_a_judge_may_change_under_a_learner(self, workspace, content):
        judge = content / "labs" / "slow" / "judge.py"
        judge.write_text(judge.read_text() + "\nLIMIT = 1\n")
        workspace.require_current()

    def test_says_both_versions(self, workspace, content):
        spec = content / "labs" / "slow" / "lab.toml"
        spec.write_text("version = 2\n" + spec.read_text())
        catalog.load_labs.cache_clear()
        assert "version 1 then, 2 now" in (workspace.changed_lab() or "")

    def test_update_follows_the_lab_and_leaves_the_edits(self, changed):
        (changed.root / "work.py").write_text("mine")
        assert reset_workspace(changed, update_only=True) is None
        assert (changed.root / "work.py").read_text() == "mine"
        assert "One more thing" in (changed.root / "README.md").read_text()
        open_workspace(changed.root).require_current()

    def test_an_unchanged_one_is_not_complained_about(self, workspace):
        workspace.require_current()


class TestSolution:
    def test_takes_the_place_of_the_learners_files_which_are_kept(self, workspace):
        (workspace.root / "work.py").write_text("mine")
        kept = take_solution(workspace)
        assert (workspace.root / "work.py").read_bytes() == (
            workspace.lab.solution / "work.py"
        ).read_bytes()
        assert (workspace.root / "diagnosis.toml").read_bytes() == (
            workspace.lab.solution / "diagnosis.toml"
        ).read_bytes()
        assert kept is not None
        assert (kept / "work.py").read_text() == "mine"

    def test_a_file_of_the_labs_own_that_was_edited_is_named_and_brought_back(self, tmp_path):
        workspace, _ = start_workspace(
            catalog.load_labs()["stuttering-tagger"], tmp_path / "tagger", "virtual"
        )
        assert describe_given(workspace, "…") == ""
        recipe = workspace.root / "recipe.py"
        recipe.write_text("LAYERS = 1\n")
        (workspace.root / "README.md").write_text("my notes")
        (workspace.root / "train.py").write_text("mine")
        assert given_edited(workspace) == ["recipe.py"]
        assert describe_given(workspace, "the check used the lab's") == (
            "recipe.py differs from the lab's: the check used the lab's. `lab reset --update`"
            " brings the lab's back."
        )
        kept = take_solution(workspace)
        assert (kept / "recipe.py").read_text() == "LAYERS = 1\n"
        assert recipe.read_bytes() == (workspace.lab.path / "recipe.py").read_bytes()
        recipe.unlink()
        reset_workspace(workspace, update_only=True)
        assert not given_edited(workspace)

    def test_answers_that_were_given_stay(self, workspace):
        save_answers(workspace, {"cause": "memory bandwidth"})
        take_solution(workspace)
        answers = load_answers(workspace.root)
        assert answers["cause"] == "memory bandwidth"
        assert answers["gain"] == load_answers(workspace.lab.solution)["gain"], "it was open"


class TestAttempts:
    def test_are_numbered_without_gaps_with_what_was_submitted(self, workspace):
        for number in (1, 2, 3):
            (workspace.root / "work.py").write_text(f"# {number}")
            assert check_once(workspace) == number
        attempts = load_attempts(workspace)
        assert [attempt.number for attempt in attempts] == [1, 2, 3]
        assert [(attempt.submission / "work.py").read_text() for attempt in attempts] == [
            "# 1",
            "# 2",
            "# 3",
        ]
        assert attempts[0].verdict == make_verdict()

    def test_hold_what_was_there_when_the_check_began(self, workspace):
        (workspace.root / "work.py").write_text("before")
        with workspace.working("lab check"), submission(workspace, workspace.lab) as folder:
            (workspace.root / "work.py").write_text("after")
            attempt = record(workspace, make_verdict(), folder)
        assert (attempt.submission / "work.py").read_text() == "before"

    def test_a_check_that_raises_leaves_nothing(self, workspace):
        with (
            pytest.raises(KeyboardInterrupt),
            workspace.working("lab check"),
            submission(workspace, workspace.lab),
        ):
            raise KeyboardInterrupt
        assert not list(workspace.attempts.iterdir())

    def test_a_submission_whose_verdict_never_came_is_replaced(self, workspace):
        check_once(workspace)
        (workspace.attempts / "0002").mkdir()
        (workspace.attempts / "0002" / "stale").touch()
        assert check_once(workspace) == 2
        assert not (workspace.attempts / "0002" / "stale").exists()

    def test_a_full_disk_loses_no_earlier_one(self, workspace, full_disk):
        check_once(workspace)
        full_disk(after=0)
        with pytest.raises(MachineError, match="No space left"):
            check_once(workspace)
        assert [attempt.number for attempt in load_attempts(workspace)] == [1]
        assert not leftovers(workspace.root)

    def test_a_missing_file_is_named_with_the_remedy(self, workspace):
        (workspace.root / "work.py").unlink()
        with pytest.raises(UsageError, match=r"work\.py cannot be read") as caught:
            check_once(workspace)
        assert "lab reset" in caught.value.remedy

    def test_a_pipe_in_the_place_of_a_file_does_not_block(self, workspace):
        (workspace.root / "work.py").unlink()
        os.mkfifo(workspace.root / "work.py")
        with pytest.raises(UsageError, match="is not a file"):
            check_once(workspace)

    def test_a_link_is_not_followed_to_what_only_the_checker_may_read(self, workspace, tmp_path):
        (tmp_path / "secret").write_text("not theirs")
        for name in ("diagnosis.toml", "work.py"):
            (workspace.root / name).unlink(missing_ok=True)
            (workspace.root / name).symlink_to(tmp_path / "secret")
            with pytest.raises(UsageError, match="cannot be read"):
                check_once(workspace)

    def test_a_link_in_the_place_of_a_lock_is_not_written_through(self, workspace, tmp_path):
        (tmp_path / "theirs").write_text("mine")
        (workspace.state / "work.lock").unlink(missing_ok=True)
        (workspace.state / "work.lock").symlink_to(tmp_path / "theirs")
        with pytest.raises(MachineError, match="cannot be written"):
            check_once(workspace)
        assert (tmp_path / "theirs").read_text() == "mine"

    def test_an_enormous_file_is_refused(self, workspace):
        with (workspace.root / "work.py").open("wb") as file:
            file.truncate(9 * 2**20)
        with pytest.raises(UsageError, match="larger than 8 MiB"):
            check_once(workspace)

    def test_a_damaged_verdict_names_its_file(self, workspace):
        check_once(workspace)
        (workspace.attempts / "0001.json").write_text("{}")
        with pytest.raises(MachineError, match=r"0001\.json"):
            load_attempts(workspace)


class TestCaptures:
    def test_appear_complete_and_numbered(self, workspace):
        for tool in ("torch", "nsys"):
            make_capture(workspace, tool, lambda out: (out / "capture.json").write_text("{}"))
        assert [path.name for path in sorted(workspace.captures.iterdir())] == [
            "0001-torch",
            "0002-nsys",
        ]
        assert find_capture(workspace).name == "0002-nsys"
        assert find_capture(workspace, "1").name == "0001-torch"
        with pytest.raises(UsageError, match="no capture '3'"):
            find_capture(workspace, "3")

    def test_one_that_fails_leaves_nothing(self, workspace):
        def fail(out):
            (out / "half").touch()
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            make_capture(workspace, "torch", fail)
        assert not list(workspace.captures.iterdir())

    def test_none_yet_says_how_to_make_one(self, workspace):
        with pytest.raises(UsageError) as caught:
            find_capture(workspace)
        assert "lab profile" in caught.value.remedy


class TestHints:
    def test_come_one_by_one_and_end(self, workspace):
        assert [take_hint(workspace) for _ in range(3)] == [0, 1, None]
        assert [hint.index for hint in load_hints(workspace)] == [0, 1]


class TestLocks:
    def test_a_second_check_is_told_who_is_at_work(self, workspace):
        with (
            workspace.working("lab check"),
            pytest.raises(MachineError, match=r"lab check \(process \d+\)"),
            workspace.working("lab check", wait=False),
        ):
            pass

    def test_a_second_check_waits_and_says_so(self, workspace):
        told, order = [], []
        entered, waiting = threading.Event(), threading.Event()

        def first():
            with workspace.working("first"):
                entered.set()
                waiting.wait(60)
                order.append("first")

        def on_wait(holder):
            told.append(holder)
            waiting.set()

        thread = threading.Thread(target=first)
        thread.start()
        assert entered.wait(60)
        with workspace.working("second", on_wait=on_wait):
            order.append("second")
        thread.join()
        assert order == ["first", "second"]
        assert told[0].startswith("first (process")

    def test_what_a_killed_check_left_is_cleared_by_the_next(self, workspace):
        for name in (".running-submission", ".writing-0001"):
            (workspace.attempts / name).mkdir(parents=True)
        check_once(workspace)
        assert not leftovers(workspace.root)

    def test_a_folder_that_may_not_be_written_is_explained(self, tmp_path):
        with (
            pytest.raises(MachineError, match="cannot be written"),
            locked(tmp_path / "none" / "lock", "lab"),
        ):
            pass


class TestProgress:
    def test_counts_over_all_labs_and_stays_passed(self, content):
        progress.note_start("slow", "/here")
        progress.note_hint("slow", "/here")
        for outcome in ("FAIL", "PASS", "FAIL"):
            progress.note_attempt("slow", "/here", outcome)
        progress.note_solution("wrong", "/there")
        labs = progress.load_progress().labs
        assert (labs["slow"].attempts, labs["slow"].outcome, labs["slow"].hints) == (3, "FAIL", 1)
        assert labs["slow"].passed
        assert labs["wrong"].solution_seen

    def test_a_file_that_is_not_ours_is_never_overwritten(self, content, tmp_path):
        file = tmp_path / "hôme" / "progress.json"
        file.parent.mkdir()
        file.write_text("not ours")
        with pytest.raises(MachineError, match=r"progress\.json"):
            progress.note_start("slow", "/here")
        assert file.read_text() == "not ours"


class TestBlind:
    """Whether causes are still the learner's to find is known in one place."""

    def test_until_a_diagnosis_is_committed(self, workspace):
        assert is_blind(workspace)
        assert is_blind_at(workspace.captures / "0001-torch")
        commit(workspace, {"cause": "arithmetic", "gain": 2.0}, "0001-torch")
        assert not is_blind(workspace)
        assert not is_blind_at(workspace.root)

    def test_outside_of_labs_nothing_is_hidden(self, tmp_path):
        assert not is_blind_at(tmp_path)

    def test_the_first_counts_and_the_same_again_is_no_correction(self, workspace):
        for answers in ({"cause": "a"}, {"cause": "a"}, {"cause": "b"}):
            commit(workspace, answers, "")
        assert [made.answers for made in load_record(workspace).commitments] == [
            {"cause": "a"},
            {"cause": "b"},
        ]

    def test_hints_are_counted_and_all_of_them_tell(self, workspace):
        take_hint(workspace)
        assert commit(workspace, {"cause": "a"}, "").commitments[-1].hints == 1
        while take_hint(workspace) is not None:
            pass
        assert commit(workspace, {"cause": "b"}, "").commitments[-1].told == "hints"

    @pytest.mark.parametrize(
        ("note", "told"), [(note_revealed, "revealed"), (note_solution_taken, "solution")]
    )
    def test_help_ends_it_and_is_recorded(self, workspace, note, told):
        note(workspace)
        note(workspace)
        assert not is_blind(workspace)
        assert commit(workspace, {"cause": "a"}, "").commitments[-1].told == told

    def test_findings_come_without_remedies_until_the_first_check_or_more_help(self, workspace):
        commit(workspace, {"cause": "a"}, "")
        assert hides_remedies_at(workspace.root / "captures")
        assert not hides_remedies_at(workspace.root.parent)
        while take_hint(workspace) is not None:
            pass
        assert not hides_remedies_at(workspace.root), "the hints tell more"
        (workspace.state / "hints.json").unlink()
        check_once(workspace)
        assert not hides_remedies_at(workspace.root)

    def test_own_work_passes_whatever_was_seen_and_the_references_never(self, content):
        progress.note_solution("slow", "/here")
        progress.note_attempt("slow", "/here", "PASS")
        progress.note_attempt("wrong", "/here", "PASS", copied=True)
        labs = progress.load_progress().labs
        assert labs["slow"].passed
        assert not labs["wrong"].passed

    def test_what_is_handed_in_decides_whose_it_is_not_what_was_looked_at(self, workspace):
        note_solution_taken(workspace)
        own = workspace.root / "work.py"
        assert not is_copied(workspace.lab, workspace.root)
        own.write_text("raise SystemExit")
        assert not is_copied(workspace.lab, workspace.root)
        take_solution(workspace)
        own.write_text("# All mine.\n" + own.read_text())
        assert is_copied(workspace.lab, workspace.root)


def capture_as_it_is(workspace) -> None:
    """Make a capture of the workspace's present code, later than any check."""
    code = workspace.lab.code_hash(workspace.root)
    made = json.dumps({"made_at": "2099-01-01T00:00:00+00:00", "code": code})
    make_capture(workspace, "torch", lambda out: (out / "capture.json").write_text(made))


class TestNextStep:
    def next(self, workspace):
        return next_step.next_here(
            workspace,
            load_attempts(workspace),
            load_record(workspace),
            catalog.load_labs(),
            progress.load_progress(),
        ).command

    def test_look_explain_change_check_go_on(self, workspace, monkeypatch):
        assert self.next(workspace) == "lab profile"
        make_capture(workspace, "torch", lambda out: (out / "capture.json").write_text("{}"))
        assert self.next(workspace) == "lab report"  # of a capture, `lab profile` shows the top
        note_report(workspace, "0001-torch")
        assert self.next(workspace) == "lab diagnose"
        answers = {"cause": "memory bandwidth", "gain": 2.0}
        save_answers(workspace, answers)
        commit(workspace, answers, "0001-torch")
        here = (
            workspace,
            load_attempts(workspace),
            load_record(workspace),
            catalog.load_labs(),
            progress.load_progress(),
        )
        step = next_step.next_here(*here)
        assert step.command == "lab report", "nothing has been changed yet"
        assert step.why == "It now names the causes that it finds."
        with monkeypatch.context() as patch:
            patch.setattr(catalog.Lab, "predicts_memory", lambda *_: True)
            assert next_step.next_here(*here).why == "It now says what it finds.", "no causes"
        note_report(workspace, "0001-torch")
        assert self.next(workspace) == "edit work.py", "the report was looked at"
        (workspace.root / "work.py").write_text("raise SystemExit")
        assert self.next(workspace) == "lab profile"
        capture_as_it_is(workspace)
        assert self.next(workspace) == "lab check"
        check_once(workspace, Outcome.PASS)
        progress.note_attempt("slow", str(workspace.root), "PASS")
        assert self.next(workspace) == "lab start wrong"

    def test_a_prediction_for_all_changes_is_recalled_until_a_check_passes(self, workspace):
        def why():
            return next_step.next_here(
                workspace, load_attempts(workspace), load_record(workspace), {}, progress.Progress()
            ).why

        commit(workspace, {"cause": "memory bandwidth", "gain": 17.0}, "")
        save_answers(workspace, {"cause": "memory bandwidth", "gain": 17.0})
        (workspace.root / "work.py").write_text("raise SystemExit")
        assert "predicted" not in why(), "nothing is captured yet"
        capture_as_it_is(workspace)
        recalled = "You predicted 17.00x for all your changes: check now, or go on first."
        assert why().endswith(f"is optional. {recalled}")
        check_once(workspace, Outcome.PASS)
        check_once(workspace, Outcome.FAIL)
        (workspace.root / "work.py").write_text("pass")
        capture_as_it_is(workspace)
        assert "whatever a report still lists is optional. Check 1 passed" in why()

    def test_work_that_passed_does_not_lead_back_to_itself(self, workspace):
        """The reference's work passes, and leaves the lab open: that is no place to go next."""
        progress.note_start("slow", str(workspace.root))
        check_once(workspace, Outcome.PASS)
        assert self.next(workspace) == "lab start wrong"

    def test_the_way_back_is_to_own_work_and_not_to_the_references(self, workspace):
        def attempt(number: int, outcome: Outcome, *, copied: bool = False) -> Attempt:
            verdict = msgspec.structs.replace(
                make_verdict(outcome), diagnosis=Standing(True, copied=copied)
            )
            return Attempt(number, verdict, workspace.root)

        own, theirs = attempt(1, Outcome.PASS), attempt(2, Outcome.PASS, copied=True)
        failed = attempt(3, Outcome.FAIL)
        assert latest_pass([own, theirs, failed]) is own
        assert latest_pass([theirs, failed]) is theirs
        assert latest_pass([failed]) is None

    def test_work_that_is_worse_than_what_passed_comes_first(self, workspace):
        answers = {"cause": "memory bandwidth", "gain": 2.0}
        save_answers(workspace, answers)
        commit(workspace, answers, "")

        def check(outcome, reason=None):
            code = workspace.lab.code_hash(workspace.root)
            verdict = make_verdict(outcome, reason=reason) if reason else make_verdict(outcome)
            with workspace.working("lab check"), submission(workspace, workspace.lab) as folder:
                record(workspace, msgspec.structs.replace(verdict, submission_hash=code), folder)

        def step():
            return next_step.next_here(
                workspace, load_attempts(workspace), load_record(workspace), {}, progress.Progress()
            )

        shipped = (workspace.root / "work.py").read_text()
        check(Outcome.PASS)
        (workspace.root / "work.py").write_text("raise SystemExit")
        after = next_step.next_after_run(workspace, load_attempts(workspace))
        assert after.command == "lab check"
        assert "Check 1 passed" in after.why
        check(Outcome.FAIL, "wrong output")
        assert not next_step.next_after_run(workspace, load_attempts(workspace)), "it was checked"
        assert step().command == "edit work.py"
        assert "Check 1 passed" in step().why
        assert "attempts/0001: copy them" in step().why
        check(Outcome.INCONCLUSIVE)
        assert step().command == "lab check"
        (workspace.root / "work.py").write_text(shipped)
        assert step().command == "", "it is the code that passed"
        check(Outcome.INCONCLUSIVE)
        assert step().command == "lab check"

    def test_what_a_capture_shows_of_the_checked_code_is_looked_at(self, workspace):
        answers = {"cause": "memory bandwidth", "gain": 2.0}
        save_answers(workspace, answers)
        commit(workspace, answers, "")
        code = workspace.lab.code_hash(workspace.root)
        wrong = CriterionResult(id="cause", kind="diagnosis", holds=False, sentence="No.")
        verdict = msgspec.structs.replace(
            make_verdict(),
            submission_hash=code,
            criteria=[wrong],
            started_at="2036-11-21T09:00:00+00:00",
        )
        with workspace.working("lab check"), submission(workspace, workspace.lab) as folder:
            record(workspace, verdict, folder)
        assert self.next(workspace) == "lab profile"
        capture_as_it_is(workspace)
        labs, done = catalog.load_labs(), progress.load_progress()
        step = next_step.next_here(
            workspace, load_attempts(workspace), load_record(workspace), labs, done
        )
        assert step.command == "lab report"
        assert "wrong are corrected by `lab diagnose`" in step.why

    def test_a_wrong_answer_is_corrected_before_anything_else(self, workspace):
        answers = {"cause": "memory bandwidth", "gain": 2.0}
        save_answers(workspace, answers)
        commit(workspace, answers, "")
        wrong = make_verdict(reason="wrong diagnosis")
        with workspace.working("lab check"), submission(workspace, workspace.lab) as folder:
            later = msgspec.structs.replace(wrong, started_at="2036-11-21T09:00:00+00:00")
            record(workspace, later, folder)
        assert self.next(workspace) == "lab diagnose"
        with workspace.working("lab check"), submission(workspace, workspace.lab) as folder:
            record(workspace, wrong, folder)
        assert self.next(workspace) == "lab check", "the commitment is younger than the check"

    def test_a_corrected_answer_that_a_check_left_open_is_checked_without_more_advice(
        self, workspace
    ):
        answers = {"cause": "memory bandwidth", "gain": 2.0}
        save_answers(workspace, answers)
        commit(workspace, answers, "")
        unsure = CriterionResult(id="cause", kind="diagnosis", holds=None, sentence="No.")
        verdict = msgspec.structs.replace(make_verdict(Outcome.INCONCLUSIVE), criteria=[unsure])

        def why(started_at):
            at = msgspec.structs.replace(verdict, started_at=started_at)
            with workspace.working("lab check"), submission(workspace, workspace.lab) as folder:
                record(workspace, at, folder)
            return next_step.next_here(
                workspace, load_attempts(workspace), load_record(workspace), {}, progress.Progress()
            ).why

        assert "follow its advice" in why("2036-11-21T09:00:00+00:00")
        assert why("2006-11-21T09:00:00+00:00") == "You have corrected your diagnosis: check it."

    def test_a_check_that_others_disturbed_waits_for_them_next_time(self, workspace):
        answers = {"cause": "memory bandwidth", "gain": 2.0}
        save_answers(workspace, answers)
        commit(workspace, answers, "")
        verdict = make_verdict(Outcome.INCONCLUSIVE)
        verdict = msgspec.structs.replace(
            verdict, started_at="2036-11-21T09:00:00+00:00", advice=["Close them.", WHEN_QUIET]
        )
        with workspace.working("lab check"), submission(workspace, workspace.lab) as folder:
            record(workspace, verdict, folder)
        assert self.next(workspace) == "lab check --when-quiet 10"

    @pytest.mark.parametrize(
        ("high", "changed", "step"),
        [(0.9, False, "edit"), (1.9, False, "when-quiet"), (1.9, True, "when-quiet")],
    )
    def test_a_disturbed_check_that_misses_by_far_leads_back_to_the_code(
        self, workspace, high, changed, step
    ):
        answers = {"cause": "memory bandwidth", "gain": 2.0}
        save_answers(workspace, answers)
        commit(workspace, answers, "")
        rate = CriterionResult("speedup", "target", None, "…", 0.8, 0.6, high, target=2.0)
        code = workspace.root / "work.py"
        code.write_text(f"{code.read_text()}\n")
        verdict = msgspec.structs.replace(
            make_verdict(Outcome.INCONCLUSIVE),
            started_at="2036-11-21T09:00:00+00:00",
            advice=[WHEN_QUIET],
            criteria=[rate],
            submission_hash=workspace.lab.code_hash(workspace.root),
        )
        with workspace.working("lab check"), submission(workspace, workspace.lab) as folder:
            record(workspace, verdict, folder)
        if changed:
            code.write_text(f"{code.read_text()}\n")
        assert (step == "when-quiet") == (self.next(workspace) == "lab check --when-quiet 10")

    def test_where_there_is_no_timeline_the_output_is_what_one_looks_at(self, content):
        file = content / "labs" / "slow" / "lab.toml"
        file.write_text('evidence = "run"\n' + file.read_text())
        catalog.load_labs.cache_clear()
        workspace, _ = start_workspace(catalog.find_lab("slow"), content / "work", "cpu")
        assert self.next(workspace) == "lab run"
        answers = {"cause": "memory bandwidth", "gain": 2.0}
        save_answers(workspace, answers)
        commit(workspace, answers, "")
        assert self.next(workspace) == "edit work.py", "the output is what the answers are from"
        (workspace.root / "work.py").write_text("raise SystemExit")
        assert self.next(workspace) == "lab run"
        note_run(workspace, workspace.lab.code_hash(workspace.root), ended=True)
        assert self.next(workspace) == "lab check"
        failed = make_verdict(Outcome.FAIL)
        code = workspace.lab.code_hash(workspace.root)
        with workspace.working("lab check"), submission(workspace, workspace.lab) as folder:
            record(workspace, msgspec.structs.replace(failed, submission_hash=code), folder)
        assert self.next(workspace) == "edit work.py"
        (workspace.root / "work.py").write_text("raise SystemExit(1)")
        assert self.next(workspace) == "lab run"

    def test_before_the_diagnosis_one_look_at_the_output_is_enough(self, content):
        file = content / "labs" / "slow" / "lab.toml"
        file.write_text('evidence = "run"\n' + file.read_text())
        catalog.load_labs.cache_clear()
        workspace, _ = start_workspace(catalog.find_lab("slow"), content / "work", "cpu")
        note_run(workspace, workspace.lab.code_hash(workspace.root), ended=True)
        assert self.next(workspace) == "lab diagnose"

    def test_a_report_that_shows_more_after_a_check_is_looked_at_again(self, workspace):
        answers = {"cause": "memory bandwidth", "gain": 2.0}
        save_answers(workspace, answers)
        commit(workspace, answers, "")
        capture_as_it_is(workspace)
        note_report(workspace, "0001-torch")
        assert self.next(workspace) == "edit work.py"
        code = workspace.lab.code_hash(workspace.root)
        failed = msgspec.structs.replace(make_verdict(Outcome.FAIL), submission_hash=code)
        with workspace.working("lab check"), submission(workspace, workspace.lab) as folder:
            record(workspace, failed, folder)
        assert self.next(workspace) == "lab report", "it names remedies now"
        note_report(workspace, "0001-torch")
        assert self.next(workspace) == "edit work.py"

    def test_a_folder_that_may_only_be_read_is_looked_at_all_the_same(self, workspace, monkeypatch):
        def refuse(*_, **__):
            raise MachineError("It cannot be written.", "Use another folder.")

        monkeypatch.setattr(type(workspace), "write_state", refuse)
        note_report(workspace, "0001-torch")
        assert load_looks(workspace).reports == {}

    def test_after_a_failed_check_a_new_capture_is_not_asked_for_again(self, workspace):
        answers = {"cause": "memory bandwidth", "gain": 2.0}
        save_answers(workspace, answers)
        commit(workspace, answers, "")
        checked = workspace.lab.code_hash(workspace.root)
        failed = msgspec.structs.replace(make_verdict(Outcome.FAIL), submission_hash=checked)
        with workspace.working("lab check"), submission(workspace, workspace.lab) as folder:
            record(workspace, failed, folder)
        assert self.next(workspace) == "lab profile"
        made = json.dumps({"made_at": "2001-01-01T00:00:00+00:00", "code": checked})
        make_capture(workspace, "torch", lambda out: (out / "capture.json").write_text(made))
        assert self.next(workspace) == "lab report", "this code is captured"
        (workspace.root / "work.py").write_text("raise SystemExit")
        assert self.next(workspace) == "lab profile", "only the old code is captured"
        capture_as_it_is(workspace)
        assert self.next(workspace) == "lab check"

    def test_what_is_drafted_is_counted(self, workspace):
        make_capture(workspace, "torch", lambda out: (out / "capture.json").write_text("{}"))
        save_answers(workspace, {"gain": 2.0})
        nothing = progress.load_progress()
        step = next_step.next_here(workspace, [], load_record(workspace), {}, nothing)
        assert step.command == "lab diagnose"
        assert "1 of 2 answers are drafted." in step.why

    def test_after_a_crash_the_error_is_mended_before_anything_is_captured(self, workspace):
        answers = {"cause": "memory bandwidth", "gain": 2.0}
        save_answers(workspace, answers)
        commit(workspace, answers, "")
        with workspace.working("lab check"), submission(workspace, workspace.lab) as folder:
            record(workspace, make_verdict(reason="crashed"), folder)
        assert self.next(workspace) == "lab run"
        note_run(workspace, workspace.lab.code_hash(workspace.root), ended=False)
        assert self.next(workspace) == "edit work.py", "it does not"
        note_run(workspace, workspace.lab.code_hash(workspace.root), ended=True)
        assert self.next(workspace) == "lab check", "it runs to its end"
        (workspace.root / "work.py").write_text("raise SystemExit")
        assert self.next(workspace) == "lab run"
        capture_as_it_is(workspace)
        assert self.next(workspace) == "lab check", "a capture was made: the error is gone"

    def test_after_a_wrong_output_nothing_is_profiled(self, workspace):
        answers = {"cause": "memory bandwidth", "gain": 2.0}
        save_answers(workspace, answers)
        commit(workspace, answers, "")
        code = workspace.lab.code_hash(workspace.root)
        verdict = make_verdict(reason="wrong output")
        with workspace.working("lab check"), submission(workspace, workspace.lab) as folder:
            record(workspace, msgspec.structs.replace(verdict, submission_hash=code), folder)
        assert self.next(workspace) == "edit work.py"
        step = next_step.next_here(
            workspace, load_attempts(workspace), load_record(workspace), {}, progress.Progress()
        )
        assert "✗" not in step.why, "the verdict is not on the screen of every command"
        (workspace.root / "work.py").write_text("raise SystemExit")
        assert self.next(workspace) == "lab check"

    def test_a_jump_through_the_course_comes_with_a_word(self, content):
        labs = catalog.load_labs()
        first, *_, last = labs
        progress.note_attempt(last, "/gone", "PASS")
        why = next_step.next_lab(labs, progress.load_progress()).why
        assert labs[first].stage in why
        assert "before it" not in why, "no lab is before the first"
        second = list(labs)[1]
        progress.note_attempt(second, "/gone", "PASS")
        why = next_step.next_lab(labs, progress.load_progress()).why
        assert "It goes on from your last pass; you can also go back: 1 lab before it is" in why

    def test_the_next_lab_is_the_same_from_every_folder(self, content):
        labs = catalog.load_labs()
        first, second, *_ = labs
        progress.note_attempt(second, "/gone", "PASS")
        after = [slug for slug in labs if slug not in (first, second)] + [first]
        step = next_step.next_lab(labs, progress.load_progress())
        assert step.command == f"lab start {after[0]}"
        start_workspace(catalog.find_lab(first), content / "begun", "cpu")
        progress.note_start(first, str(content / "begun"))
        step = next_step.next_lab(labs, progress.load_progress())
        assert step.command == f"cd {content / 'begun'}"

    def test_the_rest_of_a_stage_comes_before_the_next_one(self, monkeypatch, tmp_path):
        monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
        labs = catalog.load_labs()
        beginner = [slug for slug in labs if labs[slug].stage == "beginner"]
        progress.note_attempt(beginner[-1], "/gone", "PASS")
        step = next_step.next_lab(labs, progress.load_progress())
        assert step.command == f"lab start {beginner[0]}"

    def test_nothing_comes_next_at_the_end_of_the_course(self, content):
        for slug in catalog.load_labs():
            progress.note_attempt(slug, "/here", "PASS")
        assert next_step.next_lab(catalog.load_labs(), progress.load_progress()).command == ""


def test_captures_of_programs_that_run_at_the_same_time_do_not_meet(tmp_path):
    with (
        new_folder(tmp_path, "torch") as (first, one),
        new_folder(tmp_path, "nsys") as (second, other),
    ):
        (one / "trace").write_text("1")
        (other / "trace").write_text("2")
        atomic.publish(other, second)
        atomic.publish(one, first)
    assert (first.name, second.name) == ("0001-torch", "0002-nsys")
    assert [(folder / "trace").read_text() for folder in (first, second)] == ["1", "2"]
    with new_folder(tmp_path, "torch") as (third, _):
        assert third.name == "0003-torch"
    assert not leftovers(tmp_path)


def test_a_number_that_was_taken_between_the_look_and_the_lock_is_not_used(tmp_path, monkeypatch):
    hold = captures._lock_folder

    def beaten(folder):
        if folder.name.endswith("0001"):
            (tmp_path / "0001-nsys").mkdir()
        return hold(folder)

    monkeypatch.setattr(captures, "_lock_folder", beaten)
    with new_folder(tmp_path, "torch") as (final, _):
        assert final.name == "0002-torch"


def test_an_unfinished_capture_is_held_and_what_a_killed_one_left_is_not(tmp_path):
    folder = tmp_path / ".running-mine"
    (folder / "half").mkdir(parents=True)
    with locked_folder(folder) as mine, locked_folder(folder) as taken:
        assert (mine, taken) == (folder, None)
        assert not list(folder.iterdir())
    assert not folder.exists()


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_keeps_a_verdict_all_the_same(
    tmp_path, monkeypatch, number
):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    atomic.write_bytes(tmp_path / "0001.json", b"first", replace=False)
    with pytest.raises(MachineError):
        atomic.write_bytes(tmp_path / "0001.json", b"second", replace=False)
    assert [path.name for path in tmp_path.iterdir()] == ["0001.json"]
    assert (tmp_path / "0001.json").read_bytes() == b"first"


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_lab_inside_a_repository_keeps_itself_out_of_it(content, tmp_path, kind):
    """In a worktree, `.git` is a file."""
    repository = tmp_path / "repository"
    repository.mkdir()
    if kind == "folder":
        (repository / ".git").mkdir()
    else:
        (repository / ".git").write_text("gitdir: elsewhere\n")
    workspace, _ = start_workspace(catalog.find_lab("slow"), repository / "labs" / "slow", "cpu")
    assert (workspace.root / ".gitignore").read_text().splitlines()[-1] == "*"
    assert workspace.changed_lab() is None


def test_a_lab_of_its_own_may_become_a_repository(workspace):
    assert not (workspace.root / ".gitignore").exists()
