"""Pictures are decoded in two processes as they arrive; the batch path gets arrays."""

import asyncio
import io
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import recipe
from PIL import Image
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

MAX_BATCH = 16


def preprocess(jpeg):
    image = Image.open(io.BytesIO(jpeg))
    image.draft("RGB", recipe.RESIZE)
    image = image.convert("RGB").resize(recipe.RESIZE, Image.Resampling.BILINEAR).crop(recipe.CROP)
    return np.asarray(image).transpose(2, 0, 1).tobytes()


class Batches:
    """Collects on the event loop; the model is called on two threads."""

    def __init__(self, model):
        self.model = model
        self.waiting = []
        self.running = 0
        self.threads = ThreadPoolExecutor(2)

    async def run(self, pixels):
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((pixels, future))
        self.start()
        return await future

    def start(self):
        if (
            self.running < 2
            and self.waiting
            and (len(self.waiting) >= MAX_BATCH or self.running == 0)
        ):
            batch, self.waiting = self.waiting[:MAX_BATCH], self.waiting[MAX_BATCH:]
            self.running += 1
            asyncio.ensure_future(self.infer(batch))

    async def infer(self, batch):
        images = [np.frombuffer(pixels, np.uint8).reshape(3, 224, 224) for pixels, _ in batch]
        loop = asyncio.get_running_loop()
        scores = await loop.run_in_executor(self.threads, lambda: self.model(np.stack(images)))
        for (_, future), row in zip(batch, scores):
            if not future.done():
                future.set_result(row)
        self.running -= 1
        self.start()


def serve(listener, model):
    batches, pool = Batches(model), ProcessPoolExecutor(2)

    async def classify(http):
        jpeg = await http.body()
        try:
            pixels = await asyncio.get_running_loop().run_in_executor(pool, preprocess, jpeg)
        except Exception as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        return JSONResponse({"scores": (await batches.run(pixels)).tolist()})

    recipe.run(Starlette(routes=[Route("/classify", classify, methods=["POST"])]), listener)


if __name__ == "__main__":
    recipe.main(serve)
