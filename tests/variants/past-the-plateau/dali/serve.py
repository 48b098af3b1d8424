"""A DALI pipeline decodes and resizes whole batches on two threads of its own, while the batch before is on the device."""

import asyncio
import io
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.types as types
import recipe
from nvidia.dali import pipeline_def
from PIL import Image
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

MAX_BATCH = 16


@pipeline_def(batch_size=MAX_BATCH, num_threads=2, device_id=None, prefetch_queue_depth=1)
def pipeline():
    encoded = fn.external_source(name="encoded", no_copy=True)
    image = fn.decoders.image(encoded, device="cpu", use_fast_idct=True)
    width, height = recipe.RESIZE
    image = fn.resize(image, size=(height, width), interp_type=types.INTERP_TRIANGULAR)
    left, top, right, bottom = recipe.CROP
    image = image[top:bottom, left:right]
    return fn.transpose(image, perm=[2, 0, 1])


class Runner:
    def __init__(self, model):
        self.model = model
        self.waiting = queue.Queue()
        self.pipe = pipeline()
        self.pipe.build()
        self.in_flight = threading.Semaphore(2)
        self.threads = ThreadPoolExecutor(2)
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        while True:
            batch = [self.waiting.get()]
            while len(batch) < MAX_BATCH:
                try:
                    batch.append(self.waiting.get(timeout=0.005))
                except queue.Empty:
                    break
            self.pipe.feed_input("encoded", [np.frombuffer(jpeg, np.uint8) for jpeg, _ in batch])
            images = np.array(self.pipe.run()[0].as_array())
            self.in_flight.acquire()
            self.threads.submit(self.infer, images, [future for _, future in batch])

    def infer(self, images, futures):
        scores = self.model(images)
        self.in_flight.release()
        for future, row in zip(futures, scores):
            future.get_loop().call_soon_threadsafe(settle, future, row)


def settle(future, row):
    if not future.done():
        future.set_result(row)


def check(jpeg):
    """Raises where the file is not whole enough to be decoded: one such picture would spoil DALI's batch."""
    image = Image.open(io.BytesIO(jpeg), formats=["JPEG"])
    if not jpeg.rstrip(b"\0").endswith(b"\xff\xd9") or image.mode not in ("RGB", "L"):
        raise ValueError("the file is cut off, or not RGB")


def serve(listener, model):
    runner = Runner(model)

    async def classify(http):
        jpeg = await http.body()
        try:
            check(jpeg)
        except (OSError, SyntaxError, ValueError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        future = asyncio.get_running_loop().create_future()
        runner.waiting.put((jpeg, future))
        return JSONResponse({"scores": (await future).tolist()})

    recipe.run(Starlette(routes=[Route("/classify", classify, methods=["POST"])]), listener)


if __name__ == "__main__":
    recipe.main(serve)
