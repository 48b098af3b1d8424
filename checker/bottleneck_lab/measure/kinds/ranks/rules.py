"""What every rank owes: all of the arithmetic, on the whole batch, and every gradient reduced before it is used. Broken rules end the run."""

from __future__ import annotations

from bottleneck_lab.catalog import FailReason
from bottleneck_lab.measure.kinds.ranks.costs import CostTable
from bottleneck_lab.measure.kinds.ranks.protocol import FLOATING, ITEM_BYTES

SMALLEST_GRADIENT = 64
"""Elements of the smallest parameter of the model: an all-reduce of fewer is somebody's metric, not a gradient."""
SLACK = 4096
"""Elements that may travel during backward beside gradients."""
MOST_SENT = 1.05
"""Elements that may be all-reduced from the last backward to the update, as a share of the gradients: statistics may travel, too."""


class Violation(Exception):  # noqa: N818 - not a fault of the program: a finding about what it runs
    """A rank broke a rule, died or hung: why, as a reason and one sentence for the verdict."""

    def __init__(self, reason: FailReason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason: FailReason = reason
        self.sentence = sentence


class Ledger:
    """One rank's account of the optimizer step in progress."""

    def __init__(self, rank: int, costs: CostTable) -> None:
        self.rank = rank
        self.costs = costs
        self.images = costs.stand_in.images
        self.micro_batches = costs.micro_batches
        self.reduced_bytes: list[int] = []
        self.fetched = 0
        self._open_step()

    def _open_step(self) -> None:
        self._forwards = [0] * len(self.costs.modules)
        self._backwards = [0] * len(self.costs.modules)
        self._in_backward = False
        self._ready = self._sent = self._bytes = 0

    def forward(self, module: int, images: int) -> None:
        """A module's forward pass on this many images."""
        self._expect(module, images)
        self._forwards[module] += 1
        self._in_backward = False

    def backward(self, module: int, images: int) -> bool:
        """A module's backward pass. True for the first one after a forward, which opens a new micro-batch's account."""
        self._expect(module, images)
        opens = not self._in_backward
        if opens:
            self._in_backward, self._ready, self._sent = True, 0, 0
        self._backwards[module] += 1
        self._ready += self.costs.modules[module].elements
        return opens

    def backwards(self, module: int) -> int:
        """How often this step has run the module's backward."""
        return self._backwards[module]

    def _expect(self, module: int, images: int) -> None:
        if module >= len(self.costs.modules):
            raise Violation("tampered", f"Rank {self.rank} reported a module that the model does not have.")
        if images != self.images:
            raise Violation(
                "wrong output",
                f"Rank {self.rank} ran the model on {images} of the {self.images} images of a micro-batch.",
            )

    def reduces_gradients(self, dtype: int, elements: int) -> bool:
        """Whether an all-reduce now can be one of gradients; if so it is booked.

        Raises Violation where more was sent than backward has yet computed, or in fewer bits than the brief allows.
        """
        if not self._in_backward or dtype not in FLOATING or elements < SMALLEST_GRADIENT:
            return False
        self._sent += elements
        self._bytes += elements * ITEM_BYTES[dtype]
        if self._sent > self._ready + SLACK and self._ready < self.costs.elements:
            raise Violation(
                "tampered", f"Rank {self.rank} sent {self._sent} gradients when backward had computed {self._ready}."
            )
        return True

    def optimizer(self) -> None:
        """The step ends: every module ran on every micro-batch, and every gradient was reduced after the last of them."""
        step = len(self.reduced_bytes) + 1
        for counts, what in ((self._forwards, "forward"), (self._backwards, "backward")):
            short = min(counts)
            if short < self.micro_batches or max(counts) > self.micro_batches:
                seen = short if short < self.micro_batches else max(counts)
                raise Violation(
                    "wrong output",
                    f"Step {step} on rank {self.rank} ran {what} {seen} times; {self.micro_batches} micro-batches make a step.",
                )
        share = self._sent / self.costs.elements
        if not 1 <= share <= MOST_SENT:
            raise Violation(
                "wrong output",
                f"Step {step} on rank {self.rank} updated the weights when {share:.0%} of the gradients had been all-reduced over the ranks.",
            )
        self.reduced_bytes.append(self._bytes)
        self._open_step()
