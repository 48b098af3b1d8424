"""Serve an image classifier over HTTP, in batches.

Alone, with a real model on this machine's GPU or CPU: python serve.py --port 8000

    POST /classify          a JPEG file; the scores as JSON
    GET  /metrics           for Prometheus; deploy/grafana-inference-server.json shows it
    POST /profile?batches=8 a torch.profiler trace of the next batches, for `lab report` or Perfetto
"""

import asyncio
import io
import logging
import queue
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import recipe
import torch
from PIL import Image
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from torch.profiler import record_function

SERVER = "python"  # "triton" serves models/ with a Triton Inference Server instead of this file
MAX_BATCH = 16
MAX_WAIT_S = 0.005
DECODERS = 2  # threads: Pillow releases the GIL while it decodes
IN_FLIGHT = 2  # batches: the next is built while one runs
MAX_WAITING = 512  # requests; more would wait longer than anybody wants to
MAX_BODY_BYTES = 8 << 20
MAX_PROFILED = 100
PROFILE_S = 30.0


class Metrics:
    """What the server reports about itself."""

    def __init__(self):
        self.registry = CollectorRegistry()
        options = {"registry": self.registry}
        self.waiting = Gauge(
            "server_waiting_requests", "Requests accepted and not answered yet", **options
        )
        self.answers = Counter("server_answers", "Answers, by HTTP status", ["status"], **options)
        sizes = [1, 2, 4, 8, 12, 16, 24, 32]
        self.batch = Histogram("server_batch_size", "Images in a batch", buckets=sizes, **options)
        times = [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5]
        self.latency = Histogram(
            "server_latency_seconds", "From the body to the answer", buckets=times, **options
        )
        self.queued = Histogram(
            "server_queue_seconds", "From decoded to the batch's start", buckets=times, **options
        )


def preprocess(jpeg):
    """The middle of a picture as bytes, uint8 3×224×224: the model normalises it on the device."""
    image = Image.open(io.BytesIO(jpeg), formats=["JPEG"])
    # Decoded at half its size: the decoder skips most of the work, and the resize still gets more
    # pixels than it needs.
    image.draft("RGB", recipe.RESIZE)
    image = image.convert("RGB").resize(recipe.RESIZE, Image.Resampling.BILINEAR).crop(recipe.CROP)
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


class PictureError(Exception):
    """A body that is not a JPEG file."""


class Picture:
    """A decoded picture that a client is waiting for."""

    def __init__(self, pixels, loop):
        self.pixels = pixels
        self.loop = loop
        self.answer = loop.create_future()
        self.since = time.monotonic()

    def finish(self, scores=None, error=None):
        self.loop.call_soon_threadsafe(self.set, scores, error)

    def set(self, scores, error):
        if self.answer.done():  # the client has gone
            return
        if error is None:
            self.answer.set_result(scores)
        else:
            self.answer.set_exception(error)


class Profile:
    """A torch.profiler trace of the next batches, on demand, one at a time."""

    def __init__(self):
        self.taking = threading.Lock()
        self.left = 0
        self.enough = threading.Event()

    def take(self, batches):
        """The gzipped trace of the next `batches`, or of PROFILE_S if fewer run in that time."""
        self.enough.clear()
        everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        with torch.profiler.profile(experimental_config=everywhere) as profiler:
            self.left = batches
            self.enough.wait(PROFILE_S)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json.gz"
            profiler.export_chrome_trace(str(path))
            return path.read_bytes()

    def batch_ended(self):
        self.left -= 1
        if self.left == 0:
            self.enough.set()


class Batcher:
    """Collects decoded pictures into batches and runs the model on them, two batches at a time."""

    def __init__(self, model, metrics, profile):
        self.model = model
        self.metrics = metrics
        self.profile = profile
        self.ready = queue.Queue()
        self.collecting = threading.Lock()
        for number in range(IN_FLIGHT):
            threading.Thread(target=self.work, name=f"batcher {number}", daemon=True).start()

    def collect(self):
        """The next batch: up to MAX_BATCH decoded pictures, or those ready within MAX_WAIT_S of the
        first.
        """
        batch = [self.ready.get()]
        deadline = time.monotonic() + MAX_WAIT_S
        while len(batch) < MAX_BATCH:
            try:
                batch.append(self.ready.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                break
        return [picture for picture in batch if not picture.answer.done()]

    def work(self):
        while True:
            with record_function("queue"), self.collecting:
                batch = self.collect()
            if batch:
                self.run(batch)
                self.profile.batch_ended()

    def run(self, batch):
        now = time.monotonic()
        self.metrics.batch.observe(len(batch))
        for picture in batch:
            self.metrics.queued.observe(now - picture.since)
        try:
            scores = self.model(np.stack([picture.pixels for picture in batch]))
        except Exception as error:
            for picture in batch:
                picture.finish(error=error)
            return
        with record_function("postprocess"):
            for picture, row in zip(batch, scores):
                picture.finish(row)


class Service:
    """The HTTP side: what is accepted, what is refused, and how it is answered."""

    def __init__(self, model):
        self.metrics = Metrics()
        self.profile = Profile()
        self.batcher = Batcher(model, self.metrics, self.profile)
        self.decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="decoder")
        self.waiting = 0

    def decode(self, jpeg):
        with record_function("preprocess"):
            try:
                return preprocess(jpeg)
            except Exception as error:  # decoders raise all kinds
                raise PictureError(str(error)) from error

    async def body(self, http):
        """The body, or None if it is larger than MAX_BODY_BYTES; no more than that is read."""
        parts, size = [], 0
        async for part in http.stream():
            parts.append(part)
            size += len(part)
            if size > MAX_BODY_BYTES:
                return None
        return b"".join(parts)

    async def scores(self, jpeg):
        loop = asyncio.get_running_loop()
        picture = Picture(await loop.run_in_executor(self.decoders, self.decode, jpeg), loop)
        self.batcher.ready.put(picture)
        return await picture.answer

    async def answer(self, http):
        if self.waiting >= MAX_WAITING:
            return refusal(503, "too many requests are waiting", {"Retry-After": "1"})
        self.waiting += 1
        try:
            jpeg = await self.body(http)
            if jpeg is None:
                return refusal(
                    413,
                    f"a picture may have at most {MAX_BODY_BYTES} bytes",
                    {"Connection": "close"},
                )
            return JSONResponse({"scores": (await self.scores(jpeg)).tolist()})
        except PictureError as error:
            return refusal(400, f"not a JPEG file: {error}")
        finally:
            self.waiting -= 1

    async def classify(self, http):
        began = time.monotonic()
        try:
            response = await self.answer(http)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody will read it
        except Exception:
            logging.exception("a batch failed")
            response = refusal(500, "the model failed")
        self.metrics.answers.labels(response.status_code).inc()
        self.metrics.latency.observe(time.monotonic() - began)
        return response

    async def show_metrics(self, http):
        self.metrics.waiting.set(self.waiting)
        return Response(
            generate_latest(self.metrics.registry), media_type="text/plain; version=0.0.4"
        )

    async def take_profile(self, http):
        batches = http.query_params.get("batches", "8")
        if not batches.isdecimal() or not 1 <= int(batches) <= MAX_PROFILED:
            return refusal(400, f"batches must be a number from 1 to {MAX_PROFILED}")
        if not self.profile.taking.acquire(blocking=False):
            return refusal(409, "another profile is being taken")
        try:
            trace = await asyncio.to_thread(self.profile.take, int(batches))
        finally:
            self.profile.taking.release()
        return Response(trace, media_type="application/gzip")


def refusal(status, why, headers=None):
    return JSONResponse({"error": why}, status_code=status, headers=headers)


def make_app(model):
    service = Service(model)
    return Starlette(
        routes=[
            Route("/classify", service.classify, methods=["POST"]),
            Route("/metrics", service.show_metrics),
            Route("/profile", service.take_profile, methods=["POST"]),
        ]
    )


def serve(listener, model):
    """Serve requests on `listener`, a socket, with `model`: given N×3×224×224 it returns N×10
    scores.
    """
    recipe.run(make_app(model), listener)


if __name__ == "__main__":
    recipe.main(serve)
