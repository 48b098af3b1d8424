"""The model of a server on a GPU, on a device that is not there: what it answers, what it says that
it saw, and that a batch's company changes nothing.
"""

from __future__ import annotations

import contextlib
import time
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.measure.channel.messages import (
    Begin,
    DeviceReady,
    Infer,
    Inferred,
    MeasureStep,
    Ran,
    Score,
    Scored,
)
from bottleneck_lab.measure.context import load_judge
from bottleneck_lab.measure.kinds.inference_server import device as device_module
from bottleneck_lab.measure.kinds.inference_server.device import EmulatedModel, ServingDevice
from bottleneck_lab.measure.kinds.inference_server.judging import SCORES_WITHIN
from bottleneck_lab.measure.kinds.inference_server.learner_api import MAX_BATCH
from bottleneck_lab.measure.kinds.inference_server.pixels import IMAGES, MEAN, STD, levels
from bottleneck_lab.measure.kinds.inference_server.session import DeviceSession
from bottleneck_lab.measure.kinds.inference_server.size import SetSize
from bottleneck_lab.measure.kinds.input_pipeline.learner_api import SLOTS

from ...pretend import on_device, pretend_gpu
from .device_thread import running

pytestmark = pytest.mark.long


@pytest.fixture
def on_the_host(monkeypatch):
    """This process's torch with a CUDA device in it that is not there, until the test ends."""
    with pretend_gpu.installed(), on_device(monkeypatch) as torch:
        yield torch


def of_members(count):
    from bottleneck_lab.measure.kinds.inference_server.ensemble import Ensemble

    ensemble = Ensemble(load_judge(find_lab("past-the-plateau")).member)
    ensemble.set_size(SetSize(0.0, 0.0, count))
    return ensemble


@pytest.fixture
def ensemble(on_the_host):
    return of_members(3)


@pytest.fixture
def pictures():
    """Thirteen, each of its own colour and with its own blot."""
    rng = np.random.default_rng(0)
    pictures = np.tile(rng.integers(0, 256, (13, 3, 1, 1), np.uint8), (1, 1, 224, 224))
    for number, picture in enumerate(pictures):
        picture[:, number * 10 : number * 10 + 90, 50:180] = rng.integers(0, 256, (3, 1, 1))
    return pictures


def run(model, images):
    model.start(images, images, 0)
    while model.ended_ns() is None:
        time.sleep(model.patience_s())
    return model.answer()


def test_a_picture_gets_the_same_scores_in_any_batch_and_type(ensemble, pictures):
    scores, _ = run(ensemble, pictures)
    assert scores.shape == (13, 10)
    apart = np.abs(scores[:, None] - scores[None]).max(-1) + 99 * np.eye(13)
    assert apart.min() > 0.01, "two pictures are told apart"
    assert run(ensemble, pictures[4:5])[0] == pytest.approx(scores[4:5], abs=1e-4)
    floats = ((pictures / 255 - MEAN) / STD).astype(np.float32)
    assert run(ensemble, floats)[0] == pytest.approx(scores, abs=1e-4)


def test_what_the_networks_saw_is_read_off_the_device(ensemble, pictures):
    seen = run(ensemble, pictures)[1].astype(int)
    assert np.abs(seen - levels(pictures)).max() <= 1


def test_weights_are_others_each_time(ensemble, pictures):
    other = of_members(3)
    assert np.abs(run(ensemble, pictures)[0] - run(other, pictures)[0]).max() > 0.05


def test_one_that_gets_another_size_keeps_the_networks_that_it_has(on_the_host, pictures):
    ensemble = of_members(1)
    alone = run(ensemble, pictures)[0]
    ensemble.set_size(SetSize(0.0, 0.0, 3))
    together = run(ensemble, pictures)[0]
    assert np.abs(together - alone).max() > 0.05
    ensemble.set_size(SetSize(0.0, 0.0, 1))
    assert run(ensemble, pictures)[0] == pytest.approx(alone, abs=1e-4)


def test_a_batch_lasts_from_its_start_to_the_device_s_own_end(ensemble, pictures):
    started_ns = ensemble.start(pictures, pictures, 0)
    while (ended_ns := ensemble.ended_ns()) is None:
        time.sleep(ensemble.patience_s())
    assert 0 < ended_ns - started_ns <= time.monotonic_ns() - started_ns
    assert ensemble.step_s(16) > 0


@contextlib.contextmanager
def a_device(model):
    """A server's end of a device, its arena, and the verifier's end."""
    with running(
        lambda host, verifier, arena: ServingDevice(
            host, verifier, arena, model, IMAGES, MAX_BATCH
        ),
        SLOTS * MAX_BATCH * IMAGES.largest_bytes,
    ) as ends:
        yield ends


def test_a_device_scores_pictures_again_when_it_is_asked_to(pictures):
    with a_device(EmulatedModel(0.001, 0.0001)) as (server, arena, verifier):
        arena.view(np.dtype("uint8"), pictures.shape, 0)[...] = pictures
        server.send(Infer(0, "uint8", len(pictures)))
        answered, ran = server.receive(10), verifier.receive(10)
        assert isinstance(answered, Inferred)
        assert isinstance(ran, Ran)
        verifier.send(Score(pictures[3:6]))
        again = verifier.receive(10)
    assert isinstance(again, Scored)
    assert again.scores == pytest.approx(answered.scores[3:6], abs=1e-5)


def test_a_device_that_still_has_reports_to_send_takes_the_pictures_to_score(pictures, monkeypatch):
    """Its report of a batch, with all pixels, is more than its socket holds."""
    monkeypatch.setattr(device_module, "KEPT_SHARE", 1.0)
    images = pictures[np.arange(MAX_BATCH) % len(pictures)]
    with a_device(EmulatedModel(0.001, 0.0001)) as (server, arena, verifier):
        arena.view(np.dtype("uint8"), images.shape, 0)[...] = images
        server.send(Infer(0, "uint8", len(images)))
        answered = server.receive(10)
        reading = SimpleNamespace(receive=lambda timeout_s, _: verifier.receive(timeout_s))
        session = DeviceSession(reading, "")
        session.device = SimpleNamespace(channel=verifier)
        assert session.scores_alone(images) == pytest.approx(answered.scores, abs=1e-5)
    assert [len(batch.scores) for batch in session.batches] == [MAX_BATCH]


def test_a_device_gets_its_size_when_it_runs_and_lets_its_server_begin():
    with a_device(EmulatedModel()) as (server, _, verifier):
        verifier.send(SetSize(0.004, 0.001, 0))
        assert isinstance(verifier.receive(10), DeviceReady)
        verifier.send(MeasureStep())
        step = verifier.receive(10)
        verifier.send(Begin())
        assert isinstance(server.receive(10), Begin)
    assert isinstance(step, DeviceReady)
    assert step.step_s == pytest.approx(0.004 + MAX_BATCH * 0.001)


@pytest.mark.slow
def test_two_photographs_differ_far_more_than_one_does_from_batch_to_batch(monkeypatch, photos):
    """The lab's own network, a ResNet-50, on the host."""
    with on_device(monkeypatch) as torch:
        torch.manual_seed(1)
        network = load_judge(find_lab("past-the-plateau")).member()
    files = sorted((photos / "large").glob("*.jpg"))[:8]
    shown = [
        np.asarray(Image.open(file).convert("RGB").resize((224, 224))).transpose(2, 0, 1)
        for file in files
    ]
    images = torch.from_numpy(((np.stack(shown) / 255 - MEAN) / STD).astype(np.float32))
    together = network(images).numpy()
    alone = np.concatenate([network(images[at : at + 1]).numpy() for at in range(8)])
    assert np.abs(alone - together).max() < 0.1 * SCORES_WITHIN
    apart = np.abs(together[:, None] - together[None]).max(-1) + 99 * np.eye(8)
    assert apart.min() > 500 * SCORES_WITHIN
