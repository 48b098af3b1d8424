"""Splits the `traceEvents` of a Chrome trace into pieces of whole events, in bounded memory.

Pieces are cut where a closing brace, a comma and an opening brace stand at the end of what was
read. Such a place may also lie inside an event, but then the piece is not a valid JSON array (a
brace stays open), and an exact scan of the brackets finds the right place.

Why it stands: a trace of 1 GB is read in 291 MB of memory, where a parser that holds the document
takes 4.9 GB; pieces of 256 KB instead of 1 MB cut reading by a tenth (benchmarks/trace_analysis.py,
docs/measured/trace_analysis.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from bottleneck_lab.errors import CaptureError

# Small enough for what a chunk becomes to stay in a core's cache, and for its memory to be used
# again for the next one.
CHUNK_BYTES = 256 << 10

# No profiler writes an event, or metadata around the events, as large as this: such a file is
# broken or hostile.
EVENT_LIMIT_BYTES = 64 << 20

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["{}\[\]]', re.DOTALL)
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_COMMA = re.compile(rb"\s*,")
_FIRST_KEY = re.compile(rb"\{\s*(\"\w+\")\s*:")
# The end of the last event and of the array: then come other keys, or nothing.
_ARRAY_END = re.compile(rb"\}\s*(?P<bracket>\])(?=\s*(?:,\s*\"|\}\s*$|$))")
_BARE_NUMBER = re.compile(rb"(?<=[:\[,\s])[+-]?(?:nan|inf(?:inity)?)(?=\s*[,}\]])", re.IGNORECASE)

_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

ReadBytes = Callable[[int], bytes]
Decode = Callable[[bytes], list[Any]]


class EventStream:
    """The events of one trace, decoded piece by piece: each piece is gone when the next is taken.

    `decode` turns a JSON array into a list; it may raise `msgspec.ValidationError` for events that
    are valid JSON of an unexpected shape, in which case the piece is yielded as plain dictionaries.
    Events that are not JSON are counted in `skipped`, and named in `notes`. `metadata` is complete
    once all pieces were taken. With `inside` the stream starts between two
    events, and what stands behind the events is not read. `used_bytes` counts up to the closing
    bracket.
    """

    def __init__(
        self,
        read: ReadBytes,
        source: Path,
        decode: Decode,
        chunk_bytes: int = CHUNK_BYTES,
        *,
        inside: bool = False,
    ) -> None:
        self._read = read
        self._source = source
        self._decode = decode
        self._chunk_bytes = chunk_bytes
        self._head = b""
        self._tail = b""
        self._inside = inside
        self.used_bytes = 0
        self.rest = b""
        self._ended = False
        self.skipped = 0
        self._whole = 0
        self._skipped_example = ""

    def __iter__(self) -> Iterator[list[Any]]:
        pending = b"" if self._inside else self._skip_head()
        while not self._ended:
            # Each read at least doubles what is left over, so that an event of any size is scanned
            # a few times only.
            fresh, pending = pending or self._read(max(self._chunk_bytes, len(self.rest))), b""
            buffer = self.rest + fresh
            events, used, self._ended = self._take(buffer, final=not fresh)
            if not used and not fresh and not self._ended:
                raise self._error("ends in the middle of its events")
            self.rest = buffer[used:]
            self.used_bytes += used
            self._whole += len(events)
            if events:
                yield events
                # So that the next ones lie where these did, in the core's cache.
                events.clear()
            if len(self.rest) > max(EVENT_LIMIT_BYTES, self._chunk_bytes):
                raise self._error(f"holds an event of more than {EVENT_LIMIT_BYTES >> 20} MB")
        if self._inside:
            return
        tail = self.rest
        while fresh := self._read(self._chunk_bytes):
            tail += fresh
            if len(tail) > EVENT_LIMIT_BYTES:
                raise self._error(f"holds more than {EVENT_LIMIT_BYTES >> 20} MB after its events")
        if self._head:  # a bare array has no keys around it
            self._tail = tail

    @property
    def between_events(self) -> bool:
        """True when everything that was read is decoded and the array goes on, so that the next
        byte is at its own level.
        """
        return not self._ended and not self.rest.strip(b" \t\r\n,")

    @property
    def metadata(self) -> dict[str, Any]:
        """The top-level keys around the events."""
        text = self._head + b"[]" + self._tail
        with suppress(*_NOT_JSON):
            document = msgspec.json.decode(_without_bare_numbers(text))
            if isinstance(document, dict):
                return document
            return {}
        raise self._error("does not end as a JSON object should")

    def _skip_head(self) -> bytes:
        """Read up to the opening bracket of the events; return what was read behind it."""
        buffer = b""
        while True:
            # As for the events: a head of any size is scanned a few times only.
            fresh = self._read(max(self._chunk_bytes, len(buffer)))
            if buffer:
                buffer += fresh
            else:
                # Editors on Windows put a byte order mark before the first bracket.
                buffer = fresh.lstrip(b"\xef\xbb\xbf \t\r\n")
            start = _events_start(buffer)
            if start is not None:
                self._head = buffer[: start - 1]
                return buffer[start:]
            if not fresh or len(buffer) > EVENT_LIMIT_BYTES:
                if not buffer:
                    raise self._error("is empty")
                if buffer[:1] == b"{":
                    raise self._error("is JSON without a traceEvents array")
                raise self._error("is not a JSON trace")

    def _take(self, buffer: bytes, *, final: bool) -> tuple[list[Any], int, bool]:
        """Return the events at the start of `buffer`, the bytes used, and True if the array ended
        there.
        """
        # A piece begins where the last one was cut: with the comma behind its last event.
        comma = _COMMA.match(buffer)
        first = comma.end() if comma else 0
        cut = None if final else _likely_boundary(buffer)
        if cut:
            with suppress(*_NOT_JSON):
                return self._decode_piece(memoryview(buffer)[first:cut]), cut, False
        # The quick guess was no boundary, or the array ends here: count brackets.
        cut, end = scan(buffer)
        if end is not None:
            piece, used = buffer[first:end].rstrip(b" \t\r\n,"), end + 1
        elif cut and not final:
            piece, used = buffer[first:cut], cut
        elif final and not self._head and not self._inside:
            # A bare array may lack its closing bracket, says the format.
            piece, used = buffer[first:].rstrip(b" \t\r\n,"), len(buffer)
        elif final or len(buffer) > EVENT_LIMIT_BYTES // 2:
            # A quote too many may hide every bracket behind it.
            return self._without_broken(buffer, first, final=final) or ([], 0, False)
        else:
            return [], 0, False
        try:
            return self._decode_broken(piece), used, end is not None or final
        except CaptureError:
            taken = self._without_broken(buffer, first, final=final)
            if taken is None:
                raise
            return taken

    def _without_broken(
        self, buffer: bytes, first: int, *, final: bool
    ) -> tuple[list[Any], int, bool] | None:
        """Return as `_take` does, event by event, without those that are not JSON; None if there is
        no telling where events begin, or hardly one is whole.

        PyTorch writes names of Python frames without escaping their quotes (pytorch#146900,
        kineto#1459). Such an event cannot be read, but where the next one begins is plain: all
        events of a profiler begin with the same key, Kineto's with their phase.
        """
        own = _FIRST_KEY.match(buffer.lstrip(b" \t\r\n,"))
        key = own[1] if own else b'"ph"'
        begins = re.compile(rb"\}\s*,\s*(?=\{\s*" + key + rb"\s*:)")
        starts = [match.end() for match in begins.finditer(buffer, first)]
        bounds = [first, *starts]
        used, ended = bounds[-1], False
        if final:
            # The last event ends where the array does.
            closing = _ARRAY_END.search(buffer, bounds[-1])
            if closing is None:
                return None
            bounds.append(closing.start() + 1)
            used, ended = closing.end("bracket"), True
        events: list[Any] = []
        broken: list[bytes] = []
        for begin, end in pairwise(bounds):
            text = buffer[begin:end].rstrip(b" \t\r\n,")
            try:
                events += self._decode_broken(text)
            except CaptureError:
                broken.append(text)
        if not used or self.skipped + len(broken) > self._whole + len(events):
            return None
        for text in broken:
            # Count an event that is not JSON; the first one is quoted in the notes.
            if not self.skipped:
                self._skipped_example = " ".join(text[:160].decode("utf-8", "replace").split())
            self.skipped += 1
        return events, used, ended

    @property
    def notes(self) -> list[str]:
        """Sentences about what was left out."""
        if not self.skipped:
            return []
        some = "1 event that is" if self.skipped == 1 else f"{self.skipped} events that are"
        return [
            f"{some} not valid JSON left out: most likely PyTorch did not escape the quotes or"
            " backslashes in a name, such as a Python frame's (pytorch#146900). Record without"
            f" with_stack, or upgrade PyTorch. The first: {self._skipped_example}"
        ]

    def _decode_piece(self, piece: bytes | memoryview) -> list[Any]:
        array = b"".join((b"[", piece, b"]"))
        try:
            return self._decode(array)
        except msgspec.ValidationError:
            values = msgspec.json.decode(array)
            return [event for event in values if isinstance(event, dict)]

    def _decode_broken(self, piece: bytes) -> list[Any]:
        """Decode a piece that is known to be whole, repairing bare nan and inf and bytes that are
        not UTF-8.
        """
        if not piece.strip():
            return []
        for mended in (
            piece,
            _without_bare_numbers(piece),
            re.sub(
                rb"[\x00-\x1f]",
                b" ",
                _without_bare_numbers(piece).decode("utf-8", "replace").encode(),
            ),
        ):
            with suppress(*_NOT_JSON):
                return self._decode_piece(mended)
        raise self._error("holds events that are not valid JSON")

    def _error(self, what: str) -> CaptureError:
        return CaptureError(
            f"{self._source.name} {what}.",
            "The file is truncated, damaged or not a profiler's trace. Capture again, and let the"
            " program run to its end.",
        )


def scan(buffer: bytes) -> tuple[int, int | None]:
    """Return (end of the last whole event, position of the bracket that closes the array or None),
    by counting brackets outside strings.
    """
    depth, last = 0, 0
    for match in _TOKEN.finditer(buffer):
        token = buffer[match.start()]
        if token in b"{[":
            depth += 1
        elif token in b"}]":
            depth -= 1
            if depth < 0:  # the array that holds the events, whose own bracket was skipped
                return last, match.start()
            if depth == 0:
                last = match.end()
        elif match.end() - match.start() == 1:  # a string that has no end yet
            break
    return last, None


def _likely_boundary(buffer: bytes) -> int:
    """Return where an event most likely ends, close to the end of `buffer`; 0 if none is seen."""
    # Kineto indents its events by two spaces.
    at = buffer.rfind(b"\n  },\n")
    if at >= 0:
        return at + 4
    window = max(0, len(buffer) - (64 << 10))
    last = 0
    for match in _BOUNDARY.finditer(buffer, window):
        last = match.start() + 1
    return last


def _events_start(buffer: bytes) -> int | None:
    """Return the position behind the bracket that opens the events."""
    if buffer[:1] == b"[":
        return 1
    if buffer[:1] != b"{":
        return None
    depth = 0
    key_end = -1
    for match in _TOKEN.finditer(buffer):
        token = buffer[match.start()]
        if token in b"{[":
            if (
                token == ord("[")
                and depth == 1
                and key_end >= 0
                and buffer[key_end : match.start()].strip() == b":"
            ):
                return match.end()
            depth += 1
        elif token in b"}]":
            depth -= 1
        elif depth == 1:
            key_end = match.end() if match.group() == b'"traceEvents"' else -1
    return None


def _without_bare_numbers(text: bytes) -> bytes:
    return _BARE_NUMBER.sub(b"null", text)
