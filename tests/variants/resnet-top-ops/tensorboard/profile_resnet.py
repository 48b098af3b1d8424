"""Recorded in a thread of its own, by the handler that writes for TensorBoard; of two recordings the second is kept."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import workload
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

ACTIVITIES = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
CYCLES = 2


@torch.inference_mode()
def recorded(model, images, passes, folder):
    with profile(
        activities=ACTIVITIES,
        schedule=schedule(wait=0, warmup=1, active=passes, repeat=CYCLES),
        on_trace_ready=tensorboard_trace_handler(folder, use_gzip=True),
        record_shapes=True,
        acc_events=True,
    ) as profiler:
        for _ in range(CYCLES * (1 + passes)):
            model(images)
            if images.is_cuda:
                torch.cuda.synchronize()
            profiler.step()
    return max(Path(folder).glob("*.gz"), key=lambda file: file.stat().st_mtime_ns)


def record(model, images, passes, trace):
    with TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:
        last = thread.submit(recorded, model, images, passes, folder).result()
        trace.write_bytes(last.read_bytes())


if __name__ == "__main__":
    workload.main(record)
