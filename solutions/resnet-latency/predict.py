"""Classify a photograph: JPEG bytes in, the probabilities of 1,000 classes out.

python predict.py --photos DIR [--device cuda|cpu] [--count 20]
"""

import argparse
import io
import os
import time
import timeit
from pathlib import Path

import numpy as np
import torch
import traffic
from PIL import Image
from torch.fx.experimental.optimization import fuse
from torch.profiler import record_function
from torchvision.transforms import functional as F
from weights import load_resnet50

RESIZE, CROP = 232, 224
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1) * 255
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1) * 255


def preprocess(jpeg):
    """The picture as the network wants it but for the normalisation: 1×3×224×224, uint8.

    A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size for little more than that share of the
    work: `draft` takes the smallest that is not below RESIZE. From then on there are a few hundred
    kilobytes to move where there were tens of megabytes.
    """
    image = Image.open(io.BytesIO(jpeg))
    image.draft("RGB", (RESIZE, RESIZE))
    image = F.resize(image.convert("RGB"), [RESIZE])
    return F.pil_to_tensor(F.center_crop(image, [CROP, CROP])).unsqueeze(0)


class Classifier(torch.nn.Module):
    """uint8 pixels in, probabilities out: normalisation and softmax run where the network runs, in
    its precision or better.
    """

    def __init__(self, model, dtype):
        super().__init__()
        # Batch norms fold into the convolutions before them; channels_last is the layout the
        # convolutions want.
        self.model = fuse(model).to(dtype=dtype, memory_format=torch.channels_last)
        self.register_buffer("mean", MEAN)
        self.register_buffer("std", STD)
        self.dtype = dtype

    def forward(self, pixels):
        image = ((pixels.float() - self.mean) / self.std).to(
            self.dtype, memory_format=torch.channels_last
        )
        return torch.softmax(self.model(image).float(), dim=1)[0]


def fastest_threads(run):
    """Of all cores, half of them, a quarter, …: the number of threads with which `run` is fastest
    here and now.

    Every layer waits for its slowest thread, and that is one whose core another program has.
    """

    def seconds(threads):
        torch.set_num_threads(threads)
        run()
        return timeit.timeit(run, number=5)

    cores = len(os.sched_getaffinity(0))
    return min((cores >> halvings for halvings in range(cores.bit_length())), key=seconds)


def on_cpu(model):
    classifier = Classifier(model, torch.float32)
    nothing = torch.zeros(1, 3, CROP, CROP, dtype=torch.uint8)
    torch.set_num_threads(fastest_threads(lambda: classifier(nothing)))
    return lambda pixels: classifier(pixels).numpy()


def on_gpu(model, device):
    """The network recorded once as a CUDA graph: about 200 kernel launches become one."""
    torch.backends.cudnn.benchmark = True
    classifier = Classifier(model, torch.float16).to(device)
    pixels = torch.zeros(1, 3, CROP, CROP, dtype=torch.uint8, device=device)
    staging = torch.zeros(1, 3, CROP, CROP, dtype=torch.uint8, pin_memory=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # cuDNN tries its algorithms now: a recording may not
            classifier(pixels)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        probabilities = classifier(pixels)

    def run(image):
        staging.copy_(image)
        pixels.copy_(staging, non_blocking=True)
        graph.replay()
        # Waits for the graph; the only synchronisation of a call.
        return probabilities.cpu().numpy()

    return run


def load(device):
    """Start-up: everything that happens once, before the first request."""
    with torch.inference_mode():
        run = (
            on_gpu(load_resnet50(), device)
            if device.startswith("cuda")
            else on_cpu(load_resnet50())
        )

    @torch.inference_mode()
    def predict(jpeg):
        with record_function("preprocess"):
            pixels = preprocess(jpeg)
        with record_function("model"):
            return run(pixels)

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
