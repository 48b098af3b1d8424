"""Warms up the profiler as well: a first recording is thrown away."""

import torch
import workload
from torch.profiler import ProfilerActivity, profile

WARM_UP = 3


def recorded(model, images, passes):
    """A recording of so many passes."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if images.is_cuda else [])
    with profile(activities=activities, record_shapes=True, acc_events=True) as profiler:
        for _ in range(passes):
            model(images)
        if images.is_cuda:
            torch.cuda.synchronize()
    return profiler


@torch.inference_mode()
def record(model, images, passes, trace):
    recorded(model, images, WARM_UP)
    recorded(model, images, passes).export_chrome_trace(str(trace))


if __name__ == "__main__":
    workload.main(record)
