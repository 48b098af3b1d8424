"""Lineage of tensors: every operator that ran, and a backward slice of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch

from bottleneck_lab.measure.virtual_gpu.codec import tensors_in
from bottleneck_lab.measure.virtual_gpu.operators import Traits

_OVERWRITES = {"copy_", "fill_", "zero_"}
"""Operators that leave nothing of what their target held."""


class Lineage:
    """The operators of a run in order, each with those whose results it read.

    A value is known by the storage that holds it: whoever writes to a part of a storage follows
    from all that it held before. `len` is the number of operators so far.
    """

    def __init__(self) -> None:
        self._flops: list[float] = []
        self._sources: list[set[int]] = []
        self._writers: dict[int, int] = {}
        """The last operator that wrote to a storage, by the storage's address."""

    def __len__(self) -> int:
        return len(self._flops)

    def note(
        self,
        traits: Traits,
        args: Any,
        kwargs: Any,
        given: Sequence[torch.Tensor],
        results: Iterable[torch.Tensor],
        flops: float,
    ) -> None:
        """Note an operator that has run, with its floating-point operations. `given` and `results`
        are the tensors among its arguments and results.
        """
        read = {_address(tensor) for tensor in given}
        made = {_address(tensor) for tensor in results} - read
        if traits.written:
            written = [
                args[position] if position < len(args) else kwargs.get(name)
                for position, name in traits.written
            ]
            made |= {_address(tensor) for tensor in tensors_in(written)}
        if not made:
            return  # a view
        if traits.name in _OVERWRITES and _is_whole(given[0]):
            read = {_address(tensor) for tensor in given[1:]}
        self._sources.append({self._writers[at] for at in read if at in self._writers})
        self._writers |= dict.fromkeys(made, len(self._flops))
        self._flops.append(flops)

    def forget(self, tensor: torch.Tensor) -> None:
        """Note that a tensor's values have come from the host."""
        if _is_whole(tensor):
            self._writers.pop(_address(tensor), None)

    def work_behind(self, tensors: Iterable[torch.Tensor]) -> list[float]:
        """Return how many floating-point operations of those from which these tensors follow lie
        among the first n operators, for every n from 0 to all.
        """
        open_ = {self._writers[at] for at in map(_address, tensors) if at in self._writers}
        counted = [0.0] * len(self)
        # Sources are earlier operators: one walk back meets each after all that read it.
        for number in range(len(self) - 1, -1, -1):
            if number in open_:
                counted[number] = self._flops[number]
                open_ |= self._sources[number]
        return list(accumulate(counted, initial=0.0))


def _is_whole(tensor: torch.Tensor) -> bool:
    """Return True if a tensor is all that its storage holds."""
    return tensor.nbytes == tensor.untyped_storage().nbytes()


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
