"""Two batchers side by side, each with the shipped pre-processing on a pool of threads: one decodes while the other's batch runs."""

import asyncio
import io
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import recipe
from PIL import Image
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from torch.profiler import record_function

MAX_BATCH = 16
MAX_WAIT_S = 0.005


def preprocess(jpeg):
    try:
        image = Image.open(io.BytesIO(jpeg)).convert("RGB")
    except Exception as error:
        return error
    image = image.resize(recipe.RESIZE, Image.Resampling.BILINEAR).crop(recipe.CROP)
    return np.asarray(image).transpose(2, 0, 1)


class Batchers:
    def __init__(self, model):
        self.model = model
        self.waiting = queue.Queue()
        self.collecting = threading.Lock()
        self.pool = ThreadPoolExecutor(2)
        for _ in range(2):
            threading.Thread(target=self.work, daemon=True).start()

    def collect(self):
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
            with self.collecting:
                batch = self.collect()
            with record_function("preprocess"):
                images = list(self.pool.map(preprocess, [jpeg for jpeg, _ in batch]))
            good = [i for i, image in enumerate(images) if not isinstance(image, Exception)]
            answers = (
                dict(zip(good, self.model(np.stack([images[i] for i in good])))) if good else {}
            )
            for i, (_, future) in enumerate(batch):
                loop = future.get_loop()
                if i in answers:
                    loop.call_soon_threadsafe(settle, future, answers[i], None)
                else:
                    loop.call_soon_threadsafe(settle, future, None, images[i])


def settle(future, answer, error):
    if future.done():
        return
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)


def serve(listener, model):
    batchers = Batchers(model)

    async def classify(http):
        future = asyncio.get_running_loop().create_future()
        batchers.waiting.put((await http.body(), future))
        try:
            scores = await future
        except Exception as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        return JSONResponse({"scores": scores.tolist()})

    recipe.run(Starlette(routes=[Route("/classify", classify, methods=["POST"])]), listener)


if __name__ == "__main__":
    recipe.main(serve)
