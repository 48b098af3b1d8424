"""Before and after of `resnet-latency`: the shipped script, the solution and every variant, in turns, on new pictures.

    python benchmarks/resnet_latency.py [--photos DIR] [--device cpu] [--calls 20] [--write docs/measured/resnet_latency.md]

Each runs in a process of its own, as in a check; what is timed is what a caller sees, from sending the bytes to having the answer.
"""

import argparse
import importlib.util
import multiprocessing
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import numpy as np
import torch

from bottleneck_lab.workspace.home import dataset_root

ROOT = Path(__file__).resolve().parents[1]
LAB = ROOT / "labs" / "resnet-latency"


def implementations():
    """Name and predict.py of everything that is compared, the shipped one first."""
    variants = sorted((ROOT / "tests" / "variants" / "resnet-latency").glob("*/predict.py"))
    solution = ROOT / "solutions" / "resnet-latency" / "predict.py"
    return {"shipped": LAB / "predict.py", "solution": solution} | {path.parent.name: path for path in variants}


def serve(script, device, pipe):
    """Child: loads `script` beside the pristine weights.py and answers until told to stop."""
    with tempfile.TemporaryDirectory() as folder:
        for file in (script, LAB / "weights.py", LAB / "traffic.py"):
            shutil.copy(file, folder)
        sys.path.insert(0, folder)
        import predict

        function = predict.load(device)
    pipe.send("ready")
    while jpeg := pipe.recv():
        pipe.send(np.asarray(function(jpeg)))


def start(script, device):
    """A child on `script`, loaded, with the pipe to it and the seconds its start-up took."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    begun = time.perf_counter()
    context.Process(target=serve, args=(script, device, theirs), daemon=True).start()
    ours.recv()
    return ours, time.perf_counter() - begun


def timed(pipe, jpeg):
    begun = time.perf_counter()
    pipe.send(jpeg)
    return pipe.recv(), 1000 * (time.perf_counter() - begun)


def load_judge():
    spec = importlib.util.spec_from_file_location("judge", LAB / "judge.py")
    judge = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(judge)
    return judge


def compare(pipes, photos, settings, calls):
    """Milliseconds and disagreement by name, one row a call."""
    judge, rng = load_judge(), np.random.default_rng()
    times, far = {name: [] for name in pipes}, {name: [] for name in pipes}
    for call in range(calls + 3):
        [jpeg] = judge.make_inputs(rng, settings["photos"], photos, settings)
        answers = {name: timed(pipe, jpeg) for name, pipe in pipes.items()}
        for name, (answer, milliseconds) in answers.items():
            far[name].append(judge.disagreement(answer, answers["shipped"][0]))
            if call >= 3:
                times[name].append(milliseconds)
    return times, far


def table(times, far, starts):
    lines = [
        "| script | p50, ms | p90, ms | speed-up | largest disagreement | start-up, s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in times.items():
        ratio = statistics.median(before / after for before, after in zip(times["shipped"], row, strict=True))
        p90 = statistics.quantiles(row, n=10)[-1]
        lines.append(
            f"| {name} | {statistics.median(row):.0f} | {p90:.0f} | {ratio:.2f}x | {max(far[name]):.2%} | {starts[name]:.0f} |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--photos", type=Path, default=dataset_root("photos"), help="what `lab data` made")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    settings = tomllib.loads((LAB / "lab.toml").read_text())["devices"][options.device]["settings"]["judge"]
    started = {name: start(script, options.device) for name, script in implementations().items()}
    times, far = compare({name: pipe for name, (pipe, _) in started.items()}, options.photos, settings, options.calls)
    machine = torch.cuda.get_device_name() if options.device == "cuda" else f"{len(os.sched_getaffinity(0))} cores"
    for pipe, _ in started.values():
        pipe.send(b"")
    text = (
        f"`python benchmarks/resnet_latency.py --device {options.device} --calls {options.calls}`, torch {torch.__version__}, "
        f"{platform.machine()}, {machine}, {time.strftime('%B %Y')}.\n\n"
        + table(times, far, {name: seconds for name, (_, seconds) in started.items()})
    )
    print(text)
    if options.write:
        options.write.write_text(text + "\n")


if __name__ == "__main__":
    main()
