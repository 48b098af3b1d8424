"""Decode pictures."""

import triton_python_backend_utils as pb_utils
from pictures import preprocess


class TritonPythonModel:
    def execute(self, requests):
        return [
            decode(pb_utils.get_input_tensor_by_name(request, "picture").as_numpy().item())
            for request in requests
        ]


def decode(picture):
    try:
        image = preprocess(picture)
    except Exception as error:
        why = pb_utils.TritonError(f"not a JPEG file: {error}", pb_utils.TritonError.INVALID_ARG)
        return pb_utils.InferenceResponse(error=why)
    return pb_utils.InferenceResponse([pb_utils.Tensor("images", image[None])])
