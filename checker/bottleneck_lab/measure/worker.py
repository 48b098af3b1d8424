"""A worker process that answers calls: loads the code under test and does what the verifier asks.
The reference's and the learner's are the same program.

Nothing secret is ever in here: the learner's code shares this process and may read, patch or
replace all of it. What it can gain by that is only to send other bytes, and every answer is
checked, and timed, by the verifier.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.util
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from bottleneck_lab.measure.channel.messages import (
    Answer,
    Begin,
    Call,
    Failed,
    Loading,
    Ready,
    Value,
)
from bottleneck_lab.measure.channel.wire import Arena, Channel, Closed
from bottleneck_lab.measure.faults import NotModelled
from bottleneck_lab.measure.sandbox import native_code
from bottleneck_lab.measure.sandbox.seccomp import refuse_processes

NO_NETWORK = (
    "There is no network in a check: use the Unix sockets that your code is given, or makes."
)


def load_module(path: Path) -> ModuleType:
    """Return the file as a module, its folder last on the search path so that it shadows nothing.
    Raises ImportError, and whatever the file raises.
    """
    sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def load_checked(channel: Channel, path: Path) -> ModuleType:
    """Return the file under test as `load_module` does. From here on what fails is its own fault:
    the verifier is told so before any of it runs.
    """
    channel.send(Loading())
    return load_module(path)


def as_values(answer: Any) -> list[Value]:
    """Return an answer (one array, number or text, or a tuple of them; NumPy or torch) in the form
    that can be sent.
    """
    parts = answer if isinstance(answer, tuple | list) else (answer,)
    return [_as_value(part) for part in parts]


def _as_value(part: Any) -> Value:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(part, torch.Tensor):
        part = part.detach()
        part = (part.float() if part.dtype == torch.bfloat16 else part).cpu().numpy()
    if isinstance(part, np.generic):
        part = part.item()
    if isinstance(part, bytes | int | float | str | np.ndarray):
        return part
    raise TypeError(f"an answer must be arrays, tensors or numbers, not {type(part).__name__}")


def explain(root: Path) -> str:
    """Return the current exception as the learner should see it: their own frames and the message;
    of a lab's own refusals (`reason`) the message alone.
    """
    kind, error, trace = sys.exc_info()
    refusal = isinstance(getattr(kind, "reason", None), str)
    if refusal and not isinstance(error, NotModelled):
        return str(error)[:4000]
    frames = [frame for frame in traceback.extract_tb(trace) if Path(frame.filename).parent == root]
    where = "".join(
        f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}: {frame.line}\n"
        for frame in frames[-4:]
    )
    if isinstance(error, SyntaxError):
        where = (
            f"{Path(error.filename or '?').name}, line {error.lineno}:"
            f" {(error.text or '').strip()}\n"
        )
    remedy = f". {NO_NETWORK}" if getattr(error, "errno", None) == errno.EAFNOSUPPORT else ""
    return f"{where}{kind.__name__ if kind else 'Error'}: {error}{remedy}"[:4000]


def serve_calls(
    channel: Channel, entry: Path, device: str, *, threads_only: bool, native: bool
) -> None:
    """Load the entry file once, then answer every call until the verifier closes the channel.

    With `threads_only` the entry file is the lab's own: when its `prepare(device)` has compiled the
    learner's, no process can be started any more. With `native` what it compiles is guarded.
    """
    began = time.monotonic()
    module = load_checked(channel, entry)
    if native:
        native_code.guard(module)
    if threads_only:
        module.prepare(device)
        refuse_processes()
    function = module.load(device)
    answer_calls(channel, function, loading_s=time.monotonic() - began)


def hold(channel: Channel, device: str) -> None:
    """Wait for the verifier's word before any code of the learner's is loaded. PyTorch, which takes
    seconds and which every lab on a GPU uses, is imported meanwhile.
    """
    if device == "cuda":
        # CUDA itself stays untouched: the code may set it up, or fork. Some labs hide PyTorch.
        with contextlib.suppress(ImportError):
            importlib.import_module("torch")
    message = channel.receive(None)
    if not isinstance(message, Begin):
        raise TypeError(f"{type(message).__name__} came before Begin")


def answer_calls(channel: Channel, function: Callable[..., Any], *, loading_s: float = 0.0) -> None:
    """Say that it is ready, then answers every call with what the function returns."""
    channel.send(Ready(loading_s))
    last: list[Value] = []
    while True:
        message = channel.receive(None)
        if isinstance(message, Call):
            last = as_values(function(*message.inputs))
        channel.send(Answer(last))


def serve(channel: Channel, folder: Path, work: Callable[[], None]) -> NoReturn:
    """Do the work and end this process; what it raises is reported over the channel, as an error
    of the learner's files in `folder`.
    """
    try:
        work()
    except BaseException as error:  # the learner's own, whatever it is; told apart by the verifier
        if not isinstance(error, Closed):
            trace = error.__traceback__
            while trace and Path(trace.tb_frame.f_code.co_filename).parent != folder:
                trace = trace.tb_next  # frames of the checker, which called the learner's code
            with contextlib.suppress(OSError):  # the log may be what the disk has no room for
                traceback.print_exception(type(error), error, trace or error.__traceback__)
            channel.send(Failed(explain(folder), str(getattr(error, "reason", ""))))
        os._exit(0 if isinstance(error, Closed) else 70)
    os._exit(0)


def serve_options(
    add_options: Callable[[argparse.ArgumentParser], object],
    work: Callable[[Channel, argparse.Namespace], None],
) -> NoReturn:
    """Be a kind's own child in a check: read `--entry` and the options that `add_options` adds,
    among them the channel's `--socket`, and do the work as `serve` does.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--entry", type=Path, required=True)
    add_options(parser)
    options = parser.parse_args()
    channel = Channel(socket.socket(fileno=options.socket))
    serve(channel, options.entry.parent, lambda: work(channel, options))


def main() -> None:
    """Entry point: `python -I -m bottleneck_lab.measure.worker …`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--entry", type=Path, required=True)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--arena", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads-only", action="store_true")
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--held", action="store_true")
    options = parser.parse_args()
    channel = Channel(
        socket.socket(fileno=options.socket), Arena.attach(options.arena), reads_half=0
    )

    def work() -> None:
        if options.held:
            hold(channel, options.device)
        serve_calls(
            channel,
            options.entry,
            options.device,
            threads_only=options.threads_only,
            native=options.native,
        )

    serve(channel, options.entry.parent, work)


if __name__ == "__main__":
    main()
