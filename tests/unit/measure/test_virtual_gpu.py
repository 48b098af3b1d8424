"""The virtual GPU: its models, what travels to its engine, and what a PyTorch program sees of
it.
"""

import itertools
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import pytest
import torch

from bottleneck_lab.analysis import questions
from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.measure.channel.messages import Failed
from bottleneck_lab.measure.channel.session import Session
from bottleneck_lab.measure.faults import NotModelled, VerifierFault
from bottleneck_lab.measure.kinds.training.figures import launches_per_step
from bottleneck_lab.measure.virtual_gpu.backend import Driver
from bottleneck_lab.measure.virtual_gpu.books import Begin, Books, End
from bottleneck_lab.measure.virtual_gpu.clock import COLLECT, FREE_QUESTIONS, Clock
from bottleneck_lab.measure.virtual_gpu.codec import Handle, decode, encode
from bottleneck_lab.measure.virtual_gpu.engine import Engine, Server
from bottleneck_lab.measure.virtual_gpu.frames import Frames, Malformed
from bottleneck_lab.measure.virtual_gpu.memory import Memory, OutOfMemory
from bottleneck_lab.measure.virtual_gpu.operators import may_wait
from bottleneck_lab.measure.virtual_gpu.owner import engine_process, engine_processes
from bottleneck_lab.measure.virtual_gpu.pinned import PinnedMemory
from bottleneck_lab.measure.virtual_gpu.spec import H200
from bottleneck_lab.measure.virtual_gpu.trace import write_trace
from bottleneck_lab.trace.load import load

from ...processes import PATIENCE_S, running
from .device_program import run

PLAIN = msgspec.structs.replace(
    H200,
    scale=1.0,
    kernel_us=2.0,
    reduction_us=3.0,
    start_us=0.0,
    sample_us=1.0,
    fetch_us=10.0,
    slice_us=0.25,
    batch_us=30.0,
    loop_us=7.0,
    launch_us=5.0,
    wait_us=10.0,
    malloc_us=0.0,
    flops_per_s=1e12,
    bytes_per_s=1e12,
)


NUMBERS = itertools.count(-1, -1)
"""Of tensors, as a program gives them."""


def upload(engine: Engine, data: torch.Tensor, line: str = "") -> Handle:
    """Send a tensor from pinned memory without waiting, and return its handle."""
    handle = Handle(next(NUMBERS))
    engine.upload(None, data, True, False, line, handle.number)
    return handle


class TestClock:
    def test_the_host_runs_ahead_until_it_waits(self) -> None:
        clock = Clock(PLAIN)
        clock.kernel("slow", flops=100e6, nbytes=0)  # 100 us
        clock.kernel("quick", flops=0, nbytes=0)
        assert (clock.host_us, clock.device_us) == (10.0, 109.0)
        clock.wait("train.py:3")
        assert (clock.host_us, clock.waits) == (119.0, 1)

    def test_waits_are_counted_by_line_from_the_first_step_on(self) -> None:
        clock = Clock(PLAIN)
        clock.wait("train.py(3): train")
        clock.step()
        clock.wait("train.py(9): train")
        clock.wait("train.py(9): train")
        assert (clock.waits, clock.line_waits) == (3, {"train.py(9): train": 2})

    def test_launches_of_a_step_are_those_of_the_last_pass(self) -> None:
        """Those before it trains, or in an earlier look at its data, are none."""
        engine = Engine(H200)
        engine.clock.kernel("prepare", flops=0, nbytes=0)
        for each in ([4], [1, 2, 3]):
            engine.begin_pass()
            for launches in each:
                engine.step()
                for _ in range(launches):
                    engine.clock.kernel("work", flops=0, nbytes=0)
        figures = engine.figures()
        assert (figures.steps, figures.step_launches) == (3, [1, 2, 3])
        assert launches_per_step(figures) == 3, "the first two steps warm up"

    def test_short_kernels_leave_the_device_waiting_for_the_host(self) -> None:
        clock = Clock(PLAIN)
        for _ in range(10):
            clock.kernel("tiny", flops=0, nbytes=0)
        assert clock.device_us == 10 * 5.0 + 2.0

    def test_a_batch_costs_the_thread_that_loads_it(self) -> None:
        clock = Clock(PLAIN)
        clock.step(64)
        assert clock.host_us == 64.0 + 7.0
        clock.step()
        assert clock.host_us == 71.0 + 30.0 + 7.0
        clock.step(64, at_once=True)
        assert clock.host_us == 108.0 + 10.0 + 0.25 * 64 + 7.0

    def test_a_kernel_starts_a_while_after_its_launch_and_reductions_take_longer(self) -> None:
        clock = Clock(msgspec.structs.replace(PLAIN, start_us=1.5))
        clock.kernel("sum", flops=0, nbytes=0, reduces=True)
        assert clock.device_us == 5.0 + 1.5 + 3.0

    def test_asking_twice_for_an_event_in_a_step_is_a_wait(self) -> None:
        clock = Clock(PLAIN)
        clock.kernel("slow", flops=1e9, nbytes=0)  # 1 ms
        first = clock.record_event()
        clock.kernel("quick", flops=0, nbytes=0)
        assert not clock.query_event(first, "")
        assert not clock.query_event(clock.record_event(), ""), "another event"
        clock.step()
        assert not clock.query_event(first, ""), "another step"
        assert clock.waits == 0
        clock.kernel("idle", flops=0, nbytes=0)
        assert clock.query_event(first, "")
        assert clock.waits == 1

    def test_asking_for_the_stream_again_and_again_is_a_wait(self) -> None:
        clock = Clock(PLAIN)
        clock.step()
        clock.kernel("slow", flops=1e9, nbytes=0)  # 1 ms
        for _ in range(FREE_QUESTIONS):
            assert not clock.query_event(clock.record_event(), "")
            clock.kernel("quick", flops=0, nbytes=0)  # so that it is another event each time
        assert clock.waits == 0
        assert clock.query_event(clock.record_event(), "")
        assert clock.waits == 1

    def test_asking_for_one_event_after_the_other_is_a_wait_too(self) -> None:
        clock = Clock(PLAIN)
        clock.step()
        clock.kernel("slow", flops=1e9, nbytes=0)
        events = []
        for _ in range(20):
            clock.kernel("quick", flops=0, nbytes=0)
            events.append(clock.record_event())
        assert any(clock.query_event(event, "") for event in events)
        assert clock.waits >= 1

    def test_a_glance_at_each_event_of_earlier_steps_is_no_wait(self) -> None:
        clock = Clock(PLAIN)
        clock.kernel("slow", flops=1e9, nbytes=0)
        events = []
        for _ in range(10):
            clock.kernel("quick", flops=0, nbytes=0)
            events.append(clock.record_event())
        for _ in range(3):
            clock.step()
            assert not any(clock.query_event(event, "") for event in events)
        assert clock.waits == 0

    def test_no_program_turns_the_clock_back(self) -> None:
        clock = Clock(PLAIN)
        with pytest.raises(ValueError, match="-1 samples"):
            clock.step(-1)
        with pytest.raises(ValueError, match="cannot"):
            clock.pin(-1, "")
        assert clock.host_us == 0

    def test_a_copy_from_pageable_memory_waits_whatever_it_asked_for(self) -> None:
        clock = Clock(PLAIN)
        clock.copy("h2d", "copy_", 1000, pinned=False, blocking=False, line="")
        assert clock.waits == 1
        clock.copy("h2d", "copy_", 1000, pinned=True, blocking=False, line="")
        assert clock.waits == 1

    def test_an_event_that_has_happened_is_no_wait(self) -> None:
        clock = Clock(PLAIN)
        clock.kernel("slow", flops=100e6, nbytes=0)
        event_us = clock.record_event()
        clock.kernel("slow", flops=100e6, nbytes=0)
        clock.wait_event(event_us, "")
        assert (clock.waits, clock.host_us) == (1, event_us + PLAIN.wait_us)
        clock.wait_event(event_us, "")
        assert clock.query_event(event_us, "")
        assert (clock.waits, clock.awaited_us) == (1, event_us)

    def test_only_a_full_collection_costs_what_one_costs(self) -> None:
        clock = Clock(PLAIN)
        clock.collect(0, "")
        assert clock.host_us == PLAIN.collect_young_us
        clock.collect(2, "")
        assert clock.host_us == PLAIN.collect_young_us + PLAIN.collect_us


class TestMemory:
    def test_a_storage_counts_once_and_until_its_last_holder_goes(self) -> None:
        memory = Memory(capacity_bytes=10_000)
        memory.hold(1, 1000)
        memory.hold(1, 1000)
        assert memory.allocated == 1024
        memory.release(1)
        assert memory.allocated == 1024
        memory.release(1)
        assert (memory.allocated, memory.peak) == (0, 1024)

    def test_reserved_memory_is_given_back_only_on_request(self) -> None:
        memory = Memory(capacity_bytes=1 << 30)
        memory.hold(1, 5 << 20)
        memory.release(1)
        assert memory.reserved == 6 << 20
        memory.empty_cache()
        assert memory.reserved == 0

    def test_a_full_device_says_what_is_there(self) -> None:
        memory = Memory(capacity_bytes=1 << 20)
        with pytest.raises(
            OutOfMemory, match=r"Tried to allocate 2\.00 MiB.*total capacity of 1\.00 MiB"
        ):
            memory.hold(1, 2 << 20)
        assert memory.allocated == 0


class TestCodec:
    def test_arguments_come_back_as_they_were(self) -> None:
        sent = [
            "add",
            [Handle(3), 2, [1.5, None]],
            {"dtype": torch.bfloat16, "at": torch.tensor([[1, 2]])},
        ]
        name, (handle, number, nested), named = decode(encode(sent))
        assert (name, handle.number, number, nested) == ("add", 3, 2, [1.5, None])
        assert named["dtype"] is torch.bfloat16
        assert named["at"].tolist() == [[1, 2]]

    @pytest.mark.parametrize(
        "body", [b"\xc1", b"\xd4\x63\x00", b"\xc7\x02\x02zz", encode({"a": 1})[:-1]]
    )
    def test_other_bytes_are_malformed(self, body: bytes) -> None:
        with pytest.raises(Malformed):
            decode(body)

    def test_an_object_has_no_form(self) -> None:
        for strange in (object(), torch.sparse_coo, torch.float8_e5m2):
            with pytest.raises(NotModelled, match="on the virtual GPU"):
                encode([strange])


class TestEngine:
    def test_what_a_program_numbers_itself_is_held_and_found_again(self) -> None:
        engine = Engine(PLAIN)
        engine.call("ones", "default", [[256]], {}, "", 0)
        engine.launch(0, [], "", [-1])
        assert engine.memory.allocated == 2048
        assert engine.call("sum", "default", [Handle(-1)], {}, "").shape == []

    @pytest.mark.parametrize(
        "numbers", [[-1], [3], [], [-2, -3]], ids=["taken", "the engine's", "none", "too many"]
    )
    def test_a_program_numbers_what_there_is_with_numbers_that_are_free(
        self, numbers: list[int]
    ) -> None:
        engine = Engine(PLAIN)
        engine.call("ones", "default", [[256]], {}, "", 0)
        engine.launch(0, [], "", [-1])
        engine.call("zeros", "default", [[256]], {}, "", 1)
        with pytest.raises((LookupError, ValueError)):
            engine.launch(1, [], "", numbers)
        assert engine.download(Handle(-1), "copy_", False, True, "").tolist() == [1.0] * 256

    @pytest.mark.parametrize("name", ["from_file", "set_", "no_such_operator"])
    def test_refuses_what_reaches_outside(self, name: str) -> None:
        with pytest.raises((NotModelled, LookupError)):
            Engine(PLAIN).call(name, "default", [], {}, "")

    def test_knows_no_handle_that_it_did_not_give(self) -> None:
        with pytest.raises(LookupError, match="no tensor 7"):
            Engine(PLAIN).call("neg", "default", [Handle(7)], {}, "")

    def test_counts_the_arithmetic_of_a_product(self) -> None:
        engine = Engine(PLAIN)
        a = upload(engine, torch.ones(4, 8))
        b = upload(engine, torch.ones(8, 2))
        engine.call("mm", "default", [Handle(a.number), Handle(b.number)], {}, "")
        assert engine.clock.flops == 2 * 4 * 8 * 2

    @pytest.mark.parametrize(
        ("name", "shapes", "multiplications"),
        [
            ("dot", [(8,), (8,)], 8),
            ("mv", [(4, 8), (8,)], 4 * 8),
            ("addmv", [(4,), (4, 8), (8,)], 4 * 8),
            ("addbmm", [(4, 2), (3, 4, 8), (3, 8, 2)], 3 * 4 * 8 * 2),
            ("addbmm_", [(4, 2), (3, 4, 8), (3, 8, 2)], 3 * 4 * 8 * 2),
        ],
    )
    def test_counts_products_for_which_pytorch_has_no_formula(
        self, name: str, shapes: list[tuple[int, ...]], multiplications: int
    ) -> None:
        engine = Engine(PLAIN)
        factors = [upload(engine, torch.ones(shape)) for shape in shapes]
        engine.call(name, "default", factors, {}, "")
        assert engine.clock.flops == 2 * multiplications

    def test_arithmetic_counts_from_which_the_parameters_follow(self) -> None:
        engine = Engine(PLAIN)
        square, trained, sent = (upload(engine, torch.eye(4)).number for _ in range(3))
        for _ in range(3):
            engine.step()
            made = engine.call("mm", "default", [Handle(trained), Handle(square)], {}, "")
            engine.call("sub_", "Tensor", [Handle(trained), Handle(made.number)], {}, "")
            engine.call("mm", "default", [Handle(square), Handle(square)], {}, "")
            engine.report()
        part = engine.call("view", "default", [Handle(trained), [16]], {}, "").number
        product = 2 * 4**3
        assert engine.clock.flops == 6 * product
        for number, products in ((trained, 3), (part, 3), (sent, 0)):
            engine._closed = None
            engine.keep({"weight": Handle(number)})
            assert engine.figures().useful_flops == products * product
        engine._closed = None
        engine.keep({"weight": Handle(trained)})
        assert engine.figures().step_flops == [0, product, 2 * product]
        assert engine.figures().report_flops == [product, 2 * product, 3 * product]
        engine.overwrite(Handle(trained), torch.eye(4), True, False, "", next(NUMBERS))
        engine._closed = None
        engine.keep({"weight": Handle(trained)})
        assert engine.figures().useful_flops == 0, "what came from the host is written over it"

    def test_initial_parameters_are_other_ones_on_the_device_wherever_they_stand(self) -> None:
        host = torch.randn(40)
        known = []
        for secret in (1, 1, 2):
            engine = Engine(PLAIN, secret=secret)
            engine.calls()["note_start"]([host])
            sent = upload(engine, torch.stack([host.flip(0), torch.ones(40)]))
            known.append(engine.download(sent, "copy_", False, True, "").clone())
        assert torch.equal(known[0], known[1])
        assert not torch.equal(known[0], known[2])
        changes = known[0][0] / host.flip(0) - 1
        assert 0.005 < changes.abs().mean() < 0.02
        assert known[0][1].eq(1).all(), "other values stay"

    def test_lives_of_tensors_and_copies_are_counted_in_steps(self) -> None:
        def made_at(line: str) -> int:
            return upload(engine, torch.ones(4), line).number

        engine, copy = Engine(PLAIN), ("train.py(9): train", "float32[] on the host")
        kept = made_at("train.py(1): train")
        engine.step()
        made = made_at("train.py(2): train")
        engine.let_go([("", [made_at("train.py(3): train")])], [])
        engine.step(0, False, [(1, *copy, 2)])
        engine.let_go([("", [made])], [])
        engine.step(0, False, [(1, *copy, 1), (2, *copy, 1)])
        engine.let_go([("", [kept])], [])
        assert sorted(engine.figures().lives) == [
            (0, 3, 1, "train.py(1): train", "float32[4]"),
            (1, 2, 1, "train.py(2): train", "float32[4]"),
            (1, 3, 2, *copy),
            (2, 3, 1, *copy),
        ]
        engine.begin_pass()
        assert (engine.figures().lives, engine.figures().steps) == ([], 0)

    def test_a_number_says_the_block_that_it_keeps(self) -> None:
        engine = Engine(PLAIN)
        engine._hold(1, torch.zeros(5120)[:1].squeeze(), "train.py(7): train")
        engine.step()
        form = "float32[] in a block of 20 KiB"
        assert engine.figures().lives == [(0, 1, 1, "train.py(7): train", form)]

    def test_a_program_cannot_hide_tensors_behind_copies_that_it_makes_up(self) -> None:
        engine, where = Engine(PLAIN), ("train.py(2): train", "float32[4]")
        engine.step()
        upload(engine, torch.ones(4), where[0])
        engine.step(0, False, [(1, *where, -5)])
        engine.step(0, False, [(1, *where, 9)])
        assert engine.figures().lives == [(1, 3, 10, *where)]

    def test_the_books_are_closed_once(self) -> None:
        engine = Engine(PLAIN)
        engine.keep({})
        with pytest.raises(LookupError, match="handed over already"):
            engine.keep({})

    def test_takes_operators_only_in_their_parts(self) -> None:
        """Whoever sent one whole could hide its arithmetic and its waits."""
        engine = Engine(PLAIN)
        x = upload(engine, torch.ones(4, 8))
        with pytest.raises(LookupError, match="made up of other operators"):
            engine.call("linear", "default", [Handle(x.number), Handle(x.number)], {}, "")

    @pytest.mark.parametrize(
        ("name", "overload", "args"),
        [("slice", "Tensor", [0, 0, 10]), ("_unsafe_view", "default", [[10, 100]])],
    )
    def test_a_view_costs_nothing_and_holds_its_base(self, name, overload, args) -> None:
        engine = Engine(PLAIN)
        whole = upload(engine, torch.ones(1000))
        before = engine.clock.launches, engine.memory.allocated
        part = engine.call(name, overload, [Handle(whole.number), *args], {}, "")
        engine.let_go([("", [whole.number])], [])
        assert (engine.clock.launches, engine.memory.allocated) == before
        engine.let_go([("", [part.number])], [])
        assert engine.memory.allocated == 0


@pytest.fixture
def channels() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The program's end and the owner's end of a running engine, which is in a thread here and has
    said that it is there.
    """
    program, theirs = socket.socketpair()
    owner, owners = socket.socketpair()
    for end in (program, owner):
        end.settimeout(60)
    server = threading.Thread(target=Server(theirs, owners).serve)
    server.start()
    assert Frames(owner).receive() == b""
    yield program, owner
    owner.close()
    program.close()
    server.join(PATIENCE_S)
    assert not server.is_alive()
    theirs.close()
    owners.close()


def framed(value: object) -> bytes:
    body = encode(value)
    return len(body).to_bytes(8, "little") + body


def ask(owner: socket.socket, question: Begin | End) -> None:
    Frames(owner).send(msgspec.msgpack.encode(question))


class TestServer:
    @pytest.mark.parametrize(
        "sent",
        [
            b"\xff" * 64,
            framed(["seed", True, [], [], []])[:-1] + b"\xc1",
            (9).to_bytes(8, "little") + b"\x80\x04\x95garbage",
            framed(msgspec.to_builtins(End())),
            framed(["no such call", True, [], [], []]),
            framed(["step", True, 5, [], []]),
            framed(["step", True, [], -1000, []]),
            framed(["step"]),
        ],
        ids=[
            "noise",
            "malformed",
            "a pickle",
            "the owner's question",
            "an unknown call",
            "no handles",
            "no generations",
            "too short",
        ],
    )
    def test_a_program_that_speaks_no_protocol_is_not_heard_again_and_the_books_stay(
        self, sent, channels
    ) -> None:
        program, owner = channels
        program.sendall(sent)
        program.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            assert program.recv(1) == b""
        ask(owner, End())
        assert msgspec.msgpack.decode(Frames(owner).receive(), type=Books).figures.steps == 0

    def test_a_call_that_fails_is_the_programs_own_affair(self, channels) -> None:
        program, _ = channels
        program.sendall(framed(["call", True, [], [], [], "neg", "default", [Handle(7)], {}, ""]))
        worked, kind, words = decode(Frames(program).receive())
        assert (worked, kind) == (False, "LookupError")
        assert "no tensor 7" in words

    def test_a_launch_that_fails_is_the_answer_to_the_next_call_and_what_follows_it_is_not_run(
        self, channels
    ) -> None:
        program, _ = channels
        launches = [
            [0, [7], "train.py(3): forward < train.py(9): train", [-1]],
            [0, [], "", [-2]],
        ]
        program.sendall(framed(["call", True, [], [], [], "ones", "default", [[0]], {}, "", 0]))
        answers = Frames(program)
        assert decode(answers.receive())[0]
        for launch in launches:
            program.sendall(framed(["launch", False, [], [], [], *launch]))
        program.sendall(framed(["memory", True, [], [], []]) * 2)
        worked, kind, words = decode(answers.receive())
        assert (worked, kind) == (False, "LookupError")
        assert "no tensor 7" in words
        assert "(launched at train.py(3): forward)" in words
        assert decode(answers.receive())[:2] == [True, [0, 0, 0]]

    def test_a_launch_without_its_arguments_is_one_that_fails(self, channels) -> None:
        program, _ = channels
        program.sendall(framed(["launch", False, [], [], []]) + framed(["step", True, [], [], []]))
        assert decode(Frames(program).receive())[:2] == [False, "TypeError"]

    def test_what_is_sent_after_a_run_was_opened_is_in_its_books(self, channels) -> None:
        program, owner = channels
        ask(owner, Begin(PLAIN, recording=False))
        program.sendall(framed(["step", True, [], [], []]) * 3)
        answers = Frames(program)
        assert [decode(answers.receive())[0] for _ in range(3)] == [True] * 3
        ask(owner, End())
        assert msgspec.msgpack.decode(Frames(owner).receive(), type=Books).figures.steps == 3

    def test_calls_that_nobody_waits_for_are_run_in_turn_and_not_answered(self, channels) -> None:
        program, owner = channels
        program.sendall(framed(["step", False, [], [], [], 4]) * 2)
        program.sendall(framed(["pin", False, [], [], [], -1, ""]))  # it fails
        program.sendall(framed(["step", False, [], [], []]))
        program.sendall(framed(["memory", True, [], [], []]) * 2)
        answers = Frames(program)
        assert decode(answers.receive())[:2] == [False, "ValueError"]
        assert decode(answers.receive())[:2] == [True, [0, 0, 0]]
        ask(owner, End())
        assert msgspec.msgpack.decode(Frames(owner).receive(), type=Books).figures.steps == 2

    def test_a_call_of_one_run_can_be_launched_in_the_next(self, channels) -> None:
        def send(call: str, *args: object, awaited: bool = False) -> None:
            program.sendall(framed([call, awaited, [], [], [], *args]))

        program, owner = channels
        answers = Frames(program)
        for number in (-1, -2):
            send("upload", None, torch.zeros(2), True, True, "", number)
        parts = [Handle(-1), Handle(-2), Handle(-1)]
        send("call", "cat", "default", [parts], {"dim": 0}, "", 0, awaited=True)
        assert decode(answers.receive())[0]
        ask(owner, Begin(PLAIN, recording=False))
        for number in (-3, -4):
            send("upload", None, torch.full((2,), number), True, True, "", number)
        send("launch", 0, [-3, -4], "", [-5])
        send("download", Handle(-5), "copy_", False, True, "", awaited=True)
        assert decode(answers.receive())[1].tolist() == [-3, -3, -4, -4, -3, -3]

    def test_an_owner_that_goes_away_in_the_middle_of_an_answer_is_a_normal_end(
        self, channels
    ) -> None:
        """A capture that is stopped: the thread would be reported with what it raised."""
        program, owner = channels
        large = torch.zeros(1 << 19)
        program.sendall(framed(["upload", False, [], [], [], None, large, True, True, "", -1]))
        program.sendall(framed(["keep", True, [], [], [], {"weight": Handle(-1)}]))
        assert decode(Frames(program).receive())[0]
        ask(owner, End())
        assert owner.recv(1)  # 2 MiB are on their way, more than a socket holds


OWNER = """
import time
from bottleneck_lab.measure.virtual_gpu.owner import engine_process
with engine_process() as engine:
    engine.wait_started()
    print(engine.process.pid, flush=True)
    time.sleep(600)
"""


def test_an_engine_ends_without_a_word_when_its_owner_is_ended() -> None:
    command = [sys.executable, "-c", OWNER]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        engine = psutil.Process(int(owner.stdout.readline()))
        owner.terminate()
        # The engine holds the same standard error.
        _, errors = owner.communicate(timeout=PATIENCE_S)
    assert errors == b""
    assert psutil.wait_procs([engine], timeout=PATIENCE_S)[1] == []


def test_engines_of_one_start_keep_their_own_books_and_end_together() -> None:
    with engine_processes(2) as engines:
        for engine in engines:
            engine.begin(PLAIN)
        program = Frames(engines[0].program)
        for _ in range(3):
            program.send(encode(["step", True, [], [], []]))
            assert decode(program.receive())[0]
        assert [engine.end().figures.steps for engine in engines] == [3, 0]
        both = psutil.Process(engines[0].process.pid).children(recursive=True)
        assert len(both) == 1
    assert psutil.wait_procs(both, timeout=PATIENCE_S)[1] == []


PROGRAM = """
import copy, json, socket, sys, threading, torch
from pathlib import Path
from torch import nn
from bottleneck_lab.measure.virtual_gpu.backend import install
driver = install(socket.socket(fileno=int(sys.argv[1])), Path(__file__))
device, facts = torch.device("virtual"), {}

def trained(device):
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(20, 16), encoder, nn.Linear(16, 20))
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    tokens = (torch.arange(60).reshape(4, 15) % 20).to(device)
    for _ in range(3):
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item(), [parameter.detach().cpu() for parameter in model.parameters()]

(loss, here), (other, there) = trained(device), trained("cpu")
facts["loss"] = [loss, other]
facts["difference"] = max(float((a - b).abs().max()) for a, b in zip(here, there))

driver.ask("step")
x = torch.arange(6.0).pin_memory().to(device, non_blocking=True)
y = (x * 2).sum()
driver.ask("step")  # the step before had no wait
y.item()
driver.ask("step")  # one
x[x > 2]
driver.ask("step")  # one: its shape depends on values
x.tolist()
if y:
    pass
driver.ask("step")  # two

layer = nn.Linear(2, 2).to(device)
whole = [parameter.detach().cpu() for parameter in layer.parameters()]
given = layer.weight
layer.bfloat16()
ones = torch.ones(1, 2, device=device, dtype=torch.bfloat16)
facts["half"] = [str(layer.weight.dtype), str(layer(ones).dtype), given is layer.weight]
facts["rounded"] = layer.weight.detach().cpu().equal(whole[0].bfloat16())

early = (x + 1).to("cpu", non_blocking=True)
facts["early"] = early.tolist()
torch.virtual.synchronize()
facts["late"] = early.tolist()

allocated = torch.virtual.memory_allocated()
kept = torch.zeros(1 << 18, device=device)
facts["held"] = torch.virtual.memory_allocated() - allocated
del kept
facts["after"] = torch.virtual.memory_allocated() - allocated
try:
    torch.zeros(1 << 30, device=device)
except torch.OutOfMemoryError as error:
    facts["full"] = str(error)
try:
    x + torch.ones(6)
except RuntimeError as error:
    facts["mixed"] = str(error)

questions, ask = [], driver.ask
driver.ask = lambda name, *rest: questions.append((name, *rest[:1])) or ask(name, *rest)
rows = torch.ones(8, 8, device=device)
facts["questions"] = []
for _ in range(3):
    questions.clear()
    hidden = torch.sigmoid(rows @ rows) * 2
    hidden += rows.sum(1, keepdim=True)
    parts = hidden.split(2)
    del hidden
    parts[0].item() if parts[0].dim() == 0 else parts[0].sum().item()
    facts["questions"].append(len(questions))
facts["parts"] = [list(part.shape) for part in parts]

for _ in range(2):
    questions.clear()
    driver.step(0)
    torch.ones(3).to(device)
    torch.ones(3).pin_memory().to(device, non_blocking=True)
facts["questions of later steps"] = list(questions)
early = (rows + 1).to("cpu", non_blocking=True)
torch.ones(3).to(device)  # pageable: the host waits, and so for the copy before
facts["arrived"] = early.sum().item()

turned = torch.arange(6.0, device=device).reshape(2, 3)
turned.t_()
sums = nn.functional.linear(turned, torch.ones(1, 2, device=device)).flatten().tolist()
facts["turned"] = [list(turned.shape), list(turned.stride()), sums]

factors = (1, True, 1.0)
facts["types"] = [str((rows * factor).dtype) for factor in factors]
facts["types"] += [str((rows.int() * factor).dtype) for factor in factors] * 2
grown = torch.empty(0, device=device)
torch.mul(rows, rows, out=grown)
facts["grown"] = [list((grown + 1).shape) for _ in range(2)]

made = torch.arange(3, device=device), torch.eye(2, device=device)
facts["made"] = [list(tensor.shape) for tensor in made]
facts["filled in"] = torch.tensor([1.0, 2.0], device=device).tolist()
facts["one of many"] = torch.ones(1, device=device).expand(3)[:1].tolist()
with torch.inference_mode():
    facts["inference"] = [str((rows * 2).cpu().device), (rows[0] * 2).tolist()]
facts["index"] = (rows[0] * 2)[torch.tensor([1, 2])].tolist()

layer.register_buffer("seen", torch.ones(1, device=device))
layer(ones).sum().backward()
twin = copy.deepcopy(layer)
with torch.no_grad():
    before = twin.weight.tolist(), twin.weight.grad.tolist(), twin.seen.item()
    for tensor in (layer.weight, layer.weight.grad, layer.seen):
        tensor.add_(1)
after = twin.weight.tolist(), twin.weight.grad.tolist(), twin.seen.item()
facts["twin is its own"] = after == before
facts["twin"] = [len(list(twin.parameters())), twin.weight.requires_grad, twin.seen.requires_grad]
tied = copy.deepcopy(nn.ModuleList([layer, layer]))
facts["tied"] = tied[0].weight is tied[1].weight

class Noted(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        facts["own thread"] = threading.current_thread() is threading.main_thread()
        return gradient

Noted.apply(layer.weight).sum().backward()

def refuse(function, *rest):
    if function is torch.ops.aten.tanh_backward.default:
        raise ValueError("not today")
    return run(function, *rest)

run, driver._run = driver._run, refuse
try:
    layer.weight.tanh().sum().backward()
except ValueError as error:
    facts["error in a backward"] = str(error)
driver._run = run

pinned = torch.ones(8, pin_memory=True)
facts["pinned"] = [pinned[:2].is_pinned(), torch.ones(8).is_pinned()]
turned = torch.ones(2, 3, device=device).T
like = [
    torch.empty_like(turned, device="cpu", pin_memory=True),
    torch.zeros_like(turned, device="cpu", dtype=torch.int64),
    turned.new_ones(4, device="cpu"),
    torch.zeros_like(turned),
]
facts["like"] = [[each.device.type, [*each.shape], str(each.dtype), each.is_pinned()]
                 for each in like]
facts["like, values"] = [like[1].tolist(), like[2].tolist()]
for early in (False, True):
    pinned.to(device, non_blocking=True)
    if not early:
        torch.virtual.synchronize()
    pinned.numpy()[:] += 1
event = torch.Event("virtual")
event.record()
event.synchronize()

for _ in range(2):
    doubled = rows * 2 + 1
    # The loader's worker is a fork, and seeds its generators.
    torch.utils.data.DataLoader(range(4), num_workers=1)._get_iterator()
    facts["beside a worker"] = (doubled + 1).sum().item()

filled = []
try:
    for _ in range(100):
        filled.append(torch.zeros(1 << 20, device=device))
except torch.OutOfMemoryError:
    facts["filled"] = [len(filled), torch.virtual.memory_allocated() + (4 << 20) > 64 << 20]
del filled

table, places = torch.ones(4, 2, device=device), torch.tensor([1, 9]).to(device)
nn.functional.embedding(places.clamp(max=3), table)
nn.functional.embedding(places, table)  # launched: it fails where nobody waits for it
try:
    torch.virtual.synchronize()
except Exception as error:
    facts["late error"] = str(error)
print(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What a program says that ran on the virtual GPU, with the engine's books: a process can
    register the device only once.
    """
    script = tmp_path_factory.mktemp("program") / "program.py"
    script.write_text(PROGRAM, encoding="utf-8")
    with engine_process() as engine:
        engine.begin(msgspec.structs.replace(H200, capacity_bytes=64 << 20), recording=True)
        fd = engine.program.fileno()
        done = subprocess.run(
            [sys.executable, str(script), str(fd)],
            pass_fds=[fd],
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout.splitlines()[-1]) | {"books": engine.end()}


class TestProgram:
    def test_a_transformer_trains_as_on_the_cpu(self, seen: dict) -> None:
        assert seen["loss"][0] == pytest.approx(seen["loss"][1], rel=1e-5)
        assert seen["difference"] < 1e-5

    def test_a_module_changes_its_type_in_place(self, seen: dict) -> None:
        assert seen["half"] == ["torch.bfloat16", "torch.bfloat16", True]
        assert seen["rounded"]

    def test_waits_are_those_of_a_gpu(self, seen: dict) -> None:
        assert seen["books"].figures.step_waits[:4] == [0, 1, 1, 2]

    def test_a_copy_that_nobody_waited_for_has_not_arrived(self, seen: dict) -> None:
        assert seen["early"] == [0.0] * 6
        assert seen["late"] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]

    def test_memory_is_free_as_soon_as_nobody_holds_it(self, seen: dict) -> None:
        assert (seen["held"], seen["after"]) == (1 << 20, 0)

    def test_a_full_device_and_a_mixture_of_devices_say_what_pytorch_says(self, seen: dict) -> None:
        assert "Tried to allocate 4096.00 MiB" in seen["full"]
        assert "Expected all tensors to be on the same device" in seen["mixed"]

    def test_what_was_called_before_is_only_launched(self, seen: dict) -> None:
        first, second, third = seen["questions"]
        assert first > 3
        assert (second, third) == (1, 1)  # the value that is read
        assert seen["parts"] == [[2, 8]] * 4

    def test_a_step_and_a_copy_to_the_device_need_no_answer(self, seen: dict) -> None:
        assert seen["questions of later steps"] == []

    def test_a_copy_to_the_device_that_waits_brings_what_has_arrived(self, seen: dict) -> None:
        assert seen["arrived"] == 8 * 8 * 2.0

    def test_equal_numbers_of_other_types_make_other_types(self, seen: dict) -> None:
        assert (
            seen["types"]
            == ["torch.float32"] * 3 + ["torch.int32", "torch.int32", "torch.float32"] * 2
        )

    def test_a_forked_worker_sends_nothing_of_what_its_parent_has_queued(self, seen: dict) -> None:
        assert seen["beside a worker"] == 4 * 64

    def test_a_tensor_turned_in_place_has_its_new_shape(self, seen: dict) -> None:
        assert seen["turned"] == [[3, 2], [1, 3], [3.0, 5.0, 7.0]]

    def test_a_target_that_grew_is_known_with_its_new_shape(self, seen: dict) -> None:
        assert seen["grown"] == [[8, 8], [8, 8]]

    def test_what_pytorch_makes_in_other_ways_is_as_it_should_be(self, seen: dict) -> None:
        assert seen["made"] == [[3], [2, 2]]
        assert (seen["filled in"], seen["one of many"]) == ([1.0, 2.0], [1.0])
        assert seen["inference"] == ["cpu", [2.0] * 8]
        assert seen["index"] == [2.0, 2.0]

    def test_a_deep_copy_has_values_of_its_own(self, seen: dict) -> None:
        assert seen["twin is its own"]
        assert seen["twin"] == [2, True, False]
        assert seen["tied"], "what was one tensor stays one"

    def test_the_programs_own_thread_runs_a_backward_and_lets_go_of_its_graph(
        self, seen: dict
    ) -> None:
        assert seen["own thread"]

    def test_what_an_operator_raises_in_a_backward_reaches_the_program(self, seen: dict) -> None:
        assert seen["error in a backward"] == "not today"

    def test_a_pinned_buffer_that_is_overwritten_too_early_is_a_race(self, seen: dict) -> None:
        assert seen["pinned"] == [True, False]
        (line,) = seen["books"].figures.races
        assert line.startswith("program.py(")

    def test_a_tensor_like_one_of_the_device_is_where_the_program_wants_it(
        self, seen: dict
    ) -> None:
        assert seen["like"] == [
            ["cpu", [3, 2], "torch.float32", True],
            ["cpu", [3, 2], "torch.int64", False],
            ["cpu", [4], "torch.float32", False],
            ["virtual", [3, 2], "torch.float32", False],
        ]
        assert seen["like, values"] == [[[0, 0]] * 3, [1.0] * 4]

    def test_the_line_that_fills_the_device_is_the_one_that_raises(self, seen: dict) -> None:
        count, full = seen["filled"]
        assert 10 < count < 20
        assert full

    def test_a_launch_that_fails_says_which_line_it_was(self, seen: dict) -> None:
        assert "launched at program.py(" in seen["late error"]

    def test_every_row_names_the_line_that_caused_it(self, seen: dict) -> None:
        waits = [span for span in seen["books"].spans if span.kind == "wait"]
        assert waits
        assert all(span.line.startswith("program.py(") for span in waits)


def test_a_wait_for_an_event_is_not_for_what_was_launched_after_it(tmp_path: Path) -> None:
    slow = PLAIN.at_scale(1000)
    engine = Engine(slow, recording=True)
    a = upload(engine, torch.ones(256, 256), "train.py(3): train")

    def multiply(line: str) -> None:
        for _ in range(20):
            engine.call("mul_", "Scalar", [Handle(a.number), 1.0], {}, line)

    for _ in range(2):
        engine.step()
        multiply("train.py(7): train")
        event = engine.record_event()
        multiply("train.py(9): train")
        engine.wait_event(event, "train.py(10): train")
    assert engine.clock.device_us > engine.clock.host_us
    books = Books(engine.figures(), {}, engine.clock.spans or [], engine.changes)
    write_trace(books, slow, tmp_path / "trace.json.gz")
    summary = summarise(load(tmp_path / "trace.json.gz"))
    assert summary.quality.reasons == []
    (row,) = (row for row in summary.syncs if row.line == "train.py(10): train")
    assert (row.name, row.calls) == ("cudaEventSynchronize", 2)
    assert row.awaited_line == "train.py(7): train"


def test_a_wait_names_the_line_that_waited_and_the_line_waited_for(tmp_path: Path) -> None:
    engine = Engine(msgspec.structs.replace(PLAIN, reduction_us=50.0), recording=True)
    a = upload(engine, torch.ones(64, 64), "train.py(3): train")
    engine.step()
    for _ in range(5):
        engine.call("mm", "default", [Handle(a.number), Handle(a.number)], {}, "train.py(7): train")
    number = engine.call("sum", "default", [Handle(a.number)], {}, "train.py(9): train")
    engine.download(Handle(number.number), "copy_", False, True, "train.py(9): train")
    books = Books(engine.figures(), {}, engine.clock.spans or [], engine.changes)
    write_trace(books, PLAIN, tmp_path / "trace.json.gz")
    (row,) = summarise(load(tmp_path / "trace.json.gz")).syncs
    assert (row.line, row.calls) == ("train.py(9): train", 1)
    assert (row.awaited, row.awaited_line) == ("emulated: mm", "train.py(7): train")


def test_a_capture_shows_operators_that_wait_as_one_call_and_collections_as_such(
    tmp_path: Path,
) -> None:
    engine = Engine(PLAIN, recording=True)
    a = upload(engine, torch.ones(64, 64), "train.py(3): train")
    engine.step()
    for _ in range(2):
        number = engine.call("sum", "default", [Handle(a.number)], {}, "train.py(9): train")
        engine.download(Handle(number.number), "item", False, True, "train.py(9): train")
    engine.clock.wait("train.py(10): train")
    engine.let_go([], [(2, "train.py(11): train")])
    books = Books(engine.figures(), {}, engine.clock.spans or [], engine.changes)
    write_trace(books, PLAIN, tmp_path / "trace.json.gz")
    timeline = load(tmp_path / "trace.json.gz")
    operators = questions.ask(timeline, "line-operators").rows
    assert [row[:3] for row in operators] == [
        ["train.py(9): train", "aten::item", 2],
        ["train.py(9): train", "aten::sum", 2],
    ], "a wait that the program asks for is no operator's"
    ranges = {row[0]: row[1:3] for row in questions.ask(timeline, "ranges").rows}
    assert ranges[COLLECT] == [1, PLAIN.collect_us / 1e3]
    assert "train.py(11): train" in {row[0] for row in questions.ask(timeline, "lines").rows}


def test_what_a_line_keeps_is_charged_to_it(tmp_path: Path) -> None:
    """Each of eight steps makes 16 KiB twice, keeps one of them and lets go of the other."""
    engine = Engine(PLAIN, recording=True)
    a = upload(engine, torch.ones(64, 64), "train.py(3): train")
    for _ in range(8):
        engine.step()
        engine.call("mm", "default", [Handle(a.number), Handle(a.number)], {}, "train.py(7): train")
        gone = engine.call(
            "mm", "default", [Handle(a.number), Handle(a.number)], {}, "train.py(8): train"
        )
        engine.let_go([("/home/ada/train.py(12): forget", [gone.number])], [])
        engine.call("sum", "default", [Handle(a.number)], {}, "train.py(9): train")
    books = Books(engine.figures(), {}, engine.clock.spans or [], engine.changes)
    write_trace(books, PLAIN, tmp_path / "trace.json.gz", skip_steps=1)
    (use,) = summarise(load(tmp_path / "trace.json.gz")).memory
    rows = {
        row.line: (row.growth_bytes_per_step, row.freed_share, row.freed_at) for row in use.holders
    }
    assert rows["train.py(7): train"] == (64 * 64 * 4, 0.0, "")
    # The line that let go of it called nothing on the device, so only the memory's row names it.
    assert rows["train.py(8): train"] == (0, 1.0, "train.py(12): forget")


def test_a_backward_for_which_gpus_have_a_kernel_is_one_operator(tmp_path: Path) -> None:
    """PyTorch makes it up of four where a device has none."""
    program = """
gradients, counts = [], []
x = torch.linspace(-3, 3, 64)
for where in ("cpu", device):
    for function in (nn.functional.silu, nn.functional.mish):
        leaf = x.detach().to(where).requires_grad_()
        made = function(leaf)
        calls = []
        if where is device:
            ran = driver.run
            driver.run = lambda f, *args: calls.append(f._schema.name) or ran(f, *args)
        made.backward(torch.ones_like(made))
        if where is device:
            driver.run = ran
        counts.append([name for name in calls if "backward" in name or "sigmoid" in name])
        gradients.append(leaf.grad.cpu())
equal = all(torch.equal(*pair) for pair in zip(gradients[:2], gradients[2:]))
print(json.dumps([equal, counts[2:]]))
"""
    (equal, calls), _ = run(program, tmp_path)
    assert equal
    assert calls == [["aten::silu_backward"], ["aten::mish_backward"]]


def test_nobody_has_the_values_of_a_copy_before_it_arrives() -> None:
    """What holds a program to waiting is the engine: its own side of the protocol can be changed by
    the program.
    """
    engine = Engine(msgspec.structs.replace(PLAIN, kernel_us=50.0))
    made = engine.call("ones", "default", [[4]], {"device": torch.device("cpu")}, "")
    number = engine.download(Handle(made.number), "copy_", True, False, "train.py(3)")
    assert not isinstance(number, torch.Tensor)
    engine.clock.host_us += 1e6  # by now it is there, on a device that is as fast as this one
    assert engine.arrived() == []
    engine.report()
    assert engine.figures().unawaited == ["train.py(3)"]
    engine.clock.wait("")
    assert [(found, data.tolist()) for found, data in engine.arrived()] == [(number, [1.0] * 4)]
    assert engine.arrived() == []


def test_a_tensor_that_grows_as_a_target_is_held_with_its_new_size() -> None:
    engine = Engine(PLAIN)
    small = engine.call("empty", "memory_format", [[0]], {"device": torch.device("cpu")}, "")
    whole = engine.call("ones", "default", [[256, 256]], {"device": torch.device("cpu")}, "")
    before = engine.memory.allocated
    engine.call(
        "mul",
        "out",
        [Handle(whole.number), Handle(whole.number)],
        {"out": Handle(small.number)},
        "",
    )
    assert engine.memory.allocated == before + 256 * 256 * 4
    engine.let_go([("", [small.number, whole.number])], [])
    assert engine.memory.allocated == 0


@pytest.mark.parametrize("name", ["addmm", "addmm_"])
def test_a_product_counts_in_place_too(name: str) -> None:
    engine = Engine(PLAIN)
    square = engine.call("ones", "default", [[8, 8]], {"device": torch.device("cpu")}, "")
    engine.call(name, "default", [Handle(square.number)] * 3, {}, "")
    assert engine.clock.flops == 2 * 8**3


def test_only_what_nobody_has_waited_for_can_be_overwritten_too_early() -> None:
    engine = Engine(msgspec.structs.replace(PLAIN, kernel_us=50.0))
    copies = [upload(engine, torch.ones(4), f"train.py({line})").number for line in (3, 4)]
    # The host's own time passes, but it does not know what the device has done meanwhile.
    engine.clock.host_us += 1e6
    engine.overwritten(copies[:1])
    assert engine.read() == []
    engine.clock.wait("")
    assert engine.read() == copies[1:]
    engine.overwritten(copies[1:])
    assert engine.figures().races == ["train.py(3)"]


def test_what_is_not_modelled_is_no_fault_of_a_program() -> None:
    session = Session.__new__(Session)
    fault = session.failed(Failed("train.py, line 3: …", NotModelled.reason), "during a call")
    assert isinstance(fault, VerifierFault)
    assert "train.py, line 3" in str(fault)


def test_a_line_is_the_calling_thread_s_or_the_main_one_s_where_that_runs_none(tmp_path):
    """A worker thread's `.item()` waits on its own line; autograd's thread runs none."""
    entry = tmp_path / "train.py"
    entry.write_text("def read(ask):\n    ask()\n\ndef train(run):\n    run(read)\n    run(None)\n")
    driver, lines = object.__new__(Driver), []
    driver._folder, driver._entry, driver._files = f"{tmp_path}/", str(entry), {}

    def ask():
        lines.append(driver.line())

    def run(own):
        thread = threading.Thread(target=own or ask, args=(ask,) if own else ())
        thread.start()
        thread.join()

    program: dict = {}
    exec(compile(entry.read_text("utf-8"), str(entry), "exec"), program)
    program["train"](run)
    assert lines == ["train.py(2): read", "train.py(6): train"]


def test_what_lies_in_a_folder_whose_name_begins_alike_is_not_the_programs(tmp_path):
    """The package's own lines were taken for the learner's in `~/lab` beside `~/lab-course`."""
    entry, lines = tmp_path / "lab" / "train.py", []
    ours, theirs = socket.socketpair()
    driver = Driver(ours, entry)
    program: dict = {}
    package: dict = {"note": lambda: lines.append(driver.line())}
    exec(compile("def train(ask):\n    ask()\n", str(entry), "exec"), program)
    beside = str(tmp_path / "lab-course" / "package.py")
    exec(compile("def ask():\n    note()\n", beside, "exec"), package)
    program["train"](package["ask"])
    assert lines == ["train.py(2): train"]
    ours.close()
    theirs.close()


def test_a_step_of_training_leaves_no_reference_cycles(tmp_path: Path) -> None:
    """Autograd runs without a frame of Python below it: the line is the main thread's then."""
    program = """
import gc
layer = nn.Linear(8, 4).to(device)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)

def step():
    optimizer.zero_grad()
    layer(torch.ones(2, 8).to(device)).square().sum().backward()
    optimizer.step()

gc.disable()
step(), step(), gc.collect()
step()
print(json.dumps(gc.collect()))
"""
    collected, _ = run(program, tmp_path)
    assert collected == 0


class TestPinnedMemory:
    def test_a_write_that_pytorch_knows_of_shows_at_once_and_any_other_before_a_wait(self) -> None:
        memory, ours, numpys = PinnedMemory(), torch.ones(4), torch.ones(4)
        memory.watch(1, ours)
        memory.watch(2, numpys)
        ours[:2].zero_()
        numpys.numpy()[:2] = 0
        assert memory.take_overwritten(all_writes=False) == [1]
        assert memory.take_overwritten(all_writes=True) == [2]
        assert memory.take_overwritten(all_writes=True) == []

    def test_a_buffer_that_is_let_go_after_a_write_was_overwritten(self) -> None:
        memory, buffer, kept = PinnedMemory(), torch.ones(4), torch.ones(4)
        memory.watch(1, buffer)
        memory.watch(2, kept)
        buffer.numpy()[:] = 0
        del buffer
        assert memory.take_overwritten(all_writes=True) == [1]

    def test_only_what_lies_as_it_is_wanted_is_sent_from_pinned_memory(self) -> None:
        """For anything else PyTorch makes a temporary on the host, which is not pinned."""
        memory, dtype = PinnedMemory(), torch.float32
        whole = memory.mark(torch.ones(4, 6))
        assert all(
            memory.sends(part, dtype) for part in (whole, whole[:2], whole.t(), whole[:, 0:])
        )
        assert not memory.sends(whole[:, :3], dtype), "it has gaps"
        assert not memory.sends(whole[:1].expand(4, 6), dtype), "rows lie on top of each other"
        assert not memory.sends(whole, torch.float16)
        assert memory.sends(whole, dtype, strides=(6, 1))
        assert not memory.sends(whole, dtype, strides=(1, 4)), "the target lies otherwise"
        assert not memory.sends(torch.ones(4, 6), dtype)

    def test_only_masks_and_values_make_a_host_wait(self) -> None:
        aten = torch.ops.aten
        assert may_wait(aten.index_put_.default)
        assert may_wait(aten.nonzero.default)
        assert may_wait(aten.multinomial.default)
        assert not may_wait(aten.mm.default)


OPTIMIZERS = """
def trained(kind, **options):
    torch.manual_seed(0)
    model = nn.Linear(4, 2).to(device)
    optimizer = kind(model.parameters(), lr=0.1, **options)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(3, 4, device=device)).sum().backward()
        optimizer.step()
    return model.bias.tolist()

values = [trained(torch.optim.SGD, momentum=0.9), trained(torch.optim.AdamW)]
needless = [name for name in ("torch._dynamo", "torch.distributed.tensor") if name in sys.modules]
import torch._dynamo
print(json.dumps([values, needless, trained(torch.optim.SGD, momentum=0.9) == values[0]]))
"""


def test_training_imports_neither_a_compiler_nor_distributed_tensors(tmp_path: Path) -> None:
    (values, needless, same), _ = run(OPTIMIZERS, tmp_path)
    assert needless == []
    assert same
    model = torch.nn.Linear(4, 2)
    torch.manual_seed(0)
    model.reset_parameters()
    start = model.bias.tolist()
    # Each bias has the gradient 3: a momentum of 0.9 makes 0.3 and then 0.57 of it.
    assert values[0] == pytest.approx([value - 0.87 for value in start], abs=1e-5)
