"""Messages between the verifier and its workers: fixed-schema raw bytes, nothing that can run code
when read.

A message is `magic(4) number(1) count(1) pad(2) length(8)` and `length` bytes of body: `count`
values, each `tag(1) dtype(1) ndim(1) pad(5) nbytes(8) dims(8 each)` and, unless the value lies in
shared memory, its bytes. Anything else is `Malformed`. Big arrays travel in a sealed memfd
(`Arena`), so that a timed call is not a copy through a socket.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import select
import socket
import struct
import time
from typing import Any

import numpy as np

from bottleneck_lab.measure.channel.messages import Message, Value, is_known, message_of

MAGIC = b"BLW1"
_HEADER = struct.Struct("<4sBBxxQ")
_VALUE = struct.Struct("<BBB5xQ")
MAX_BODY_BYTES = 64 << 20
_DTYPES = [
    np.dtype(name)
    for name in ("uint8", "int32", "int64", "float16", "float32", "float64", "bool", "uint16")
]
_BYTES, _ARRAY, _INT, _FLOAT, _TEXT, _SHARED = range(6)
_MAX_DIMS = 8
_F_SEAL_FUTURE_WRITE = 0x10
"""linux/fcntl.h, since Linux 5.1: mappings that are there stay writable, new ones are not."""


class WireError(Exception):
    """The other side closed, was silent too long, or sent something that is not a message."""


class Closed(WireError):  # noqa: N818 - says who or what, as `raise` reads
    """The other side is gone."""


class TimedOut(WireError):  # noqa: N818 - says who or what, as `raise` reads
    """No whole message before the deadline."""


class Malformed(WireError):  # noqa: N818 - says who or what, as `raise` reads
    """Bytes that are not a message of this protocol."""


class Arena:
    """A sealed shared-memory region of two halves: the verifier writes inputs into the first, the
    worker answers into the second.

    It can be neither grown nor shrunk by either side, so reading it never faults.
    """

    def __init__(self, fd: int, size: int, *, writable: bool = True) -> None:
        self.fd = fd
        self.size = size
        self.memory = mmap.mmap(
            fd, size, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        )

    @classmethod
    def create(cls, size: int, *, others_write: bool = True) -> Arena:
        """Return a new region. Unless `others_write`, whoever attaches to it can only read."""
        fd = os.memfd_create("bottleneck-lab", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        region = cls(fd, size)
        # A worker that shrank the file would have the verifier die of SIGBUS while it reads.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | (0 if others_write else _F_SEAL_FUTURE_WRITE))
        return region

    @classmethod
    def attach(cls, fd: int, *, writable: bool = True) -> Arena:
        return cls(fd, os.fstat(fd).st_size, writable=writable)

    def half(self, which: int) -> tuple[int, int]:
        """Return start and end offset of the inputs' half (0) or the answers' half (1)."""
        if which == 0:
            return (0, self.size // 2)
        return (self.size // 2, self.size)

    def view(
        self, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int
    ) -> np.ndarray[Any, Any]:
        """Return an array on the region itself; no copy."""
        return np.ndarray(shape, dtype, buffer=self.memory, offset=offset)

    def close(self) -> None:
        self.memory.close()
        os.close(self.fd)


def pack(message: Message, arena: Arena | None = None, half: int = 0) -> bytes:
    """Return a whole message as bytes. With an arena, arrays are copied into that half of it and
    only described in the message.

    Raises Malformed when a value has no wire form or does not fit.
    """
    values, body, offset = message.values(), bytearray(), (arena.half(half)[0] if arena else 0)
    for value in values:
        if isinstance(value, np.ndarray) and arena is not None:
            offset = -(-offset // 64) * 64  # a cache line: vector loads of the worker stay aligned
            if offset + value.nbytes > arena.half(half)[1]:
                raise Malformed(f"{value.nbytes} bytes do not fit the shared memory")
            if value.nbytes:
                arena.view(value.dtype, value.shape, offset)[...] = value
            body += _describe(_SHARED, value, offset)
            offset += value.nbytes
        else:
            body += _pack_inline(value)
    return _HEADER.pack(MAGIC, message.number, len(values), len(body)) + bytes(body)


def _describe(tag: int, array: np.ndarray[Any, Any], size: int) -> bytes:
    if array.dtype not in _DTYPES or array.ndim > _MAX_DIMS:
        raise Malformed(f"arrays of {array.dtype} with {array.ndim} dimensions cannot be sent")
    head = _VALUE.pack(tag, _DTYPES.index(array.dtype), array.ndim, size)
    return head + struct.pack(f"<{array.ndim}Q", *array.shape)


def _pack_inline(value: Value) -> bytes:
    if isinstance(value, np.ndarray):
        return _describe(_ARRAY, value, value.nbytes) + np.ascontiguousarray(value).tobytes()
    if isinstance(value, bool | int):
        return _VALUE.pack(_INT, 0, 0, 8) + struct.pack("<q", int(value))
    if isinstance(value, float):
        return _VALUE.pack(_FLOAT, 0, 0, 8) + struct.pack("<d", value)
    if isinstance(value, bytes):
        return _VALUE.pack(_BYTES, 0, 0, len(value)) + value
    if isinstance(value, str):
        raw = value.encode()
        return _VALUE.pack(_TEXT, 0, 0, len(raw)) + raw
    raise Malformed(f"a {type(value).__name__} cannot be sent")


def unpack(count: int, body: bytes, arena: Arena | None = None, half: int = 1) -> list[Value]:
    """Return the values of a body. Arrays in shared memory come as views; copy them before the
    other side runs again.

    Raises Malformed for anything but exactly `count` well-formed values, or arrays that overlap: a
    copy of all is no larger than what was sent.
    """
    values: list[Value] = []
    at = 0
    try:
        for _ in range(count):
            value, at = _unpack_value(body, at, arena, half)
            values.append(value)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError, OverflowError) as error:
        raise Malformed(str(error)) from error
    if at != len(body):
        raise Malformed(f"{len(body) - at} extra bytes")
    # Arrays may point at the same bytes of the arena: without this, a message of a few bytes could
    # make the verifier copy terabytes.
    most = len(body) + (arena.size // 2 if arena else 0)
    if sum(value.nbytes for value in values if isinstance(value, np.ndarray)) > most:
        raise Malformed("overlapping arrays")
    return values


def unpack_message(message: bytes) -> Message:
    """Return the message that `pack` made of these bytes without an arena. Raises Malformed."""
    try:
        _, number, count, length = _HEADER.unpack_from(message)
    except struct.error as error:
        raise Malformed(str(error)) from error
    return _typed(number, unpack(count, message[_HEADER.size : _HEADER.size + length]))


def _typed(number: int, values: list[Value]) -> Message:
    try:
        return message_of(number, values)
    except ValueError as error:
        raise Malformed(str(error)) from error


def _unpack_value(body: bytes, at: int, arena: Arena | None, half: int) -> tuple[Value, int]:
    """Return the value that begins at byte `at` of a body, and where the next one does."""
    tag, code, ndim, size = _VALUE.unpack_from(body, at)
    at += _VALUE.size
    if tag in (_ARRAY, _SHARED):
        if ndim > _MAX_DIMS or code >= len(_DTYPES):
            raise Malformed("an impossible array")
        dtype, shape = _DTYPES[code], struct.unpack_from(f"<{ndim}Q", body, at)
        at += 8 * ndim
        if tag == _SHARED:  # `size` is then where the array begins in the shared memory
            return _shared_array(arena, half, dtype, shape, size), at
        if size != dtype.itemsize * math.prod(shape) or at + size > len(body):
            raise Malformed("an array whose size does not match its shape")
        flat = np.frombuffer(body, dtype, count=math.prod(shape), offset=at)
        return flat.reshape(shape), at + size
    raw = body[at : at + size]
    if len(raw) != size:
        raise Malformed("a truncated value")
    at += size
    if tag == _INT:
        return struct.unpack("<q", raw)[0], at
    if tag == _FLOAT:
        return struct.unpack("<d", raw)[0], at
    if tag in (_TEXT, _BYTES):
        return (raw.decode() if tag == _TEXT else raw), at
    raise Malformed(f"unknown tag {tag}")


def _shared_array(
    arena: Arena | None, half: int, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int
) -> np.ndarray[Any, Any]:
    """Return a view of an array in this half of the shared memory. Raises Malformed if it does not
    lie there entirely.
    """
    if arena is None:
        raise Malformed("shared memory where none was agreed")
    low, high = arena.half(half)
    if offset < low or offset + dtype.itemsize * math.prod(shape) > high:
        raise Malformed("an array outside its half of the shared memory")
    return arena.view(dtype, shape, offset)


class Channel:
    """One end of a stream socket that carries messages, with deadlines on the monotonic clock."""

    def __init__(
        self, sock: socket.socket, arena: Arena | None = None, reads_half: int = 1
    ) -> None:
        self.sock = sock
        self.arena = arena
        self.reads_half = reads_half
        self._pending = bytearray()

    @classmethod
    def pair(cls) -> tuple[socket.socket, socket.socket]:
        """Return two connected ends; pass one's descriptor to a child."""
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    def send(self, message: Message) -> None:
        """Send a message; arrays go through the arena when there is one. Raises Closed when the
        other side is gone, TimedOut past `limit_sends`.
        """
        self.send_packed(pack(message, self.arena, 1 - self.reads_half))

    def send_packed(self, message: bytes) -> None:
        """Send a message that was packed before; as `send`, raises Closed and TimedOut."""
        try:
            self.sock.sendall(message)
        except TimeoutError as error:
            raise TimedOut("nobody reads") from error
        except OSError as error:
            raise Closed(str(error)) from error

    def limit_sends(self, timeout_s: float) -> None:
        """Have a message that the other side does not take within this time raise TimedOut, instead
        of waiting for ever.
        """
        self.sock.settimeout(timeout_s)

    def waiting(self) -> bool:
        """Return True if bytes of another message are there already."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return any(event & select.POLLIN for _, event in poll.poll(0))

    def receive(self, timeout_s: float | None) -> Message:
        """Return the next message. Raises TimedOut, Closed or Malformed; after TimedOut, what had
        come so far is kept for the next call.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._fill(_HEADER.size, deadline)
        # Refused before the body is read: a length of terabytes would fill the verifier's memory.
        magic, number, count, length = _HEADER.unpack_from(self._pending)
        if magic != MAGIC or length > MAX_BODY_BYTES or not is_known(number):
            self._pending.clear()
            raise Malformed("not a message of this protocol")
        self._fill(_HEADER.size + length, deadline)
        body = bytes(self._pending[_HEADER.size :])
        self._pending.clear()
        return _typed(number, unpack(count, body, self.arena, self.reads_half))

    def _fill(self, size: int, deadline: float | None) -> None:
        """Read on until `size` bytes of the current message are there, and not one more."""
        # select(2) takes no descriptor above 1023, and a verifier of many ranks has those.
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        left_ms = None
        while len(self._pending) < size:
            if deadline is not None:
                left_ms = max(0.0, deadline - time.monotonic()) * 1000
            if not poll.poll(left_ms):
                raise TimedOut("no answer in time")
            try:
                chunk = self.sock.recv(min(size - len(self._pending), 1 << 20))
            except OSError as error:
                raise Closed(str(error)) from error
            if not chunk:
                raise Closed("the other side closed the channel")
            self._pending += chunk

    def close(self) -> None:
        self.sock.close()
