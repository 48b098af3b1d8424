"""A second process that works on part of a capture, and the file through which its results come
back.

Which part is read first by whom differs by format (`kineto_parallel`, `nsys/claims`), and what is
summed up beside what is the analysis' to say (`beside`); starting the process, handing over and
clearing up do not differ. All are measured by benchmarks/trace_analysis.py: taking over the other
process's rows costs 0.02 s for 104 MB (docs/measured/trace_analysis.md).
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import IO, Any, TypeVar

from bottleneck_lab.trace.fast.allocator import give_back
from bottleneck_lab.trace.fast.second_process import SecondProcess, Work, fork, spawn

Argument = TypeVar("Argument")


def hand_over(shared: IO[bytes], read: Any) -> None:
    """Write rows in the second process for the first, which gets them once the second has ended.

    Arrays are written as they lie in memory (pickle protocol 5).
    """
    pickle.dump(read, shared, protocol=5)


class SecondReader:
    """The first process's side. Leaving the context ends the second process, whatever it
    was doing.
    """

    def __init__(self) -> None:
        self.shared = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._process: SecondProcess | None = None

    def __enter__(self) -> SecondReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fork(self, work: Work, *arguments: Any) -> bool:
        """Start `work` in a copy of this process; False if that is not safe or not possible."""
        give_back()  # what an earlier capture left would be copied, too
        self._process = fork(work, self.shared, *arguments)
        return self._process is not None

    def spawn(self, work: Work, *arguments: str | int) -> bool:
        """Start `work` in a fresh interpreter; False if that is not possible."""
        self._process = spawn(work, self.shared, *arguments)
        return self._process is not None

    def handed_over(self) -> Iterator[Any] | None:
        """Wait for the second process to end; yield what it handed over, in order. None if it
        failed or was never started.
        """
        if self._process is None or self._process.wait() != 0:
            return None
        return self._loaded()

    def _loaded(self) -> Iterator[Any]:
        size = self.shared.seek(0, 2)
        self.shared.seek(0)
        while self.shared.tell() < size:
            # Safe to unpickle: our own child wrote it, and the file has no name that others could
            # open it by.
            yield pickle.load(self.shared)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.shared.close()


@contextmanager
def beside(
    tasks: Sequence[Callable[[Argument], Any]], argument: Argument, *, copied: bool
) -> Iterator[Callable[[], list[Any]]]:
    """Have `tasks` done one after another, each with the argument, in a copy of this process, which
    shares its memory, while this one goes on; yields what waits for the results. Once they are
    waited for, this process does those that the copy has not begun: all of them, if it is not to be
    `copied`, and where there can be no copy or it failed.
    """
    if not copied:
        yield cache(lambda: [task(argument) for task in tasks])
        return
    numbers, written = os.pipe()
    # Who reads a number out of the pipe does the task that has it.
    os.write(written, bytes(range(len(tasks))))
    os.close(written)
    with SecondReader() as second, os.fdopen(numbers, "rb", 0) as left:
        second.fork(_work, tasks, argument, left)

        @cache
        def results() -> list[Any]:
            done = _do(tasks, argument, left)
            for of_copy in second.handed_over() or ():
                done |= of_copy
            return [done[i] if i in done else task(argument) for i, task in enumerate(tasks)]

        yield results


def _work(
    shared: IO[bytes], tasks: Sequence[Callable[[Any], Any]], argument: Any, left: IO[bytes]
) -> None:
    hand_over(shared, _do(tasks, argument, left))
    shared.flush()


def _do(tasks: Sequence[Callable[[Any], Any]], argument: Any, left: IO[bytes]) -> dict[int, Any]:
    """Do the tasks that nobody has begun yet; returns their results by number."""
    return {number: tasks[number](argument) for (number,) in iter(lambda: left.read(1), b"")}
