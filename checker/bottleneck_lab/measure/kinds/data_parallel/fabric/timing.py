"""From a rank's events to its clock: the one place where the cost table and the link turn into
time.
"""

from __future__ import annotations

from bottleneck_lab.measure.kinds.data_parallel.fabric.clock import RankClock
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import (
    Algorithm,
    CostTable,
    Fabric,
    Shape,
)
from bottleneck_lab.measure.kinds.data_parallel.protocol import (
    DTYPES,
    ITEM_BYTES,
    EventKind,
    RankEvent,
)

COLLECTIVES = {
    EventKind.ALLREDUCE: "all-reduce",
    EventKind.BROADCAST: "broadcast",
    EventKind.REDUCE: "reduce",
    EventKind.REDUCESCATTER: "reduce-scatter",
    EventKind.ALLGATHER: "all-gather",
    EventKind.BARRIER: "barrier",
}
_DEVICE_BYTES_PER_US = 1.5e6
"""Memory bandwidth of a small operation of the script on the emulated GPU: 1.5 TB/s, about three
quarters of the data sheet's.
"""


def play(clock: RankClock, event: RankEvent, costs: CostTable) -> None:
    """Advance one rank's clock by an event of it alone."""
    if event.kind is EventKind.FORWARD:
        clock.begin_forward()
        module = costs.modules[event.which]
        clock.launch(f"forward {module.name}", costs.samples * module.forward_us)
    elif event.kind is EventKind.BACKWARD:
        clock.begin_backward()
        module = costs.modules[event.which]
        clock.launch(f"backward {module.name}", costs.samples * module.backward_us)
    elif event.kind is EventKind.OPTIMIZER:
        clock.finish_step(costs.optimizer_us)
    elif event.kind is EventKind.SYNC:
        clock.synchronise("wait for the device")
    elif event.kind is EventKind.WAIT:
        clock.wait(event.number)
    elif event.kind is EventKind.HOST:
        clock.stall("host work", event.amount / 1e3)
    elif event.kind is EventKind.WRITE:
        clock.stall("print", clock.fabric.write_us * event.number)
    elif event.kind is EventKind.DEVICE:
        clock.launch("small operation", event.amount / _DEVICE_BYTES_PER_US)


def collective_us(
    event: RankEvent, shape: Shape, fabric: Fabric, algorithm: Algorithm = "ring"
) -> float:
    """Return the time of a collective once every rank is ready for it, µs."""
    nbytes = event.amount * ITEM_BYTES[event.flag]
    if event.kind in (EventKind.BROADCAST, EventKind.REDUCE, EventKind.REDUCESCATTER):
        return fabric.spread_us(nbytes, shape)
    if event.kind is EventKind.ALLGATHER:
        return fabric.spread_us(nbytes * shape.ranks, shape)
    return fabric.allreduce_us(nbytes, shape, algorithm)


def communicate(
    clock: RankClock,
    event: RankEvent,
    announced: tuple[float, float],
    end_us: float,
    *,
    gradients: bool = False,
) -> None:
    """Advance one rank's clock by a collective that ended at `end_us` on all of them."""
    name, dtype = COLLECTIVES[event.kind], DTYPES[event.flag]
    clock.communicate(name, announced, end_us, event.amount, dtype, gradients=gradients)
    if not event.number:  # nobody gets a handle to wait for it by
        clock.implied_us = end_us
    if event.kind is EventKind.BARRIER:
        clock.synchronise("barrier")
