"""A script's device: what it takes, what it puts on record, and how it tells a script that it takes
no more.
"""

import contextlib

import numpy as np
import pytest

from bottleneck_lab.measure.channel.messages import Broken, Done, TrainBatch, Trained
from bottleneck_lab.measure.channel.wire import Closed
from bottleneck_lab.measure.kinds.inference_server.pixels import IMAGES as FORM
from bottleneck_lab.measure.kinds.input_pipeline.device import Device, EmulatedEngine
from bottleneck_lab.measure.kinds.input_pipeline.learner_api import SLOTS, Accelerator

from .device_thread import running

BATCH = 2
IMAGES = FORM.values("uint8", BATCH)


@contextlib.contextmanager
def a_device(step_s: float, range_=None):
    """A script's accelerator, and the verifier's channel to the device at its other end."""
    engine = EmulatedEngine(step_s, BATCH)
    with running(
        lambda host, verifier, arena: Device(host, verifier, arena, engine, FORM, BATCH),
        SLOTS * BATCH * FORM.largest_bytes,
    ) as (script, arena, verifier):
        yield Accelerator(script, arena, FORM, range_), verifier


def test_every_step_is_on_record_before_training_counts_as_done():
    """Also where a script returns as soon as its last batch is queued."""
    with a_device(step_s=0.05) as (accelerator, verifier):
        for _ in range(SLOTS):
            accelerator.step(IMAGES, range(BATCH))
        accelerator.finish()
        heard = [type(verifier.receive(10)) for _ in range(SLOTS + 1)]
    assert heard == [Trained] * SLOTS + [Done]


def test_a_wait_for_the_device_is_no_part_of_the_copy():
    names = []

    def range_(name):
        names.append(name)
        return contextlib.nullcontext()

    with a_device(step_s=0.05, range_=range_) as (accelerator, _):
        for _ in range(SLOTS + 1):
            accelerator.step(IMAGES, range(BATCH))
        accelerator.finish()
    assert names[:-1] == [*["h2d", "step"] * SLOTS, "wait for device", "h2d", "step"]


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (
            FORM.values("uint8", BATCH + 1),
            range(BATCH + 1),
            "batches of 1 to 2 images; this one has 3",
        ),
        (IMAGES[:0], [], "this one has 0"),
        (
            IMAGES,
            np.zeros((BATCH, 1)),
            r"as many labels, in one dimension; these have shape \(2, 1\)",
        ),
        (IMAGES.astype(np.int8), range(BATCH), "these are 2×3×224×224, int8"),
        (IMAGES.transpose(0, 2, 3, 1), range(BATCH), "these are 2×224×224×3, uint8"),
    ],
    ids=["too many", "none", "labels", "type", "layout"],
)
def test_a_step_that_the_device_does_not_take_is_refused_where_it_is_made(images, labels, words):
    with a_device(step_s=0) as (accelerator, verifier):
        with pytest.raises(ValueError, match=words):
            accelerator.step(images, labels)
        accelerator.step(IMAGES, range(BATCH))  # nothing is lost by it
        accelerator.finish()
        assert [type(verifier.receive(10)) for _ in range(2)] == [Trained, Done]


def test_a_script_that_sent_what_is_no_step_does_not_wait_for_ever():
    with a_device(step_s=0) as (accelerator, verifier):
        accelerator.channel.send(TrainBatch(0, "float64", 1, np.array([0])))
        assert isinstance(verifier.receive(10), Broken)
        with pytest.raises(Closed):
            accelerator.synchronize()
