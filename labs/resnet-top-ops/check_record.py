"""How a check runs your `record`: on its own pictures and number of passes."""

from pathlib import Path

import numpy as np
import workload
from profile_resnet import record


def load(device):
    """A function that gives the bytes of the trace, none where `record` wrote none."""
    model = workload.network(device)

    def capture(pixels, passes):
        trace = Path(workload.TRACE).absolute()
        trace.unlink(missing_ok=True)
        record(model, workload.images_from(pixels, device), passes, trace)
        return np.frombuffer(trace.read_bytes() if trace.is_file() else b"", dtype=np.uint8)

    return capture
