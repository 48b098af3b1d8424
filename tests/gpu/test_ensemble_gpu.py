"""The model of a server on a real GPU: graphs, events and copies are CUDA's own, and the networks
are ResNet-50s.
"""

import time

import numpy as np
import pytest

from bottleneck_lab.capture.devices import gpus
from bottleneck_lab.catalog import find_lab
from bottleneck_lab.measure.context import load_judge
from bottleneck_lab.measure.kinds.inference_server.judging import SCORES_WITHIN
from bottleneck_lab.measure.kinds.inference_server.pixels import levels
from bottleneck_lab.measure.kinds.inference_server.size import SetSize

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpus(), reason="there is no CUDA device")]


@pytest.fixture(scope="module")
def ensemble():
    from bottleneck_lab.measure.kinds.inference_server.ensemble import Ensemble

    ensemble = Ensemble(load_judge(find_lab("past-the-plateau")).member)
    for members in (1, 2):
        ensemble.set_size(SetSize(0.0, 0.0, members))
    return ensemble


def run(model, images):
    started_ns = model.start(images, images, 0)
    while (ended_ns := model.ended_ns()) is None:
        time.sleep(model.patience_s())
    assert started_ns < ended_ns <= time.monotonic_ns() + 200_000, (
        "the GPU's own time fits into the host's"
    )
    return model.answer()


def test_scores_tell_pictures_apart_and_do_not_depend_on_the_batch(ensemble):
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (32, 3, 14, 14), dtype=np.uint8)
    pictures = coarse.repeat(16, axis=2).repeat(16, axis=3)
    scores, seen = run(ensemble, pictures)
    assert np.abs(seen.astype(int) - levels(pictures)).max() <= 1
    apart = np.abs(scores[:, None] - scores[None]).max(-1) + 99 * np.eye(32)
    assert apart.min() > 50 * SCORES_WITHIN
    for size in (1, 3, 16, 29):
        again = run(ensemble, pictures[:size])[0]
        assert np.abs(again - scores[:size]).max() < SCORES_WITHIN


def test_more_pictures_take_longer_and_a_time_holds(ensemble):
    assert ensemble.step_s(32) > 1.2 * ensemble.step_s(1)
    assert ensemble.step_s(16) == pytest.approx(ensemble.step_s(16), rel=0.2)
