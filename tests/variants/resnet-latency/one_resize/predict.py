"""The centre is cut out in the same step that resizes it, normalising is in the first convolution's
weights, and bfloat16 is used where the processor has it.
"""

import argparse
import io
import os
import time
import timeit
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.fx.experimental.optimization import fuse

import traffic
from weights import load_resnet50

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1) * 255
STD = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1) * 255


def centre(jpeg):
    """Of the picture resized to 232 on its shorter side, the middle 224×224; the rest is never
    made.
    """
    image = Image.open(io.BytesIO(jpeg))
    image.draft("RGB", (464, 464))
    short, long = min(image.size), max(image.size)
    other = int(232 * long / short)
    width, height = (other, 232) if image.width >= image.height else (232, other)
    left, top = round((width - 224) / 2), round((height - 224) / 2)
    x, y = image.width / width, image.height / height
    box = (left * x, top * y, (left + 224) * x, (top + 224) * y)
    pixels = image.convert("RGB").resize((224, 224), Image.Resampling.BILINEAR, box)
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1).unsqueeze(0)


def precision(device):
    """Half the bytes where the arithmetic units take them: bfloat16 by emulation is several times
    slower than float32.
    """
    processor = torch.cpu.get_capabilities()
    if device.startswith("cuda") or processor.get("amx_bf16") or processor.get("avx512_bf16"):
        return torch.bfloat16
    return torch.float32


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
    model = fuse(load_resnet50())
    with torch.no_grad():
        model.conv1.weight /= STD
    dtype = precision(device)
    model, mean = model.to(device, dtype, memory_format=torch.channels_last), MEAN.to(device)
    nothing = torch.zeros(1, 3, 224, 224, device=device, dtype=dtype).to(
        memory_format=torch.channels_last
    )
    with torch.inference_mode():
        torch.set_num_threads(fastest_threads(lambda: model(nothing)))

    @torch.inference_mode()
    def predict(jpeg):
        # What is left out at the border is 0, as in the original.
        pixels = centre(jpeg).to(device).float() - mean
        image = pixels.to(dtype, memory_format=torch.channels_last)
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
