"""Calls of operators as the engine keeps them: what is the same each time, with slots for the
tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bottleneck_lab.measure.virtual_gpu.codec import Handle
from bottleneck_lab.measure.virtual_gpu.operators import Traits

Given = int | torch.Tensor
"""What a program gives an operator: a tensor's number, or a number without dimensions of its own
memory.
"""


class _Slot:
    """A place among the arguments for one of the tensors that a call is given."""

    __slots__ = ("position",)

    def __init__(self, position: int) -> None:
        self.position = position


class Template:
    """An operator with its arguments, those that are tensors left open: one that was called a
    thousand times is read once.

    What a call's tensors look like is not part of it: the next call may be given others.
    """

    def __init__(self, traits: Traits, args: list[Any], kwargs: dict[str, Any]) -> None:
        self.traits = traits
        self.given: list[Given] = []
        """The tensors of the call that it was made of, each handle once."""
        self._positions: dict[int, int] = {}
        self._order: list[int] = []
        """The position in `given` of every tensor among the arguments, in order."""
        self._args = [self._opened(value) for value in args]
        self._kwargs = {name: self._opened(value) for name, value in kwargs.items()}
        self._open_args = [at for at, value in enumerate(self._args) if _is_open(value)]
        self._open_kwargs = [name for name, value in self._kwargs.items() if _is_open(value)]

    def fill(
        self, tensors: Sequence[torch.Tensor]
    ) -> tuple[list[Any], dict[str, Any], list[torch.Tensor]]:
        """Return arguments and keyword arguments of a call that is given these tensors, and all
        tensors among them, in order.
        """
        args, kwargs = self._args.copy(), self._kwargs
        for at in self._open_args:
            args[at] = _filled(args[at], tensors)
        if self._open_kwargs:
            kwargs = kwargs | {name: _filled(kwargs[name], tensors) for name in self._open_kwargs}
        return args, kwargs, [tensors[position] for position in self._order]

    def _opened(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._opened(item) for item in value]
        if isinstance(value, dict):
            return {key: self._opened(item) for key, item in value.items()}
        if isinstance(value, Handle):
            position = self._positions.setdefault(value.number, len(self.given))
            if position == len(self.given):
                self.given.append(value.number)
        elif isinstance(value, torch.Tensor):
            position = len(self.given)
            self.given.append(value)
        else:
            return value
        self._order.append(position)
        return _Slot(position)


def _is_open(value: Any) -> bool:
    if isinstance(value, list | dict):
        return any(map(_is_open, value.values() if isinstance(value, dict) else value))
    return isinstance(value, _Slot)


def _filled(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(value, _Slot):
        return tensors[value.position]
    if isinstance(value, list):
        return [_filled(item, tensors) for item in value]
    if isinstance(value, dict):
        return {key: _filled(item, tensors) for key, item in value.items()}
    return value
