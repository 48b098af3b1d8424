"""The picture size, how to run the server, and a model for running it alone. The same for everyone:
a check uses its own copy.
"""

import argparse
import socket
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import uvicorn

RESIZE = (341, 256)  # width and height before the crop: every client sends 1024x768
CROP = (58, 16, 282, 240)  # left, top, right, bottom of the middle 224x224
MEAN = (0.485, 0.456, 0.406)  # ImageNet's, RGB, of values 0-1
STD = (0.229, 0.224, 0.225)
CLASSES = 10


def run(app: Any, listener: socket.socket) -> None:
    """Serve an ASGI application on a listening socket until the process ends."""
    config = uvicorn.Config(
        app, loop="asyncio", http="httptools", log_level="warning", timeout_keep_alive=600
    )
    uvicorn.Server(config).run(sockets=[listener])


class TorchModel:
    """A real ResNet-50 on this machine's GPU or CPU. `lab run` and `lab check` use their own model
    instead.
    """

    def __init__(self) -> None:
        import torchvision

        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = torchvision.models.resnet50(num_classes=CLASSES).eval().to(self.device)
        self.mean = torch.tensor(MEAN, device=self.device).view(3, 1, 1)
        self.std = torch.tensor(STD, device=self.device).view(3, 1, 1)

    @torch.inference_mode()
    def __call__(self, images: Any) -> np.ndarray[Any, Any]:
        """Scores (N×10, float32) of `images`: N×3×224×224, uint8 RGB or float32 already normalised.
        Returns when they are ready.
        """
        images = torch.as_tensor(images).to(self.device)
        if images.dtype == torch.uint8:
            images = (images.float() / 255 - self.mean) / self.std
        scores: np.ndarray[Any, Any] = self.model(images).cpu().numpy()
        return scores


def main(serve: Callable[[socket.socket, Any], None]) -> None:
    """Serve a real model on a local port."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    try:
        listener = socket.create_server(("127.0.0.1", options.port))
    except OSError as error:
        sys.exit(
            f"Cannot listen on port {options.port}: {error.strerror}. Choose another with --port."
        )
    with listener:
        print(f"curl --data-binary @photo.jpg http://127.0.0.1:{options.port}/classify")
        serve(listener, TorchModel())
