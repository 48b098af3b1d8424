"""Before and after of `resnet-latency`: the shipped script, the solution and every variant, in
turns, on new pictures.

    python benchmarks/resnet_latency.py [--photos DIR] [--device cpu] [--calls 20] [--write
    docs/measured/resnet_latency.md] python benchmarks/resnet_latency.py --host [--write
    docs/measured/resnet_latency_host.md]

Each runs in a process of its own, as in a check; what is timed is what a caller sees, from sending
the bytes to having the answer.

With --host the network is one convolution, and pictures are those of `cuda`: what is left is the
host's part of a request there, on one thread. From it follows what a request takes on machines that
were assumed, none of them measured.
"""

import argparse
import multiprocessing
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
import tomllib
import types
from pathlib import Path

import numpy as np
import torch
from markdown_tables import table

from bottleneck_lab.measure.worker import load_module
from bottleneck_lab.workspace.home import dataset_root

ROOT = Path(__file__).resolve().parents[1]
LAB = ROOT / "labs" / "resnet-latency"


def implementations():
    """Name and predict.py of everything that is compared, the shipped one first."""
    variants = sorted((ROOT / "tests" / "variants" / "resnet-latency").glob("*/predict.py"))
    solution = ROOT / "solutions" / "resnet-latency" / "predict.py"
    return {"shipped": LAB / "predict.py", "solution": solution} | {
        path.parent.name: path for path in variants
    }


ASSUMED = {
    "laptop, small GPU": (2.5, 12.0, 7.0),
    "A100, cloud host": (1.2, 8.0, 7.0),
    "H100 or H200, 2023 server": (1.6, 6.0, 5.0),
    "this host, GPU never waited for": (1.0, 8.0, 7.0),
    "fastest host, slowest GPU": (3.3, 12.0, 8.0),
}
"""How many times as fast as this one a host is; then milliseconds of the network, called layer by
layer, as shipped and with the usual fixes (16 bits, no autograd). Assumed: some 170 launches of 25
to 45 µs each, unless the GPU is slower than that.
"""


def without_network():
    """Puts one convolution in the network's place, and has nothing compiled for it."""

    class Small(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = torch.nn.Conv2d(3, 8, 7, 32, 3, bias=False)
            self.bn1 = torch.nn.BatchNorm2d(8)
            self.fc = torch.nn.Linear(8, 1000)

        def forward(self, image):
            return self.fc(self.bn1(self.conv1(image)).mean((2, 3)))

    sys.modules["weights"] = types.SimpleNamespace(load_resnet50=lambda: Small().eval())
    torch.compile = lambda network, **_: network


def expected(host_ms):
    """By machine of ASSUMED: what share (0-1) of a shipped request its preprocessing is; then by
    script the times as fast, and its milliseconds.
    """
    by_machine = {}
    for machine, (faster, shipped_ms, fixed_ms) in ASSUMED.items():
        before = host_ms["shipped"] / faster + shipped_ms
        after = {name: ms / faster + fixed_ms for name, ms in host_ms.items() if name != "shipped"}
        by_machine[machine] = (
            1 - shipped_ms / before,
            {name: (before / ms, ms) for name, ms in after.items()},
        )
    return by_machine


def expected_table(host_ms):
    rows = []
    for machine, (share, fixes) in expected(host_ms).items():
        name = min(fixes, key=lambda fix: fixes[fix][0])
        slowest = [f"{name}, {fixes[name][0]:.1f}x", f"{fixes[name][1]:.0f}"]
        rows.append([machine, f"{share:.0%}", *slowest])
    return table(["machine", "preprocessing, share", "slowest fix", "its p50, ms"], rows)


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


def compare(pipes, photos, settings, calls):
    """Milliseconds and disagreement by name, one row a call."""
    judge, rng = load_module(LAB / "judge.py"), np.random.default_rng()
    times, far = {name: [] for name in pipes}, {name: [] for name in pipes}
    for call in range(calls + 3):
        [jpeg] = judge.make_inputs(rng, settings["photos"], photos, settings)
        answers = {name: timed(pipe, jpeg) for name, pipe in pipes.items()}
        for name, (answer, milliseconds) in answers.items():
            far[name].append(judge.disagreement(answer, answers["shipped"][0]))
            if call >= 3:
                times[name].append(milliseconds)
    return times, far


def measured_table(times, far, starts):
    rows = []
    for name, row in times.items():
        ratio = statistics.median(
            before / after for before, after in zip(times["shipped"], row, strict=True)
        )
        p90 = statistics.quantiles(row, n=10)[-1]
        p50, apart, start_s = statistics.median(row), max(far[name]), starts[name]
        rows.append(
            [name, f"{p50:.0f}", f"{p90:.0f}", f"{ratio:.2f}x", f"{apart:.2%}", f"{start_s:.0f}"]
        )
    names = ["script", "p50, ms", "p90, ms", "speed-up", "largest disagreement", "start-up, s"]
    return table(names, rows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--photos", type=Path, default=dataset_root("photos"), help="what `lab data` made"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    text = host(options) if options.host else whole(options)
    print(text)
    if options.write:
        options.write.write_text(text + "\n")


def host(options):
    """The host's part of a request on `cuda`, and what follows from it."""
    without_network()
    sys.path.insert(0, str(LAB))
    scripts = {name: load_module(path).load("cpu") for name, path in implementations().items()}
    torch.set_num_threads(1)
    judge, times = load_module(LAB / "judge.py"), {name: [] for name in scripts}
    settings, rng = settings_of("cuda"), np.random.default_rng()
    for _ in range(options.calls + 1):
        [jpeg] = judge.make_inputs(rng, settings["photos"], options.photos, settings)
        for name, predict in scripts.items():
            began = time.perf_counter()
            predict(jpeg)
            times[name].append(1000 * (time.perf_counter() - began))
    host_ms = {name: round(statistics.median(row[1:]), 1) for name, row in times.items()}
    rows = "\n".join(f"| {name} | {ms:.1f} |" for name, ms in host_ms.items())
    return (
        f"`python benchmarks/resnet_latency.py --host --calls {options.calls}`,"
        f" {platform.machine()}, one thread of {os.cpu_count()} cores, no GPU,"
        f" {time.strftime('%B %Y')}. Measured: a request without its network.\n\n| script | host's"
        f" part, ms |\n| --- | --- |\n{rows}\n\nCalculated from these figures, never measured,"
        " using the hosts and networks that `ASSUMED` in the benchmark"
        f" lists:\n\n{expected_table(host_ms)}"
    )


def settings_of(device):
    """Return what the judge reads of lab.toml."""
    return tomllib.loads((LAB / "lab.toml").read_text())["devices"][device]["settings"]["judge"]


def whole(options):
    """Requests from end to end, on this machine."""
    settings = settings_of(options.device)
    started = {name: start(script, options.device) for name, script in implementations().items()}
    times, far = compare(
        {name: pipe for name, (pipe, _) in started.items()}, options.photos, settings, options.calls
    )
    machine = (
        torch.cuda.get_device_name()
        if options.device == "cuda"
        else f"{len(os.sched_getaffinity(0))} cores"
    )
    for pipe, _ in started.values():
        pipe.send(b"")
    return (
        f"`python benchmarks/resnet_latency.py --device {options.device} --calls {options.calls}`,"
        f" torch {torch.__version__}, {platform.machine()}, {machine},"
        f" {time.strftime('%B %Y')}.\n\n"
        + measured_table(times, far, {name: seconds for name, (_, seconds) in started.items()})
    )


if __name__ == "__main__":
    main()
