"""The network, the photographs and how many passes are looked at. The same for everyone: a check
uses its own copy.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from weights import load_resnet50

BATCH = {"cpu": 4, "cuda": 32}
PASSES = 4
TRACE = "trace.json.gz"
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def photographs(folder, count):
    """`count` photographs, each cut to its middle 224×224 pixels: uint8, count×3×224×224."""
    pixels = []
    for file in sorted((Path(folder) / "small").glob("*.jpg"))[:count]:
        photo = Image.open(file).convert("RGB")
        left, top = (photo.width - 224) // 2, (photo.height - 224) // 2
        pixels.append(np.asarray(photo.crop((left, top, left + 224, top + 224))).transpose(2, 0, 1))
    return np.stack(pixels)


def network(device):
    """ResNet-50 in float32 as torchvision has it, on `device`. One CPU thread: machines of any size
    compare, and a thread that waits for another, which a busy core holds up, is no part of an
    operator's time.
    """
    torch.set_num_threads(1)
    return load_resnet50().to(device)


def images_from(pixels, device):
    """The normalised batch on the device."""
    return ((torch.tensor(pixels).float() / 255 - MEAN) / STD).contiguous().to(device)


def altered(model, images):
    """The names of what is no longer as both were given, or as `network` set it."""
    tensors, device = [images, *model.parameters()], images.device.type
    precisions = {tensor.dtype for tensor in tensors}
    checks = {
        "training": model.training,
        "precision": torch.is_autocast_enabled(device) or precisions != {torch.float32},
        "layout": not all(tensor.is_contiguous() for tensor in tensors),
        "threads": device == "cpu" and torch.get_num_threads() != 1,
    }
    return [name for name, applies in checks.items() if applies]


class Runs:
    """The runs of a model that a script makes, from its first layer to its last."""

    def __init__(self, model):
        self._model, self._begun = model, False
        self.recorded, self.altered = [], set()
        """Of each run, if a profiler recorded it; what was altered in those that one did."""
        model.conv1.register_forward_hook(self._begin)
        model.fc.register_forward_hook(self._end)

    def _begin(self, _layer, inputs, _output):
        self._begun = True
        if torch.autograd._profiler_enabled():
            self.altered.update(altered(self._model, *inputs))

    def _end(self, *_):
        if self._begun:
            self.recorded.append(torch.autograd._profiler_enabled())
        self._begun = False

    def clear(self):
        """Forget the runs so far."""
        self.recorded.clear()
        self.altered.clear()

    def before(self, passes):
        """How many runs came before the last `passes` that were recorded one after another: a
        profiler whose recording is thrown away may have seen them, too.
        """
        backwards = self.recorded[::-1]
        if True not in backwards:
            return len(backwards)
        row = backwards[backwards.index(True) :]
        return len(row) - min(passes, (*row, False).index(False))


def main(record):
    """Record the trace of PASSES forward passes on photographs of the data set."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--photos",
        type=Path,
        default=os.environ.get("LAB_PHOTOS"),
        help="what datasets/photos.py made",
    )
    parser.add_argument("--device", default=os.environ.get("LAB_DEVICE", "cpu"))
    options = parser.parse_args()
    images = images_from(photographs(options.photos, BATCH[options.device]), options.device)
    trace = Path(TRACE).absolute()
    trace.unlink(missing_ok=True)
    model = network(options.device)
    runs = Runs(model)

    def note(*_):
        if runs.recorded[-1]:  # the trace keeps what is noted last
            torch.autograd._add_metadata_json("runs_before", str(runs.before(PASSES)))
            torch.autograd._add_metadata_json("altered", json.dumps(sorted(runs.altered)))

    model.register_forward_hook(note)
    record(model, images, PASSES, trace)
    print(
        f"{PASSES} passes of {len(images)} photographs on {options.device}, after"
        f" {runs.before(PASSES)} that were not recorded: {TRACE if trace.exists() else 'no trace'}"
    )
