#!/usr/bin/env python3
"""Make the photograph-like JPEG data set that the labs train on, or check and repair it.

    python datasets/photos.py --root DIR               # 1,000 small and 512 large ones, 200 MB
    python datasets/photos.py --root DIR --large 2048  # more of them: a data set only grows
    python datasets/photos.py --root DIR --verify      # read every file, repair what is damaged

A photograph is a function of (seed, set, index): the same arguments give the same bytes with the
same Pillow. Exit status: 0 done, 2 wrong arguments, 4 the machine cannot (no space, no permission),
130 interrupted. Needs only NumPy and Pillow, and runs without the package.
"""

# ruff: noqa: T201 - a script talks to its terminal.
from __future__ import annotations

import argparse
import colorsys
import fcntl
import hashlib
import io
import json
import math
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from PIL import Image, ImageChops, ImageDraw

SCHEMA = 1
GENERATOR = 1  # Raise it when the pixels change: an older data set is then made anew.
CLASSES = 20  # Four kinds of shape × five hues.
HUES = 5
QUALITY = 87
# Width × height as cameras and the web have them: 4:3 and 3:2, upright ones too.
SIZES = {
    "small": [(500, 375), (500, 375), (500, 333), (375, 500)],
    "large": [(1632, 1224), (1632, 1224), (1920, 1280), (1224, 1632)],
}
# Bytes of one file, rounded up: what the check for free space reckons with.
TYPICAL_BYTES = {"small": 60_000, "large": 450_000}
PARTIAL = ".partial"

Photo = dict[str, Any]
"""One entry of the manifest: name, set, index, label, width, height, bytes, sha256."""


class PhotosError(Exception):
    """A problem the caller can do something about. `status` becomes the exit status."""

    def __init__(self, message: str, status: int = 4) -> None:
        super().__init__(message)
        self.status = status


# ------------------------------------------------------------------------------------------ one
# photograph


def label_of(seed: int, kind: str, index: int) -> int:
    """Class (0–19) of a photograph: a hash, so that neighbours in the data set are not neighbours
    in class.
    """
    return hashlib.sha256(f"{seed}/{kind}/{index}".encode()).digest()[0] % CLASSES


def draw_photo(seed: int, kind: str, index: int) -> Image.Image:
    """An RGB picture with the statistics that decoders and resizers meet in photographs: 1/f
    detail, edges, grain.
    """
    rng = np.random.default_rng([seed, list(SIZES).index(kind), index])
    width, height = SIZES[kind][int(rng.integers(len(SIZES[kind])))]
    scene = _colour_field(rng, width, height)
    _draw_shapes(rng, scene, label_of(seed, kind, index))
    detail = _detail(rng, width, height)
    # `detail` is centred on 128; the same for all three channels, as light is.
    return ImageChops.add(scene, Image.merge("RGB", [detail] * 3), offset=-128)


def encode_photo(seed: int, kind: str, index: int) -> bytes:
    """The JPEG file of a photograph, 4:2:0 as cameras write it."""
    out = io.BytesIO()
    draw_photo(seed, kind, index).save(out, "JPEG", quality=QUALITY, subsampling=2)
    return out.getvalue()


def _colour_field(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Sky, ground and soft light: a few random colours, spread smoothly over the picture."""
    colours = rng.integers(40, 216, size=(4, 5, 3), dtype=np.uint8)
    return Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC)


def _draw_shapes(rng: np.random.Generator, scene: Image.Image, label: int) -> None:
    """Draw 8–16 sharp-edged things: the class decides their outline and their hue."""
    draw = ImageDraw.Draw(scene)
    outline, hue = divmod(label, HUES)
    unit = min(scene.size)
    for _ in range(int(rng.integers(8, 17))):
        x, y = rng.uniform(0, scene.width), rng.uniform(0, scene.height)
        radius, angle = rng.uniform(0.04, 0.28) * unit, rng.uniform(0, math.tau)
        fill = _colour(
            hue / HUES + rng.normal(0, 0.03), rng.uniform(0.3, 0.9), rng.uniform(0.25, 0.95)
        )
        edge = _colour(rng.uniform(), 0.4, rng.uniform(0.1, 0.9))
        draw.polygon(
            _outline(outline, x, y, radius, angle),
            fill=fill,
            outline=edge,
            width=max(1, unit // 300),
        )


def _colour(hue: float, saturation: float, value: float) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(hue % 1.0, saturation, value)
    return round(red * 255), round(green * 255), round(blue * 255)


def _outline(
    kind: int, x: float, y: float, radius: float, angle: float
) -> list[tuple[float, float]]:
    """Corners of a triangle, a bar, a star or a disc around (x, y)."""
    corners = (3, 4, 10, 40)[kind]
    radii = {1: (1.0, 1.0), 2: (1.0, 0.45)}.get(kind, (1.0, 1.0))
    turns = [angle + math.tau * corner / corners for corner in range(corners)]
    if kind == 1:
        turns = [angle + turn for turn in (-0.3, 0.3, math.pi - 0.3, math.pi + 0.3)]
    return [
        (x + radius * radii[i % 2] * math.cos(turn), y + radius * radii[i % 2] * math.sin(turn))
        for i, turn in enumerate(turns)
    ]


def _detail(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Noise of equal strength in every octave (amplitude 1/f, as in nature) and sensor grain: 8
    bits around 128.

    Octaves are summed from coarse to fine, doubling a small field each time: the whole costs little
    more than the last.
    """
    field = Image.new("F", (max(2, width >> 7), max(2, height >> 7)))
    for octave in range(6, 0, -1):
        size = (width >> octave, height >> octave)
        strength = 10.0 if octave > 1 else 3.0
        coarse = np.asarray(field.resize(size, Image.Resampling.BILINEAR))
        field = Image.fromarray(
            coarse + strength * rng.standard_normal(coarse.shape, dtype=np.float32)
        )
    plane = Image.fromarray(np.clip(np.asarray(field) + 128, 0, 255).astype(np.uint8))
    fine = np.asarray(plane.resize((width, height), Image.Resampling.BICUBIC))
    grain = np.frombuffer(rng.bytes(width * height), dtype=np.uint8).reshape(height, width) // 43
    return Image.fromarray(np.clip(fine, 2, 252) + grain - 2)


# ------------------------------------------------------------------------------------------ files


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` at `path` at once: whoever looks sees the old file or the whole new one, also
    after a power cut.
    """
    partial = path.with_name(path.name + PARTIAL)
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def file_name(kind: str, index: int) -> str:
    """Where a photograph is, relative to the root."""
    return f"{kind}/{index:06d}.jpg"


def make_photo(root: Path, seed: int, kind: str, index: int) -> Photo:
    """Write one photograph and return its manifest entry. A whole file left by an interrupted run
    is taken as it is.
    """
    path = root / file_name(kind, index)
    data = path.read_bytes() if path.is_file() else b""
    if not data.endswith(b"\xff\xd9"):
        data = encode_photo(seed, kind, index)
        write_whole(path, data)
    width, height = Image.open(io.BytesIO(data)).size
    return {
        "name": file_name(kind, index),
        "set": kind,
        "index": index,
        "label": label_of(seed, kind, index),
        "width": width,
        "height": height,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def load_manifest(root: Path) -> dict[str, Any] | None:
    """The manifest of an existing data set, or None where there is none. Raises PhotosError when it
    is damaged.
    """
    path = root / "manifest.json"
    if not path.is_file():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        sound = isinstance(manifest["seed"], int) and all(
            _is_entry(photo) for photo in manifest["photos"]
        )
    except (ValueError, KeyError, TypeError):
        sound = False
    if not sound:
        raise PhotosError(f"{path} is damaged. Run again with --verify to repair the data set.")
    return dict(manifest)


def _is_entry(photo: Photo) -> bool:
    """Whether a manifest entry names a file of this data set: nothing outside the folder is ever
    touched.
    """
    return photo["set"] in SIZES and photo["name"] == file_name(photo["set"], photo["index"])


def save_manifest(root: Path, seed: int, photos: list[Photo], *, complete: bool) -> None:
    """Write manifest.json. An incomplete one says whose the files beside it are, before the first
    of them is made.
    """
    manifest = {
        "schema": SCHEMA,
        "generator": GENERATOR,
        "seed": seed,
        "classes": CLASSES,
        "complete": complete,
        "photos": photos,
    }
    write_whole(root / "manifest.json", (json.dumps(manifest, indent=1) + "\n").encode())


def is_whole(root: Path, photo: Photo, *, read: bool) -> bool:
    """Whether a recorded file is there with its size and, with `read`, its checksum."""
    path = root / str(photo["name"])
    try:
        if path.stat().st_size != photo["bytes"]:
            return False
        return not read or hashlib.sha256(path.read_bytes()).hexdigest() == photo["sha256"]
    except OSError:
        return False


# ------------------------------------------------------------------------------------------ the run


class Progress:
    """Says how far the run is, at most a hundred times."""

    def __init__(self, style: str, done: int, total: int) -> None:
        self.style, self.done, self.total = style, done, total
        self.shown = -1
        self.show()

    def advance(self) -> None:
        """One more photograph is done."""
        self.done += 1
        self.show()

    def show(self) -> None:
        """Print when the hundredth changed."""
        hundredth = 100 * self.done // max(1, self.total)
        if self.style == "none" or (hundredth == self.shown and self.done != self.total):
            return
        self.shown = hundredth
        if self.style == "json":
            print(json.dumps({"done": self.done, "total": self.total}), flush=True)
        elif sys.stderr.isatty():
            end = "\n" if self.done == self.total else ""
            print(
                f"\rphotographs: {self.done} of {self.total} ({hundredth}%)",
                end=end,
                file=sys.stderr,
                flush=True,
            )
        elif hundredth % 10 == 0:
            print(f"photographs: {self.done} of {self.total}", file=sys.stderr, flush=True)


def worker(tasks: Connection, root: Path, seed: int) -> None:
    """Make photographs on request until the other process closes its end or is gone."""
    # Ctrl-C reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        while True:
            kind, index = tasks.recv()
            try:
                answer: Photo | str = make_photo(root, seed, kind, index)
            except OSError as error:
                answer = (
                    f"{root / file_name(kind, index)} cannot be written: {error.strerror or error}."
                )
            tasks.send(answer)


def make_photos(root: Path, seed: int, todo: list[tuple[str, int]], jobs: int) -> Iterator[Photo]:
    """Make `todo` in `jobs` processes, in any order. Raises PhotosError at the first failure;
    leaves none.
    """
    # "spawn": a worker then holds no end of another's pipe, so each sees its own close when the
    # parent is killed.
    context = multiprocessing.get_context("spawn")
    workers: dict[Connection, Any] = {}
    try:
        for _ in range(min(jobs, len(todo))):
            ours, theirs = context.Pipe()
            process = context.Process(target=worker, args=(theirs, root, seed), daemon=True)
            process.start()
            theirs.close()
            workers[ours] = process
        yield from _hand_out(list(workers), todo)
    finally:
        for connection, process in workers.items():
            connection.close()
            process.terminate()
            process.join()


def _hand_out(connections: list[Connection], todo: list[tuple[str, int]]) -> Iterator[Photo]:
    remaining = iter(todo)
    for connection in connections:
        connection.send(next(remaining))
    for _ in todo:
        connection = wait(connections)[0]  # type: ignore[assignment]  # wait() is typed for sockets too
        try:
            answer = connection.recv()
        except (EOFError, ConnectionError) as error:
            raise PhotosError(
                "A worker process was killed (out of memory?). Run again with fewer --jobs."
            ) from error
        if isinstance(answer, str):
            raise PhotosError(f"{answer} What is done is kept: free some space and run again.")
        following = next(remaining, None)
        if following is not None:
            connection.send(following)
        yield answer


def require_space(root: Path, todo: list[tuple[str, int]]) -> None:
    """Raise PhotosError when the missing photographs would not fit, before the first is made."""
    needed = sum(TYPICAL_BYTES[kind] for kind, _ in todo)
    free = shutil.disk_usage(root).free
    if needed > free:
        raise PhotosError(
            f"{root} has {free / 1e6:.0f} MB free; {len(todo)} photographs need about"
            f" {needed / 1e6:.0f} MB. Free some space, choose another --root, or ask for fewer with"
            " --small and --large."
        )


def known_photos(root: Path, seed: int, *, verify: bool) -> dict[str, Photo]:
    """The photographs already there and whole, by name. Raises PhotosError where the folder is
    another data set's.
    """
    try:
        manifest = load_manifest(root)
    except PhotosError:
        if not verify:
            raise
        return _forget(root)
    if manifest is None:
        if any((root / kind).is_dir() and any((root / kind).iterdir()) for kind in SIZES):
            raise PhotosError(
                f"{root} holds files that no manifest names. Choose an empty folder for --root.", 2
            )
        return {}
    if manifest["seed"] != seed:
        raise PhotosError(
            f"{root} holds the data set of seed {manifest['seed']}. Choose another folder for"
            " --root.",
            2,
        )
    if manifest.get("generator") != GENERATOR:
        return _forget(root)
    return {
        photo["name"]: photo for photo in manifest["photos"] if _keep(root, photo, verify=verify)
    }


def _keep(root: Path, photo: Photo, *, verify: bool) -> bool:
    """Whether a recorded photograph is whole; a damaged one is removed, so that it is made anew."""
    if is_whole(root, photo, read=verify):
        return True
    (root / str(photo["name"])).unlink(missing_ok=True)
    return False


def _forget(root: Path) -> dict[str, Photo]:
    """Remove photographs that nothing vouches for."""
    for kind in SIZES:
        for path in (root / kind).glob("[0-9]*.jpg"):
            path.unlink()
    return {}


@contextmanager
def sole_user(root: Path) -> Iterator[None]:
    """Hold the data set's lock and leave no partial file behind. A second run waits, and then finds
    its work done.
    """
    with (root / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            _remove_partials(root)
            yield
        finally:
            _remove_partials(root)


def _remove_partials(root: Path) -> None:
    for folder in (root, *(root / kind for kind in SIZES)):
        for path in folder.glob(f"*{PARTIAL}"):
            path.unlink(missing_ok=True)


def make_data_set(
    root: Path, counts: dict[str, int], seed: int, *, jobs: int, progress: str, verify: bool
) -> list[Photo]:
    """Bring the data set at `root` to at least `counts` photographs a set, and return its
    manifest's entries.
    """
    known = known_photos(root, seed, verify=verify)
    counts = {kind: max(count, _recorded(root, kind)) for kind, count in counts.items()}
    names = {
        file_name(kind, index): (kind, index)
        for kind, count in counts.items()
        for index in range(count)
    }
    todo = [task for name, task in names.items() if name not in known]
    bar = Progress(progress, len(names) - len(todo), len(names))
    if todo:
        require_space(root, [task for task in todo if not (root / file_name(*task)).exists()])
        for kind in counts:
            (root / kind).mkdir(exist_ok=True)
        save_manifest(root, seed, _in_order(names, known), complete=False)
        for photo in make_photos(root, seed, todo, jobs):
            known[photo["name"]] = photo
            bar.advance()
    photos = _in_order(names, known)
    if todo or verify:
        save_manifest(root, seed, photos, complete=True)
    return photos


def _recorded(root: Path, kind: str) -> int:
    """How many photographs of a set the manifest records: a data set only grows."""
    try:
        manifest = load_manifest(root)
    except PhotosError:
        return 0
    return (
        1
        + max((photo["index"] for photo in manifest["photos"] if photo["set"] == kind), default=-1)
        if manifest
        else 0
    )


def _in_order(names: dict[str, tuple[str, int]], known: dict[str, Photo]) -> list[Photo]:
    return [known[name] for name in names if name in known]


# ------------------------------------------------------------------------------------------ command
# line


def _count(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 999_999:
        raise argparse.ArgumentTypeError("must be 0 to 999999")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1024:
        raise argparse.ArgumentTypeError("must be 1 to 1024")
    return value


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The command line. Exits with status 2 when it is wrong."""
    parser = argparse.ArgumentParser(
        description="Make, check or repair the photograph-like data set of the labs."
    )
    parser.add_argument(
        "--root", type=Path, required=True, help="the data set's folder; made where there is none"
    )
    parser.add_argument(
        "--small", type=_count, default=1000, help="photographs of about 500×375 (default 1000)"
    )
    parser.add_argument(
        "--large", type=_count, default=512, help="photographs of 2–2.5 megapixels (default 512)"
    )
    parser.add_argument(
        "--seed", type=_count, default=1, help="another seed gives other photographs (default 1)"
    )
    parser.add_argument(
        "--jobs", type=_positive, default=_cores(), help="processes (default: one a core)"
    )
    parser.add_argument(
        "--progress",
        choices=["text", "json", "none"],
        default="text",
        help="how to say how far it is",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read every file again; repair what is missing or damaged",
    )
    return parser.parse_args(arguments)


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    options = parse_arguments(arguments)
    signal.signal(signal.SIGTERM, _stop)
    try:
        root = options.root.expanduser().resolve()
        root.mkdir(parents=True, exist_ok=True)
        counts = {"small": options.small, "large": options.large}
        with sole_user(root):
            photos = make_data_set(
                root,
                counts,
                options.seed,
                jobs=options.jobs,
                progress=options.progress,
                verify=options.verify,
            )
    except KeyboardInterrupt:
        print(
            "\nInterrupted. What is done is kept; the same command goes on from there.",
            file=sys.stderr,
        )
        return 130
    except PhotosError as error:
        print(error, file=sys.stderr)
        return error.status
    except OSError as error:
        print(
            f"{options.root} cannot be used: {error.strerror or error}. Choose another --root.",
            file=sys.stderr,
        )
        return 4
    size = sum(photo["bytes"] for photo in photos)
    if options.progress == "text":
        print(f"{len(photos)} photographs, {size / 1e6:.0f} MB, in {root}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
