"""Decodes pictures, a batch at a time."""

import triton_python_backend_utils as pb_utils
from pictures import Decoder, problem_with


class TritonPythonModel:
    def initialize(self, args):
        self.decode = Decoder()

    def execute(self, requests):
        pictures = [
            pb_utils.get_input_tensor_by_name(request, "picture").as_numpy().item()
            for request in requests
        ]
        problems = [problem_with(picture) for picture in pictures]
        good = [picture for picture, problem in zip(pictures, problems) if not problem]
        images = iter(self.decode(good) if good else [])
        return [failed(problem) if problem else answer(next(images)) for problem in problems]


def answer(image):
    return pb_utils.InferenceResponse([pb_utils.Tensor("images", image[None])])


def failed(problem):
    why = pb_utils.TritonError(f"not a JPEG file: {problem}", pb_utils.TritonError.INVALID_ARG)
    return pb_utils.InferenceResponse(error=why)
