"""What the emulated accelerators stand for. Every figure has its source; none of them was measured here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepTimes:
    """A GPU's time for one ResNet-50 training step of `batch` images, by part, in ms."""

    name: str
    batch: int
    parts_ms: dict[str, float]
    source: str

    def step_s(self, batch: int) -> float:
        """Seconds for a step of `batch` images, linear in the batch."""
        return sum(self.parts_ms.values()) / 1000 * batch / self.batch


A100 = StepTimes(
    name="an A100-like GPU training ResNet-50",
    batch=64,
    parts_ms={"forward": 8.2, "backward": 16.4, "optimizer": 0.8},
    source="about 2,500 images/s in mixed precision, the order published for ResNet-50 v1.5 on one A100",
)
