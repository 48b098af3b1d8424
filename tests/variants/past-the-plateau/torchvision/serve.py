"""torchvision decodes and resizes uint8 tensors, on two threads, as requests arrive; one thread puts batches together, two run them."""

import asyncio
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import recipe
import torch
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms.v2 import functional as F

MAX_BATCH = 16
torch.set_num_threads(1)


def preprocess(jpeg):
    pixels = decode_jpeg(
        torch.frombuffer(bytearray(jpeg), dtype=torch.uint8), mode=ImageReadMode.RGB
    )
    left, top, right, bottom = recipe.CROP
    width, height = recipe.RESIZE
    return F.resize(pixels, [height, width], antialias=True)[:, top:bottom, left:right]


class Runner:
    def __init__(self, model):
        self.model = model
        self.decoded = queue.Queue()
        self.batches = queue.Queue(maxsize=1)
        threading.Thread(target=self.collect, daemon=True).start()
        for _ in range(2):
            threading.Thread(target=self.infer, daemon=True).start()

    def collect(self):
        while True:
            batch = [self.decoded.get()]
            while len(batch) < MAX_BATCH:
                try:
                    batch.append(self.decoded.get(timeout=0.005))
                except queue.Empty:
                    break
            self.batches.put(batch)

    def infer(self):
        while True:
            batch = self.batches.get()
            scores = self.model(torch.stack([pixels for pixels, _ in batch]))
            for (_, future), row in zip(batch, scores):
                future.get_loop().call_soon_threadsafe(settle, future, row)


def settle(future, row):
    if not future.done():
        future.set_result(row)


def serve(listener, model):
    runner, pool = Runner(model), ThreadPoolExecutor(2)

    async def classify(http):
        loop = asyncio.get_running_loop()
        jpeg = await http.body()
        try:
            pixels = await loop.run_in_executor(pool, preprocess, jpeg)
        except (RuntimeError, ValueError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        future = loop.create_future()
        runner.decoded.put((pixels, future))
        return JSONResponse({"scores": (await future).tolist()})

    recipe.run(Starlette(routes=[Route("/classify", classify, methods=["POST"])]), listener)


if __name__ == "__main__":
    recipe.main(serve)
