"""The check's own captures, and what this machine can do at most. Trusted; never handed out."""

import time
from pathlib import Path

import numpy as np
import torch
import workload
from check_record import mark
from torch.profiler import ProfilerActivity, profile

WARM_UP = 1  # the cold capture came first: what is left to warm up is what froze between two calls


def load(device):
    """A function for five jobs: 'cold', 'warm' and 'marked' captures, the 'classes' of pictures,
    and 'probe'.
    """
    model = workload.network(device)

    def answer(job, pixels, passes):
        if job == "probe":
            return np.array([bandwidth(device), matrix_rate(device)]), device_name(device)
        images = workload.images_from(pixels, device)
        with torch.inference_mode():
            if job == "classes":
                return model(images).argmax(1).cpu().numpy()
            for _ in range(WARM_UP if job == "warm" else 0):
                model(images)
            marks = [model.register_forward_hook(mark)] if job == "marked" else []
            recorded = capture(model, images, passes, device)
            for each in marks:
                each.remove()
            return np.frombuffer(recorded, dtype=np.uint8)

    return answer


def capture(model, images, passes, device):
    """Bytes of the trace of `passes` passes."""
    cuda = device.startswith("cuda")
    wait = torch.cuda.synchronize if cuda else lambda: None
    wait()
    with profile(
        activities=[ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else []),
        record_shapes=True,
        acc_events=True,
    ) as profiler:
        for _ in range(passes):
            model(images)
        wait()
    trace = Path("reference.json.gz").absolute()
    profiler.export_chrome_trace(str(trace))
    return trace.read_bytes()


def device_name(device):
    return torch.cuda.get_device_name() if device.startswith("cuda") else "cpu"


def fastest_s(run, device, repeats=5):
    """Seconds of the fastest of a few runs: a ceiling is wanted, not a typical run."""
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    best = float("inf")
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        run()
        wait()
        best = min(best, time.perf_counter() - start)
    return best


def bandwidth(device):
    """Bytes a second to and from memory: a copy of 128 MiB, far beyond the caches, reads and writes
    each byte once.
    """
    source = torch.zeros(32 << 20, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * source.numel() * 4 / fastest_s(lambda: target.copy_(source), device)


def matrix_rate(device):
    """Floating-point operations a second of a large matrix product, in the precision that
    convolutions have by default.
    """
    side = 8192 if device.startswith("cuda") else 1024
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    left, right = torch.ones(2, side, side, device=device).unbind()
    return 2 * side**3 / fastest_s(lambda: left @ right, device)
