"""Decode and resize as uint8 tensors, the network traced, frozen and optimised."""

import argparse
import os
import time
import timeit
from pathlib import Path

import numpy as np
import torch
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms.v2 import functional as F

import traffic
from weights import load_resnet50

MEAN = [0.485 * 255, 0.456 * 255, 0.406 * 255]
STD = [0.229 * 255, 0.224 * 255, 0.225 * 255]


def fastest_threads(run):
    """A thread a core, or one fewer where another program has one: every layer waits for its
    slowest thread.
    """

    def seconds(threads):
        torch.set_num_threads(threads)
        run()
        return timeit.timeit(run, number=5)

    cores = len(os.sched_getaffinity(0))
    return min({cores, max(1, cores - 1)}, key=seconds)


def load(device):
    torch.backends.cudnn.benchmark = True
    dtype = torch.half if device.startswith("cuda") else torch.float
    model = load_resnet50().to(device, dtype, memory_format=torch.channels_last)
    example = torch.zeros(1, 3, 224, 224, device=device, dtype=dtype).to(
        memory_format=torch.channels_last
    )
    with torch.inference_mode():
        model = torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(model, example)))
        torch.set_num_threads(fastest_threads(lambda: model(example)))

    @torch.inference_mode()
    def predict(jpeg):
        image = decode_jpeg(
            torch.frombuffer(bytearray(jpeg), dtype=torch.uint8), mode=ImageReadMode.RGB
        )
        image = F.center_crop(F.resize(image, [232], antialias=True), [224, 224]).to(device)
        image = (
            F.normalize(image.float(), MEAN, STD)
            .to(dtype)
            .unsqueeze(0)
            .contiguous(memory_format=torch.channels_last)
        )
        return model(image).float().softmax(1)[0].cpu().numpy()

    return predict


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--photos",
        type=Path,
        default=os.environ.get("LAB_PHOTOS"),
        help="what datasets/photos.py made",
    )
    parser.add_argument("--device", default=os.environ.get("LAB_DEVICE", "cpu"))
    parser.add_argument("--count", type=int, default=10)
    options = parser.parse_args()

    predict = load(options.device)
    latencies_s = []
    for number, jpeg in enumerate(
        traffic.requests(options.photos, options.device, 3 + options.count)
    ):
        start = time.perf_counter()
        # Each picture is new, and the answer is in hand when the clock stops.
        probabilities = predict(jpeg)
        latencies_s.append(time.perf_counter() - start)
        print(f"request {number}: class {probabilities.argmax()} ({probabilities.max():.0%})")
    del latencies_s[:3]  # first calls allocate, tune and compile: nobody's latency
    print(f"latency: {1000 * np.median(latencies_s):.1f} ms (p50 of {len(latencies_s)})")


if __name__ == "__main__":
    main()
