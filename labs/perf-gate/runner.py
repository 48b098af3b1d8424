"""The runs of a commit's benchmarks that a gate can ask for.

`lab run` and `lab check` connect `Runner` to an emulated machine, or to a core or GPU that does
timed work. `python ci.py` uses `Here`, which checks the commits out side by side and runs real
commands.
"""

import json
import subprocess
import tempfile
import time
from pathlib import Path


class OutOfTimeError(RuntimeError):
    """The CI job has used up its time."""


class Runner:
    """One CI job on one machine, with a time limit. Every job may get a different machine."""

    def __init__(self, ask, benchmarks):
        self._ask = ask
        self.benchmarks = benchmarks

    def run(self, commit, benchmark):
        """Runs one benchmark of any commit of the history once, in its own process; its seconds.

        Starting the process takes a little of the job's time as well, and the first run of a commit
        builds it.
        """
        return self._get("run", commit, benchmark)

    def seconds_left(self):
        """How much of the job's time is left."""
        return self._get("left")

    def _get(self, *words):
        status, value = self._ask(*words)
        if status == 1:
            raise OutOfTimeError("the job has used up its time")
        if status == 2:
            raise LookupError(f"there is no such commit or benchmark: {', '.join(words[1:])}")
        return value


class Here:
    """This machine and a git repository: each commit is checked out once, and a benchmark is a
    command that runs there.
    """

    def __init__(self, repository, commands, seconds):
        self.commands, self.benchmarks = commands, list(commands)
        self._repository, self._folders = repository, {}
        self._scratch = tempfile.TemporaryDirectory(prefix="gate-")
        self._until = time.perf_counter() + seconds

    def run(self, commit, benchmark):
        folder = self._folders.get(commit) or self._check_out(commit)
        begin = time.perf_counter()
        subprocess.run(
            self.commands[benchmark], shell=True, cwd=folder, check=True, stdout=subprocess.DEVNULL
        )
        return time.perf_counter() - begin

    def seconds_left(self):
        return self._until - time.perf_counter()

    def _check_out(self, commit):
        folder = Path(self._scratch.name, str(len(self._folders)))
        subprocess.run(
            ["git", "-C", self._repository, "worktree", "add", "-q", "--detach", folder, commit],
            check=True,
        )
        self._folders[commit] = folder
        return folder

    def close(self):
        for folder in self._folders.values():
            subprocess.run(
                ["git", "-C", self._repository, "worktree", "remove", "--force", folder], check=True
            )
        self._scratch.cleanup()


def run(entry, ask, commit, benchmarks, baseline):
    """Called by `lab run` and `lab check`: one job. The baseline file comes from the previous job
    and goes on to the next.
    """
    with tempfile.TemporaryDirectory(prefix="job-") as folder:
        file = Path(folder, "baseline.json")
        if baseline:
            file.write_text(baseline, encoding="utf-8")
        slower = entry.gate(Runner(ask, json.loads(benchmarks)), commit, file)
        kept = file.read_text(encoding="utf-8") if file.is_file() else ""
    if not isinstance(slower, list) or not all(isinstance(name, str) for name in slower):
        raise TypeError(f"gate() must return a list of benchmarks' names, not {slower!r:.100}")
    return (kept, *slower)
