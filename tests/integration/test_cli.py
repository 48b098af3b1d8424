"""The real `lab`, driven as a learner drives it, over a miniature course: one lab per outcome."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from bottleneck_lab.catalog import hash_files
from bottleneck_lab.cli import app

from .. import warm
from ..processes import PATIENCE_S, lives, running, soon
from ..tools import NO_SANDBOX

MINI = Path(__file__).parent / "mini"
EXAMPLE = Path(__file__).parents[2] / "docs" / "example"
LAB = [sys.executable, "-m", "bottleneck_lab"]
MADE_UP = Path(__file__).parents[2] / "datasets" / "captures"


class Learner:
    """A learner with a home and a folder of their own."""

    def __init__(self, folder: Path, content: Path = MINI) -> None:
        self.folder = folder
        self.home = folder / "hôme"
        self.environment = {
            **{
                key: value
                for key, value in os.environ.items()
                if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")
            },
            "BOTTLENECK_LAB_CONTENT": str(content),
            "BOTTLENECK_LAB_HOME": str(self.home),
        }

    def lab(
        self, *arguments: str, at: Path | None = None, through: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run `lab`, as a new program only where it starts `through` another one or with what only
        a new one obeys.
        """
        if not through and not self.environment.keys() & warm.READ_AT_START:
            return warm.lab(*arguments, at=at or self.folder, environment=self.environment)
        return subprocess.run(
            [*through, *LAB, *arguments],
            cwd=at or self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=200,
            check=False,
        )

    def json(self, *arguments: str, at: Path | None = None):
        done = self.lab(*arguments, "--json", at=at)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def start(self, slug: str = "slow", name: str = "wörk [bold] 1") -> Path:
        done = self.lab("start", slug, name)
        assert done.returncode == 0, done.stderr
        return self.folder / name

    def terminal(
        self,
        *arguments: str,
        at: Path | None = None,
        columns: int = 60,
        answers: str = "",
        **environment: str,
    ):
        """The same at a terminal of so many columns; exit status and everything that was shown."""
        return warm.lab_at_terminal(
            *arguments,
            at=at or self.folder,
            environment={**self.environment, "TERM": "xterm-256color", **environment},
            columns=columns,
            answers=answers,
        )


def plain(shown: str) -> list[str]:
    return [
        re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in shown.replace("\r", "").split("\n")
    ]


@pytest.fixture
def learner(tmp_path) -> Learner:
    return Learner(tmp_path)


class TestHelp:
    COMMANDS = (
        *(
            "list",
            "doctor",
            "data",
            "start",
            "run",
            "profile",
            "report",
            "compare",
            "diagnose",
            "check",
            "watch",
        ),
        *("hint", "reset", "solution", "history", "verify"),
    )

    @pytest.mark.parametrize(
        "command", [*([name] for name in COMMANDS), ["dev", "check"], ["dev", "new"]], ids=" ".join
    )
    def test_every_command_shows_an_example(self, command):
        done = CliRunner().invoke(app, [*command, "--help"], prog_name="lab")
        assert done.exit_code == 0
        assert f"Example: lab {' '.join(command)}" in done.stdout

    def test_the_whole_names_every_command(self, learner):
        shown = learner.lab("--help").stdout
        assert all(
            re.search(rf"^  {name} ", shown, re.MULTILINE) for name in (*self.COMMANDS, "dev")
        )

    @pytest.mark.parametrize("arguments", [["--help"], ["list"], []], ids=["help", "list", "alone"])
    def test_nothing_heavy_is_loaded(self, learner, arguments):
        done = learner.lab(*arguments)
        assert done.returncode == 0
        code = (
            "import atexit, sys; heavy = {'torch', 'numpy', 'torchvision', 'rich'};"
            "atexit.register(lambda: print(sorted(heavy & set(sys.modules)), file=sys.stderr));"
            "from bottleneck_lab.cli import main; main()"
        )
        traced = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=learner.environment,
            cwd=learner.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert traced.stderr.strip() == "[]"

    def test_the_version_is_told(self, learner):
        assert re.fullmatch(r"\d+\.\d+\.\d+\n", learner.lab("--version").stdout)


class TestWhereAndList:
    def test_a_new_user_is_told_how_to_begin(self, learner):
        done = learner.lab()
        assert done.returncode == 0
        assert "You have passed 0 of 5 labs" in done.stdout
        assert "only          0 of 5  by the end you can tell a pass from a failure" in done.stdout
        assert "Next: lab start slow" in done.stdout
        assert (
            "only, 0 of 5 passed: by the end you can tell a pass from a failure"
            in learner.lab("list").stdout
        )

    def test_inside_a_workspace_the_next_step_is_told(self, learner):
        done = learner.lab(at=learner.start())
        assert "Next: lab profile" in done.stdout

    def test_the_list_as_json(self, learner):
        learner.start()
        rows = {row["lab"]: row for row in learner.json("list")}
        assert rows["slow"]["state"] == "started"
        assert rows["slow"]["workspace"] == str(learner.folder / "wörk [bold] 1")
        assert rows["wrong"]["state"] == "open"
        assert rows["wrong"]["devices"] == ["cpu"]

    def test_the_doctor_names_a_remedy_for_everything_missing(self, learner):
        done = learner.lab("doctor", "--json")
        findings = json.loads(done.stdout)
        assert {"Python", "torch", "GPU", "nsys", "g++", "bubblewrap", "/dev/shm", "photos"} <= {
            row["name"] for row in findings
        }
        assert all(row["remedy"] for row in findings if not row["present"])
        assert all(row["unlocks"] for row in findings)
        assert all(
            re.fullmatch(r"[\d.]+", row["found"])
            for row in findings
            if row["name"] == "g++" and row["present"]
        )
        unfit = any(row["need"] == "required" and not row["present"] for row in findings)
        assert done.returncode == (4 if unfit else 0)


class TestBadInput:
    """Every mistake gets a sentence, a remedy and exit code 2; nothing is lost or made."""

    @pytest.mark.parametrize(
        ("arguments", "message", "remedy"),
        [
            (["start", "slwo"], "no lab called 'slwo'", "Did you mean 'slow'?"),
            (["start", "slow", "--device", "cuda"], "not measured on 'cuda'", "measured on: cpu"),
            (["check"], "no lab in this folder", "lab list"),
            (["hint"], "no lab in this folder", "lab list"),
            (["data", "nothing"], "no data set called 'nothing'", "lab data photos"),
            (["verify", "none.json", "--key", "none.pub"], "none.pub cannot be read", "→"),
            (["frobnicate"], "No such command", "--help|-h"),
            (["start"], "Missing argument", "--help|-h"),
            (["dev", "new", "Not A Name"], "not a valid lab name", "hyphens"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_a_mistake_is_explained(self, learner, arguments, message, remedy):
        done = learner.lab(*arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert re.search(remedy, done.stderr)
        assert "Traceback" not in done.stderr
        assert not [path for path in learner.folder.iterdir() if path.name != "hôme"]

    def test_a_folder_that_is_not_empty(self, learner):
        (learner.folder / "full").mkdir()
        (learner.folder / "full" / "mine").touch()
        done = learner.lab("start", "slow", "full")
        assert (done.returncode, done.stdout) == (2, "")
        assert "is not empty" in done.stderr

    def test_a_folder_that_may_not_be_written(self, learner):
        closed = learner.folder / "closed"
        closed.mkdir(mode=0o555)
        # For root every folder is open, until it gives that privilege up.
        humble = (
            ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
            if os.geteuid() == 0
            else []
        )
        done = learner.lab("start", "slow", "closed/new", through=humble)
        assert done.returncode == 4
        assert "cannot be written: Permission denied" in done.stderr
        assert not list(closed.iterdir())

    def test_broken_toml_names_line_and_column(self, learner):
        place = learner.start()
        (place / "diagnosis.toml").write_text('cause = "memory bandwidth"\ngain = two\n')
        for command in ("check", "diagnose"):
            done = learner.lab(command, at=place)
            assert done.returncode == 2
            assert re.search(r"diagnosis\.toml is not valid TOML: .*line 2, column 8", done.stderr)

    def test_a_capture_is_of_the_code_that_was_run_also_where_that_is_edited_meanwhile(
        self, learner
    ):
        place = learner.start()
        edits = "from pathlib import Path\nPath(__file__).write_text('edited = True\\n')\n"
        work = place / "work.py"
        work.write_text(work.read_text() + edits)
        run = hash_files({"work.py": work})
        assert learner.lab("profile", at=place).returncode == 0
        assert work.read_text() == "edited = True\n"
        (description,) = place.rglob("capture.json")
        assert json.loads(description.read_text())["code"] == run

    def test_a_step_that_is_none_ends_a_run_and_is_said(self, tmp_path):
        learner = Learner(tmp_path, Path(__file__).parents[1] / "exploits" / "content")
        place = learner.start("feeder", "place")
        script = place / "train.py"
        wrong = (
            """accelerator.channel.send(TrainBatch(0, "float64", 16, np.zeros(16, np.int64))) #"""
        )
        imported = "from bottleneck_lab.measure.channel.messages import TrainBatch\n"
        script.write_text(
            imported + script.read_text().replace("accelerator.step(", f"{wrong} accelerator.step(")
        )
        done = learner.lab("run", at=place)
        assert done.returncode == 1
        assert "The script sent an invalid training step" in done.stdout

    def test_a_missing_data_set(self, tmp_path):
        content = tmp_path / "content"
        shutil.copytree(MINI, content)
        spec = content / "labs" / "slow" / "lab.toml"
        spec.write_text('datasets = ["photos"]\n' + spec.read_text())
        learner = Learner(tmp_path, content)
        place = tmp_path / "place"
        assert learner.lab("start", "slow", str(place), "--no-data").returncode == 0
        shutil.copy(content / "solutions" / "slow" / "diagnosis.toml", place)
        done = learner.lab("check", at=place)
        assert done.returncode == 4
        assert "not on this machine yet" in done.stderr
        assert "lab data" in done.stderr
        manifest = learner.home / "datasets" / "photos" / "manifest.json"
        manifest.parent.mkdir(parents=True)
        for text in ('{"complete": false, "photos": []}', "{", "[]"):
            manifest.write_text(text)
            done = learner.lab("check", at=place)
            assert done.returncode == 4
            assert "is incomplete. → `lab data photos` completes it" in " ".join(
                done.stderr.split()
            )
            assert "not created yet, or incomplete" in learner.lab("doctor").stdout

    def test_a_workspace_of_a_changed_lab(self, tmp_path):
        content = tmp_path / "content"
        shutil.copytree(MINI, content)
        learner = Learner(tmp_path, content)
        place = learner.start()
        (content / "labs" / "slow" / "README.md").write_text("Another brief.\n")
        done = learner.lab("check", at=place)
        assert done.returncode == 2
        assert "another version of 'slow'" in done.stderr
        (place / "work.py").write_text("mine")
        assert learner.lab("reset", "--update", at=place).returncode == 0
        assert (place / "work.py").read_text() == "mine"
        assert (place / "README.md").read_text() == "Another brief.\n"

    def test_a_full_disk_loses_nothing(self, learner):
        """On a file system of 400 kB that is then filled to the last byte."""
        small = learner.folder / "small"
        small.mkdir()
        script = f"""
            mount -t tmpfs -o size=400k tmpfs {small} || exit 99
            {sys.executable} -m bottleneck_lab start slow {small}/work >/dev/null || exit 98
            cd {small}/work && echo '# mine' >> work.py
            {sys.executable} -m bottleneck_lab hint >/dev/null || exit 97
            head -c 1M /dev/zero > {small}/filler 2>/dev/null
            {sys.executable} -m bottleneck_lab reset --yes; echo "status $?"
            tail -1 work.py; cat .lab/hints.json; echo
            {sys.executable} -m bottleneck_lab start slow {small}/other; ls {small}
        """
        done = subprocess.run(
            ["unshare", "--mount", "--map-root-user", "bash", "-c", script],
            env=learner.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 99 or "unshare:" in done.stderr:
            pytest.skip(f"this machine mounts nothing for us: {done.stderr}")
        assert "No space left" in done.stderr
        assert "status 4" in done.stdout
        assert "# mine" in done.stdout
        assert '"index": 0' in done.stdout
        assert done.stdout.split()[-2:] == ["filler", "work"]


class TestHintsResetSolution:
    def test_hints_come_one_at_a_time(self, learner):
        place = learner.start()
        first, second = learner.lab("hint", at=place).stdout, learner.lab("hint", at=place).stdout
        assert first.startswith("Hint 1 of 2: Count")
        assert second.startswith("Hint 2 of 2: NumPy")
        assert "no more hints" in learner.lab("hint", at=place).stdout
        assert [row["number"] for row in learner.json("hint", "--again", at=place)["hints"]] == [
            1,
            2,
        ]

    def test_reset_says_where_the_edits_are(self, learner):
        place = learner.start()
        (place / "work.py").write_text("mine")
        done = learner.lab("reset", at=place)
        assert (done.returncode, (place / "work.py").read_text()) == (2, "mine"), "nobody was asked"
        status, shown = learner.terminal("reset", at=place, answers="n\n")
        assert (status, (place / "work.py").read_text()) == (0, "mine"), shown
        assert "Nothing was changed" in shown
        kept = Path(learner.json("reset", "--yes", at=place)["kept"])
        assert (kept / "work.py").read_text() == "mine"

    def test_the_solution_needs_a_yes(self, learner):
        place = learner.start()
        before = (place / "work.py").read_text()
        done = learner.lab("solution", at=place)
        assert (done.returncode, (place / "work.py").read_text()) == (2, before)
        status, shown = learner.terminal("solution", at=place, answers="n\n")
        assert (status, (place / "work.py").read_text()) == (0, before), shown
        status, shown = learner.terminal("solution", at=place, answers="y\n")
        assert status == 0
        assert (place / "work.py").read_bytes() == (
            MINI / "solutions" / "slow" / "work.py"
        ).read_bytes()
        assert "The loop is gone" in shown
        shown = learner.lab("solution", "--yes", at=place).stdout
        assert "The loop is gone" not in shown, "it was printed before"
        assert "`lab solution --show` prints the write-up again." in shown
        assert "The loop is gone" in learner.lab("solution", "--show", "--yes", at=place).stdout


class TestTerminals:
    @pytest.mark.parametrize(
        "arguments", [["--help"], ["list"], [], ["start", "nothing"], ["doctor"]], ids=" ".join
    )
    def test_sixty_columns_are_enough(self, learner, arguments):
        _, shown = learner.terminal(*arguments, columns=60)
        assert max(len(line) for line in plain(shown)) <= 60, shown

    def test_no_color_is_obeyed(self, learner):
        colour = re.compile(r"\x1b\[(?:[0-9]+;)*3[0-7]m")
        wrong = partial(
            learner.terminal, "diagnose", at=learner.start(), answers="1\ntwo\n0.5\n12\ny\n"
        )
        assert colour.search(wrong()[1])
        assert not colour.search(wrong(NO_COLOR="1")[1])

    def test_an_encoding_without_our_signs_does_no_harm(self, learner):
        learner.environment |= {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
        assert learner.lab("list").returncode == 0
        assert learner.lab("start", "nothing").returncode == 2

    def test_the_questions_are_asked_until_the_answer_can_be_graded(self, learner):
        place = learner.start()
        status, shown = learner.terminal("diagnose", at=place, answers="1\ntwo\n0.5\n12\ny\n")
        assert status == 0, shown
        assert "Write 2.5 or 2.5x, not 'two'" in " ".join(plain(shown))
        assert "at least 1" in " ".join(plain(shown))
        text = (place / "diagnosis.toml").read_text()
        assert 'cause = "the loop in Python"' in text
        assert "gain = 12.0" in text


class TestPipes:
    """A reader that goes away is no FAIL (1): the shell learns what it learns from other programs,
    and nothing is printed.
    """

    @pytest.mark.parametrize(
        "arguments",
        [["list"], ["list", "--json"], ["--help"], ["history"], ["doctor"]],
        ids=" ".join,
    )
    def test_a_closed_pipe_ends_it_quietly(self, learner, arguments):
        place = learner.start()
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(
            [*LAB, *arguments],
            cwd=place,
            env=learner.environment,
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
        )
        os.close(writing)
        assert (done.returncode, done.stderr) == (141, b"")

    def test_a_question_that_is_left_is_no_fail(self, learner):
        status, shown = learner.terminal("diagnose", at=learner.start(), answers="\x04")
        assert status == 130, shown


class TestDiagnose:
    def test_without_a_terminal_by_arguments(self, learner):
        place = learner.start()
        done = learner.lab("diagnose", "-a", "cause=memory bandwidth", "-a", "gain=3", at=place)
        assert done.returncode == 0, done.stderr
        shown = learner.json("diagnose", at=place)
        assert {row["id"]: row["answer"] for row in shown["questions"]} == {
            "cause": "memory bandwidth",
            "gain": 3.0,
        }
        assert len(shown["commitments"]) == 1

    def test_a_choice_by_its_number_or_beginning_and_a_bad_answer_that_drops_no_earlier_one(
        self, learner
    ):
        place = learner.start()
        learner.lab("diagnose", "-a", "cause=2", "--draft", at=place)
        done = learner.lab("diagnose", "-a", "gain=0.2", "-a", "cause=1", at=place)
        assert done.returncode == 2
        assert "at least 1" in done.stderr
        shown = learner.json("diagnose", at=place)
        assert [row["answer"] for row in shown["questions"]] == ["memory bandwidth", ""]
        assert shown["commitments"] == []
        learner.lab("diagnose", "-a", "cause=the l", "--draft", at=place)
        assert learner.json("diagnose", at=place)["questions"][0]["answer"] == "the loop in Python"

    def test_it_says_saved_and_nothing_of_right_and_wrong(self, learner):
        """Who copies whatever is printed has nothing to copy: both choices are answered with the
        same words.
        """
        said = []
        for choice in ("1", "2"):
            place = learner.start(name=f"place {choice}")
            said.append(
                learner.lab("diagnose", "-a", f"cause={choice}", "-a", "gain=3", at=place).stdout
            )
        assert said[0].replace("the loop in Python", "memory bandwidth") == said[1]
        assert not set("✓✗") & set(said[0])

    def test_a_check_without_a_whole_diagnosis_is_refused_before_anything_is_measured(
        self, learner
    ):
        place = learner.start()
        done = learner.lab("check", at=place)
        assert done.returncode == 2
        assert "diagnosis is incomplete" in done.stderr
        assert not (place / ".lab" / "attempts").exists()

    def test_revealing_costs_every_hint_and_is_recorded(self, learner):
        place = learner.start()
        assert learner.lab("diagnose", "--reveal", "--yes", at=place).returncode == 0
        assert len(learner.json("hint", "--again", at=place)["hints"]) == 2
        history = learner.json("history", at=place)
        assert history["help"]["revealed"]

    @pytest.mark.parametrize("answer", ["cause=magic", "gain=none", "gain=0.2", "what=1", "gain"])
    def test_an_answer_of_the_wrong_form_is_refused_and_nothing_written(self, learner, answer):
        place = learner.start()
        before = (place / "diagnosis.toml").read_bytes()
        assert learner.lab("diagnose", "-a", answer, at=place).returncode == 2
        assert (place / "diagnosis.toml").read_bytes() == before


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """The labs of the miniature course whose verdict is no matter of speed, checked as shipped:
    (exit status, verdict) by lab, and who did it.

    The one that crashes is signed with `runner.pem`, which needs a sandbox.
    """
    learner = Learner(tmp_path_factory.mktemp("checked"))
    assert learner.lab("dev", "key", str(learner.folder / "runner.pem")).returncode == 0
    untimed = ("wrong", "crashes", "endless", "broken")
    places = {slug: learner.start(slug, f"{slug} é") for slug in untimed}

    def check(slug: str) -> tuple[int, dict]:
        signed = (
            ["--sign", str(learner.folder / "runner.pem")]
            if slug == "crashes" and not NO_SANDBOX
            else []
        )
        return checked_once(learner, places[slug], *signed)

    with ThreadPoolExecutor() as pool:
        return learner, dict(zip(untimed, pool.map(check, untimed), strict=True))


@pytest.fixture(scope="module")
def captured(tmp_path_factory) -> tuple[Learner, Path]:
    """The lab that is too slow, captured and diagnosed, and who did it."""
    learner = Learner(tmp_path_factory.mktemp("captured"))
    place = learner.start("slow", "slow é")
    assert learner.lab("profile", at=place).returncode == 0
    assert learner.lab("diagnose", "-a", "cause=1", "-a", "gain=40", at=place).returncode == 0
    return learner, place


def checked_once(learner: Learner, place: Path, *options: str) -> tuple[int, dict]:
    """Exit status and verdict of a workspace's first check, which accounts for its seconds and is
    recorded with what was submitted.
    """
    done = learner.lab("check", "--json", *options, at=place)
    verdict = json.loads(done.stdout)
    assert sum(verdict["seconds"].values()) == pytest.approx(verdict["duration_s"], abs=0.1)
    (row,) = learner.json("history", at=place)["checks"]
    assert (row["number"], row["outcome"]) == (1, verdict["outcome"])
    assert Path(row["submission"], "work.py").read_bytes() == (place / "work.py").read_bytes()
    assert not [
        path for path in place.rglob("*") if path.name.startswith((".running-", ".writing-"))
    ]
    return done.returncode, verdict


@pytest.mark.long
class TestCheck:
    @pytest.mark.parametrize(
        ("slug", "status", "outcome", "reason"),
        [
            ("wrong", 1, "FAIL", "wrong output"),
            ("crashes", 1, "FAIL", "crashed"),
            ("endless", 1, "FAIL", "timed out"),
            ("broken", 4, "ERROR", None),
        ],
    )
    def test_each_outcome_has_its_exit_code_and_reason(
        self, checked, slug, status, outcome, reason
    ):
        verdict = checked[1][slug][1]
        assert (checked[1][slug][0], verdict["outcome"], verdict["reason"]) == (
            status,
            outcome,
            reason,
        ), verdict

    def test_a_crash_names_the_line(self, checked):
        assert re.search(r"work\.py, line \d+", checked[1]["crashes"][1]["summary"])

    def test_the_seconds_are_shown_on_request(self, tmp_path):
        learner = Learner(tmp_path)
        workspace = learner.start("wrong")
        done = learner.lab("check", "--explain-time", at=workspace)
        assert done.returncode == 1, done.stderr
        assert re.search(r"Where the [\d.]+ s went", done.stdout)
        assert "starting processes" in done.stdout

    @pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX)
    def test_a_runner_signs_its_verdict_and_anybody_can_verify_it(self, checked):
        learner, found = checked
        public, verdict = str(learner.folder / "runner.pem.pub"), learner.folder / "verdict.json"
        signed = json.dumps(found["crashes"][1])
        assert found["crashes"][1]["attestation"] == "verified"
        verdict.write_text(signed, encoding="utf-8")
        assert learner.lab("verify", str(verdict), "--key", public).returncode == 0
        verdict.write_text(signed.replace("FAIL", "PASS"), encoding="utf-8")
        assert learner.lab("verify", str(verdict), "--key", public).returncode == 1

    def test_a_file_that_does_not_verify_writes_no_line_of_its_own(self, checked):
        learner, found = checked
        forged = {**found["wrong"][1], "lab": "slow'\n\x1b[2K✓ Verified: PASS for 'slow'"}
        assert learner.lab("dev", "key", str(learner.folder / "other.pem")).returncode == 0
        (learner.folder / "forged.json").write_text(json.dumps(forged), encoding="utf-8")
        told = learner.lab(
            "verify",
            str(learner.folder / "forged.json"),
            "--key",
            str(learner.folder / "other.pem.pub"),
        )
        assert [line[0] for line in told.stdout.splitlines()] == ["✗", " ", " "]
        assert "\x1b" not in told.stdout

    @pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX)
    def test_a_key_that_the_sandbox_shows_signs_nothing(self, checked):
        learner = checked[0]
        key = Path(sys.prefix) / "runner.pem"
        key.write_bytes((learner.folder / "runner.pem").read_bytes())
        key.chmod(0o600)
        try:
            done = learner.lab("check", "--sign", str(key), at=learner.folder / "crashes é")
        finally:
            key.unlink()
        assert done.returncode == 4
        assert "key with it" in done.stderr

    def test_from_a_capture_to_the_page(self, captured):
        learner, place = captured
        (capture,) = (place / ".lab" / "captures").iterdir()
        assert capture.name == "0001-torch"
        shown = learner.json("report", at=place)
        assert shown["summary"]["wall_ns"] > 0
        assert shown["warning"] is None
        page = place / "pages" / "report.html"
        assert learner.lab("report", "--html", str(page), at=place).returncode == 0
        assert page.read_text().startswith("<!")
        assert (
            json.loads((capture / "capture.json").read_text())["environment"]["cpu"]
            in page.read_text()
        )
        only = learner.lab("compare", at=place)
        assert only.returncode == 2
        assert "only capture" in only.stderr

    def test_any_trace_is_read_and_asked(self, captured):
        learner, place = captured
        trace = str(place / ".lab" / "captures" / "0001-torch" / "trace.json.gz")
        assert "Where the time went" in learner.lab("report", trace).stdout
        asked = learner.json("report", "--query", "SELECT count(*) AS n FROM ranges", trace)
        assert asked["columns"] == ["n"]
        assert asked["rows"][0][0] > 0
        ready = learner.json("report", "--ask", "ranges", trace)
        assert ready["columns"][:2] == ["name", "times"]
        assert "in the whole capture" in learner.lab("report", "--ask", "ranges", trace).stdout
        assert "top-kernels" in learner.lab("report", "--ask", "why", trace).stderr
        written = learner.folder / "out" / "summary.json"
        assert learner.lab("report", "--export", str(written), trace).returncode == 0
        assert json.loads(written.read_text())["wall_ns"] > 0
        unknown = learner.lab("report", "--export", "report.docx", trace)
        assert unknown.returncode == 2
        assert ".parquet" in unknown.stderr
        refused = learner.lab("report", "--query", "DELETE FROM ranges", trace)
        assert refused.returncode == 2
        assert "Write one SELECT" in refused.stderr
        assert "none.json.gz does not exist" in learner.lab("report", "none.json.gz").stderr


@pytest.mark.timed
class TestSpeed:
    def test_shipped_code_is_too_slow(self, captured):
        status, verdict = checked_once(*captured)
        assert (status, verdict["outcome"], verdict["reason"]) == (1, "FAIL", "correct but slow"), (
            verdict
        )

    def test_the_solution_passes_and_the_prediction_stands_beside_the_gain(self, captured):
        learner, place = captured
        assert learner.lab("solution", "--yes", at=place).returncode == 0
        done = learner.lab("check", at=place)
        assert done.returncode == 0, done.stdout
        assert "PASS" in done.stdout
        assert "0001-torch shows older code than the last check" in done.stdout
        assert learner.lab("report", "--html", "page.html", at=place).returncode == 0
        assert (
            "0001-torch shows older code than the last check" in (place / "page.html").read_text()
        )
        row = learner.json("history", at=place)["checks"][-1]
        assert row["diagnosis"]["copied"], "the solution's own files"
        assert row["predicted"] == 40.0
        assert row["measured"] > 2
        learner.start("wrong", "wrong é")
        assert re.search(r"Next: cd '.*/wrong é'", learner.lab(at=place).stdout)


@pytest.mark.long
def test_a_check_that_is_stopped_leaves_no_process_and_nothing_half_written(learner):
    status = {"SIGINT": 130, "SIGTERM": 143, "SIGKILL": -9}
    places = {name: learner.start("endless", name) for name in status}
    with ThreadPoolExecutor() as pool:
        stopped = dict(
            zip(
                status,
                pool.map(partial(_stop_check, learner), status, places.values()),
                strict=True,
            )
        )
    for name, (returncode, rest, workers) in stopped.items():
        assert returncode == status[name], rest
        assert len(workers) >= 2, "a reference and a learner"
        assert soon(lambda workers=workers: not any(map(lives, workers)))
        assert learner.json("history", at=places[name])["checks"] == []
        unfinished = [
            path
            for path in places[name].rglob("*")
            if path.name.startswith((".running-", ".writing-"))
        ]
        assert not unfinished or name == "SIGKILL"


def _stop_check(learner: Learner, name: str, place: Path) -> tuple[int, str, list[psutil.Process]]:
    """A check stopped while it waits for the learner's endless code: its status, what it still
    said, and the processes it had.
    """
    with running(
        [*LAB, "check"],
        cwd=place,
        env=learner.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as check:
        assert any("checking answers" in line for line in iter(check.stderr.readline, ""))
        workers = psutil.Process(check.pid).children(recursive=True)
        check.send_signal(getattr(signal, name))
        rest = check.communicate(timeout=PATIENCE_S)[1]
    return check.returncode, rest, workers


class TestDev:
    def test_the_files_of_a_lab_in_order_are_found_so(self, learner):
        assert learner.json("dev", "check", "slow", "--static") == [
            {"lab": "slow", "what": "files", "problems": []}
        ]

    @pytest.fixture
    def content(self, tmp_path) -> Path:
        shutil.copytree(MINI, tmp_path / "content")
        return tmp_path / "content"

    @pytest.mark.parametrize(
        ("path", "text", "complaint"),
        [
            ("labs/slow/README.md", "", "labs/slow/README.md is empty"),
            (
                "labs/slow/notes.txt",
                "x",
                "labs/slow/notes.txt is named neither in lab.toml nor in judge.py",
            ),
            ("solutions/slow/extra.py", "x", "solutions/slow/extra.py is not an editable file"),
            ("labs/slow/work.py", "import bottleneck_lab", "imports bottleneck_lab"),
            ("solutions/slow/work.py", "def", "line 1"),
            ("solutions/slow/diagnosis.toml", "gain = 2.0", "answer to cause: Not answered yet"),
            ("solutions/slow/diagnosis.toml", "gain = ", "not valid TOML"),
            (
                "tests/variants/slow/dot/other.py",
                "x",
                "tests/variants/slow/dot/other.py is not an editable file",
            ),
        ],
    )
    def test_what_is_not_in_order_is_named(self, content, tmp_path, path, text, complaint):
        (content / path).write_text(text)
        (row,) = Learner(tmp_path, content).json("dev", "check", "slow", "--static")
        assert complaint in " ".join(row["problems"])

    def test_a_folder_that_the_course_does_not_name(self, content, tmp_path):
        (content / "labs" / "forgotten").mkdir()
        done = Learner(tmp_path, content).lab("dev", "check", "--static")
        assert done.returncode == 1
        assert "labs/forgotten is not in any stage" in done.stdout

    @pytest.mark.parametrize("part", ["starter", "variants"])
    def test_one_part_of_a_lab_is_measured(self, learner, part):
        """The lab has no variants. Solutions, and whether a part is as it should be, are measured
        where all labs are.
        """
        measured = [row["what"] for row in learner.json("dev", "check", "crashes", "--only", part)]
        assert measured == ["files", *([f"{part} on cpu"] if part != "variants" else [])]

    @pytest.fixture
    def author(self, content, tmp_path) -> Learner:
        """Somebody who has begun a lab called `mine` and put it into the course."""
        author, course = Learner(tmp_path, content), content / "labs" / "course.toml"
        assert author.lab("dev", "new", "mine", "--into", str(content)).returncode == 0
        course.write_text(course.read_text().replace('"slow"', '"mine", "slow"'))
        return author

    def test_a_new_lab_is_the_example_whole(self, author, content):
        """Its starter and solution are measured where the documentation is tested."""
        (row,) = author.json("dev", "check", "mine", "--static")
        assert row == {"lab": "mine", "what": "files", "problems": []}
        for part in ("labs", "solutions", "tests/variants", "tests/mutants"):
            example = EXAMPLE / part / "running-mean"
            for path in (
                path
                for path in example.rglob("*")
                if path.is_file() and "__pycache__" not in path.parts
            ):
                assert (
                    content / part / "mine" / path.relative_to(example)
                ).read_bytes() == path.read_bytes()
        again = author.lab("dev", "new", "mine", "--into", str(content))
        assert again.returncode == 2
        assert "already exists" in again.stderr

    def test_a_new_lab_joins_a_stage_and_names_its_workload(self, content, tmp_path):
        author = Learner(tmp_path, content)
        made = author.lab(
            "dev", "new", "mine", "--into", str(content), "--course", "only", "--entry", "train.py"
        )
        assert made.returncode == 0, made.stderr
        assert "Next: `lab dev check mine`" in made.stdout
        (row,) = author.json("dev", "check", "mine", "--static")
        assert row == {"lab": "mine", "what": "files", "problems": []}
        assert not list(content.rglob("smooth.py"))
        assert (content / "labs" / "mine" / "train.py").is_file()

    def test_targets_are_judged_over_machines(self, learner, tmp_path):
        def row(name: str, value: float, *, right: bool, machine: str) -> dict[str, object]:
            margin = {
                "criterion": "speedup",
                "value": value,
                "low": value,
                "high": value,
                "bar": 3.0,
                "at_least": True,
            }
            proof = {
                "part": "variants",
                "name": name,
                "device": "cpu",
                "outcome": "PASS",
                "margins": [margin],
            }
            return {
                "lab": "mine",
                "what": name,
                "problems": [],
                "proof": {**proof, "machine": machine, "right": right},
            }

        laptop, server = tmp_path / "laptop.json", tmp_path / "server.json"
        laptop.write_text(json.dumps([row("slow", 1.0, right=False, machine="laptop")]))
        server.write_text(json.dumps([row("fast", 3.1, right=True, machine="server")]))
        done = learner.lab("dev", "calibrate", str(laptop), str(server))
        assert done.returncode == 1
        assert (
            "right work is 1.03 times as good as required; 1.1 is safe (fast, server)"
            in done.stdout
        )
        assert "Safe on these machines: 1.11 to 2.82" in done.stdout
        server.write_text(json.dumps([row("fast", 4.0, right=True, machine="server")]))
        assert learner.lab("dev", "calibrate", str(laptop), str(server)).returncode == 0
        assert learner.lab("dev", "calibrate", str(tmp_path / "none.json")).returncode == 2

    @pytest.mark.parametrize(
        ("kind", "parts"), [("http_server", 4), ("input_pipeline", 5), ("data_parallel", 4)]
    )
    def test_a_new_lab_of_a_kind_outside_any_known_folder_says_how_to_be_found(
        self, tmp_path, kind, parts
    ):
        author, pack = Learner(tmp_path), tmp_path / "my pack"
        pack.mkdir()
        made = author.lab(
            "dev",
            "new",
            "desk",
            "--kind",
            kind,
            "--course",
            "beginner",
            "--entry",
            "desk.py",
            at=pack,
        )
        assert made.returncode == 0, made.stderr
        assert made.stdout.count("made ") == parts, (
            "a lab of the feed kind brings the generator of its data set"
        )
        assert f"Next: `BOTTLENECK_LAB_PACKS='{pack}' lab dev check desk`." in made.stdout.replace(
            "\n", " "
        )
        author.environment["BOTTLENECK_LAB_PACKS"] = str(pack)
        assert author.json("dev", "check", "desk", "--static") == [
            {"lab": "desk", "what": "files", "problems": []}
        ]
        assert author.lab("dev", "new", "more", "--kind", "riddle", at=pack).returncode == 2

    @pytest.mark.long
    def test_a_lab_is_gone_through_as_a_learner_meets_it(self, learner):
        done = learner.lab("dev", "play", "slow", "--solution")
        assert done.returncode in (0, 3), done.stdout + done.stderr
        next_commands = [line[2:] for line in done.stdout.splitlines() if line.startswith("$ ")]
        commands = [
            "cat",
            "lab start",
            "lab profile",
            "lab report",
            "lab hint",
            "lab hint",
            "lab diagnose",
            "lab diagnose",
            "lab report",
            "lab check",
            "cp solutions/slow/work.py",
            "lab check",
        ]
        assert [
            line.startswith(command) for line, command in zip(next_commands, commands, strict=True)
        ] == [True] * len(commands)
        seen, *verdicts = done.stdout.split("$ lab check")
        blind, _, open_ = seen.partition("Committed")
        assert "Findings, costliest first" not in blind
        assert "Findings, costliest first" in open_
        assert "Hint 2 of 2: NumPy can square" in blind
        shipped, solved = (" ".join(verdict.split()) for verdict in verdicts)
        assert re.search(
            "FAIL correct but slow|INCONCLUSIVE", shipped
        )  # a busy machine decides neither
        assert re.search("PASS|INCONCLUSIVE", solved)
        for verdict in (shipped, solved):
            assert "slow on cpu" in verdict
            assert "at least 5x" in verdict

    @pytest.mark.slow
    def test_a_new_lab_works_without_touching_the_package(self, author, content):
        spec = content / "labs" / "mine" / "lab.toml"
        spec.write_text(
            spec.read_text().replace("max_s = 30", "max_s = 30\nself_test_margin = 2.0")
        )
        done = author.lab("dev", "check", "mine")
        assert done.returncode == 0, done.stdout + done.stderr
        assert [line for line in done.stdout.splitlines() if line.startswith("✓")] == [
            "✓ mine: files",
            "✓ mine: capture of the starter on cpu",
            "✓ mine: starter on cpu",
            "✓ mine: solution on cpu",
            *(
                f"✓ mine: variant {name} on cpu"
                for name in ("convolution", "doubling", "running-total")
            ),
            *(
                f"✓ mine: mutant {name} on cpu"
                for name in (
                    "one-mean-short",
                    "single-precision",
                    "first-window-for-all",
                    "still-a-loop",
                )
            ),
        ]


@pytest.mark.long
class TestWatch:
    def test_a_save_is_checked(self, learner):
        place = learner.start("wrong")
        with running(
            [*LAB, "watch", "--once"],
            cwd=place,
            env=learner.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as watch:
            assert "Watching work.py" in watch.stdout.readline()
            (place / "work.py").write_text((place / "work.py").read_text() + "\n# saved\n")
            shown = watch.communicate(timeout=PATIENCE_S)[0]
        assert watch.returncode == 0
        assert "missed: right-answers" in shown
        assert len(learner.json("history", at=place)["checks"]) == 1


class TestCompare:
    @pytest.fixture
    def capture(self):
        """Puts a made-up capture into a workspace."""

        def put(place: Path, name: str, made_up: str) -> None:
            folder = place / ".lab" / "captures" / name
            folder.mkdir(parents=True)
            shutil.copy(MADE_UP / made_up, folder)
            (folder / "capture.json").write_text(json.dumps({"files": [made_up]}))

        return put

    def test_only_captures_with_a_timeline_are_compared(self, learner, capture):
        place = learner.start()
        capture(place, "0001-ncu", "synthetic-fused-attention-ncu.csv")
        assert "0001-ncu holds no timeline" in learner.lab("compare", at=place).stderr
        capture(place, "0002-torch", "synthetic-input.json.gz")
        only = learner.lab("compare", at=place)
        assert only.returncode == 2
        assert "0002-torch is the only capture with a timeline" in only.stderr
        capture(place, "0003-torch", "synthetic-healthy.json.gz")
        capture(place, "0004-ncu", "synthetic-fused-attention-ncu.csv")
        found = learner.json("compare", at=place)
        assert (found["before"], found["after"]) == ("0002-torch", "0003-torch")
        refused = learner.lab("compare", "2", "4", at=place)
        assert refused.returncode == 2
        assert "0004-ncu holds no timeline" in refused.stderr


class TestProfileAndRun:
    def test_a_workload_that_crashes_leaves_no_capture(self, learner):
        place = learner.start("crashes")
        done = learner.lab("profile", at=place)
        assert done.returncode == 4
        assert "ZeroDivisionError" in done.stderr
        assert not list((place / ".lab" / "captures").iterdir())
        assert learner.lab("report", at=place).returncode == 2

    def test_a_capture_that_failed_leads_to_the_line_to_mend(self, learner):
        place = learner.start()
        (place / "work.py").write_text((place / "work.py").read_text().replace("0.0", "0.0 / 0"))
        done = learner.lab("profile", at=place)
        assert done.returncode == 4
        assert "→ Mend work.py, line 8: the error above" in done.stderr
        assert "Next: edit work.py" in learner.lab(at=place).stdout

    def test_run_prints_what_the_workload_prints(self, learner):
        done = learner.lab("run", at=learner.start())
        assert (done.returncode, done.stdout) == (0, "285.0\n")
        broken = learner.start("crashes", "other")
        done = learner.lab("run", at=broken)
        assert done.returncode == 1
        assert "ZeroDivisionError" in done.stdout
