"""Decode the pictures of a batch, then ask the model `resnet50` to run on them."""

import sys
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.append(str(Path(__file__).parents[2] / "decode" / "1"))
from pictures import preprocess


class TritonPythonModel:
    def execute(self, requests):
        answers, good, images = [None] * len(requests), [], []
        for position, request in enumerate(requests):
            picture = pb_utils.get_input_tensor_by_name(request, "picture").as_numpy().item()
            try:
                images.append(preprocess(picture))
                good.append(position)
            except Exception as error:
                answers[position] = failed(
                    f"not a JPEG file: {error}", pb_utils.TritonError.INVALID_ARG
                )
        if good:
            for position, answer in zip(good, infer(np.stack(images))):
                answers[position] = answer
        return answers


def infer(images):
    """Return an answer for each image."""
    inputs = [pb_utils.Tensor("images", images)]
    request = pb_utils.InferenceRequest(
        model_name="resnet50", requested_output_names=["scores"], inputs=inputs
    )
    reply = request.exec()
    if reply.has_error():
        return [failed(reply.error().message(), pb_utils.TritonError.INTERNAL) for _ in images]
    scores = pb_utils.get_output_tensor_by_name(reply, "scores").as_numpy()
    return [pb_utils.InferenceResponse([pb_utils.Tensor("scores", row[None])]) for row in scores]


def failed(why, code):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(why, code))
