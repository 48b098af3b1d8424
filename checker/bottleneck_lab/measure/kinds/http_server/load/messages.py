"""Put HTTP requests together from parts, so that thousands of different ones take little memory and
time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Messages:
    """`rows`: N × K, for each request the numbers of its `parts`: a head, as `head` makes it, then
    the parts of its body in order.
    """

    parts: list[bytes]
    rows: Array

    def whole(self, number: int) -> bytes:
        """Return a request as it is sent; numbers past the last start again at the first."""
        first, *rest = self.rows[number % len(self.rows)]
        return message(self.parts[first], b"".join(self.parts[part] for part in rest))

    def save(self, path: Path) -> None:
        """Write them for the load generator."""
        ends = np.cumsum([len(part) for part in self.parts])
        np.savez(
            path, parts=np.frombuffer(b"".join(self.parts), np.uint8), ends=ends, rows=self.rows
        )

    @classmethod
    def load(cls, path: Path) -> Messages:
        """Read them back."""
        with np.load(path, allow_pickle=False) as saved:
            whole, ends = saved["parts"].tobytes(), saved["ends"].tolist()
            parts = [whole[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
            return cls(parts, saved["rows"])


def head(method: str, path: str, content_type: str) -> bytes:
    """Return the head of a request without its last line, which gives the length of the body."""
    return f"{method} {path} HTTP/1.1\r\nHost: lab\r\nContent-Type: {content_type}\r\n".encode()


def message(first: bytes, body: bytes) -> bytes:
    """Return a whole request from a `head` and a body."""
    return b"%sContent-Length: %d\r\n\r\n%s" % (first, len(body), body)
