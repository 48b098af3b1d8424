"""Makes the data set `pumps`: how strongly pumps shake, a table a recording, and which kind of pump
it was.
"""

import argparse
import json
from pathlib import Path

import numpy as np

RECORDINGS, ROWS, KINDS = 512, 4000, 4


def recording(index):
    """A recording's table, as the text of a CSV file."""
    rng = np.random.default_rng(index)
    readings = 10 * np.sin(np.arange(ROWS) / (3 + index % KINDS)) + rng.normal(size=ROWS)
    rows = [f"{row:06d},{reading:+09.3f}\n" for row, reading in enumerate(readings)]
    return "".join(["time,reading\n", *rows])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--progress", default="none")
    options = parser.parse_args()
    options.root.mkdir(parents=True, exist_ok=True)
    for index in range(RECORDINGS):
        (options.root / f"{index:03d}.csv").write_text(recording(index))
        if options.progress == "json":
            print(json.dumps({"done": index + 1, "total": RECORDINGS}), flush=True)
    manifest = {"complete": True, "kinds": [index % KINDS for index in range(RECORDINGS)]}
    (options.root / "manifest.json").write_text(json.dumps(manifest))


if __name__ == "__main__":
    main()
