"""Attention kernels against PyTorch, over sequence lengths: every kernel and every side in one run,
taking turns.

    python benchmarks/attention.py                              # the CPU, one and two threads,
    about six minutes python benchmarks/attention.py --lengths 64 129 --add       # some lengths
    only, into the rows that are there already python benchmarks/attention.py --avx2
    # the CPU without its AVX-512, both sides python benchmarks/attention.py --device cuda
    # a GPU: also every backend of PyTorch's

Prints a table and writes docs/measured/attention_<device>.json, .md and .svg (with --avx2
attention_cpu_avx2). A ratio is the median over rounds of PyTorch's time divided by the kernel's,
each round calling all of them once on the same inputs in an order drawn at random.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import time
from operator import itemgetter
from pathlib import Path

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parent.parent
LAB = ROOT / "labs" / "fused-attention"
VARIANTS = ROOT / "tests" / "variants" / "fused-attention"
LENGTHS = (64, 129, 256, 511, 1024, 2048, 4096, 8192)
WORK_FLOP = {"cpu": 0.6e9, "cuda": 4e12}
# On a GPU: what is timed together; to keep it busy; of an array.
LAUNCHES = 128
LEAST_HEADS = 8
MAX_ELEMENTS = 1 << 26
# A row is measured again while other programs keep more than this many cores busy.
TRIES = 3
QUIET_CORES = 0.1
# PyTorch's own kernels, and its matrix products.
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
NO_AVX512 = "-mno-avx512f"  # the compiler's
# On a CPU calls take seconds from this length on: few of them do, and one try.
LONG = 4096
LONG_ROUNDS = 3


def load_module(path: Path, name: str):
    """A file as a module that nothing else sees."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def kernels(device: str, folder: Path, flags: tuple[str, ...] = ()) -> dict[str, object]:
    """Name → attention function: the shipped kernel, the solution's and every variant's, each built
    in a folder of its own, the CPU's with `flags`.
    """
    source = "attention.cu" if device == "cuda" else "attention.cpp"
    places = {
        "shipped": LAB,
        "solution": ROOT / "solutions" / "fused-attention",
        **{p.name: p for p in sorted(VARIANTS.iterdir())},
    }
    # A loaded attention.py imports attention_triton.py, which is switched off in every folder.
    sys.path.append(str(LAB))
    loaded = {}
    for name, origin in places.items():
        if (origin / source).is_file():
            target = folder / name
            shutil.copytree(LAB, target)
            shutil.copy(origin / source, target)
            module = load_module(target / "attention.py", f"attention_{name}")
            module.CPU_COMPILER = [*module.CPU_COMPILER, *flags]
            loaded[name] = module.load(device)
    return loaded


BACKENDS = {
    "sdpa": "FLASH_ATTENTION",
    "sdpa efficient": "EFFICIENT_ATTENTION",
    "sdpa cudnn": "CUDNN_ATTENTION",
    "sdpa math": "MATH",
}
"""What PyTorch can compute attention with; the first is what a check compares with, and every ratio
here is to.
"""


def backends(device: str) -> dict[str, object]:
    """Name → PyTorch's attention by each backend that works on this machine."""
    from torch.nn.attention import SDPBackend

    small, working = np.ones((1, 1, 64, 64), np.float16 if device == "cuda" else np.float32), {}
    for name, backend in BACKENDS.items():
        module = load_module(LAB / "reference.py", f"reference_{backend.lower()}")
        module.BACKEND = getattr(SDPBackend, backend)
        side = module.load(device)
        try:
            side(small, small, small, 0, *([np.ones(1, np.float32)] if device == "cuda" else [1]))
        except RuntimeError:  # "No available kernel"
            continue
        working[name] = side
    return working


def shapes(device: str, lengths: list[int]):
    """(batch × heads, length, dim, causal): as many heads as make the work of a call about the
    same, where the arrays allow.
    """
    for length in lengths:
        for dim in (64, 128):
            for causal in (0, 1):
                flop = 4 * length * length * dim / (1 + causal)
                if device == "cpu":
                    heads = max(1, round(WORK_FLOP["cpu"] / flop))
                else:
                    fit = MAX_ELEMENTS // (length * dim)
                    heads = min(max(LEAST_HEADS, round(WORK_FLOP["cuda"] / LAUNCHES / flop)), fit)
                yield heads, length, dim, causal


def seconds(side, call: list) -> float:
    """Of a call; on a GPU of all its launches but one: what a call with one takes, which copies as
    much, is taken off.
    """
    whole = elapsed(side, call)
    return whole - elapsed(side, [*call[:4], call[4][:1], 0]) if len(call) == 6 else whole


def elapsed(side, call: list) -> float:
    """Wall-clock seconds of a call."""
    began = time.perf_counter()
    side(*call)
    return time.perf_counter() - began


def measure(sides: dict[str, object], call: list, rounds: int) -> dict[str, list[float]]:
    """Seconds of each side in each round, after one call each that is not counted."""
    times = {name: [] for name in sides}
    for side in sides.values():
        side(*call)
    for _ in range(rounds):
        for name in random.sample(list(sides), len(sides)):
            times[name].append(seconds(sides[name], call))
    return times


def undisturbed(
    sides: dict[str, object], call: list, rounds: int, tries: int
) -> tuple[dict[str, list[float]], float]:
    """The same, and the cores that other programs kept busy meanwhile; measured again, up to three
    times, while that is too much.
    """
    best = None
    for _ in range(tries):
        before, own, began = busy_s(), time.process_time(), time.perf_counter()
        times = measure(sides, call, rounds)
        others = max(
            0.0, (busy_s() - before - time.process_time() + own) / (time.perf_counter() - began)
        )
        if best is None or others < best[1]:
            best = times, others
        if others <= QUIET_CORES:
            break
    return best


def busy_s() -> float:
    """CPU seconds that all programs of this machine have used so far."""
    seen = psutil.cpu_times()
    return (
        sum(seen)
        - seen.idle
        - getattr(seen, "iowait", 0.0)
        - getattr(seen, "guest", 0.0)
        - getattr(seen, "guest_nice", 0.0)
    )


def rows(
    device: str, sides: dict[str, object], lengths: list[int], threads: list[int], rounds: int
):
    """One row a shape and thread count: milliseconds of PyTorch, and the ratio of each kernel."""
    rng = np.random.default_rng(1)
    dtype = np.float16 if device == "cuda" else np.float32
    for count in threads:
        for heads, length, dim, causal in shapes(device, lengths):
            q, k, v = (
                rng.standard_normal((1, heads, length, dim), dtype=np.float32).astype(dtype)
                for _ in range(3)
            )
            extra = [np.ones(LAUNCHES + 1, np.float32), 0] if device == "cuda" else [count]
            long = device == "cpu" and length >= LONG
            effort = (min(rounds, LONG_ROUNDS), 1) if long else (rounds, TRIES)
            times, others = undisturbed(sides, [q, k, v, causal, *extra], *effort)
            theirs = times["sdpa"]
            ratios = {
                name: statistics.median(t / o for t, o in zip(theirs, own, strict=True))
                for name, own in times.items()
                if name != "sdpa"
            }
            flop = 4 * heads * length**2 * dim / (1 + causal)
            row = {
                "threads": count,
                "heads": heads,
                "length": length,
                "dim": dim,
                "causal": bool(causal),
            }
            row |= {"sdpa_ms": 1e3 * statistics.median(theirs), "ratios": ratios}
            row["solution_gflops"] = (
                flop
                / statistics.median(times["solution"])
                / 1e9
                * (LAUNCHES if device == "cuda" else 1)
            )
            row["other_cores"] = round(others, 2)
            print(line(row), flush=True)
            yield row


def line(row: dict) -> str:
    """A row of the Markdown table."""
    mask = "causal" if row["causal"] else "full"
    figures = [f"{ratio:.2f}" for ratio in row["ratios"].values()]
    return (
        f"| {row['threads']} | {row['length']} | {row['dim']} | {mask} | {row['heads']} |"
        f" {row['sdpa_ms']:.1f} | "
        + " | ".join([*figures, f"{row['solution_gflops']:.0f}", f"{row['other_cores']:.2f}"])
        + " |"
    )


def machine(device: str) -> dict[str, str]:
    """Where the figures were read."""
    import torch

    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        model = next(
            (
                x.split(":")[1].strip()
                for x in Path("/proc/cpuinfo").read_text().splitlines()
                if x.startswith("model name")
            ),
            model,
        )
    seen = {
        "cpu": model,
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    return seen | ({"gpu": torch.cuda.get_device_name()} if device == "cuda" else {})


def markdown(result: dict) -> str:
    """The table with its circumstances."""
    names = list(result["rows"][0]["ratios"])
    seen = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    head = [
        "threads",
        "length",
        "dim",
        "mask",
        "heads",
        "SDPA ms",
        *names,
        "solution GFLOP/s",
        "other cores",
    ]
    lines = [
        "Speed of each kernel relative to PyTorch's `scaled_dot_product_attention` (flash backend,"
        f" pinned): above 1 is faster. Median of {result['rounds']} rounds in which all took turns"
        " on the same inputs. 'other cores' is how many cores other programs kept busy; a row"
        f" above {QUIET_CORES} was measured again, up to {TRIES} times, keeping the quietest try."
        + (
            f" Times are for {LAUNCHES} launches, without copies."
            if "gpu" in result["machine"]
            else ""
        ),
        "",
        f"Measured {result['date']} by `{result['command']}` on: {seen}.",
        "",
        "| " + " | ".join(head) + " |",
        "| " + " | ".join("---" for _ in head) + " |",
        *[line(row) for row in result["rows"]],
    ]
    return "\n".join(lines) + "\n"


PANEL, TALL, TOP_RATIO = 340, 210, 3.0
COLORS = ("#777777", "#d1495b", "#00798c", "#c98a00", "#5b8e7d", "#30638e", "#8e44ad", "#a0522d")


def plot(result: dict) -> str:
    """An SVG: ratio over length, a row of panels for each head dimension, a panel for each thread
    count and mask, PyTorch the line at 1.
    """
    rows = result["rows"]
    colors = dict(zip(rows[0]["ratios"], COLORS, strict=False))
    columns, dims = (
        sorted({key(row) for row in rows}) for key in (_column, lambda row: row["dim"])
    )
    parts = []
    for down, dim in enumerate(dims):
        for across, column in enumerate(columns):
            chosen = [row for row in rows if row["dim"] == dim and _column(row) == column]
            parts.append(
                f'<g transform="translate({PANEL * across},{TALL * down})">'
                f"{_panel(chosen, colors)}</g>"
            )
    width, height = PANEL * len(columns), TALL * len(dims) + 24
    legend = "".join(
        f'<text x="{50 + (width - 60) * i / len(colors):.0f}" y="{height - 8}" fill="{color}"'
        f' font-weight="bold">{name}</text>'
        for i, (name, color) in enumerate(colors.items())
    )
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    background = f'<rect width="{width}" height="{height}" fill="#fff"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif"'
        f' font-size="11">{background}{"".join(parts)}{legend}</svg>\n'
    )


def _column(row: dict) -> tuple[int, bool]:
    return row["threads"], row["causal"]


def _panel(rows: list[dict], colors: dict[str, str]) -> str:
    """Lines of one head dimension, thread count and mask; a ratio above the top is drawn at it."""
    x = {row["length"]: 50 + 270 * i / max(1, len(rows) - 1) for i, row in enumerate(rows)}
    y = {ratio: 180 - 150 * ratio / TOP_RATIO for ratio in range(int(TOP_RATIO) + 1)}
    threads, mask = rows[0]["threads"], "causal" if rows[0]["causal"] else "full"
    label = f"{mask}, {threads} thread{'s' * (threads > 1)}, dim {rows[0]['dim']}"
    parts = [f'<text x="50" y="16" font-weight="bold">{label}</text>']
    for ratio, height in y.items():
        parts.append(
            f'<line x1="45" x2="325" y1="{height}" y2="{height}"'
            f' stroke="{"#000" if ratio == 1 else "#ddd"}"/>'
        )
        parts.append(f'<text x="20" y="{height + 4}">{ratio}x</text>')
    parts += [
        f'<text x="{x[length]:.0f}" y="196" text-anchor="middle">{length}</text>' for length in x
    ]
    for name, color in colors.items():
        heights = [180 - 150 * min(row["ratios"][name], TOP_RATIO) / TOP_RATIO for row in rows]
        points = " ".join(
            f"{along:.0f},{height:.1f}" for along, height in zip(x.values(), heights, strict=True)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
    return "".join(parts)


def merged(file: Path, measured: list[dict]) -> list[dict]:
    """The rows of a file together with these, which take the place of those of the same shape."""
    shape_of = itemgetter("threads", "length", "dim", "causal")
    old = json.loads(file.read_text())["rows"] if file.is_file() else []
    return sorted({shape_of(row): row for row in [*old, *measured]}.values(), key=shape_of)


def compact(result: dict) -> str:
    """Return the record as JSON with one line for each row of figures."""
    head = {key: value for key, value in result.items() if key != "rows"}
    figures = ",\n".join(f"  {json.dumps(row)}" for row in map(rounded, result["rows"]))
    return f'{json.dumps(head, indent=1)[:-2]},\n "rows": [\n{figures}\n ]\n}}\n'


def rounded(value):
    """Return JSON data with every number cut to eight digits."""
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return value


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--avx2",
        action="store_true",
        help="on a CPU with AVX-512: do without, PyTorch and kernels alike",
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="sequence lengths")
    parser.add_argument(
        "--add",
        action="store_true",
        help="keep the rows of other lengths and thread counts that were measured before",
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "measured")
    options = parser.parse_args()
    threads = options.threads if options.device == "cpu" else [1]
    os.environ.update(AVX2 if options.avx2 else {})
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("LAB_CACHE", str(Path(folder) / "cache"))
        flags = (NO_AVX512,) if options.avx2 else ()
        sides = {**kernels(options.device, Path(folder), flags), **backends(options.device)}
        measured = list(rows(options.device, sides, options.lengths, threads, options.rounds))
        result = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": machine(options.device),
            "command": " ".join(["python benchmarks/attention.py", *sys.argv[1:]]),
            "rounds": options.rounds,
        }
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / f"attention_{options.device}{'_avx2' * options.avx2}"
    result["rows"] = merged(stem.with_suffix(".json"), measured) if options.add else measured
    stem.with_suffix(".json").write_text(compact(result))
    stem.with_suffix(".md").write_text(markdown(result))
    stem.with_suffix(".svg").write_text(plot(result))


if __name__ == "__main__":
    main()
