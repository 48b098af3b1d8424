"""The pictures that are sent: a different JPEG file for every request, for the price of copying its
bytes.

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
"""What a server resizes a picture to before it cuts the middle out."""
CROP = 224
QUALITY = 87
SOURCES = 40
HEAD = head("POST", "/classify", "image/jpeg")
_RESTART = re.compile(rb"\xff[\xd0-\xd7]")
_START_OF_SCAN, _END = b"\xff\xda", b"\xff\xd9"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Strips:
    """Strips of photographs. `header` is common to all; `means` is what the model sees of each
    strip: STRIPS × 2 × 14 × 3 a photograph, 0–255.
    """

    header: bytes
    scans: list[list[bytes]]
    means: Array

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """`count` pictures, each as the photographs that its strips are of: count × STRIPS."""
        return rng.integers(len(self.scans), size=(count, STRIPS), dtype=np.int64)

    def file(self, picture: Array) -> bytes:
        """A picture as a JPEG file."""
        scans = [self.scans[photo][place] + _mark(place) for place, photo in enumerate(picture)]
        return b"".join([self.header, *scans])

    def seen(self, pictures: Array) -> Array:
        """The means of blocks that the model must see of pictures: N × 14 × 14 × 3, 0–255."""
        rows = np.stack([self.means[pictures[:, place], place] for place in range(STRIPS)], axis=1)
        whole = rows.reshape(len(pictures), 2 * STRIPS, 14, 3)
        return np.ascontiguousarray(
            whole[:, 1:-1]
        )  # the crop leaves out half a strip above and below

    def messages(self, asked: Array) -> Messages:
        """Requests with these pictures, which the load generator puts together."""
        scans = [scan + _mark(place) for photo in self.scans for place, scan in enumerate(photo)]
        places = 2 + asked * STRIPS + np.arange(STRIPS)
        first = np.broadcast_to([0, 1], (len(asked), 2))
        return Messages([HEAD, self.header, *scans], np.concatenate([first, places], axis=1))


def _mark(place: int) -> bytes:
    """What follows a strip: a restart marker, or the end of the file."""
    return _END if place == STRIPS - 1 else bytes([0xFF, 0xD0 + place % 8])


def make_strips(data: Path, rng: np.random.Generator, sources: int = SOURCES) -> Strips:
    """Strips of photographs of the data set at `data`, cut out at random places."""
    manifest = json.loads((data / "manifest.json").read_text(encoding="utf-8"))
    names = [photo["name"] for photo in manifest["photos"] if photo["set"] == "large"]
    cuts = [_cut(data / names[index], rng) for index in rng.permutation(len(names))[:sources]]
    files = [_encode(cut) for cut in cuts]
    headers, scans = zip(*map(_split, files), strict=True)
    return Strips(headers[0], list(scans), np.stack([_means(cut) for cut in cuts]))


def _cut(path: Path, rng: np.random.Generator) -> Image.Image:
    with Image.open(path) as photo:
        left = int(rng.integers(photo.width - WIDTH + 1))
        top = int(rng.integers(photo.height - HEIGHT + 1))
        return photo.convert("RGB").crop((left, top, left + WIDTH, top + HEIGHT))


def _encode(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=QUALITY, subsampling=2, restart_marker_rows=MCU_ROWS)
    return file.getvalue()


def _split(file: bytes) -> tuple[bytes, list[bytes]]:
    """Header and strips of a JPEG file (ITU-T T.81, B.1.1.3): a marker within the scan can only be
    a restart.
    """
    at = file.index(_START_OF_SCAN)
    begin = at + 2 + int.from_bytes(file[at + 2 : at + 4], "big")
    return file[:begin], _RESTART.split(file[begin : -len(_END)])


def _means(picture: Image.Image) -> Array:
    """For each strip, the means of 16×16 blocks of the resized picture, as wide as the crop: STRIPS
    × 2 × 14 × 3.
    """
    left = (RESIZED[0] - CROP) // 2
    resized = np.asarray(picture.resize(RESIZED, Image.Resampling.BILINEAR))[:, left : left + CROP]
    means = block_means(resized.transpose(2, 0, 1)[None])[0]
    strips: Array = means.reshape(STRIPS, 2, CROP // 16, 3)
    return strips
