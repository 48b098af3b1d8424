"""Classify a photograph: everything after decoding in bfloat16."""

import io

import torch
from PIL import Image
from torch.profiler import record_function
from torchvision.transforms import functional as F
from weights import load_resnet50

RESIZE, CROP = 232, 224
MEAN = torch.tensor([0.485, 0.456, 0.406], dtype=torch.bfloat16).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225], dtype=torch.bfloat16).view(3, 1, 1)


def preprocess(jpeg, device):
    image = Image.open(io.BytesIO(jpeg))
    image.draft("RGB", (RESIZE, RESIZE))
    pixels = F.pil_to_tensor(image.convert("RGB")).to(device, torch.bfloat16).unsqueeze(0)
    pixels = F.center_crop(F.resize(pixels, [RESIZE], antialias=True), [CROP, CROP])
    return (pixels / 255 - MEAN.to(device)) / STD.to(device)


def load(device):
    model = load_resnet50().to(device, torch.bfloat16, memory_format=torch.channels_last)

    @torch.inference_mode()
    def predict(jpeg):
        with record_function("preprocess"):
            image = preprocess(jpeg, device).contiguous(memory_format=torch.channels_last)
        with record_function("model"):
            return torch.softmax(model(image).float(), dim=1)[0].cpu().numpy()

    return predict
