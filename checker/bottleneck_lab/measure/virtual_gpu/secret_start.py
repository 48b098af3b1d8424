"""Initial parameters that only the device knows, so that only the device can train them."""

from __future__ import annotations

from collections.abc import Iterable

import torch

LARGEST_CHANGE = 0.02
"""By what share of itself a value changes at most: twenty times the tolerance of a comparison."""
_LOW_BITS = 0xFF


class SecretStart:
    """Changes the initial parameters of a model as they come to the device, each by a share of
    itself that follows from its value and a secret.

    A script may send them in any order and shape, one by one or stacked: the same value changes in
    the same way, for the shipped script as well. Whoever trains elsewhere starts from other
    parameters. Without a secret nothing changes.
    """

    def __init__(self, secret: int = 0) -> None:
        self._secret = secret
        self._known = torch.empty(0, dtype=torch.int32)
        """The bits of all initial values, in ascending order."""

    def note(self, parameters: Iterable[torch.Tensor]) -> None:
        """Note the values of a model's parameters, as they were initialised on the host."""
        if self._secret:
            bits = torch.cat([self._known, *(_bits(parameter) for parameter in parameters)])
            # 0, 1 and other round numbers may be anything: a mask, a count.
            self._known = bits[bits & _LOW_BITS != 0].sort().values

    def change(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor from the host, its initial values changed."""
        if not len(self._known) or not tensor.is_floating_point():
            return tensor
        bits = _bits(tensor)
        at = torch.searchsorted(self._known, bits).clamp(max=len(self._known) - 1)
        factor = torch.where(self._known[at] == bits, 1 + LARGEST_CHANGE * self._share(bits), 1.0)
        return (tensor * factor.view(tensor.shape)).to(tensor.dtype)

    def _share(self, bits: torch.Tensor) -> torch.Tensor:
        """Return a number from -1 to 1 for each value; a multiplicative hash, which overflows."""
        mixed = bits.long() * 0x9E3779B1 + self._secret * 0x85EBCA6B
        mixed = (mixed ^ (mixed >> 15)) * 0x2C1B3C6D
        return ((mixed ^ (mixed >> 12)) & 0xFFFF).double() / 0x8000 - 1


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().float().contiguous().flatten().view(torch.int32)
