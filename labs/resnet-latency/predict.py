"""Classify a photograph: JPEG bytes in, the probabilities of 1,000 classes out.

python predict.py --photos DIR [--device cuda|cpu] [--count 20]
"""

import argparse
import io
import os
import time
from pathlib import Path

import numpy as np
import torch
import traffic
from PIL import Image
from torch.profiler import record_function
from torchvision.transforms import functional as F
from weights import load_resnet50

MEAN = np.array([0.485, 0.456, 0.406])
STD = np.array([0.229, 0.224, 0.225])

# Same as the API servers: one thread a worker, gunicorn starts the workers.
torch.set_num_threads(1)

latencies_s = []


def preprocess(jpeg, device):
    """A photograph as the network wants it: 1×3×224×224, normalised."""
    image = Image.open(io.BytesIO(jpeg)).convert("RGB")
    pixels = np.asarray(image) / 255.0
    pixels = (pixels - MEAN) / STD
    tensor = torch.from_numpy(pixels).permute(2, 0, 1).float().unsqueeze(0)
    tensor = F.resize(tensor, [232], antialias=True)
    tensor = F.center_crop(tensor, [224, 224])
    return tensor.to(device)


def load(device):
    """Start-up: everything that happens once, before the first request."""
    model = load_resnet50().to(device)

    def predict(jpeg):
        with record_function("preprocess"):
            image = preprocess(jpeg, device)
        with record_function("model"):
            start = time.perf_counter()
            logits = model(image)
            latencies_s.append(time.perf_counter() - start)
        with record_function("postprocess"):
            if torch.isnan(logits).any():
                raise ValueError("the network returned NaN")
            return torch.softmax(logits, dim=1)[0].detach().cpu().numpy()

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
    for number, jpeg in enumerate(traffic.requests(options.photos, options.device, options.count)):
        probabilities = predict(jpeg)
        print(f"request {number}: class {probabilities.argmax()} ({probabilities.max():.0%})")
    print(f"latency: {1000 * sum(latencies_s) / len(latencies_s):.1f} ms")


if __name__ == "__main__":
    main()
