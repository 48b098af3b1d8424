"""What happens to pictures before the model: DALI decodes a batch of them, of each only the part that the model will see, and resizes that."""

import io

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.types as types
from nvidia.dali import pipeline_def
from PIL import Image

SIZE = (1024, 768)
RESIZE = (341, 256)
CROP = (58, 16, 282, 240)
LARGEST_BATCH = 32
MARGIN = 8  # pixels around the part, for the resize's antialiasing


def part():
    """The crop in the picture's own pixels: left, top, right, bottom, with fractions."""
    across, down = SIZE[0] / RESIZE[0], SIZE[1] / RESIZE[1]
    return CROP[0] * across, CROP[1] * down, CROP[2] * across, CROP[3] * down


@pipeline_def(batch_size=LARGEST_BATCH, num_threads=1, device_id=None, prefetch_queue_depth=1)
def pipeline():
    left, top, right, bottom = part()
    x, y = int(left) - MARGIN, int(top) - MARGIN
    end = (int(bottom) + MARGIN, int(right) + MARGIN)
    encoded = fn.external_source(name="encoded", no_copy=True)
    image = fn.decoders.image_slice(encoded, device="cpu", axes=(0, 1), start=(y, x), end=end)
    image = fn.resize(
        image,
        size=(CROP[3] - CROP[1], CROP[2] - CROP[0]),
        roi_start=(top - y, left - x),
        roi_end=(bottom - y, right - x),
        interp_type=types.INTERP_TRIANGULAR,
    )
    return fn.transpose(image, perm=[2, 0, 1])


class Decoder:
    def __init__(self):
        self.pipe = pipeline()
        self.pipe.build()

    def __call__(self, jpegs):
        """The middle of each picture as bytes: uint8 N×3×224×224."""
        self.pipe.feed_input("encoded", [np.frombuffer(jpeg, np.uint8) for jpeg in jpegs])
        return np.array(self.pipe.run()[0].as_array())


def problem_with(jpeg):
    """Why a file cannot be decoded, or "": one such picture would spoil DALI's batch."""
    try:
        image = Image.open(io.BytesIO(jpeg), formats=["JPEG"])
    except (OSError, SyntaxError, ValueError) as error:
        return str(error)
    if image.size != SIZE or image.mode not in ("RGB", "L"):
        return f"{image.mode} of {image.size[0]}x{image.size[1]}"
    return "" if jpeg.rstrip(b"\0").endswith(b"\xff\xd9") else "it is cut off"
