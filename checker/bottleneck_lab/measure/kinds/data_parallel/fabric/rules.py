"""The duties of every rank: all of the arithmetic, on the whole batch, and every gradient reduced
before it is used. Broken rules end the run.
"""

from __future__ import annotations

import math
from collections import Counter

from bottleneck_lab.catalog import FailReason
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import CostTable
from bottleneck_lab.measure.kinds.data_parallel.protocol import FLOATING, ITEM_BYTES

SLACK = 4096
"""Elements that may travel during backward beside gradients."""
MOST_SENT = 1.05
"""Elements that may be all-reduced from the last backward to the update, as a share of the
gradients: statistics may travel, too.
"""


class Violation(Exception):  # noqa: N818 - not a fault of the program: a finding about what it runs
    """A rank broke a rule, died or hung, with a reason and one sentence for the verdict."""

    def __init__(self, reason: FailReason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason: FailReason = reason
        self.sentence = sentence


class Ledger:
    """One rank's account of the optimizer step in progress."""

    def __init__(self, rank: int, costs: CostTable) -> None:
        self.rank = rank
        self.costs = costs
        self.samples = costs.stand_in.samples
        self.micro_batches = costs.micro_batches
        self.reduced_bytes: list[int] = []
        self.fetched = 0
        self.order: list[int] = []
        """Modules as the first forward pass went through them. Backward goes through the same ones,
        last first.
        """
        self._open_step()

    def _open_step(self) -> None:
        self._forwards = [0] * len(self.costs.modules)
        self._backwards: list[set[int]] = [set() for _ in self.costs.modules]
        """Of each module, the micro-batches whose backward has run."""
        self._ready = self._bytes = 0
        self._sent: dict[int, int] = {}
        self._to_hand_on: Counter[tuple[int, int]] = Counter()

    def forward(self, module: int, samples: int) -> None:
        """Book a module's forward pass on this many samples."""
        self._expect(module, samples)
        if module not in self.order:
            self.order.append(module)
        self._in_turn(module, self._forwards, self.order, "forward")
        self._forwards[module] += 1

    def backward(self, module: int, samples: int, micro_batch: int) -> None:
        """Book a module's backward pass. The last micro-batch's makes the module's gradients ready
        to be reduced.
        """
        self._expect(module, samples)
        self._in_turn(module, self._counted(), self.order[::-1], "backward")
        if micro_batch >= self.micro_batches:
            raise Violation(
                "tampered", f"Rank {self.rank} reported a micro-batch that a step does not have."
            )
        if micro_batch in self._backwards[module]:
            raise Violation(
                "wrong output",
                f"Rank {self.rank} ran backward through {self.costs.modules[module].name} twice for"
                " one micro-batch of a step, which lasts until `step` of the optimizer that `train`"
                " is given is called.",
            )
        self._backwards[module].add(micro_batch)
        if len(self._backwards[module]) == self.micro_batches:
            self._ready += self.costs.modules[module].elements

    def _in_turn(self, module: int, done: list[int], order: list[int], what: str) -> None:
        """Raise Violation unless the pass takes the modules in the graph's order."""
        # The next module is the first one in the order that has run as seldom as any.
        following = min(order, key=lambda one: done[one], default=None)
        if module != following:
            modules = self.costs.modules
            due = "none of the model's modules" if following is None else modules[following].name
            raise Violation(
                "wrong output",
                f"Rank {self.rank} reported {what} through {modules[module].name} where the graph"
                f" has {due} next.",
            )

    def _counted(self) -> list[int]:
        """Return how often this step has run each module's backward."""
        return list(map(len, self._backwards))

    def _expect(self, module: int, samples: int) -> None:
        if module >= len(self.costs.modules):
            raise Violation(
                "tampered", f"Rank {self.rank} reported a module that the model does not have."
            )
        if samples > self.samples:
            raise Violation(
                "wrong output",
                f"Rank {self.rank} ran the model on {samples} {self.costs.called} at once. Here a"
                f" micro-batch has {self.samples}, and each goes through the model by itself.",
            )
        if samples < self.samples:
            raise Violation(
                "wrong output",
                f"Rank {self.rank} ran the model on {samples} of a micro-batch's {self.samples}"
                f" {self.costs.called}.",
            )

    def reduces_gradients(self, dtype: int, elements: int, group: int = 0, parts: int = 1) -> bool:
        """Return True, and book it, if a reduction now among the ranks of `group` can be one of
        the gradients that the update uses; each rank gets one of `parts` of the result. Raises
        Violation if more was sent than backward has made ready.
        """
        if not any(self._backwards) or dtype not in FLOATING or elements < self.costs.smallest:
            return False
        self._bytes += elements * ITEM_BYTES[dtype]
        # Before the last micro-batch's backward has begun, no gradient is complete.
        if not self._ready:
            return False
        sent = self._sent[group] = self._sent.get(group, 0) + elements
        if sent > self._ready + SLACK and self._ready < self.costs.elements:
            raise Violation(
                "tampered",
                f"Rank {self.rank} sent {sent} gradients when the last micro-batch's backward had"
                f" only computed {self._ready}.",
            )
        self._to_hand_on[dtype, elements // parts] += 1
        return True

    def hands_on_gradients(self, dtype: int, elements: int) -> bool:
        """Return True if a broadcast or all-gather now can be of a bucket, or a part of one, that
        this rank has reduced: so a node's leader hands on a sum with those of other nodes.
        """
        waiting = self._to_hand_on[dtype, elements]
        self._to_hand_on[dtype, elements] = max(waiting - 1, 0)
        return waiting > 0

    def optimizer(self) -> None:
        """End the step. Raises Violation unless every module ran on every micro-batch, and every
        gradient was reduced after the last of them.
        """
        step = len(self.reduced_bytes) + 1
        for counts, what in ((self._forwards, "forward"), (self._counted(), "backward")):
            short = min(counts)
            if short < self.micro_batches or max(counts) > self.micro_batches:
                times = short if short < self.micro_batches else max(counts)
                raise Violation(
                    "wrong output",
                    f"Step {step} on rank {self.rank} ran {what} {times} times;"
                    f" {self.micro_batches} micro-batches make a step.",
                )
        shares = [sent / self.costs.elements for sent in self._sent.values()]
        share = max(shares, default=0.0) if any(one > MOST_SENT for one in shares) else sum(shares)
        if not 1 <= share <= MOST_SENT * max(1, len(shares)):
            percent = math.floor(100 * share) if share < 1 else math.ceil(100 * share)
            raise Violation(
                "wrong output",
                f"Step {step} on rank {self.rank} updated the weights when {percent}% of the"
                " gradients had been reduced over the ranks.",
            )
        self.reduced_bytes.append(self._bytes)
        self._open_step()
