"""Kernels inside CUDA and HIP graphs: what each node took, over all replays of its graph.

A graph is launched by one call, which all its kernels share; captures do not number its nodes. The
n-th activity of a stream in one replay is taken for the same node as the n-th in the next, and
replays with the same activities on the same streams for one graph.
"""

from __future__ import annotations

import re
from collections import defaultdict

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis.rows import named
from bottleneck_lab.trace.timeline import Timeline

_LAUNCH = re.compile(r"^(?:cuda|cu|hip)GraphLaunch")

# So many nodes are kept, the costliest first: graphs of a large model have thousands.
MOST_NODES = 2_000


class GraphNode(msgspec.Struct, frozen=True):
    """A node of a graph over all its replays. `graph` and `node` number them from 1, nodes in the
    order in which they run; `percent` is of the device time of all graphs (0–100).
    """

    graph: int
    node: int
    name: str
    stream: int
    replays: int
    mean_us: float
    shortest_us: float
    longest_us: float
    percent: float


def find_graph_nodes(timeline: Timeline) -> list[GraphNode]:
    """Return the nodes of all graphs, costliest first; empty where no graph was launched, or its
    kernels were not recorded.
    """
    device = timeline.device
    length = device.end - device.start
    graphs = list(_replays(timeline).values())
    whole = max(sum(int(length[replay].sum()) for graph in graphs for replay in graph), 1)
    nodes = []
    for graph, replays in enumerate(graphs, 1):
        times = length[np.stack(replays)]
        first = replays[0]
        # Nodes are numbered as they start in the first replay, whatever their streams.
        number = np.empty(len(first), dtype=np.int64)
        number[np.argsort(device.start[first], kind="stable")] = np.arange(1, len(first) + 1)
        for node, row, took in zip(number.tolist(), first.tolist(), times.T, strict=True):
            nodes.append(
                GraphNode(
                    graph=graph,
                    node=node,
                    name=timeline.strings[int(device.name[row])],
                    stream=int(device.stream[row]),
                    replays=len(replays),
                    mean_us=float(took.mean()) / 1e3,
                    shortest_us=float(took.min()) / 1e3,
                    longest_us=float(took.max()) / 1e3,
                    percent=100 * int(took.sum()) / whole,
                )
            )
    return sorted(nodes, key=lambda node: -node.percent)[:MOST_NODES]


def _replays(timeline: Timeline) -> dict[tuple[bytes, bytes], list[NDArray[np.intp]]]:
    """Return the rows of each replay in the order of its nodes, by the names and streams of these:
    replays of one graph have the same.
    """
    device, launched = timeline.device, timeline.launched_by
    rows = np.flatnonzero((launched >= 0) & device.works)
    rows = rows[named(timeline, timeline.runtime, _LAUNCH)[launched[rows]]]
    # By replay, then stream, then start: the number within is the node.
    rows = rows[np.lexsort((device.start[rows], device.stream[rows], launched[rows]))]
    graphs: defaultdict[tuple[bytes, bytes], list[NDArray[np.intp]]] = defaultdict(list)
    for replay in np.split(rows, np.flatnonzero(np.diff(launched[rows])) + 1):
        if len(replay):
            graphs[device.name[replay].tobytes(), device.stream[replay].tobytes()].append(replay)
    return graphs
