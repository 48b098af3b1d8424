"""A second process that works on part of a capture, and the file through which its results come
back.

Which part is read first by whom differs by format (`kineto_parallel`, `nsys/claims`), and what is
summed up beside what is the analysis' to say (`beside`); starting the process, handing over and
clearing up do not differ. All are measured by benchmarks/trace_analysis.py: taking over the other
process's rows costs 0.02 s for 104 MB (docs/measured/trace_analysis.md).
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import IO, Any, TypeVar

from bottleneck_lab.trace.fast.allocator import give_back
from bottleneck_lab.trace.fast.second_process import SecondProcess, Work, fork, spawn

Result = TypeVar("Result")
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
    work: Callable[[Argument], Result], argument: Argument, *, copied: bool
) -> Iterator[Callable[[], Result]]:
    """Have `work(argument)` done in a copy of this process, which shares its memory, while this one
    goes on; yields what waits for the result. It is done here, when it is waited for, if it is not
    to be `copied`, and where there can be no copy or it failed.
    """
    if not copied:
        yield cache(partial(work, argument))
        return
    with SecondReader() as second:
        second.fork(_work, work, argument)

        @cache
        def result() -> Result:
            results = second.handed_over()
            return work(argument) if results is None else next(results)

        yield result


def _work(shared: IO[bytes], work: Callable[[Any], Any], argument: Any) -> None:
    hand_over(shared, work(argument))
    shared.flush()
