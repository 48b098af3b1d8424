"""Statements of `forecaster-out-of-memory` about PyTorch, tried in PyTorch."""

from __future__ import annotations

import torch
from torch.nn import functional

from bottleneck_lab.catalog import find_lab


def test_a_loss_lies_in_the_block_that_the_rules_say() -> None:
    rules = (find_lab("forecaster-out-of-memory").path / "RULES.md").read_text(encoding="utf-8")
    a, b = torch.randn(64, 10, 8, requires_grad=True), torch.randn(64, 10, 8)
    loss = functional.mse_loss(a, b)
    nbytes = [each.untyped_storage().nbytes() for each in (loss, loss.detach(), loss.clone())]
    assert nbytes == [20480, 20480, 4]
    assert "64×10×8 differences are 20 KiB" in rules
    assert "`F.mse_loss(a, b).untyped_storage().nbytes()`" in rules
    assert (
        "it is 20480.\n- `.detach()` keeps the same storage. `.clone()` has its own, of 4 bytes"
        in rules
    )
