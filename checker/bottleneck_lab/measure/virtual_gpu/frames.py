"""Messages on a stream socket: each its length, then its bytes. What travels in them is `codec`'s
and `books`'.
"""

from __future__ import annotations

import socket
import struct

MAX_BYTES = 256 << 20
_CHUNK_BYTES = 1 << 18
_QUEUE_BYTES = 1 << 13
"""Some dozens of calls: few calls to the system, and the other side has something to do meanwhile.
"""
_LENGTH = struct.Struct("<Q")


class Malformed(Exception):  # noqa: N818 - says what, as `raise` reads
    """Bytes that are not a message."""


class Frames:
    """One end of a socket. What has come is read in one go, however many messages it holds: a call
    to the system costs more than a message.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._received = bytearray()
        self._queued = bytearray()

    def queue(self, body: bytes) -> None:
        """Hold a message that may travel with later ones, at the latest with the next that is sent.
        Raises OSError when the other side is gone.
        """
        self._queued += _LENGTH.pack(len(body)) + body
        if len(self._queued) >= _QUEUE_BYTES:
            self._flush()

    def send(self, body: bytes) -> None:
        """Send a message, and before it all that is queued. Raises OSError when the other side is
        gone.
        """
        self._queued += _LENGTH.pack(len(body)) + body
        self._flush()

    def _flush(self) -> None:
        queued, self._queued = self._queued, bytearray()
        self.sock.sendall(queued)

    def receive(self) -> bytes:
        """Return the next message. Raises EOFError when the other side is gone, Malformed for a
        length that none has.
        """
        while (body := self.next_message()) is None:
            self.read()
        return body

    def read(self) -> None:
        """Read what has come, and wait where nothing has. Raises EOFError when the other side is
        gone.
        """
        chunk = self.sock.recv(_CHUNK_BYTES)
        if not chunk:
            raise EOFError("the other side closed the channel")
        self._received += chunk

    def next_message(self) -> bytes | None:
        """Return the next message, if all of it has been read. Raises Malformed for a length that
        none has.
        """
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        # Before its bytes are waited for: a length of terabytes would fill the verifier's memory.
        if length > MAX_BYTES:
            raise Malformed(f"a message of {length} bytes")
        end = _LENGTH.size + length
        if len(self._received) < end:
            return None
        body = bytes(self._received[_LENGTH.size : end])
        del self._received[:end]
        return body
