"""Make a different JPEG file for every request, for the price of copying its bytes.

A JPEG file with restart markers consists of strips that decode independently. A picture is put
together from strips of photographs, drawn in secret: no two requests are alike, no file existed
before the check, and what a server must see in it is known without decoding it.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bottleneck_lab.measure.kinds.http_server.load.messages import Messages, head
from bottleneck_lab.measure.kinds.inference_server.pixels import block_means

WIDTH, HEIGHT = 1024, 768
STRIPS = 8
"""Strips of a picture. Each is 96 rows high: 6 rows of JPEG's blocks, and 2 rows of the means of
the resized picture.
"""
MCU_ROWS = HEIGHT // 16 // STRIPS
RESIZED = (341, 256)
"""The size to which a server resizes a picture before it cuts the middle out."""
CROP = 224
QUALITY = 87
SOURCES = 20
"""Photographs; each also has a double."""
ALIKE_SHARE = 0.2
"""Of the requests: pairs whose pictures only their details tell apart, so that whoever answers one
with the other's scores is noticed.
"""
CHECKER = 48
"""Side of the squares, in pixels, by which a double differs from its photograph: BLOCK pixels of
the resized picture.
"""
CHECKER_LEVELS = 9
"""Levels of 255 by which they are lighter and darker in turn: more than decoders and filters
differ, and nothing on average.
"""
HEAD = head("POST", "/classify", "image/jpeg")
_RESTART = re.compile(rb"\xff[\xd0-\xd7]")
_START_OF_SCAN, _END = b"\xff\xda", b"\xff\xd9"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Strips:
    """Strips of photographs.

    header: common to all. scans: of each photograph its STRIPS strips; the second half are doubles
    of the first. means: (photographs, STRIPS, 2, 14, 3), the block means 0–255 that the model sees
    of each strip.
    """

    header: bytes
    scans: list[list[bytes]]
    means: Array

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Draw pictures: (count, STRIPS) numbers of the photographs that their strips are of."""
        pictures = rng.integers(len(self.scans), size=(count, STRIPS), dtype=np.int64)
        pairs = int(ALIKE_SHARE * count) // 2
        ones, others = rng.permutation(count)[: 2 * pairs].reshape(2, pairs)
        pictures[others] = (pictures[ones] + len(self.scans) // 2) % len(self.scans)
        return pictures

    def file(self, picture: Array) -> bytes:
        """Return a picture as a JPEG file."""
        scans = [self.scans[photo][strip] + _mark(strip) for strip, photo in enumerate(picture)]
        return b"".join([self.header, *scans])

    def seen(self, pictures: Array) -> Array:
        """Return the block means that the model must see of pictures: (N, 14, 14, 3), 0–255."""
        rows = np.stack([self.means[pictures[:, strip], strip] for strip in range(STRIPS)], axis=1)
        whole = rows.reshape(len(pictures), 2 * STRIPS, 14, 3)
        # The crop leaves out one row of blocks, half a strip, above and below.
        return np.ascontiguousarray(whole[:, 1:-1])

    def messages(self, pictures: Array) -> Messages:
        """Return requests with these pictures, which the load generator puts together."""
        scans = [scan + _mark(strip) for photo in self.scans for strip, scan in enumerate(photo)]
        # Part 0 is the head of the request and part 1 the JPEG header; the strips follow.
        strips = 2 + pictures * STRIPS + np.arange(STRIPS)
        first = np.broadcast_to([0, 1], (len(pictures), 2))
        return Messages([HEAD, self.header, *scans], np.concatenate([first, strips], axis=1))


def _mark(strip: int) -> bytes:
    """Return the marker after a strip: a restart (ITU-T T.81, B.1.1.3: RST0 to RST7 in turn), or
    the end of the file.
    """
    return _END if strip == STRIPS - 1 else bytes([0xFF, 0xD0 + strip % 8])


def make_strips(data: Path, rng: np.random.Generator) -> Strips:
    """Cut strips out of photographs of the data set at `data`, at random positions, and of each
    one's double.
    """
    manifest = json.loads((data / "manifest.json").read_text(encoding="utf-8"))
    names = [photo["name"] for photo in manifest["photos"] if photo["set"] == "large"]
    cuts = [_cut(data / names[index], rng) for index in rng.permutation(len(names))[:SOURCES]]
    cuts += [_double(cut) for cut in cuts]
    headers, scans = zip(*(_encode(cut) for cut in cuts), strict=True)
    return Strips(headers[0], list(scans), np.stack([_means(cut) for cut in cuts]))


def _cut(path: Path, rng: np.random.Generator) -> Image.Image:
    with Image.open(path) as photo:
        left = int(rng.integers(photo.width - WIDTH + 1))
        top = int(rng.integers(photo.height - HEIGHT + 1))
        return photo.convert("RGB").crop((left, top, left + WIDTH, top + HEIGHT))


def _double(picture: Image.Image) -> Image.Image:
    """Return a picture that differs in squares, which are lighter and darker in turn."""
    rows, columns = np.indices((picture.height, picture.width))
    # The squares begin where the crop does, so that each is one block of it.
    columns -= (RESIZED[0] - CROP) // 2 * WIDTH // RESIZED[0]
    odd = (rows // CHECKER + columns // CHECKER) % 2
    change = np.where(odd, CHECKER_LEVELS, -CHECKER_LEVELS)
    pixels = np.asarray(picture, np.int16) + change[..., None]
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def _encode(picture: Image.Image) -> tuple[bytes, list[bytes]]:
    """Encode a picture as JPEG; return the header and the strips."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=QUALITY, subsampling=2, restart_marker_rows=MCU_ROWS)
    file = buffer.getvalue()
    at = file.index(_START_OF_SCAN)
    begin = at + 2 + int.from_bytes(file[at + 2 : at + 4], "big")
    # Within the scan a marker can only be a restart (ITU-T T.81, B.1.1.3).
    return file[:begin], _RESTART.split(file[begin : -len(_END)])


def _means(picture: Image.Image) -> Array:
    """Return for each strip the means of 16×16 blocks of the resized picture, as wide as the crop:
    (STRIPS, 2, 14, 3).
    """
    left = (RESIZED[0] - CROP) // 2
    resized = np.asarray(picture.resize(RESIZED, Image.Resampling.BILINEAR))[:, left : left + CROP]
    means = block_means(resized.transpose(2, 0, 1)[None])[0]
    strips: Array = means.reshape(STRIPS, 2, CROP // 16, 3)
    return strips
