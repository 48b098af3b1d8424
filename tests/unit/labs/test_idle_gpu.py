"""Lab idle-gpu: its declaration, its judge, and the pixels that the shipped script, the solution
and every variant deliver.
"""

import io
import json
import random
import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageFilter

from bottleneck_lab.catalog import LabSpec
from bottleneck_lab.declared import read_toml
from bottleneck_lab.measure.kinds.input_pipeline.learner_api import Epoch

from ... import warm
from ...modules import load_file

ROOT = Path(__file__).parents[3]
LAB = ROOT / "labs" / "idle-gpu"
SOLUTION = ROOT / "solutions" / "idle-gpu"
VARIANTS = sorted((ROOT / "tests" / "variants" / "idle-gpu").iterdir())
SEED, EPOCH, COUNT = 9, 1, 20
SHOWN = 8  # photographs that each honest way and each cheat is shown on
Filter = Image.Resampling


@pytest.fixture(scope="module")
def judge():
    return load_file(LAB / "judge.py", "dataloader_judge")


@pytest.fixture(scope="module")
def recipe():
    return load_file(LAB / "recipe.py", "dataloader_recipe_test")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    script = ROOT / "datasets" / "photos.py"
    arguments = ["--root", str(root), "--small", "3", "--large", str(COUNT), "--progress", "none"]
    subprocess.run([sys.executable, str(script), *arguments], check=True, timeout=120)
    return root


# ------------------------------------------------------------------------------------------
# declaration


@pytest.fixture(scope="module")
def spec():
    import msgspec

    return msgspec.convert(read_toml(LAB / "lab.toml"), LabSpec)


def test_an_epoch_of_the_check_comes_apart_as_the_recipe_shows(recipe):
    assert tuple(Epoch(1, 2, [3])) == tuple(recipe.Epoch(1, 2, [3]))
    assert Epoch._fields == recipe.Epoch._fields


def test_every_device_decides_the_same_criteria(spec):
    wanted = ["every-sample-once", "right-samples", "useful-utilisation"]
    for device in spec.devices.values():
        assert [criterion.id for criterion in device.criteria] == wanted
    targets = {
        c.id: (c.target, c.direction)
        for c in spec.devices["virtual"].criteria
        if c.target is not None
    }
    assert targets == {"useful-utilisation": (0.85, "at_least")}, "two workers reach 2 x 0.4"


def test_hints_and_taught_name_findings_that_exist(spec):
    findings = (ROOT / "checker/bottleneck_lab/analysis/findings.py").read_text()
    for name in [spec.taught, *(hint.finding for hint in spec.hints if hint.finding)]:
        assert f'"{name}"' in findings


def test_the_solution_answers_every_question(spec):
    answers = read_toml(SOLUTION / "diagnosis.toml")
    assert set(answers) == {question.id for question in spec.questions}
    assert answers["cause"] in next(q for q in spec.questions if q.id == "cause").choices
    assert answers["predicted_gain"] == pytest.approx(1 / (1 - answers["evidence"]))


def test_the_shipped_diagnosis_is_unanswered():
    assert not any(read_toml(LAB / "diagnosis.toml").values())


def test_no_file_gives_the_answer_away(spec):
    shipped = "".join((LAB / name).read_text() for name in [*spec.files, "README.md"]).lower()
    assert not [
        word
        for word in ("slow on purpose", "bottleneck", "num_workers=2", "draft")
        if word in shipped
    ]


# ------------------------------------------------------------------------------------------ recipe


def test_augmentation_is_a_function_of_its_arguments_and_always_visible(recipe):
    draws = [
        recipe.augmentation(seed, epoch, index)
        for seed in (1, 2)
        for epoch in (0, 1)
        for index in range(50)
    ]
    assert draws[7] == recipe.augmentation(1, 0, 7)
    assert len(set(draws)) == len(draws)
    for draw in draws:
        assert all(abs(factor - 1) >= 0.25 for factor in draw[3:])
        for size in [(256, 256), (341, 256), (256, 341)]:
            left, top = recipe.crop_corner(*size, draw)
            assert 0 <= left <= size[0] - 224
            assert 0 <= top <= size[1] - 224
    assert 0.3 < sum(draw.flip for draw in draws) / len(draws) < 0.7


def test_resized_keeps_the_shape_and_the_shorter_side_is_256(recipe):
    assert recipe.resized(1632, 1224) == (341, 256)
    assert recipe.resized(1224, 1632) == (256, 341)


# ------------------------------------------------------------------------------------------ judge


@pytest.fixture(scope="module")
def wanted(judge, photos):
    return [judge.reference_sample(photos, index, SEED, EPOCH) for index in range(SHOWN)]


def make_sample(
    judge,
    recipe,
    photos,
    index,
    *,
    filter_=Filter.BILINEAR,
    via=None,
    draft=0,
    after=None,
    shift=0,
    draw=None,
):
    """A sample by another way than the reference's: other filter, decoded smaller, enlarged from
    `via` pixels, stored, shifted.
    """
    draw = draw or recipe.augmentation(SEED, EPOCH, index)
    image = Image.open(recipe.photographs(photos)[index][0])
    size = recipe.resized(*image.size)
    if draft:
        image.draft("RGB", (draft * size[0], draft * size[1]))
    image = image.convert("RGB")
    if via:
        image = image.resize((size[0] * via // 256, size[1] * via // 256), Filter.BILINEAR)
    image = image.resize(size, filter_)
    image = after(image) if after else image
    left, top = recipe.crop_corner(*size, draw)
    left += shift if left + shift + 224 <= size[0] else -shift
    return judge.augmented(image.crop((left, top, left + 224, top + 224)), draw)


def stored(quality, subsampling=2):
    """Through a JPEG of this quality, as a cache of resized photographs would be."""

    def through(image):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality, subsampling=subsampling)
        return Image.open(file).convert("RGB")

    return through


def sharpened(image):
    return image.filter(ImageFilter.UnsharpMask(1, 100, 0))


def without(least, most):
    """Takes a band of spatial frequencies, in cycles a pixel, out of a picture."""

    def filtered(image):
        pixels = np.asarray(image).astype(float).transpose(2, 0, 1)
        spectrum = np.fft.rfft2(pixels)
        frequency = np.hypot(
            np.fft.fftfreq(pixels.shape[1])[:, None], np.fft.rfftfreq(pixels.shape[2])[None, :]
        )
        spectrum[:, (frequency >= least) & (frequency < most)] = 0
        levels = np.fft.irfft2(spectrum, pixels.shape[1:]).clip(0, 255).round().astype(np.uint8)
        return Image.fromarray(levels.transpose(1, 2, 0))

    return filtered


def small_colours(factor):
    """Keeps the brightness of every pixel, and colours of 1 / `factor` of the size."""

    def enlarged(image):
        luma, *chroma = image.convert("YCbCr").split()
        small = [
            each.resize((image.width // factor, image.height // factor), Filter.BILINEAR)
            for each in chroma
        ]
        large = [each.resize(image.size, Filter.BILINEAR) for each in small]
        return Image.merge("YCbCr", [luma, *large]).convert("RGB")

    return enlarged


HONEST = {
    "cached with little loss": {"after": stored(98, subsampling=0)},
    "decoded at twice the size": {"draft": 2},
    "decoded at about the size": {"draft": 1},
    "bicubic": {"filter_": Filter.BICUBIC},
    "Lanczos": {"filter_": Filter.LANCZOS},
    "box": {"filter_": Filter.BOX},
    "in two steps": {"via": 512},
}


@pytest.mark.parametrize("way", HONEST)
def test_honest_ways_are_accepted(judge, recipe, photos, wanted, way):
    for index in range(SHOWN):
        assert (
            judge.compare(make_sample(judge, recipe, photos, index, **HONEST[way]), wanted[index])
            is None
        )


CHEATS = {
    "no antialiasing": ({"filter_": Filter.NEAREST}, "antialiasing"),
    "enlarged from 224": ({"via": 224}, "enlarged"),
    "enlarged from 153": ({"via": 153}, "enlarged"),
    "enlarged from 112": ({"via": 112}, "enlarged"),
    "one pixel off": ({"shift": 1}, "off by a pixel", "light"),
    "enlarged from 153 and sharpened": (
        {"via": 153, "after": sharpened},
        "enlarged",
        "fine detail",
    ),
    "enlarged from 192 and sharpened": (
        {"via": 192, "after": sharpened},
        "enlarged",
        "fine detail",
    ),
    "a band of middle detail taken out": ({"after": without(0.10, 0.34)}, "detail"),
    "the coarsest octave taken out": ({"after": without(1 / 32, 1 / 16)}, "detail", "light"),
    "the second octave taken out": ({"after": without(1 / 16, 1 / 8)}, "detail"),
    "the third octave taken out": ({"after": without(1 / 8, 1 / 4)}, "detail"),
    "half an octave taken out": ({"after": without(0.15, 0.2)}, "detail"),
    "the finest octave thinned out": ({"after": without(0.25, 0.35)}, "detail"),
    "colours at a quarter of the size": ({"after": small_colours(4)}, "colours", "light", "detail"),
    "cached with heavy loss": ({"after": stored(30)}, "heavy loss", "fine detail"),
}


@pytest.mark.parametrize("way", CHEATS)
def test_less_than_the_pixels_is_refused_with_the_reason(judge, recipe, photos, wanted, way):
    arguments, *reasons = CHEATS[way]
    for index in range(SHOWN):
        complaint = judge.compare(
            make_sample(judge, recipe, photos, index, **arguments), wanted[index]
        )
        assert complaint is not None
        assert any(words in complaint for words in (*reasons, "something else"))


LEFT_OUT = {
    "no jitter": {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0},
    "no brightness": {"brightness": 1.0},
    "no contrast": {"contrast": 1.0},
    "no saturation": {"saturation": 1.0},
    "no flip": {"flip": False},
    "no random crop": {"x": 0.5, "y": 0.5},
}


@pytest.mark.parametrize("way", LEFT_OUT)
def test_a_step_left_out_is_refused(judge, recipe, photos, wanted, way):
    for index in range(SHOWN):
        draw = recipe.augmentation(SEED, EPOCH, index)
        lazy = draw._replace(**LEFT_OUT[way])
        if way == "no flip" and not draw.flip:
            continue
        assert (
            judge.compare(make_sample(judge, recipe, photos, index, draw=lazy), wanted[index])
            is not None
        )


@pytest.mark.parametrize("bits", [4, 5, 6])
def test_fewer_bits_are_refused(judge, photos, bits):
    want = judge.reference_sample(photos, 0, SEED, EPOCH)
    step = 1 << (8 - bits)
    assert "bits" in judge.compare(want // step * step + step // 2, want)


def test_other_pictures_are_refused(judge, photos):
    want = judge.reference_sample(photos, 0, SEED, EPOCH)
    others = [
        judge.reference_sample(photos, 1, SEED, EPOCH),
        judge.reference_sample(photos, 0, SEED, EPOCH + 1),
        judge.reference_sample(photos, 0, SEED + 1, EPOCH),
        np.full_like(want, 128),
        np.zeros_like(want),
        np.random.default_rng(0).integers(0, 256, want.shape, dtype=np.uint8),
        want[::-1],
        want[:, :112, :112],
    ]
    assert judge.compare(want, want) is None
    assert all(judge.compare(other, want) is not None for other in others)


def test_labels_and_count_are_the_large_photographs(judge, recipe, photos):
    assert judge.count(photos) == COUNT
    assert [judge.label(photos, index) for index in range(COUNT)] == [
        label for _, label in recipe.photographs(photos)
    ]


def test_calibration_gives_the_seconds_of_a_worker(judge, photos):
    seconds = judge.load("virtual")(str(photos), np.arange(4), 3)
    assert isinstance(seconds, float)
    assert 0.001 < seconds < 5


# ------------------------------------------------------------------------------------------ scripts

# Runs a script's train() against a device that keeps what it is given, over two epochs in different
# orders.
KEEPER = """
import importlib.util, json, sys
from pathlib import Path
import numpy as np
entry, lab, photos, cache, out = map(Path, sys.argv[1:6])
sys.path += [str(entry.parent), str(lab)]
spec = importlib.util.spec_from_file_location("train", entry)
script = importlib.util.module_from_spec(spec)
sys.modules["train"] = script
spec.loader.exec_module(script)
import recipe
class Keeper:
    def __init__(self): self.images, self.labels = [], []
    def epochs(self): return (recipe.Epoch(*epoch) for epoch in json.loads(sys.argv[6]))
    def step(self, images, labels):
        self.images.append(np.asarray(images).copy())
        self.labels.append(np.asarray(labels, dtype=np.int64))
    def synchronize(self): pass
cache.mkdir()
if hasattr(script, "prepare"): script.prepare(photos, cache)
keeper = Keeper()
script.train(keeper, photos, cache)
images = {f"batch{i}": batch for i, batch in enumerate(keeper.images)}
np.savez(out, labels=np.concatenate(keeper.labels), **images)
"""


@pytest.fixture(scope="module")
def right_pixels(judge, photos):
    """What the reference transform makes of a photograph, as (index, seed, epoch) says: every
    script is handed the same.
    """
    return cache(partial(judge.reference_sample, photos))


@pytest.mark.long
@pytest.mark.parametrize(
    "entry", [LAB, SOLUTION, *VARIANTS], ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_every_script_delivers_every_sample_once_and_right(
    judge, recipe, photos, right_pixels, tmp_path, entry
):
    forth = list(range(16))
    back = random.Random(1).sample(range(COUNT), 16)
    epochs = [(0, 5, forth), (1, 6, back)]
    places = (entry / "train.py", LAB, photos, tmp_path / "cache", tmp_path / "out.npz")
    log = tmp_path / "log"
    arguments = [*map(str, places), json.dumps(epochs)]
    run = warm.Program(KEEPER, *arguments, needs=("torch", "torchvision"), log=log)
    try:
        assert run.wait(240) == 0, log.read_text()
    finally:
        run.kill()
    kept = np.load(tmp_path / "out.npz")
    wanted = [(index, seed, number) for number, seed, order in epochs for index in order]
    assert kept["labels"].tolist() == [judge.label(photos, index) for index, _, _ in wanted]
    images = np.concatenate([as_levels(recipe, kept[f"batch{i}"]) for i in range(2)])
    for image, sample in zip(images, wanted, strict=True):
        assert judge.compare(image, right_pixels(*sample)) is None


def as_levels(recipe, batch):
    """uint8 from uint8 or normalised float32."""
    assert batch.shape == (recipe.BATCH_SIZE, 3, 224, 224)
    if batch.dtype == np.uint8:
        return batch
    assert batch.dtype == np.float32
    mean, std = (
        np.array(values, np.float32).reshape(3, 1, 1) for values in (recipe.MEAN, recipe.STD)
    )
    return ((batch * std + mean) * 255).round().clip(0, 255).astype(np.uint8)


def test_normalised_floats_are_the_pixels_they_came_from_and_nonsense_is_not(judge, recipe):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 224, 224)).astype(np.uint8)
    mean, std = (
        np.array(values, np.float32).reshape(3, 1, 1) for values in (recipe.MEAN, recipe.STD)
    )
    assert np.array_equal(judge.as_pixels((pixels.astype(np.float32) / 255 - mean) / std), pixels)
    assert judge.as_pixels(np.full((3, 224, 224), np.nan, np.float32)).max() == 0


@pytest.mark.long
def test_the_shipped_script_trains_alone(photos, tmp_path):
    command = [sys.executable, str(LAB / "train.py"), "--photos", str(photos), "--steps", "1"]
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=240, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    assert "images/s" in run.stdout


def test_the_photographs_may_be_named_in_the_environment(recipe, photos, monkeypatch):
    """As `lab profile --tool nsys` and the like do, which run `python train.py`."""
    monkeypatch.setenv("LAB_PHOTOS", str(photos))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setattr(
        recipe, "TorchAccelerator", lambda *_: SimpleNamespace(order=[1], device="cpu")
    )
    given = []
    recipe.main(lambda *arguments: given.extend(arguments))
    assert given[1] == photos


def test_without_photographs_the_script_says_what_it_needs(recipe, monkeypatch, capsys):
    monkeypatch.delenv("LAB_PHOTOS", raising=False)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    with pytest.raises(SystemExit):
        recipe.main(print)
    assert "--photos" in capsys.readouterr().err


def test_the_hint_on_predicting_names_the_gain_that_a_check_can_measure(spec):
    most = 1 / spec.devices["virtual"].settings["device_share"]
    (predicting,) = (hint.text for hint in spec.hints if "Amdahl" in hint.text)
    assert f"{most:.2g}x at most" in predicting
