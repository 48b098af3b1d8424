"""Imports that PyTorch makes and that no program of this device needs: Triton, and in the first
step of a training its compiler and its distributed tensors. Together they take as long as a short
training.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.optim import Optimizer


def leave_out_needless_imports() -> None:
    """Have PyTorch run optimizers and tensor subclasses without these imports. A program may still
    import either itself.
    """
    _leave_out_compiler()
    _leave_out_distributed_tensors()


def _leave_out_compiler() -> None:
    """Have optimizers not ask the compiler to leave them alone: nothing is compiled here."""
    for kind in [each for each in vars(torch.optim).values() if isinstance(each, type)]:
        for name, method in list(vars(kind).items()) if issubclass(kind, Optimizer) else ():
            inner = getattr(method, "__wrapped__", None)
            if inner is None or not isinstance(method, FunctionType):
                continue
            if method.__code__.co_name == "_use_grad":
                setattr(kind, name, _without_compiler(inner))
            else:
                # Where `torch._disable_dynamo` keeps the function that it calls.
                inner.__dict__["__dynamo_disable"] = inner


def _without_compiler(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return an optimizer's step as PyTorch wraps it, but for the breaks of a compiled graph."""

    @functools.wraps(step)
    def run(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return step(self, *args, **kwargs)

    return run


def flop_formulas() -> dict[Any, Callable[..., int]]:
    """Return PyTorch's formulas for floating-point operations, by operator."""
    # It asks Triton which class its kernels are: none comes by here.
    with _stand_in("triton.runtime.jit", JITFunction=type("JITFunction", (), {})):
        from torch.utils.flop_counter import flop_registry

    return flop_registry


@contextlib.contextmanager
def _stand_in(name: str, **contents: Any) -> Iterator[None]:
    """Have a module that has not been imported yet be one with these contents."""
    if name in sys.modules:
        yield
        return
    module = ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module
    try:
        yield
    finally:
        del sys.modules[name]


class _Probe(torch.Tensor):
    """A tensor whose operators come to Python and do nothing."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own default is another function
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return args[0]


def _leave_out_distributed_tensors() -> None:
    """Have PyTorch learn which class distributed tensors are, before it imports them to see."""
    # It asks once in a process, when the first operator of a subclass comes to Python.
    with _stand_in("torch.distributed.tensor", DTensor=type("DTensor", (torch.Tensor,), {})):
        torch.Tensor._make_wrapper_subclass(_Probe, (1,)).detach()
