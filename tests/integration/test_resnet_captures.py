"""Captures of the two ResNet workloads show what their labs teach."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.capture.tools import profile_workload
from bottleneck_lab.capture.workload import Workload
from bottleneck_lab.catalog import Lab, LabSpec
from bottleneck_lab.declared import read_toml
from bottleneck_lab.trace.load import load

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]


def captured(slug, photos, folder, scripts):
    """The summary of a capture on the CPU, the editable files taken from `scripts`."""
    spec = msgspec.convert(read_toml(ROOT / "labs" / slug / "lab.toml"), LabSpec)
    lab = Lab(slug, "beginner", ROOT / "labs" / slug, ROOT / "solutions" / slug, spec)
    work, out = folder / "workspace", folder / "out"
    out.mkdir(parents=True)
    work.mkdir()
    for name in spec.files:
        shutil.copy((scripts if name in spec.editable else lab.path) / name, work)
    trace = profile_workload(Workload(lab, work, "cpu", photos), "torch", out)
    return summarise(load(trace))


def test_the_shipped_service_spends_most_of_a_request_on_preparing_the_picture(photos, tmp_path):
    seen = captured("resnet-latency", photos, tmp_path, ROOT / "labs" / "resnet-latency")
    assert seen.findings[0].id == "input-starved"
    assert seen.range_shares["preprocess"] > max(
        seen.range_shares["model"], seen.range_shares["postprocess"]
    )


@pytest.fixture(scope="module")
def solved(photos, tmp_path_factory):
    """The summary of each lab's solution, captured at the same time: what they show has room for a
    neighbour.
    """

    def capture(slug):
        return captured(slug, photos, tmp_path_factory.mktemp(slug), ROOT / "solutions" / slug)

    slugs = ("resnet-latency", "resnet-top-ops")
    with ThreadPoolExecutor() as pool:
        return dict(zip(slugs, pool.map(capture, slugs), strict=True))


@pytest.mark.slow
def test_the_solution_has_moved_the_bottleneck_to_the_network(solved):
    shares = solved["resnet-latency"].range_shares
    assert shares["model"] > shares["preprocess"]


@pytest.mark.slow
def test_convolutions_are_the_top_operator_of_a_recorded_pass(solved):
    assert "conv" in solved["resnet-top-ops"].operators[0].name
