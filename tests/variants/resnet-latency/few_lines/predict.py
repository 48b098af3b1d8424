"""The shipped script with a few lines changed: scaled decode, resize before conversion, inference
mode, layout, precision.
"""

import argparse
import io
import os
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import functional as F

import traffic
from weights import load_resnet50

MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]


def preprocess(jpeg):
    image = Image.open(io.BytesIO(jpeg))
    image.draft("RGB", (232, 232))
    image = F.center_crop(F.resize(image.convert("RGB"), [232]), [224, 224])
    return F.normalize(F.to_tensor(image), MEAN, STD).unsqueeze(0)


def load(device):
    torch.backends.cudnn.benchmark = True
    torch.set_num_threads(1)  # no layer waits for a thread whose core another program has
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    model = load_resnet50().to(device, dtype, memory_format=torch.channels_last)

    @torch.inference_mode()
    def predict(jpeg):
        image = preprocess(jpeg).to(device, dtype, memory_format=torch.channels_last)
        return torch.softmax(model(image).float(), dim=1)[0].cpu().numpy()

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
