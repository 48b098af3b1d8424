"""Serve an image classifier over HTTP, in batches.

Alone, with a real model on this machine's GPU or CPU: python serve.py --port 8000
"""

import asyncio
import io
import queue
import threading
import time

import numpy as np
import recipe
import torch
from PIL import Image
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from torch.profiler import record_function

SERVER = "python"  # "triton" serves models/ with a Triton Inference Server instead of this file
MAX_BATCH = 16
MAX_WAIT_S = 0.005


def preprocess(jpeg):
    """The middle of a picture as the model expects it: float32, 3×224×224, normalised."""
    image = Image.open(io.BytesIO(jpeg)).convert("RGB")
    image = image.resize(recipe.RESIZE, Image.Resampling.BILINEAR).crop(recipe.CROP)
    pixels = np.array(image) / 255.0
    pixels = (pixels - recipe.MEAN) / recipe.STD
    return torch.tensor(pixels.transpose(2, 0, 1), dtype=torch.float32)


class Request:
    """A picture that a client is waiting for."""

    def __init__(self, jpeg):
        self.jpeg = jpeg
        self.loop = asyncio.get_running_loop()
        self.answer = self.loop.create_future()

    def finish(self, scores=None, error=None):
        self.loop.call_soon_threadsafe(self.set, scores, error)

    def set(self, scores, error):
        if self.answer.done():  # the client has gone
            return
        if error is None:
            self.answer.set_result(scores)
        else:
            self.answer.set_exception(error)


class Batcher:
    """Collects requests into batches and runs the model on them."""

    def __init__(self, model):
        self.model = model
        self.waiting = queue.Queue()
        threading.Thread(target=self.work, name="batcher", daemon=True).start()

    def collect(self):
        """The next batch: up to MAX_BATCH requests, or those that arrive within MAX_WAIT_S of the
        first.
        """
        batch = [self.waiting.get()]
        deadline = time.monotonic() + MAX_WAIT_S
        while len(batch) < MAX_BATCH:
            try:
                batch.append(self.waiting.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                break
        return batch

    def work(self):
        while True:
            with record_function("queue"):
                batch = self.collect()
            self.run(batch)

    def run(self, batch):
        good, images = [], []
        with record_function("preprocess"):
            for request in batch:
                try:
                    images.append(preprocess(request.jpeg))
                    good.append(request)
                except Exception as error:
                    request.finish(error=error)
        if good:
            scores = self.model(torch.stack(images))
            with record_function("postprocess"):
                for request, row in zip(good, scores):
                    request.finish(row)


def make_app(model):
    batcher = Batcher(model)

    async def classify(http):
        request = Request(await http.body())
        batcher.waiting.put(request)
        try:
            scores = await request.answer
        except Exception as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        return JSONResponse({"scores": scores.tolist()})

    return Starlette(routes=[Route("/classify", classify, methods=["POST"])])


def serve(listener, model):
    """Serve requests on `listener`, a socket, with `model`: given N×3×224×224 it returns N×10
    scores.
    """
    recipe.run(make_app(model), listener)


if __name__ == "__main__":
    recipe.main(serve)
