"""Forward passes of ResNet-50, recorded with torch.profiler.

python profile_resnet.py --photos DIR [--device cuda|cpu]
"""

import torch
import workload
from torch.profiler import ProfilerActivity, profile

# The first passes allocate, pack weights and (on a GPU) load kernels and tune: not what a pass
# costs
WARM_UP = 3


def record(model, images, passes, trace):
    """Run `passes` forward passes and write what the profiler saw of them, and of nothing else, to
    the file `trace`.
    """
    cuda = images.is_cuda
    with torch.inference_mode():
        for _ in range(WARM_UP):
            model(images)
        if cuda:
            # The warm-up's kernels must have ended before the recording begins
            torch.cuda.synchronize()
        activities = (
            [ProfilerActivity.CPU, ProfilerActivity.CUDA] if cuda else [ProfilerActivity.CPU]
        )
        with profile(activities=activities, record_shapes=True, acc_events=True) as profiler:
            for _ in range(passes):
                model(images)
            if cuda:
                torch.cuda.synchronize()  # and the last pass's before it ends
    profiler.export_chrome_trace(str(trace))
    order = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    print(profiler.key_averages().table(sort_by=order, row_limit=10))


if __name__ == "__main__":
    workload.main(record)
