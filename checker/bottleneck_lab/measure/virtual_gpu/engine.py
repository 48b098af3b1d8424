"""The engine of a virtual GPU: holds the tensors, computes every operator on the CPU, and keeps the
books. Owned by the verifier.

`python -I -m bottleneck_lab.measure.virtual_gpu.engine --channels PROGRAM OWNER`: the program's
calls come over one socket, the owner's questions over the other; with several pairs, each has an
engine of its own. With `--companion MODULE ARGUMENTS` that program starts with them.

The program gets shapes and handles. A value leaves only by an operator for which the host would
have to wait on a GPU, and that wait is counted.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import runpy
import select
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import torch

from bottleneck_lab.lifetime import end_with_parent
from bottleneck_lab.measure.faults import NotModelled
from bottleneck_lab.measure.virtual_gpu.arithmetic import Tf32, arithmetic_of, compute
from bottleneck_lab.measure.virtual_gpu.books import Begin, Books, End, Figures, KeptArray
from bottleneck_lab.measure.virtual_gpu.clock import Clock
from bottleneck_lab.measure.virtual_gpu.codec import (
    Described,
    Handle,
    decode,
    encode,
    form_of,
    name_of,
    replace,
    tensors_in,
)
from bottleneck_lab.measure.virtual_gpu.frames import Frames, Malformed
from bottleneck_lab.measure.virtual_gpu.lineage import Lineage
from bottleneck_lab.measure.virtual_gpu.memory import Memory, MemoryChange, OutOfMemory
from bottleneck_lab.measure.virtual_gpu.operators import (
    Traits,
    has_dynamic_shape,
    is_composite,
    reads_a_value,
    traits_of,
)
from bottleneck_lab.measure.virtual_gpu.secret_start import SecretStart
from bottleneck_lab.measure.virtual_gpu.spec import H200, Arithmetic, GpuSpec
from bottleneck_lab.measure.virtual_gpu.templates import Given, Template
from bottleneck_lab.trace.stacks import split_lines

aten = torch.ops.aten
REFUSED = {"from_file", "set_"}
"""Operators that reach outside the engine's tensors."""
_MASKS = (torch.bool, torch.uint8)


class Birth(NamedTuple):
    """When a tensor was made (the step), on which of the program's lines, and its dtype and
    shape.
    """

    step: int
    stack: str
    form: str


@dataclass
class Engine:
    """One run's tensors and books. `changes` of memory are kept where a timeline is recorded."""

    spec: GpuSpec = H200
    recording: bool = False
    secret: int = 0
    """With one, the initial parameters on the device are not those that the host has."""
    templates: dict[int, Template] = field(default_factory=dict)
    """The calls that the program may launch, by the numbers that it has given them: it remembers
    them from one run to the next.
    """
    tf32: Tf32 = field(default_factory=Tf32)
    """As the program has it, which remembers this, too."""
    clock: Clock = field(init=False)
    memory: Memory = field(init=False)
    changes: list[MemoryChange] = field(default_factory=list)
    kept: dict[str, torch.Tensor] = field(default_factory=dict)
    """The parameters that the program handed over at its end."""
    _closed: Figures | None = None
    _tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    _storages: dict[int, int] = field(default_factory=dict)
    """The storage that each tensor is held by in the memory's books."""
    _lineage: Lineage = field(default_factory=Lineage)
    _step_marks: list[int] = field(default_factory=list)
    """How many operators had run when each step began."""
    _report_marks: list[int] = field(default_factory=list)
    """The same for each report."""
    _under_way: dict[int, tuple[float, torch.Tensor, str]] = field(default_factory=dict)
    """Copies to the host that nobody has waited for, with the time when each arrives and the line
    that launched it.
    """
    _reading: dict[int, tuple[float, str]] = field(default_factory=dict)
    """Copies from pinned memory that the host did not wait for: until when the device reads their
    source, and the line that launched them.
    """
    _events: dict[int, float] = field(default_factory=dict)
    """When each event that the program recorded happens."""
    _races: list[str] = field(default_factory=list)
    _unawaited: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Of tensors, copies and events, each given once. Those that the program numbers itself are
    below zero.
    """
    _births: dict[int, Birth] = field(default_factory=dict)
    """Of each storage, by its address."""
    _copies: dict[Birth, int] = field(default_factory=dict)
    """How many copies of one birth the host still has."""
    _lives: Counter[tuple[Birth, int]] = field(default_factory=Counter)
    """How many tensors of one birth were gone in a later step, of both places."""

    def __post_init__(self) -> None:
        self._start = SecretStart(self.secret)
        self.clock = Clock(self.spec, spans=[] if self.recording else None)
        self.memory = Memory(self.spec.capacity_bytes)

    def call(
        self,
        name: str,
        overload: str,
        args: list[Any],
        kwargs: dict[str, Any],
        stack: str,
        template: int | None = None,
    ) -> Any:
        """Run one operator and return its result, every tensor described. `stack`: the program's
        line with those that called it. `template`: the number under which the program may launch
        the like of it from now on.

        Raises NotModelled for one that is missing, LookupError for one that is none, and what the
        operator raises.
        """
        opened = Template(_operator(name, overload), args, kwargs)
        result, numbers, _ = self._execute(opened, opened.given, stack)
        if template is not None:
            self.templates[template] = opened
        return replace(result, lambda value: self._describe(value, numbers, stack))

    def launch(self, template: int, given: list[Given], stack: str, numbers: list[int]) -> None:
        """Run an operator for a program that knows what the result looks like and does not wait: it
        has numbered the new tensors itself, below zero.

        Raises LookupError for numbers that are not free or a template that there is not,
        ValueError where there are not as many tensors, and what `call` raises.
        """
        if template not in self.templates:
            raise LookupError(f"no call has the number {template}")
        _, owned, results = self._execute(self.templates[template], given, stack)
        made = [tensor for tensor in results if id(tensor) not in owned]
        for number, tensor in zip(numbers, made, strict=True):
            self._require_free(number)
            self._hold(number, tensor, stack)

    def _require_free(self, number: int) -> None:
        if number >= 0 or number in self._tensors:
            raise LookupError(f"{number} is no free number for a tensor")

    def _execute(
        self, template: Template, given: list[Given], stack: str
    ) -> tuple[Any, dict[int, int], list[torch.Tensor]]:
        """Return an operator's result, the numbers of the tensors that it was given, by their
        identity, and the tensors of the result.
        """
        traits, line = template.traits, split_lines(stack)[0]
        tensors, numbers = self._own(given)
        args, kwargs, inputs = template.fill(tensors)
        # Computed at once, on this CPU; only the books say when the device would have run it. So
        # values are right whatever the order, and no figure depends on how fast this machine is.
        try:
            arithmetic = arithmetic_of(traits, args, self.tf32)
            result = compute(traits, args, kwargs, arithmetic)
        except NotImplementedError as error:  # a GPU may have a kernel for it
            reason = str(error).partition("\n")[0][:200]
            raise NotModelled(
                f"aten::{traits.name} is not available on the virtual GPU: {reason}"
            ) from None
        results = tensors_in(result)
        for tensor in results:
            if tensor.layout is not torch.strided:
                raise NotModelled(f"{tensor.layout} is not available on the virtual GPU")
        flops = traits.flops(args, kwargs, result)
        self._account(traits, inputs, results, flops, arithmetic, line)
        if traits.may_wait and _waits(traits, args, kwargs):
            self.clock.wait(line, traits.name)
        self._lineage.note(traits, args, kwargs, inputs, results, flops)
        # An operator may have given its `out=` a larger storage. Where the device has no room for
        # that, the tensor is gone.
        for number in numbers.values() if traits.written else ():
            if self._tensors[number].untyped_storage().data_ptr() != self._storages[number]:
                self._hold(number, self._release(number, self.clock.host_us, line), stack)
        return result, numbers, results

    def set_tf32(self, matrices: bool, convolutions: bool) -> None:
        """Allow or forbid TF32 from the next operator on."""
        self.tf32 = Tf32(matrices, convolutions)

    def upload(
        self,
        dtype: torch.dtype | None,
        data: torch.Tensor,
        pinned: bool,
        blocking: bool,
        stack: str,
        number: int,
    ) -> None:
        """Make a tensor of the host's one of the device's, with this number below zero. The copy
        has the same number where the device has yet to read its source.
        """
        self._require_free(number)
        changed = self._start.change(data)
        tensor = changed if dtype is None else changed.to(dtype)
        self._lineage.forget(tensor)  # another tensor may have had its memory
        # Memory first: the driver may have to be asked for it, and waits for the device.
        self._hold(number, tensor, stack)
        self._copy_in(data, pinned, blocking, stack, number)

    def _copy_in(
        self, data: torch.Tensor, pinned: bool, blocking: bool, stack: str, number: int
    ) -> None:
        line = split_lines(stack)[0]
        self.clock.copy("h2d", "copy_", data.nbytes, pinned=pinned, blocking=blocking, line=line)
        if pinned and not blocking:
            self._reading[number] = self.clock.device_us, line

    def overwritten(self, numbers: list[int]) -> None:
        """Note that the program has written over the sources of these copies since its last call: a
        race, unless it had waited for the device to read them.
        """
        for number in numbers:
            until_us, line = self._reading.pop(number, (0.0, ""))
            if until_us > self.clock.awaited_us and line not in self._races:
                self._races.append(line)

    def read(self) -> list[int]:
        """Return the copies that the host has waited for by now. That a device which is fast enough
        today may have read others is nothing that a program may rest on.
        """
        awaited_us = self.clock.awaited_us
        done = [n for n, (until_us, _) in self._reading.items() if until_us <= awaited_us]
        for number in done:
            del self._reading[number]
        return done

    def overwrite(
        self,
        target: Handle,
        data: torch.Tensor,
        pinned: bool,
        blocking: bool,
        stack: str,
        number: int,
    ) -> None:
        """Copy a tensor of the host's into one of the device's. The copy has this number where the
        device has yet to read its source.
        """
        self._copy_in(data, pinned, blocking, stack, number)
        tensor = self._tensors[target.number]
        tensor.copy_(self._start.change(data))
        self._lineage.forget(tensor)

    def download(
        self, source: Handle, operator: str, pinned: bool, blocking: bool, line: str
    ) -> torch.Tensor | int:
        """Return a tensor of the device's for the host, which called this operator; where the host
        does not wait, the number under which it arrives later.
        """
        held = self._tensors[source.number]
        self.clock.copy("d2h", operator, held.nbytes, pinned=pinned, blocking=blocking, line=line)
        if blocking or not pinned:
            return held
        # It arrives when the host waits for it. That it may have arrived before, on a device that
        # is fast enough today, is nothing that a program may rest on.
        number = next(self._numbers)
        self._under_way[number] = self.clock.device_us, held.clone(), line
        return number

    def arrived(self) -> list[list[Any]]:
        """Return copies that the host has waited for by now, each with its number."""
        due = [
            number
            for number, (at_us, *_) in self._under_way.items()
            if at_us <= self.clock.awaited_us
        ]
        return [[number, self._under_way.pop(number)[1]] for number in due]

    def report(self) -> None:
        """Note that the program makes a report, and the lines of copies to the host that it has not
        waited for by then.
        """
        self.clock.report()
        self._report_marks.append(len(self._lineage))
        lines = [line for _, _, line in self._under_way.values()]
        self._unawaited += [line for line in dict.fromkeys(lines) if line not in self._unawaited]

    def record_event(self) -> int:
        """Record an event behind all that is queued, and return its number."""
        number = next(self._numbers)
        self._events[number] = self.clock.record_event()
        return number

    def wait_event(self, number: int, line: str) -> None:
        """Have the host wait for an event."""
        self.clock.wait_event(self._events[number], line)

    def query_event(self, number: int, line: str) -> bool:
        """Return True if an event has happened."""
        return self.clock.query_event(self._events[number], line)

    def elapsed_us(self, first: int, second: int) -> float:
        """Return the time from one event to another. Raises RuntimeError if the host does not know
        that both have happened.
        """
        start, end = self._events[first], self._events[second]
        if max(start, end) > self.clock.awaited_us:
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return end - start

    def let_go(
        self, released: list[tuple[str, list[int]]], collections: list[tuple[int, str]]
    ) -> None:
        """Release these handles, by the program's line that let go of them, and charge it for these
        generations that it has had collected, each on a line.
        """
        at_us = self.clock.host_us
        for generation, line in collections:
            self.clock.collect(generation, line)
        for line, numbers in released:
            for number in numbers:
                if number in self._tensors:
                    self._release(number, at_us, line)

    def keep(self, tensors: dict[str, Handle]) -> None:
        """Take over the parameters of a program that ends, and close the books.

        Raises LookupError if they have been closed: no work may be left for afterwards, where
        nobody counts its time.
        """
        if self._closed:
            raise LookupError("the parameters have been handed over already")
        kept = {name: self._tensors[handle.number] for name, handle in tensors.items()}
        work = self._lineage.work_behind(kept.values())
        self._closed = msgspec.structs.replace(
            self.figures(),
            useful_flops=work[-1],
            step_flops=[work[mark] for mark in self._step_marks],
            report_flops=[work[mark] for mark in self._report_marks],
        )
        self.kept = {name: tensor.clone() for name, tensor in kept.items()}

    def _record(self, at_us: float, storage: int, before: int, stack: str) -> None:
        changed = self.memory.allocated - before
        if changed and self.recording:
            self.changes.append(MemoryChange(at_us, storage, changed, self.memory.allocated, stack))

    def begin_pass(self) -> None:
        """Begin a pass through the data: steps are those of the last one."""
        self.clock.begin_pass()
        self.memory.step_bytes.clear()
        self._step_marks.clear()
        self._births = {at: birth._replace(step=0) for at, birth in self._births.items()}
        self._copies = {}
        self._lives.clear()

    def step(
        self,
        samples: int = 0,
        at_once: bool = False,
        copies: Sequence[tuple[int, str, str, int]] = (),
    ) -> None:
        """Begin a step of the program, whose launching thread has loaded `samples` samples itself,
        one after the other or `at_once`.

        `copies`: of those that the program has made of the device's values, the birth and how many
        it still has. That is its own word.
        """
        self.clock.step(samples, at_once=at_once)
        self.memory.step()
        self._step_marks.append(len(self._lineage))
        before, step = self._copies, len(self._step_marks)
        self._copies = {
            Birth(int(birth), str(stack), str(form)): max(0, int(count))
            for birth, stack, form, count in copies
        }
        for birth, count in before.items():
            # Never below zero: it would hide as many tensors of the device.
            self._lives[birth, step] += max(0, count - self._copies.get(birth, 0))

    def calls(self) -> dict[str, Callable[..., Any]]:
        """Return the functions that a program may call, by name."""
        clock, memory = self.clock, self.memory
        operations = (self.call, self.launch, self.set_tf32)
        copies = (self.upload, self.overwrite, self.download)
        events = (self.record_event, self.wait_event, self.query_event, self.elapsed_us)
        marks = (self.begin_pass, self.step, self.report, self.keep)
        theirs = (clock.pin, clock.wait, memory.empty_cache)
        functions = (*operations, *copies, *events, *marks, *theirs)
        return {function.__name__: function for function in functions} | {
            "seed": _seed,
            "get_rng_state": torch.get_rng_state,
            "set_rng_state": torch.set_rng_state,
            "note_start": self._start.note,
            "memory": lambda: [memory.allocated, memory.peak, memory.reserved],
        }

    def figures(self) -> Figures:
        """Return the figures until the program ended, or until now; the stream runs dry first."""
        if self._closed:
            return self._closed
        self.clock.finish()
        starts = [*self.clock.step_starts_us, self.clock.host_us]
        launches = [*self.clock.step_launches, self.clock.launches]
        waits = [*self.clock.step_waits, self.clock.waits]
        return Figures(
            total_us=self.clock.host_us,
            step_us=[end - start for start, end in pairwise(starts)],
            step_launches=[after - before for before, after in pairwise(launches)],
            waits=self.clock.waits,
            step_waits=[after - before for before, after in pairwise(waits)],
            flops=self.clock.flops,
            line_waits=self.clock.line_waits,
            setup_waits=self.clock.setup_waits,
            report_waits=self.clock.report_waits,
            returned_bytes=self.clock.returned_bytes,
            peak_bytes=self.memory.peak,
            reserved_bytes=self.memory.reserved,
            step_bytes=self.memory.step_bytes,
            steps=len(self.clock.step_starts_us),
            lives=self._all_lives(),
            races=self._races,
            unawaited=self._unawaited,
        )

    def _all_lives(self) -> list[tuple[int, int, int, str, str]]:
        """Return how many tensors lived from one step to another, those included that still do."""
        now = len(self._step_marks)
        alive = Counter(self._births.values()) + Counter(self._copies)
        lives = self._lives + Counter({(birth, now): count for birth, count in alive.items()})
        return [
            (birth.step, last, count, birth.stack, birth.form)
            for (birth, last), count in lives.items()
            if last > birth.step
        ]

    def books(self) -> Books:
        """Return all that was written down."""
        kept = {
            name: KeptArray(
                list(tensor.shape),
                tensor.float().contiguous().numpy().tobytes(),  # NumPy has no bfloat16
            )
            for name, tensor in self.kept.items()
        }
        return Books(self.figures(), kept, self.clock.spans or [], self.changes)

    def _own(self, given: list[Given]) -> tuple[list[torch.Tensor], dict[int, int]]:
        """Return the tensors that an operator is given, and the numbers of the device's by their
        identity.
        """
        tensors, numbers = [], {}
        for each in given:
            if isinstance(each, torch.Tensor):
                tensors.append(each)
                continue
            if each not in self._tensors:
                raise LookupError(f"there is no tensor {each} on the virtual GPU")
            tensor = self._tensors[each]
            tensors.append(tensor)
            numbers[id(tensor)] = each
        return tensors, numbers

    def _describe(self, value: Any, numbers: dict[int, int], stack: str) -> Any:
        """Return what the program learns of a tensor: one that was an argument keeps its handle, a
        new one gets the next.
        """
        if not isinstance(value, torch.Tensor):
            return value
        # In-place operators return their argument: the same object, and so the same handle.
        number = numbers.get(id(value))
        if number is None:
            number = next(self._numbers)
            self._hold(number, value, stack)
        return Described(
            number,
            list(value.shape),
            list(value.stride()),
            int(value.storage_offset()),
            name_of(value.dtype),
        )

    def _hold(self, number: int, tensor: torch.Tensor, stack: str) -> None:
        before, at_us, storage = self.memory.allocated, self.clock.host_us, tensor.untyped_storage()
        address = storage.data_ptr()
        if blocks := self.memory.hold(address, storage.nbytes()):
            self.clock.allocate(blocks, split_lines(stack)[0])
        if address not in self._births:
            form, kib = form_of(tensor), storage.nbytes() / 1024
            if storage.nbytes() > tensor.nbytes:
                form += f" in a block of {kib:.3g} KiB"  # all of it stays while the tensor does
            self._births[address] = Birth(len(self._step_marks), stack, form)
        self._tensors[number], self._storages[number] = tensor, address
        self._record(at_us, address, before, stack)

    def _release(self, number: int, at_us: float, line: str) -> torch.Tensor:
        before, storage = self.memory.allocated, self._storages.pop(number)
        if self.memory.release(storage):
            birth, step = self._births.pop(storage), len(self._step_marks)
            if step > birth.step:
                self._lives[birth, step] += 1
        self._record(at_us, storage, before, line)
        return self._tensors.pop(number)

    def _account(
        self,
        traits: Traits,
        inputs: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        flops: float,
        arithmetic: Arithmetic,
        line: str,
    ) -> None:
        """Charge an operator's time to the clock. A view costs the device nothing."""
        if traits.is_free:
            return
        # Every tensor is read or written once: what a kernel with perfect caches would move.
        read, made = [each.nbytes for each in inputs], [each.nbytes for each in results]
        reduces = flops > 0 or min(made, default=0) < max(read, default=0)
        self.clock.kernel(
            traits.name,
            flops,
            sum(read) + sum(made),
            line,
            reduces=reduces,
            arithmetic=arithmetic,
        )


@cache
def _operator(name: str, overload: str) -> Traits:
    """Return an operator that the device has, with its traits. Raises NotModelled for another,
    LookupError for one that PyTorch makes up of others.
    """
    if name in REFUSED or name.startswith("_cuda"):
        raise NotModelled(f"aten::{name} is not available on the virtual GPU")
    try:
        function = getattr(getattr(aten, name), overload)
    except AttributeError:
        raise NotModelled(f"aten::{name} is not available on the virtual GPU") from None
    if is_composite(function):
        # What it is made up of counts, launches and waits; a program sends those parts.
        raise LookupError(f"aten::{name} is made up of other operators")
    return traits_of(function)


def _seed(seed: int) -> None:
    torch.manual_seed(seed)  # it returns its generator, which has no form on the wire


def _waits(traits: Traits, args: Any, kwargs: Any) -> bool:
    """Return True if the host must wait for the result of an operator that may wait: its value, or
    a shape that depends on values.
    """
    if reads_a_value(traits.function):
        return True
    if traits.packet in (aten.index, aten.index_put, aten.index_put_):
        # A boolean index has as many results as it has True: on a GPU the host waits for that
        # count.
        masked = any(index is not None and index.dtype in _MASKS for index in args[1])
        # With a single value `x[mask] = v` becomes a masked fill, whose shape is known.
        fills = len(args) > 2 and args[2].numel() == 1
        return masked and not fills
    if kwargs.get("output_size") is not None:
        return False  # `repeat_interleave` of a program that knows how many there will be
    return has_dynamic_shape(traits.function)


class Server:
    """Answers the program's calls and the owner's questions, one at a time, until the owner closes
    its channel.
    """

    def __init__(self, program: socket.socket, owner: socket.socket) -> None:
        self._program, self._owner = Frames(program), Frames(owner)
        self._templates: dict[int, Template] = {}
        self._engine = Engine(templates=self._templates)
        self._calls = self._engine.calls()
        self._failed: list[Any] | None = None

    def serve(self) -> None:
        """Say that it is there, then answer until the owner is gone, even in the middle of an
        answer: a capture that is stopped ends this way.
        """
        with contextlib.suppress(EOFError, OSError):
            self._owner.send(b"")
            watched = [self._program.sock, self._owner.sock]
            while True:
                ready, _, _ = select.select(watched, [], [])
                if self._owner.sock in ready:
                    self._answer_owner()
                elif not self._answer_program():
                    watched.remove(self._program.sock)

    def _answer_program(self) -> bool:
        """Answer the calls that have come; False when the program is gone or speaks no protocol:
        nothing more is read of it.

        A message is `[call, True if the program waits for an answer, tensors let go of,
        generations collected, copies whose source was overwritten, *arguments]`. An answer is
        `[True, result, copies that have arrived, copies whose source has been read, bytes that are
        free]`, or `[False, kind, words]` of what went wrong with the call or one before.
        """
        try:
            self._program.read()
            while (body := self._program.next_message()) is not None:
                name, awaited, released, collections, overwritten, *args = decode(body)
                engine, function = self._engine, self._calls[name]
                engine.overwritten(overwritten)
                engine.let_go(released, collections)
                # What goes wrong with a call that nobody waits for is, as on a GPU, the answer to
                # the next one that is waited for, and nothing is run until then.
                answer = self._failed or _attempt(function, args)
                if awaited:
                    self._failed = None
                    if answer[0]:
                        answer += [engine.arrived(), engine.read(), engine.memory.free_bytes]
                    self._program.send(_encoded(answer))
                elif not answer[0]:
                    if name == "launch" and not self._failed and len(args) > 2:
                        answer[2] += f" (launched at {split_lines(args[2])[0]})"
                    self._failed = answer
        except (EOFError, OSError, Malformed, TypeError, KeyError, ValueError):
            self._program.sock.close()
            return False
        return True

    def _answer_owner(self) -> None:
        """Open the books of a run, or close and send them: all questions that have come, since
        nothing says that there are more once they have been read.
        """
        self._owner.read()
        while (body := self._owner.next_message()) is not None:
            question = msgspec.msgpack.decode(body, type=Begin | End)
            if isinstance(question, Begin):
                self._engine = Engine(
                    question.spec,
                    question.recording,
                    question.secret,
                    self._templates,
                    self._engine.tf32,
                )
                self._calls, self._failed = self._engine.calls(), None
            else:
                self._owner.send(msgspec.msgpack.encode(self._engine.books()))


def _attempt(function: Callable[..., Any], args: list[Any]) -> list[Any]:
    """Call the function; return `[True, result]`, or `[False, kind, words]` of what it raised."""
    try:
        return [True, function(*args)]
    except OutOfMemory as error:
        return [False, "OutOfMemoryError", str(error)]
    except Exception as error:  # an operator may raise anything, and it is the program's
        return [False, type(error).__name__, str(error)[:2000]]


def _encoded(answer: list[Any]) -> bytes:
    """Return an answer's bytes; of a result that has no form on the wire, that it has none."""
    try:
        return encode(answer)
    except NotModelled as error:
        return encode([False, "NotModelled", str(error)])


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--channels", type=int, nargs=2, action="append", required=True)
    parser.add_argument("--fds", type=int, nargs="*", default=[], help="the companion's")
    parser.add_argument("--companion", nargs=argparse.REMAINDER, default=[])
    options = parser.parse_args()
    # PyTorch is imported once. No engine has run yet: what they share is code.
    ends = [*options.channels, *([options.fds] if options.companion else [])]
    first = os.getpid()
    mine = next((each for each in ends[1:] if os.fork() == 0), ends[0])
    for fd in (fd for each in ends if each is not mine for fd in each):
        os.close(fd)
    if mine is options.fds:
        # Unlike an engine, it may never read again, and so never learn that its owner was killed.
        end_with_parent()
        if os.getppid() != first:
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)  # what fails is reported over its channel
        os.dup2(nowhere, sys.stdout.fileno())
        os.dup2(nowhere, sys.stderr.fileno())
        sys.argv = options.companion
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    # One thread: sums are then added up in the same order on every machine. Autograd runs in the
    # program, which sends its operators one by one; here it would only keep tensors alive.
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    with contextlib.ExitStack() as stack:
        program = stack.enter_context(socket.socket(fileno=mine[0]))
        owner = stack.enter_context(socket.socket(fileno=mine[1]))
        Server(program, owner).serve()


if __name__ == "__main__":
    main()
