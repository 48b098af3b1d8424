"""Started and stopped by hand, gradients left on, ranges marked."""

import torch
import workload
from torch.profiler import ProfilerActivity, profile, record_function

ACTIVITIES = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])


def record(model, images, passes, trace):
    model.eval()
    for _ in range(2):
        model(images)
    if images.is_cuda:
        torch.cuda.synchronize()
    profiler = profile(activities=ACTIVITIES, record_shapes=True, acc_events=True)
    profiler.start()
    for number in range(passes):
        with record_function(f"pass {number}"):
            model(images)
    if images.is_cuda:
        torch.cuda.synchronize()
    profiler.stop()
    profiler.export_chrome_trace(str(trace))


if __name__ == "__main__":
    workload.main(record)
