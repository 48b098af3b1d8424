"""ResNet-50 with its ImageNet weights where they are on this machine, and with stand-in weights
where they are not.

The real ones are `ResNet50_Weights.IMAGENET1K_V2`, read from torch's hub cache (`TORCH_HOME`);
`python weights.py` fetches them. Without them a stand-in is built from a seed: same layers, same
work, same speed, and answers that depend on the picture, but its classes mean nothing.
"""

from pathlib import Path

import torch
from torch.nn.functional import avg_pool2d, interpolate
from torchvision.models import ResNet, ResNet50_Weights, resnet50
from torchvision.models.resnet import Bottleneck

REAL = ResNet50_Weights.IMAGENET1K_V2
SEED = 50
# How far the stand-in's logits spread over pictures: about as far as the real network's.
LOGIT_SPREAD = 3.0
# What a block adds to its shortcut: with much more, a seeded network turns rounding errors into
# other answers.
RESIDUAL = 0.2


def checkpoint() -> Path:
    """Where torch keeps the real weights once they were fetched."""
    return Path(torch.hub.get_dir()) / "checkpoints" / Path(REAL.url).name


def load_resnet50() -> ResNet:
    """The network in float32 on the CPU, in evaluation mode."""
    if checkpoint().is_file():
        return resnet50(weights=REAL).eval()
    return stand_in()


def stand_in():
    """A seeded network that behaves like a trained one: a smooth stem, small residual steps, logits
    spread over pictures.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        model = resnet50(weights=None)
        model.conv1.weight.copy_(avg_pool2d(avg_pool2d(model.conv1.weight, 3, 1, 1), 3, 1, 1))
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None  # average over everything seen, which is one batch
            if isinstance(module, Bottleneck):
                module.bn3.weight.fill_(RESIDUAL)
        pictures = noise_pictures(16, 128)
        model.train()(pictures)
        head, model.fc = model.fc, torch.nn.Identity()
        features = model.eval()(pictures)
        centre = features.mean(0)
        head.weight.normal_()
        head.weight *= LOGIT_SPREAD / ((features - centre) @ head.weight.T).std()
        head.bias.copy_(-head.weight @ centre)
        model.fc = head
    return model


def noise_pictures(count: int, side: int) -> torch.Tensor:
    """`count` normalised pictures, N×3×side×side, of soft and of fine coloured noise in different
    strengths.
    """
    total = torch.randn(count, 3, 1, 1)
    for cells in (2, 4, 8, 16, 32, 64):
        grain = torch.randn(count, 3, cells, cells) * torch.rand(count, 1, 1, 1)
        total = total + interpolate(grain, size=(side, side), mode="bilinear", align_corners=False)
    return total


if __name__ == "__main__":
    resnet50(weights=REAL)
    print(f"ImageNet weights: {checkpoint()}")
