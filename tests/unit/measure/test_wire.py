import contextlib
import os
import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck_lab.measure.channel.messages import Answer, Call, Done, Trained
from bottleneck_lab.measure.channel.wire import (
    MAX_BODY_BYTES,
    Arena,
    Channel,
    Closed,
    Malformed,
    TimedOut,
    pack,
    unpack,
    unpack_message,
)

scalars = st.one_of(
    st.binary(max_size=50),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
)
arrays = st.builds(
    lambda shape, dtype: np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape),
    st.lists(st.integers(0, 4), max_size=4).map(tuple),
    st.sampled_from(["uint8", "int64", "float16", "float32", "float64"]),
)
HEADER = 16


def same(a, b):
    if isinstance(a, np.ndarray):
        return (
            isinstance(b, np.ndarray)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and np.array_equal(a, b)
        )
    return a == b


@given(st.lists(st.one_of(scalars, arrays), max_size=6))
def test_what_is_packed_comes_out_again(values):
    message = unpack_message(pack(Call(values)))
    assert isinstance(message, Call)
    out = message.inputs
    assert len(out) == len(values)
    assert all(same(a, b) for a, b in zip(values, out, strict=True))


@given(st.integers(0, 255), st.binary(max_size=200))
def test_any_bytes_are_values_or_malformed(count, body):
    with contextlib.suppress(Malformed):
        assert len(unpack(count, body)) == count


def test_arrays_go_through_the_arena_into_their_half_only():
    arena = Arena.create(1 << 16)
    message = pack(Answer([np.arange(10.0)]), arena, half=1)
    assert len(message) < 60
    assert np.array_equal(unpack(1, message[HEADER:], arena, half=1)[0], np.arange(10.0))
    with pytest.raises(Malformed, match="outside its half"):
        unpack(1, message[HEADER:], arena, half=0)
    with pytest.raises(Malformed, match="fit"):
        pack(Answer([np.zeros(1 << 13)]), arena, half=1)
    arena.close()


def test_arrays_that_lie_over_one_another_would_fill_the_reader_and_are_refused():
    arena = Arena.create(1 << 16)
    twice = pack(Answer([np.zeros(3000)]), arena, half=1)[HEADER:] * 2
    with pytest.raises(Malformed, match="overlapping"):
        unpack(2, twice, arena, half=1)
    arena.close()


def test_the_arena_can_be_neither_shrunk_nor_grown():
    arena = Arena.create(1 << 12)
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, 1 << 13)
    arena.close()


@pytest.fixture
def ends():
    left, right = Channel.pair()
    yield Channel(left), right
    left.close()
    right.close()


def test_a_channel_tells_silence_from_an_end_from_nonsense(ends):
    channel, other = ends
    with pytest.raises(TimedOut):
        channel.receive(0.01)
    other.sendall(b"POST / HTTP/1.1\r\n\r\n")
    with pytest.raises(Malformed):
        channel.receive(1)
    other.shutdown(socket.SHUT_RDWR)
    with pytest.raises(Closed):
        channel.receive(1)


def test_a_message_that_claims_to_be_huge_is_refused_before_it_is_read(ends):
    channel, other = ends
    other.sendall(
        b"BLW1" + bytes([Answer.number, 0, 0, 0]) + (MAX_BODY_BYTES + 1).to_bytes(8, "little")
    )
    with pytest.raises(Malformed):
        channel.receive(1)


def test_an_object_has_no_wire_form():
    with pytest.raises(Malformed):
        pack(Call([object()]))


def test_a_message_that_comes_in_pieces_is_not_lost_when_the_reader_grows_impatient(ends):
    channel, other = ends
    message = pack(Trained(1, 2, 3, np.arange(100), np.zeros(1)))
    for piece in (message[:7], message[7:40], message[40:-1]):
        other.sendall(piece)
        with pytest.raises(TimedOut):
            channel.receive(0.01)
    other.sendall(message[-1:] + pack(Done()))
    trained = channel.receive(1)
    assert isinstance(trained, Trained)
    assert (trained.ended_ns, len(trained.labels)) == (3, 100)
    assert isinstance(channel.receive(1), Done)


@pytest.mark.parametrize(
    "values",
    [[], [1, 2, 3, np.zeros(1)], [1, 2, 3.0, np.zeros(1), np.zeros(1)], [1, 2, 3, "x", "y"]],
)
def test_a_message_with_other_fields_than_its_own_is_malformed(ends, values):
    channel, other = ends
    body = pack(Answer(values))
    other.sendall(body[:4] + bytes([Trained.number]) + body[5:])
    with pytest.raises(Malformed, match="Trained does not have such fields"):
        channel.receive(1)
