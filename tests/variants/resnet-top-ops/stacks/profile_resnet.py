"""With Python stacks and memory in the trace."""

import torch
import workload
from torch.profiler import ProfilerActivity, profile

ACTIVITIES = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])


@torch.no_grad()
def record(model, images, passes, trace):
    for _ in range(5):
        model(images)
    if images.is_cuda:
        torch.cuda.synchronize()
    with profile(
        activities=ACTIVITIES,
        record_shapes=True,
        with_stack=True,
        profile_memory=True,
        acc_events=True,
    ) as profiler:
        for _ in range(passes):
            model(images)
        if images.is_cuda:
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(trace))
    print(
        profiler.key_averages(group_by_input_shape=True).table(
            sort_by="self_cpu_time_total", row_limit=15
        )
    )


if __name__ == "__main__":
    workload.main(record)
