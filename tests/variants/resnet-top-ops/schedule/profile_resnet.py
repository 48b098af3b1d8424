"""The profiler's own schedule does the warm-up."""

import torch
import workload
from torch.profiler import ProfilerActivity, profile, schedule

ACTIVITIES = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])


def record(model, images, passes, trace):
    plan = schedule(wait=1, warmup=2, active=passes, repeat=1)
    with (
        torch.inference_mode(),
        profile(
            activities=ACTIVITIES,
            schedule=plan,
            record_shapes=True,
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(trace)),
            acc_events=True,
        ) as profiler,
    ):
        for _ in range(1 + 2 + passes):
            model(images)
            if images.is_cuda:
                torch.cuda.synchronize()
            profiler.step()


if __name__ == "__main__":
    workload.main(record)
