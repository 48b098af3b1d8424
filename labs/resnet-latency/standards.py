"""The shipped script's answers, computed sooner, and those of ways that the brief allows and
forbids. Trusted; never handed out.
"""

import io

import numpy as np
import torch
from PIL import Image
from torch.fx.experimental.optimization import fuse
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F
from weights import load_resnet50

RESIZE, CROP = 232, 224
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
CORES = torch.get_num_threads()
FILTERS = (InterpolationMode.BILINEAR, InterpolationMode.BICUBIC, InterpolationMode.LANCZOS)


def load(device):
    """A function from a JPEG to the shipped script's 1,000 probabilities; with `ways`, to those of
    five others, 5×1000: all in bfloat16, enlarged from too few pixels by each of FILTERS, and
    shrunk without antialiasing.
    """
    network = load_resnet50()
    exact = fuse(network).to(device)  # each batch norm in the convolution before it
    coarse = network.to(device, torch.bfloat16, memory_format=torch.channels_last)

    @torch.inference_mode()
    def answers(jpeg, ways):
        # The shipped script's answer is computed beside the code that it judges: more threads would
        # wait for one another's cores.
        torch.set_num_threads(CORES if ways else 1)
        if not ways:
            return probabilities(exact(as_shipped(jpeg).to(device)))[0]
        small = decoded(jpeg, RESIZE, smaller=2)
        pixels = [*(prepared(small, filter_) for filter_ in FILTERS), aliased(jpeg)]
        every = [
            coarse(in_bfloat16(decoded(jpeg, RESIZE)).to(device)).float(),
            exact(torch.cat([normalised(each) for each in pixels]).to(device)),
        ]
        return probabilities(torch.cat(every))

    return answers


def probabilities(logits):
    """N×1000, float32."""
    return torch.softmax(logits, dim=1).cpu().numpy().astype(np.float32)


def as_shipped(jpeg):
    """1×3×224×224, as predict.py prepares it from the whole photograph, but in float32: normalising
    and resizing are both linear, so only the few pixels that are left are normalised.
    """
    pixels = torch.from_numpy(np.array(Image.open(io.BytesIO(jpeg)).convert("RGB")))
    pixels = F.resize(pixels.permute(2, 0, 1).float().unsqueeze(0), [RESIZE], antialias=True)
    return normalised(F.center_crop(pixels, [CROP, CROP]))


def decoded(jpeg, side, smaller=1):
    """The photograph decoded at the smallest of 1/1, 1/2, 1/4 and 1/8 whose shorter side is at
    least `side`, or at one `smaller` times as small.
    """
    image = Image.open(io.BytesIO(jpeg))
    scales = [scale for scale in (1, 2, 4, 8) if min(image.size) >= scale * side]
    scale = min(8, smaller * scales[-1])
    image.draft("RGB", (image.width // scale, image.height // scale))
    return image.convert("RGB")


def prepared(image, filter_):
    """1×3×224×224, uint8."""
    return F.pil_to_tensor(
        F.center_crop(F.resize(image, [RESIZE], filter_), [CROP, CROP])
    ).unsqueeze(0)


def aliased(jpeg):
    """1×3×224×224, uint8, without antialiasing. From only slightly more pixels than RESIZE it would
    change nothing.
    """
    pixels = F.pil_to_tensor(decoded(jpeg, 3 * RESIZE // 2)).unsqueeze(0)
    return F.center_crop(F.resize(pixels, [RESIZE], antialias=False), [CROP, CROP])


def normalised(pixels):
    """As the network wants it, float32."""
    return (pixels.float() / 255 - MEAN) / STD


def in_bfloat16(image):
    """As the network wants it, every step from the decoded pixels on in bfloat16."""
    pixels = F.pil_to_tensor(image).unsqueeze(0).to(torch.bfloat16)
    pixels = (pixels / 255 - MEAN.bfloat16()) / STD.bfloat16()
    return F.center_crop(F.resize(pixels, [RESIZE], antialias=True), [CROP, CROP]).contiguous(
        memory_format=torch.channels_last
    )
