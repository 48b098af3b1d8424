"""Errors of operators in a backward pass on the virtual GPU: they reach the program."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

_forget_error = ctypes.pythonapi.PyErr_Clear


class Guard(torch._C._acc.DeviceGuard):
    """PyTorch's guard of the current device and stream, for a device written in Python.

    Where an operator of a backward pass has raised, PyTorch asks the guard for its type while the
    error is on its way. Python calls nothing then, and the process would be aborted. So the error
    is forgotten here, and `Failures` raises it anew.
    """

    def type_(self) -> Any:
        _forget_error()
        return torch._C._autograd.DeviceType.PrivateUse1


class Failures:
    """Errors of operators in a backward pass, kept until the pass has been left."""

    def __init__(self) -> None:
        self._error: Exception | None = None

    def note(self, error: Exception) -> None:
        """Note what an operator raises, if a backward pass is under way."""
        if torch._C._current_graph_task_id() != -1:
            self._error = error

    def install(self) -> None:
        """Have every backward pass raise what an operator in it has raised."""
        autograd: Any = torch.autograd  # which publishes no such name
        run_backward = autograd._engine_run_backward

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return run_backward(*args, **kwargs)
            except SystemError:
                error, self._error = self._error, None
                if error is None:
                    raise
                raise error from None
            finally:
                self._error = None

        autograd._engine_run_backward = run
