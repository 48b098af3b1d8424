"""Precision and recall of the detectors on captures with known bottlenecks, and false alarms on healthy ones.

    python benchmarks/detectors.py [--seeds 5]

Captures are synthetic (datasets/captures/make.py): every bottleneck at three strengths and several seeds. A detector is right when it names what was put in
(recall) and silent about everything else (precision).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from bottleneck_lab import findings, load

MAKE = Path(__file__).resolve().parents[1] / "datasets" / "captures" / "make.py"
STRENGTHS = (0.8, 1.0, 2.0)


def made():
    """The module that makes the captures."""
    spec = importlib.util.spec_from_file_location("make_captures", MAKE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_captures"] = module
    spec.loader.exec_module(module)
    return module


def score(seeds: int) -> tuple[Counter, Counter, Counter, int, int]:
    """(found, false, missed) by finding id, healthy captures, and healthy captures with an alarm."""
    make = made()
    hits, false, missed = Counter(), Counter(), Counter()
    healthy = alarms = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "capture.json"
        for bottleneck, expected in make.BOTTLENECKS.items():
            for seed in range(1, seeds + 1):
                for strength in STRENGTHS:
                    path.write_text(json.dumps(make.training(bottleneck, seed, strength=strength).trace(bottleneck)))
                    got = {finding.id for finding in findings(load(path))}
                    hits.update(got & set(expected))
                    false.update(got - set(expected))
                    missed.update(set(expected) - got)
                    healthy += not expected
                    alarms += bool(got) and not expected
    return hits, false, missed, healthy, alarms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    hits, false, missed, healthy, alarms = score(parser.parse_args().seeds)
    print(f"{'finding':24} {'found':>6} {'false':>6} {'missed':>6} {'precision':>10} {'recall':>7}")
    for name in sorted({*hits, *false, *missed}):
        precision = hits[name] / (hits[name] + false[name]) if hits[name] + false[name] else 1.0
        recall = hits[name] / (hits[name] + missed[name]) if hits[name] + missed[name] else 1.0
        print(f"{name:24} {hits[name]:6} {false[name]:6} {missed[name]:6} {precision:10.3f} {recall:7.3f}")
    print(f"healthy captures: {healthy}, with an alarm: {alarms}")


if __name__ == "__main__":
    main()
