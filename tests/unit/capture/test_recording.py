"""A program under a tool: its output comes through, it ends at its limit, and nothing of it
outlives the call.
"""

import os
import sys
from pathlib import Path

import psutil
import pytest

from bottleneck_lab.capture import recording
from bottleneck_lab.capture.recording import Request, run
from bottleneck_lab.errors import UsageError

from ...processes import lives, soon


def request(folder: Path, **more) -> Request:
    return Request(("x",), folder, folder, **more)


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_output_comes_through_and_its_end_is_kept(tmp_path):
    shown = bytearray()
    ended = run(
        request(tmp_path, sink=shown.extend, environment={"A": "b"}),
        python("import os; print(os.environ['A'], 'é')"),
    )
    assert shown.decode() == "b é\n"
    assert (ended.status, ended.tail, ended.timed_out) == (0, "b é\n", False)


def test_a_status_and_a_signal_are_told_apart(tmp_path):
    assert run(request(tmp_path), python("raise SystemExit(7)")).why() == "exited with status 7"
    killed = run(request(tmp_path), python("import os; os.kill(os.getpid(), 9)"))
    assert killed.why() == "was killed by signal 9 (SIGKILL)"


def test_at_its_limit_it_may_still_write_its_report(tmp_path):
    code = (
        "import time\ntry: time.sleep(600)\n"
        "except KeyboardInterrupt: open('report', 'w').write('x')"
    )
    ended = run(request(tmp_path, limit_s=1.0), python(code))
    assert ended.timed_out
    assert (tmp_path / "report").read_text() == "x"


def test_one_that_will_not_stop_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "WRITE_S", 0.2)
    code = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    assert run(request(tmp_path, limit_s=0.5), python(code)).status == -9


def test_an_agent_in_a_session_of_its_own_is_ended_and_nobody_elses(tmp_path):
    other = psutil.Popen(
        python("import time; time.sleep(600)"), env={recording.MARK: "somebody else's"}
    )
    agent = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-S', '-c', 'import time;"
        " time.sleep(600)'], start_new_session=True).pid)"
    )
    try:
        ended = run(request(tmp_path), python(agent))
        left = [process for process in psutil.process_iter() if process.pid == int(ended.tail)]
        assert soon(lambda: not any(map(lives, left)))
        assert other.is_running()
    finally:
        other.kill()
        other.wait()


def test_no_such_program(tmp_path):
    with pytest.raises(UsageError, match="no program 'nowhere'"):
        run(request(tmp_path), ["nowhere"])


def test_the_tail_is_bounded(tmp_path):
    ended = run(request(tmp_path), python("print('x' * 1000000); print('last')"))
    assert ended.last_lines(1) == "last"
    assert len(ended.tail) <= 32 << 10


def test_the_line_that_is_shown_can_be_pasted(tmp_path):
    shown = recording.typed(
        ["a b", f"--output={tmp_path}/report"], request(tmp_path, environment={"K": "v w"})
    )
    assert shown == "K='v w' 'a b' --output=report"
    assert os.system(recording.typed(["true", "it's"], request(tmp_path))) == 0
