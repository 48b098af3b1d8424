"""PyTorch as a program of the case library meets it: `cuda` is there, and takes a modelled time.

Device tensors are meta tensors: they have shapes and types, autograd works on them, and every
operator that reaches them is priced and put on the machine's clock. Host tensors are real.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from scripts.cases.machine import Finished, Kernel, Machine
from scripts.cases.prices import attention_kernel, is_free, kernels_of, leaves
from torch._dynamo import config as dynamo_config
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from bottleneck_lab.measure.virtual_gpu.operators import is_composite

aten = torch.ops.aten
_current = threading.local()

HOST_BYTES_PER_US = 6_000.0
"""Host operators move this much: one core's share of the memory."""
HOST_OPERATOR_US = 4.0
DISK_BYTES_PER_US = 1_200.0
"""Serialising and writing a checkpoint."""
COMPILED_LAUNCH_US = 5.0
"""The price of a launch by Inductor's wrapper."""
REPLAYED_US = 0.2
"""The host's price of a kernel of a CUDA graph."""
GUARDS_US = 45.0
OPTIMIZER_US = 100.0
"""The host's time for the Python of an optimizer's step: from its begin to its first operator, SGD
took 141 to 226 µs on the H200, under a profiler that makes all take 1.66 times as long.
"""
COMPILE_US = 1_400_000.0
_HALF = ("linear", "matmul", "bmm", "addmm", "mm", "conv1d", "conv2d", "baddbmm", "__matmul__")
_FULL = ("softmax", "log_softmax", "layer_norm", "cross_entropy", "mse_loss", "nll_loss", "pow")


def machine() -> Machine:
    """Return the machine that this thread's program runs on."""
    return _current.machine


class Device(TorchDispatchMode):
    """Prices every operator: on the device for meta tensors, on the host for others."""

    def __init__(self) -> None:
        super().__init__()
        self.free = 0
        self.compiled: Compiled | None = None
        self.backward: Compiled | None = None
        """The program compiled with its backward pass, which autograd runs later."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator."""
        kwargs = kwargs or {}
        packet = func.overloadpacket
        if is_composite(func):
            # In inference mode operators such as `linear` arrive whole.
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        if packet is aten._local_scalar_dense and args[0].is_meta:
            return self._read(args[0])
        if packet in (aten._to_copy, aten.copy_):
            moved = self._move(func, args, kwargs)
            if moved is not None:
                return moved
        result = func(*args, **kwargs)
        if packet is aten.convolution and result.is_meta:
            result = _like_convolved(result, args)
        if self.free:
            return result
        tensors = [each for each in leaves((args, kwargs, result)) if torch.is_tensor(each)]
        if any(each.is_meta for each in tensors):
            if not is_free(func):
                self._on_device(func, args, kwargs, result)
        elif tensors and not is_free(func):
            self._on_host(func, tensors)
        return result

    def _on_device(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        run = machine()
        for each in leaves(result):
            if torch.is_tensor(each) and not func._schema.is_mutable:
                run.allocate(each)
        kernels = kernels_of(func, args, kwargs, result, run.spec)
        name, node = func.overloadpacket.__name__, torch._C._current_autograd_node()
        if self.compiled is not None:
            self.compiled.add(name, kernels)
            return
        if self.backward is not None:
            if node is not None:
                self.backward.add(name, kernels)
                return
            self.backward.flush()
        run.operator(f"aten::{name}", kernels, node=node)

    def _on_host(self, func: Any, tensors: list[torch.Tensor]) -> None:
        run, start = machine(), machine().host
        nbytes = sum(each.nbytes for each in tensors)
        run.work(HOST_OPERATOR_US + nbytes / HOST_BYTES_PER_US)
        if run.host - start > 20.0:
            run.row("cpu_op", f"aten::{func.overloadpacket.__name__}", start, run.host)

    def _read(self, tensor: torch.Tensor) -> Any:
        """Return a value of the device's: the host waits for it."""
        run, start = machine(), machine().host
        if self.compiled is not None:
            self.compiled.break_graph()
        run.copy("d2h", tensor.element_size(), pinned=False, blocking=True)
        run.row("cpu_op", "aten::item", start, run.host)
        if tensor.dtype == torch.bool:
            return False
        return 1.0 if tensor.is_floating_point() else 1

    def _move(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Copy between host and device; None if that is not what the operator does."""
        to_new = func.overloadpacket is aten._to_copy
        source = args[0] if to_new else args[1]
        target = kwargs.get("device") if to_new else args[0].device
        if target is None or source.device.type == torch.device(target).type or self.free:
            return None
        asynchronous = kwargs.get("non_blocking", False) or (not to_new and args[2:3] == (True,))
        if source.is_meta:
            machine().copy("d2h", source.nbytes, pinned=asynchronous, blocking=not asynchronous)
            dtype = kwargs.get("dtype") or source.dtype
            if not to_new:
                return args[0]
            return torch.zeros(source.shape, dtype=dtype)
        pinned = getattr(source, "pinned", False)
        machine().copy("h2d", source.nbytes, pinned=pinned, blocking=not asynchronous)
        if not to_new:
            return args[0]
        layout = kwargs.get("memory_format") or torch.preserve_format
        arrived = torch.empty_like(
            source, device="meta", dtype=kwargs.get("dtype"), memory_format=layout
        )
        machine().allocate(arrived)
        return arrived


class Frontend(TorchFunctionMode):
    """Pretend to be all above autograd: the device's name, autocast, and library kernels."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
        self.autocast: list[tuple[torch.dtype | None, dict[int, Any]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one function of PyTorch's."""
        name = getattr(func, "__name__", "")
        kwargs = {key: _on_meta(value) for key, value in (kwargs or {}).items()}
        args = tuple(_on_meta(value) for value in args)
        if name == "cuda":
            return args[0].to("meta", non_blocking=kwargs.get("non_blocking", False))
        if name == "pin_memory":
            machine().work(machine().spec.pin_us + args[0].nbytes / 10_000.0)
            args[0].pinned = True
            return args[0]
        if name == "record_stream":
            return None
        if name in ("normal_", "uniform_"):
            weight = args[0] if args else kwargs["tensor"]
            if weight.numel() > 100_000 and not weight.is_meta:
                return weight  # the values of large weights do not matter
        if self.autocast and self.autocast[-1][0] is not None:
            args, kwargs = self._cast(name, args, kwargs)
        if name == "scaled_dot_product_attention" and args[0].is_meta:
            query, key, value = args[:3]
            return _Attention.apply(query, key, value)
        if name == "lstm" and args[0].is_meta:
            return _lstm(*args)
        return func(*args, **kwargs)

    def _cast(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Cast a function's tensors as autocast does."""
        dtype, cache = self.autocast[-1]
        if name in _FULL:
            wanted = torch.float32
        elif name in (*_HALF, "scaled_dot_product_attention", "lstm"):
            wanted = dtype
        else:
            return args, kwargs

        def cast(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(cast(each) for each in value)
            if not torch.is_tensor(value) or not value.is_meta or value.dtype == wanted:
                return value
            if not value.is_floating_point():
                return value
            if not (value.is_leaf and value.requires_grad):
                return value.to(wanted)
            if id(value) not in cache:
                cache[id(value)] = value.to(wanted)
            return cache[id(value)]

        return cast(args), {key: cast(value) for key, value in kwargs.items()}


def _like_convolved(result: torch.Tensor, args: Any) -> torch.Tensor:
    """Return a convolution's result in the layout that cuDNN gives it: meta tensors ignore it."""
    last = torch.channels_last
    if result.dim() == 4 and any(each.is_contiguous(memory_format=last) for each in args[:2]):
        return torch.empty_like(result, memory_format=last)
    return result


def _on_meta(value: Any) -> Any:
    """Return `meta` for the device's names, and anything else as it is."""
    if isinstance(value, torch.device):
        return torch.device("meta") if value.type == "cuda" else value
    return "meta" if isinstance(value, str) and value.startswith("cuda") else value


class _Attention(torch.autograd.Function):
    """Fused attention, one kernel forward and one backward."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        """Return what has the query's shape."""
        ctx.save_for_backward(query, key, value)
        _fused("fwd", query, key, 4.0)
        return torch.empty_like(query)

    @staticmethod
    def backward(ctx: Any, *_grads: Any) -> Any:
        """Return three gradients."""
        query, key, value = ctx.saved_tensors
        _fused("bwd", query, key, 10.0)
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _fused(way: str, query: Any, key: Any, factor: float) -> None:
    run = machine()
    flops = factor * query.numel() * key.shape[-2]
    half = query.dtype != torch.float32
    rate = 400e12 if half else run.spec.flops_per_s
    nbytes = 4 * query.nbytes
    us = run.spec.reduction_us + max(flops / rate, nbytes / run.spec.bytes_per_s) * 1e6
    # Flash attention takes no float32.
    name = f"aten::_scaled_dot_product_{'flash' if half else 'efficient'}_attention"
    if way == "bwd":
        name += "_backward"
    kernel = Kernel(attention_kernel(way, query.dtype), us)
    run.operator(name, [kernel], node=torch._C._current_autograd_node())


class _Recurrent(torch.autograd.Function):
    """cuDNN's LSTM: a product for all steps, then a kernel that stays for the recurrence."""

    @staticmethod
    def forward(ctx: Any, layers: int, hidden: int, data: Any, *weights: Any) -> Any:
        """Return the outputs of all steps, batch first."""
        ctx.save_for_backward(data, *weights)
        ctx.layers, ctx.hidden = layers, hidden
        _recurrence("_cudnn_rnn", data, layers, hidden, 1.0)
        return torch.empty((*data.shape[:2], hidden), dtype=data.dtype, device="meta")

    @staticmethod
    def backward(ctx: Any, *_grads: Any) -> Any:
        """Return gradients of input and weights."""
        data, *weights = ctx.saved_tensors
        _recurrence("_cudnn_rnn_backward", data, ctx.layers, ctx.hidden, 2.0)
        return None, None, *(torch.empty_like(each) for each in (data, *weights))


def _recurrence(name: str, data: Any, layers: int, hidden: int, factor: float) -> None:
    run = machine()
    batch, length, width = data.shape
    kernels = []
    for layer in range(layers):
        flops = factor * 8.0 * batch * length * hidden * (width if layer == 0 else hidden)
        kernels += [
            Kernel("sm90_xmma_gemm_tf32tf32_tf32f32_f32_tn_n", 2.4 + flops / 250e12 * 1e6),
            Kernel("RNN_blockPersist_fp_LSTM<float, float, float, 512>", 4.0 * factor * length),
        ]
    run.operator(f"aten::{name}", kernels, host_us=120.0, node=torch._C._current_autograd_node())


def _lstm(data: Any, states: Any, weights: Any, *options: Any) -> Any:
    layers = options[1]
    hidden = states[0].shape[-1]
    output = _Recurrent.apply(layers, hidden, data, *weights)
    return output, states[0], states[1]


class Compiled:
    """A function that `torch.compile` has compiled: fewer launches, elementwise chains in one.

    A new shape is compiled anew, up to Dynamo's limit: what comes then runs as it is written. A
    value that the host reads breaks the graph.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        device: Device,
        *,
        mode: str = "",
        dynamic: bool | None = None,
    ) -> None:
        self._function, self._device, self._dynamic = function, device, dynamic
        self._launch_us = REPLAYED_US if mode == "reduce-overhead" else COMPILED_LAUNCH_US
        self._compiled: dict[Any, int] = {}
        self._chain: list[Kernel] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function as compiled for these shapes."""
        if self._device.compiled is not None:
            return self._function(*args, **kwargs)
        run = machine()
        shapes = tuple(
            each.dim() if self._dynamic else tuple(each.shape)
            for each in leaves((args, kwargs))
            if torch.is_tensor(each)
        )
        if shapes not in self._compiled:
            if len(self._compiled) == dynamo_config.recompile_limit:
                return self._function(*args, **kwargs)
            self._compiled[shapes] = len(self._compiled)
            with run.range("_compile.compile_inner (dynamo_timed)", "cpu_op"):
                run.work(COMPILE_US)
        run.work(GUARDS_US)
        start = run.host
        self._device.compiled = self
        if torch.is_grad_enabled():
            self._device.backward = self
        try:
            return self._function(*args, **kwargs)
        finally:
            self.flush()
            self._device.compiled = None
            region = f"Torch-Compiled Region: 0/{self._compiled[shapes]}"
            run.row("user_annotation", region, start, run.host)

    def add(self, name: str, kernels: list[Kernel]) -> None:
        """Take one operator into the graph."""
        for kernel in kernels:
            if "elementwise" in kernel.name or "reduce_kernel" in kernel.name or "norm" in name:
                self._chain.append(kernel)
            else:
                self.flush()
                machine().operator(f"aten::{name}", [kernel], host_us=2 * self._launch_us)

    def flush(self) -> None:
        """Launch the chain of elementwise kernels that has come together, as one."""
        if self._chain:
            us = max(kernel.us for kernel in self._chain)
            name = f"triton_poi_fused_{len(self._chain)}"
            machine().operator(name, [Kernel(name, us)], host_us=self._launch_us)
            self._chain = []

    def break_graph(self) -> None:
        """End the graph here, and go on in Python."""
        self.flush()
        machine().work(4 * GUARDS_US)


class Profile:
    """torch.profiler.profile: the steps of its schedule are recorded, and the program ends."""

    def __init__(
        self,
        *_args: Any,
        schedule: Any = None,
        profile_memory: bool = False,
        **_options: Any,
    ) -> None:
        self._wait, self._active = schedule
        machine().records_memory = profile_memory
        self._number = 0
        self._start = 0.0

    def __enter__(self) -> Profile:
        """Begin with the first step."""
        if not self._wait:
            machine().start()
        self._start = machine().host
        return self

    def __exit__(self, *_exception: object) -> None:
        """End the recording, if the program is shorter than its schedule."""
        if machine().recording:
            machine().stop()

    def step(self) -> None:
        """End a step."""
        run = machine()
        run.row("user_annotation", f"ProfilerStep#{self._number}", self._start, run.host)
        gc.collect()  # when tensors die must not depend on the collector's own moments
        self._number += 1
        if self._number == self._wait:
            run.start()
        self._start = run.host
        if self._number == self._wait + self._active:
            run.stop()
            raise Finished

    def export_chrome_trace(self, _path: str) -> None:
        """Write nothing: the recorder does."""


def _schedule(*, wait: int = 0, warmup: int = 0, active: int = 1, **_rest: Any) -> tuple[int, int]:
    return wait + warmup, active


class Scaler:
    """torch.amp.GradScaler: it reads once a step whether a gradient overflowed."""

    def __init__(self, *_args: Any, enabled: bool = True, **_options: Any) -> None:
        self.enabled = enabled

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the scaled loss."""
        return loss * 65536.0 if self.enabled else loss

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients again."""
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        if self.enabled:
            torch._foreach_mul_([grad for grad in grads if grad is not None], 1 / 65536.0)

    def step(self, optimizer: Any) -> None:
        """Update the parameters unless a gradient overflowed."""
        if self.enabled:
            self.unscale_(optimizer)
            torch.empty((), device="meta").item()
        optimizer.step()

    def update(self) -> None:
        """Choose the next scale."""


class _Event:
    def __init__(self, **_options: Any) -> None:
        self.at = 0.0

    def record(self, *_args: Any) -> None:
        self.at = machine().now

    def synchronize(self) -> None:
        machine().wait("cudaEventSynchronize")

    def elapsed_time(self, end: _Event) -> float:
        return (end.at - self.at) / 1e3


def _save(value: Any, _file: Any) -> None:
    """Write a checkpoint: every tensor comes to the host, and then to the disk."""
    run = machine()
    tensors = [leaf for leaf in leaves(value) if torch.is_tensor(leaf)]
    with run.range("torch/serialization.py(944): save", "python_function"):
        for tensor in tensors:
            if tensor.is_meta:
                run.copy("d2h", tensor.nbytes, pinned=False, blocking=True)
        run.work(sum(tensor.nbytes for tensor in tensors) / DISK_BYTES_PER_US)


def _sleep(seconds: float) -> None:
    run = machine()
    with run.range("<built-in function sleep>", "python_function"):
        run.work(seconds * 1e6)


@contextmanager
def pretended() -> Iterator[None]:
    """Replace, for all threads, what a program asks PyTorch for."""
    from scripts.cases import loader, ranks

    def autocast(
        _device: str = "cuda", dtype: Any = torch.bfloat16, *, enabled: bool = True, **_rest: Any
    ) -> Any:
        return _autocast(dtype if enabled else None)

    def compiled(function: Any, **options: Any) -> Any:
        if isinstance(function, torch.nn.Module):
            function.forward = Compiled(function.forward, _current.device, **options)
            return function
        return Compiled(function, _current.device, **options)

    replaced = {
        "torch.profiler.profile": Profile,
        "torch.profiler.schedule": _schedule,
        "torch.profiler.record_function": _annotate,
        "torch.autograd.profiler.record_function": _annotate,
        "torch.autocast": autocast,
        "torch.amp.autocast": autocast,
        "torch.amp.GradScaler": Scaler,
        "torch.compile": compiled,
        "torch.save": _save,
        "torch.cuda.is_available": lambda: True,
        "torch.cuda.device_count": lambda: 1,
        "torch.cuda.set_device": lambda _device: None,
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.synchronize": lambda *_: machine().wait(),
        "torch.cuda.empty_cache": lambda: machine().empty_cache(),
        "torch.cuda.memory_allocated": lambda *_: 0,
        "torch.cuda.max_memory_allocated": lambda *_: 0,
        "torch.cuda.reset_peak_memory_stats": lambda *_: None,
        "torch.cuda.Event": _Event,
        "torch.cuda.manual_seed_all": lambda _seed: None,
        "torch.optim.Optimizer._accelerator_graph_capture_health_check": lambda _self: (
            machine().work(OPTIMIZER_US)
        ),
        # `F.multi_head_attention_forward` is looked into: autocast and fused attention are inside.
        "torch.nn.functional.has_torch_function": lambda _tensors: False,
        # Optimizers and clipping choose as for cuda.
        "torch.optim.optimizer._get_foreach_kernels_supported_devices": lambda: ["meta"],
        "torch.utils._foreach_utils._get_foreach_kernels_supported_devices": lambda: ["meta"],
        "time.sleep": _sleep,
        **loader.REPLACED,
        **ranks.REPLACED,
    }
    with ExitStack() as stack:
        for name, value in replaced.items():
            stack.enter_context(patch(name, value))
        yield


@contextmanager
def _annotate(name: str, *_args: Any) -> Iterator[None]:
    with machine().range(name):
        yield


@contextmanager
def _autocast(dtype: torch.dtype | None) -> Iterator[None]:
    stack = _current.frontend.autocast
    stack.append((dtype, {}))
    try:
        yield
    finally:
        stack.pop()


@contextmanager
def running_on(run: Machine) -> Iterator[None]:
    """Let this thread's PyTorch run on the machine."""
    _current.machine, _current.device = run, Device()
    _current.frontend = Frontend(_current.device)
    try:
        with _current.frontend, _current.device:
            yield
    finally:
        del _current.machine


@contextmanager
def uncounted() -> Iterator[None]:
    """Run operators that cost nothing of their own."""
    device = getattr(_current, "device", None)
    if device is None:
        with nullcontext():
            yield
        return
    device.free += 1
    try:
        yield
    finally:
        device.free -= 1
