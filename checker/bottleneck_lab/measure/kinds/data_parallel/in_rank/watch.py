"""Inside a rank: the script's work between the model's passes, reported to the fabric as events
that it charges for.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from bottleneck_lab.measure.kinds.data_parallel.in_rank.client import Client
from bottleneck_lab.measure.kinds.data_parallel.protocol import EventKind

_SPARE_HOST_S, _QUANTUM_S = 0.020, 0.005
_SYNCHRONISING = frozenset(
    [
        "item", "tolist", "numpy", "cpu", "nonzero", "equal", "allclose", "__float__", "__int__",
        "__bool__", "__index__", "__repr__", "__format__", "__array__",
    ]
)  # fmt: skip
"""Calls that wait for the device, since the host gets values."""
_FREE = frozenset(
    [
        "size", "dim", "numel", "stride", "view", "reshape", "detach", "__get__", "__set__",
        "__len__", "is_floating_point", "__getitem__", "__hash__",
    ]
)  # fmt: skip
"""Calls that launch nothing."""

_BACKWARD = frozenset(["backward", "grad"])
"""Calls that run backward, which modules report: of a tensor, and of `torch.autograd`."""

Tell = Callable[..., None]


class HostWatch:
    """A bracket around work that is not the script's own: `with watch: …` around a pass of the
    model, the optimizer, a collective.

    Host work is charged only beyond 20 ms of CPU time at a stretch and in steps of 5 ms, so that an
    honest script's modelled time is exactly the same in every run.
    """

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.depth = 0
        self.in_forward = False
        self._awaited = -1
        self._since = time.thread_time()

    def __enter__(self) -> HostWatch:
        self.depth += 1
        if self.depth == 1:
            spent = time.thread_time() - self._since
            if spent > _SPARE_HOST_S:
                self.tell(
                    EventKind.HOST, 0, 0, 0, int(spent / _QUANTUM_S) * round(_QUANTUM_S * 1e9)
                )
        return self

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if self.depth == 0:
            if self._awaited >= 0:
                self.tell(EventKind.WAIT, 0, 0, self._awaited)
                self._awaited = -1
            self._since = time.thread_time()

    def wait(self, collective: int) -> None:
        """Report that all computing from now on needs a collective. Within backward, only the work
        after it does: hooks hold up no backward.
        """
        if self.depth and not self.in_forward:
            self._awaited = max(self._awaited, collective)
        else:
            self.tell(EventKind.WAIT, 0, 0, collective)


class Interceptor(TorchFunctionMode):
    """Intercepts every torch call of the script: passes of autograd are bracketed, waits reported,
    small operations charged.
    """

    def __init__(self, watch: HostWatch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self.watch.depth or name in _FREE:
            return func(*args, **kwargs)
        with self.watch:
            if name in _SYNCHRONISING or (name == "to" and "cpu" in args):
                self.watch.tell(EventKind.SYNC)
                return func(*args, **kwargs)
            result = func(*args, **kwargs)
            if name not in _BACKWARD:
                self.watch.tell(
                    EventKind.DEVICE, 0, 0, 0, _bytes_touched([*args, *kwargs.values(), result])
                )
            return result


def _bytes_touched(values: Iterable[Any]) -> int:
    """Return the bytes of all tensors among the values, however deep in lists and tuples."""
    total = 0
    for value in values:
        if isinstance(value, list | tuple):
            total += _bytes_touched(value)
        elif isinstance(value, torch.Tensor):
            total += value.numel() * value.element_size()
    return total


def watch_modules(model: nn.Module, client: Client, watch: HostWatch) -> None:
    """Report every module with parameters of its own: its forward when it returns, its backward
    when the gradient of its output arrives. The fabric answers with a factor for that gradient.

    Where the parameters of every step are compared, keep what each forward used instead.
    """
    # A script may call the model's parts one by one, outside the wrapped model's bracket: what is
    # computed here is not its own work.
    # A module's backward is reported before its parameters' gradients exist, so that a collective
    # launched for them comes after it.
    current, whole = 0, False

    def begins(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal current, whole
        given = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
        if module is model or not whole:
            with watch:
                number = client.micro_batch(given[0]) if given else None
            if number is not None:
                current = number
        whole = whole or module is model

    def ends(*_: Any) -> None:
        nonlocal whole
        whole = False

    owners = [
        module
        for module in model.modules()
        if next(module.parameters(recurse=False), None) is not None
    ]
    if client.trained_with is not None:
        _keep_parameters(owners, client.trained_with)
        return
    for module in {model, *owners}:
        module.register_forward_pre_hook(begins, with_kwargs=True)
    model.register_forward_hook(ends)
    for index, module in enumerate(owners):

        def report(
            _module: nn.Module, _args: Any, output: torch.Tensor, index: int = index
        ) -> None:
            samples, micro_batch = output.shape[0], current
            client.tell(EventKind.FORWARD, 0, index, samples)
            if output.requires_grad:
                output.register_hook(  # type: ignore[no-untyped-call]  # torch has no types
                    lambda gradient: _scaled(gradient, client.factors(micro_batch, index, samples))
                )

        module.register_forward_hook(report)


def _keep_parameters(owners: list[nn.Module], memory: torch.Tensor) -> None:
    """Have each module's forward keep the parameters that it used, one module after the other."""
    for owner in owners:
        kept = []
        for parameter in owner.parameters(recurse=False):
            part, memory = memory[: parameter.numel()], memory[parameter.numel() :]
            kept.append((part.view(parameter.shape), parameter))
        owner.register_forward_hook(lambda *_, kept=kept: _copy_all(kept))


def _copy_all(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for into, tensor in pairs:
        into.copy_(tensor.detach())


def _scaled(gradient: torch.Tensor, by: list[float]) -> torch.Tensor | None:
    """Multiply each part of the samples with its factor; None if there are none."""
    if not by:
        return None
    if len(by) == 1:
        return gradient * by[0]
    factors = torch.tensor(by, dtype=gradient.dtype).repeat_interleave(len(gradient) // len(by))
    return gradient * factors.view(-1, *[1] * (gradient.dim() - 1))


def watch_passes(
    ddp: nn.Module, optimizer: torch.optim.Optimizer, watch: HostWatch, client: Client
) -> None:
    """Bracket the wrapped model's forward and the optimizer's step, and report the latter."""

    def begins(*_: Any) -> None:
        watch.__enter__()

    def stepped(*_: Any) -> None:
        watch.__exit__()
        client.updated()

    def begins_forward(*_: Any) -> None:
        watch.__enter__()
        watch.in_forward = True

    def ends_forward(*_: Any) -> None:
        watch.in_forward = False
        watch.__exit__()

    ddp.register_forward_pre_hook(begins_forward)
    ddp.register_forward_hook(ends_forward, always_call=True)
    optimizer.register_step_pre_hook(begins)
    optimizer.register_step_post_hook(stepped)


class _Printed(io.TextIOBase):
    def __init__(self, report: Tell, stream: Any) -> None:
        self.report = report
        self.stream = stream

    def write(self, text: str) -> int:
        if "\n" in text:
            self.report(EventKind.WRITE, 0, 0, text.count("\n"))
        return int(self.stream.write(text))

    def flush(self) -> None:
        self.stream.flush()


def watch_host(watch: HostWatch, client: Client) -> None:
    """Report lines printed, sleeps (which take no time here) and explicit waits for the device."""
    sys.stdout = _Printed(watch.tell, sys.stdout)

    def sleep(seconds: float) -> None:
        watch.tell(EventKind.HOST, 0, 0, 0, max(0, int(seconds * 1e9)))

    setattr(time, "sleep", sleep)  # noqa: B010 - an assignment is what the type checker forbids

    def synchronize(*_: Any) -> None:
        watch.tell(EventKind.SYNC)
        for collective in list(client.on_their_way):
            collective.arrive()

    setattr(torch.cuda, "synchronize", synchronize)  # noqa: B010 - as above
