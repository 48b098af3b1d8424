"""A real ResNet-50 on this machine's GPU or CPU. `lab run` and `lab check` use their own model
instead.
"""

import numpy as np
import torch
import torchvision
import triton_python_backend_utils as pb_utils

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
CLASSES = 10


class TritonPythonModel:
    def initialize(self, args):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = torchvision.models.resnet50(num_classes=CLASSES).eval().to(self.device)
        self.mean = torch.tensor(MEAN, device=self.device).view(3, 1, 1)
        self.std = torch.tensor(STD, device=self.device).view(3, 1, 1)

    def execute(self, requests):
        images = [
            pb_utils.get_input_tensor_by_name(request, "images").as_numpy() for request in requests
        ]
        scores = np.split(
            self.infer(np.concatenate(images)), np.cumsum([len(each) for each in images])[:-1]
        )
        return [pb_utils.InferenceResponse([pb_utils.Tensor("scores", each)]) for each in scores]

    @torch.inference_mode()
    def infer(self, images):
        """Scores (N×10) of images: N×3×224×224, uint8 or float32 already normalised."""
        images = torch.as_tensor(images).to(self.device)
        if images.dtype == torch.uint8:
            images = (images.float() / 255 - self.mean) / self.std
        return self.model(images).cpu().numpy()
