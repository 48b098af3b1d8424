"""Forward passes of ResNet-50, to be recorded with torch.profiler.

python profile_resnet.py --photos DIR [--device cuda|cpu]
"""

import torch
import workload


def record(model, images, passes, trace):
    """Run `passes` forward passes and write what the profiler saw of them, and of nothing else, to
    the file `trace`.
    """
    with torch.inference_mode():
        for _ in range(passes):
            model(images)


if __name__ == "__main__":
    workload.main(record)
