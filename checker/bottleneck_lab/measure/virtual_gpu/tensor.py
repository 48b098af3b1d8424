"""A tensor of the virtual GPU as the program has it: all but its values."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import torch

from bottleneck_lab.measure.virtual_gpu.codec import DTYPES, Handle, name_of
from bottleneck_lab.measure.virtual_gpu.memory import ROUND_BYTES

if TYPE_CHECKING:
    from bottleneck_lab.measure.virtual_gpu.backend import Driver

_DEVICE = torch.device("privateuseone", 0)
"""PyTorch's name for `virtual` before it is renamed."""


class TensorForm(msgspec.Struct, frozen=True):
    """Everything about a tensor but its values and its number."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: str

    @classmethod
    def contiguous(cls, shape: Sequence[int], dtype: torch.dtype) -> TensorForm:
        """Return the form of a tensor that fills its storage. Raises NotModelled for a dtype that
        the device lacks.
        """
        stride, step = [], 1
        for size in reversed(shape):
            stride.append(step)
            step *= max(size, 1)
        return cls(tuple(shape), tuple(reversed(stride)), 0, name_of(dtype))

    def span_bytes(self) -> int:
        """Return bytes from the start of the storage to the end of the tensor, rounded as the
        device's allocator does.
        """
        last = self.offset + sum(
            (size - 1) * step for size, step in zip(self.shape, self.stride, strict=True)
        )
        # Floor division of the negative rounds up.
        return -(-(last + 1) * DTYPES[self.dtype].itemsize // ROUND_BYTES) * ROUND_BYTES


class VirtualTensor(torch.Tensor):
    """A tensor on the virtual GPU: shape and dtype are here, its values are not."""

    driver: ClassVar[Driver]
    """The program's only one, to which operators go that PyTorch finds by this class."""
    handle: Handle
    form: TensorForm
    """As the engine has it."""
    _values_of: VirtualTensor
    """Whose values it has, where they were another tensor's: as long as it lives, so does their
    handle.
    """

    @staticmethod
    def __new__(cls: type[VirtualTensor], number: int, form: TensorForm) -> VirtualTensor:
        tensor = cls._wrapper(form)
        tensor.handle, tensor.form = Handle(number), form
        # Not at exit: the interpreter is then half gone, and the engine closes its books anyway.
        weakref.finalize(tensor, cls.driver.let_go, number).atexit = False
        return tensor

    @classmethod
    def _wrapper(cls, form: TensorForm) -> VirtualTensor:
        """Return a tensor of this form that stands for nothing yet."""
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):  # a tensor made in it could not be a view's base
                return cls._wrapper(form)
        wrapper: VirtualTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            form.shape,
            strides=form.stride,
            storage_offset=form.offset,
            dtype=DTYPES[form.dtype],
            device=_DEVICE,
        )
        return wrapper

    def take_form(self, form: TensorForm) -> None:
        """Take the form that an operator has given this tensor in the engine: `t_` turns it, and
        one that grows as `out=` gets its shape there.
        """
        if form != self.form:
            # A property of C++, whose parts have no types.
            torch.Tensor.data.__set__(self, self._wrapper(form))  # type: ignore[attr-defined]
            self.form = form

    # torch's own default is declared as another function.
    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return cls.driver.run(func, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:
        # As in `take_form`.
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined, no-any-return]

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        """Give the tensor another's values, as `module.half()` and the like do with parameters."""
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]  # as above
        if isinstance(value, VirtualTensor) and value.handle.number != self.handle.number:
            VirtualTensor.driver.let_go(self.handle.number)
            self.handle, self.form, self._values_of = value.handle, value.form, value

    def __deepcopy__(self, memo: dict[int, Any]) -> VirtualTensor:
        """Return a copy with values of its own. PyTorch's way copies the handle with all other
        attributes: what changed one tensor would change both.
        """
        if not self.is_leaf:
            super().__deepcopy__(memo)  # type: ignore[no-untyped-call]  # raises, and says why
        if id(self) in memo:
            known: VirtualTensor = memo[id(self)]
            return known
        with torch.no_grad():
            copied = self.clone()
        memo[id(self)] = copied
        others = self.__dict__.keys() - {"handle", "form", "_values_of"}
        copied.__dict__ |= copy.deepcopy({name: self.__dict__[name] for name in others}, memo)
        copied.requires_grad_(self.requires_grad)
        copied.grad = copy.deepcopy(self.grad, memo)
        assert isinstance(copied, VirtualTensor)
        return copied

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(
                "can't convert virtual:0 device type tensor to numpy. Use Tensor.cpu() to copy the"
                " tensor to host memory first."
            )
        return self.detach().cpu().numpy()

    def __format__(self, spec: str) -> str:
        if self.dim() == 0:
            return format(self.item(), spec)
        return object.__format__(self, spec)
