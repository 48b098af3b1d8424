"""Hunt GPU performance bottlenecks, and judge the fix. The analysis works for any program, not only
the labs:

    from bottleneck_lab import load, findings

    for finding in findings(load("trace.json.gz")):
        print(finding.id, finding.evidence)

Names are imported when they are first used: `import bottleneck_lab` alone imports neither NumPy nor
torch.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bottleneck_lab.analysis.api import findings
    from bottleneck_lab.analysis.comparing.compare import compare
    from bottleneck_lab.analysis.comparing.observation import observe
    from bottleneck_lab.analysis.query import query
    from bottleneck_lab.analysis.summary import summarise
    from bottleneck_lab.trace.load import load
    from bottleneck_lab.trace.merging import merge_ranks

_HOMES = {
    "compare": "bottleneck_lab.analysis.comparing.compare",
    "findings": "bottleneck_lab.analysis.api",
    "load": "bottleneck_lab.trace.load",
    "merge_ranks": "bottleneck_lab.trace.merging",
    "observe": "bottleneck_lab.analysis.comparing.observation",
    "query": "bottleneck_lab.analysis.query",
    "summarise": "bottleneck_lab.analysis.summary",
}

__all__ = ["compare", "findings", "load", "merge_ranks", "observe", "query", "summarise"]


if "BOTTLENECK_LAB_PLUGIN" in os.environ:
    from bottleneck_lab.plugin import load_plugin

    load_plugin()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
