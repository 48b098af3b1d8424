"""Write the cost table of the emulated GPU: how long each module of the lab's model takes, forward
and backward, an image.

    python scripts/ddp_cost_table.py ddp-scaling

Each module gets the larger of its arithmetic and its memory time (roofline, 16-bit activations, 224
x 224 pixels), then all are scaled by one factor so that the forward pass of 64 images takes
FORWARD_64_MS. The shape of the table follows from the model; the scale is a choice. Then a check of
the lab's script as shipped says how fast that is on emulated GPUs.
"""

import argparse
import json
from types import ModuleType

import torch
from torch import nn

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.course.proving import check
from bottleneck_lab.measure.worker import load_module

PEAK_FLOP_PER_S = 312e12  # A100, FP16 tensor cores, NVIDIA A100 datasheet
BANDWIDTH_BYTES_PER_S = 2039e9  # A100 80 GB SXM, same sheet
ACTIVATION_BYTES = 2
# Of a ResNet-50 of half the usual width. With backward at twice that: 64 images in 7.2 ms. For four
# times the arithmetic the usual one takes 24.6 ms at 2600 images/s, which mixed-precision training
# reaches on an A100.
FORWARD_64_MS = 2.4
BACKWARD_OVER_FORWARD = 2.0  # two matrix products (weights, inputs) for one
OPTIMIZER_US = 800.0


def roofline_s(module: nn.Module, inputs: torch.Tensor, output: torch.Tensor) -> float:
    """Return the seconds that a forward of one image takes at the sheet's peaks; batch
    normalisation reads its input twice.
    """
    flop = 0.0
    if isinstance(module, nn.Conv2d):
        flop = (
            2.0
            * output.numel()
            * module.in_channels
            * module.kernel_size[0]
            * module.kernel_size[1]
        )
    elif isinstance(module, nn.Linear):
        flop = 2.0 * output.numel() * module.in_features
    reads = 2 if isinstance(module, nn.BatchNorm2d) else 1
    moved = ACTIVATION_BYTES * (reads * inputs.numel() + output.numel())
    return max(flop / PEAK_FLOP_PER_S, moved / BANDWIDTH_BYTES_PER_S)


def owners_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules with parameters of their own, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    }


def elements_of(module: nn.Module) -> int:
    """Return the number of the module's own parameters."""
    return sum(parameter.numel() for parameter in module.parameters(recurse=False))


def table(recipe: ModuleType) -> dict:
    """Return the cost table: of each module with parameters of its own, in `named_modules` order,
    by which the emulation counts.
    """
    model = recipe.make_model()
    seconds: dict[str, float] = {}
    owners = owners_of(model)
    small = recipe.make_small_model()
    for name, module in owners.items():
        module.register_forward_hook(
            lambda module, args, output, name=name: seconds.__setitem__(
                name, roofline_s(module, args[0], output)
            )
        )
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, 224, 224))
    scale = FORWARD_64_MS * 1e3 / 64 / sum(seconds.values())
    return {
        "gpu": "A100-like, modelled",
        "source": (
            "Roofline over NVIDIA's A100 datasheet (312 TFLOP/s FP16, 2039 GB/s), scaled by one"
            f" factor to a forward of {FORWARD_64_MS} ms for 64 images; backward is twice the"
            " forward; chosen, not measured."
        ),
        "optimizer_us": OPTIMIZER_US,
        "micro_batches": recipe.MICRO_BATCHES,
        "samples": recipe.IMAGES,
        "classes": recipe.CLASSES,
        "smallest": min(parameter.numel() for parameter in model.parameters()),
        "stand_in": {"samples": 4, "shape": [3, 32, 32]},
        "small": {
            "elements": {name: elements_of(module) for name, module in owners_of(small).items()},
            "smallest": min(parameter.numel() for parameter in small.parameters()),
            # The smallest of which 2 x 2 pixels are left in the last stage: batch norm of a single
            # one amplifies every rounding.
            "stand_in": {"samples": 4, "shape": [3, 33, 33]},
        },
        "shape": [3, recipe.SIZE, recipe.SIZE],
        "called": "images",
        "modules": [
            {
                "name": name,
                "elements": elements_of(module),
                "forward_us": round(seconds[name] * scale, 5),
                "backward_us": round(BACKWARD_OVER_FORWARD * seconds[name] * scale, 5),
            }
            for name, module in owners.items()
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lab")
    lab = find_lab(parser.parse_args().lab)
    torch.set_num_threads(1)
    costs = table(load_module(lab.path / "recipe.py"))
    out = lab.path / "costs.json"
    out.write_text(json.dumps(costs, indent=1) + "\n")
    figures = check(lab, lab.path, "virtual").measurement
    costs["shipped_samples_per_s"] = {
        str(figures[size]): round(figures[f"{size}_samples_per_s"], 3) for size in ("few", "many")
    }
    out.write_text(json.dumps(costs, indent=1) + "\n")


if __name__ == "__main__":
    main()
