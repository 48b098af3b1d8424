"""An operator's call as it travels to the engine, and what is known of its result."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from bottleneck_lab.measure.faults import NotModelled
from bottleneck_lab.measure.virtual_gpu.codec import leaves, replace
from bottleneck_lab.measure.virtual_gpu.operators import Traits
from bottleneck_lab.measure.virtual_gpu.tensor import TensorForm, VirtualTensor


class Argument(msgspec.Struct, frozen=True):
    """A result that is one of the operator's own arguments: its position among them, and its form
    afterwards.
    """

    position: int
    form: TensorForm


class PredictedResult(msgspec.Struct, frozen=True):
    """The result of an operator for arguments of a given form: a nest of `Argument`, `TensorForm`
    (a new tensor) and None.

    `template` is the number by which the engine knows such calls. `new` counts the new tensors,
    `nbytes` their bytes.
    """

    template: int

    results: Any
    new: int
    nbytes: int


class Call:
    """An operator's call. `given` are the tensors among its arguments in order, one of the device
    once; `numbers` are the same as they travel, with numbers instead of the device's.

    `signature` is the same for calls whose results look the same, where those are predictable.
    Raises RuntimeError for a mixture of devices, as a GPU does.
    """

    def __init__(self, traits: Traits, args: Any, kwargs: dict[str, Any]) -> None:
        self.traits, self._args, self._kwargs = traits, args, kwargs
        self.given: list[torch.Tensor] = []
        self.numbers: list[int | torch.Tensor] = []
        self._positions: dict[int, int] = {}
        self._key: list[Any] = [traits]
        for value in args:
            self._note(value)
        for name, value in kwargs.items():
            if name != "pin_memory":  # a matter of the host's
                self._key.append(name)
                self._note(value)
        self.signature = tuple(self._key)

    def message(self) -> list[Any]:
        """Return name, overload and arguments, with handles instead of tensors."""
        kwargs = {name: value for name, value in self._kwargs.items() if name != "pin_memory"}
        function = self.traits.function
        return [
            self.traits.name,
            function._overloadname,
            replace(list(self._args), _plain),
            replace(kwargs, _plain),
        ]

    def position(self, number: int) -> int | None:
        """Return the position of the tensor with this number among those given, or None."""
        return self._positions.get(number)

    def _note(self, value: Any) -> None:
        """Note an argument: its tensors, and what the call's results depend on."""
        if isinstance(value, VirtualTensor):
            number = value.handle.number
            position = self._positions.setdefault(number, len(self.given))
            if position == len(self.given):
                self.given.append(value)
                self.numbers.append(number)
            self._key += (value.form, position)
        elif isinstance(value, list | tuple):
            self._key.append((len(value),))
            for each in value:
                self._note(each)
        elif isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                raise NotModelled(f"{value.layout} is not available on the virtual GPU")
            # As on a GPU, a host's tensor is accepted only as a number without dimensions.
            if value.dim():
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found one on"
                    f" {value.device} and one on virtual:0 (in {self.traits.function})."
                )
            self._key.append(("host", value.dtype))
            self.given.append(value)
            self.numbers.append(value)
        else:
            # 1, 1.0 and True are equal, but give different dtypes.
            self._key += (type(value), value)


def _plain(value: Any) -> Any:
    return value.handle if isinstance(value, VirtualTensor) else value


def described(answer: list[Any]) -> tuple[int, TensorForm]:
    """Return number and form of a tensor that the engine has described."""
    number, shape, stride, offset, dtype = answer
    return number, TensorForm(tuple(shape), tuple(stride), offset, dtype)


def read_results(answer: Any, call: Call) -> tuple[Any, list[int]]:
    """Return an answer as a nest of `Argument`, `TensorForm` and values, a tuple where the operator
    has several results; and the numbers of its new tensors.
    """
    numbers: list[int] = []
    results = _read(answer, call, numbers)
    several = isinstance(results, list) and len(call.traits.function._schema.returns) > 1
    return tuple(results) if several else results, numbers


def _read(answer: Any, call: Call, numbers: list[int]) -> Any:
    """Read one part of an answer; note the numbers of new tensors in `numbers`."""
    # A function of its own: one that calls itself from inside another is a cycle, and would keep
    # the call's tensors until the next collection, which the memory's books would show.
    if not isinstance(answer, list):
        return answer
    if len(answer) != 5 or not isinstance(answer[4], str):
        return [_read(each, call, numbers) for each in answer]
    number, form = described(answer)
    if (position := call.position(number)) is not None:
        return Argument(position, form)
    numbers.append(number)
    return form


def predict(results: Any, template: int) -> PredictedResult | None:
    """Return what the same call will return next time; None if that cannot be known."""
    # A plain value (a number, a bool) may be another one then.
    parts = list(leaves(results))
    if not all(result is None or isinstance(result, Argument | TensorForm) for result in parts):
        return None
    new = [result for result in parts if isinstance(result, TensorForm)]
    return PredictedResult(template, results, len(new), sum(form.span_bytes() for form in new))
