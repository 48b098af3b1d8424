"""The fabric's server, and ranks that are not equally fast."""

import socket
import threading
from unittest.mock import Mock

import torch

from bottleneck_lab.measure.channel.wire import Arena
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import load_fabric
from bottleneck_lab.measure.kinds.data_parallel.fabric.server import FabricServer
from bottleneck_lab.measure.kinds.data_parallel.in_rank.client import Client
from bottleneck_lab.measure.kinds.data_parallel.protocol import EventKind

from ...processes import PATIENCE_S

SUM = EventKind.ALLREDUCE


def test_a_slow_rank_reads_the_whole_world_s_result_while_a_fast_one_reduces_alone(monkeypatch):
    pairs = [socket.socketpair() for _ in range(2)]
    *arenas, result = [Arena.create(1 << 16) for _ in range(3)]
    links = [(ours, arena) for (ours, _), arena in zip(pairs, arenas, strict=True)]
    server = FabricServer(links, result, Mock(modules=[]), load_fabric(), Mock(), Mock())
    slow, fast = [
        Client(theirs, arena, result, rank, world=2)
        for rank, ((_, theirs), arena) in enumerate(zip(pairs, arenas, strict=True))
    ]

    def go_on():
        fast.exchange(SUM, [torch.tensor([2.0])], [torch.empty(1)])
        fast.exchange(SUM, [torch.tensor([9.0])], [alone], ranks=[1])

    def serve():
        for rank in (0, 1, 1):
            server._receive(rank)

    def read_once_the_other_is_done(size):
        answer = read(size)
        for thread in threads:
            thread.join(PATIENCE_S)
        return answer

    threads = [threading.Thread(target=target) for target in (serve, go_on)]
    read, total, alone = slow.read, torch.empty(1), torch.empty(1)
    monkeypatch.setattr(slow, "read", read_once_the_other_is_done)
    for thread in threads:
        thread.start()
    slow.exchange(SUM, [torch.tensor([1.0])], [total])
    assert (total.item(), alone.item()) == (3.0, 9.0)
    for end in (end for pair in pairs for end in pair):
        end.close()
