"""Operator calls as bytes between a program and the engine: MessagePack of plain values, with an
extension for each kind of thing that torch adds.

Nothing that is read here can run code: a tensor is a handle or raw bytes with a dtype and a shape,
an operator is a name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch

from bottleneck_lab.measure.faults import NotModelled
from bottleneck_lab.measure.virtual_gpu.frames import Malformed

_HANDLE, _DATA, _DTYPE, _DEVICE, _MEMORY_FORMAT, _LAYOUT, _COMPLEX = range(1, 8)

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float32, torch.float16, torch.bfloat16, torch.float64),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
        *(torch.complex64, torch.complex128),
    )
}
_MEMORY_FORMATS = {
    str(form): form
    for form in (
        torch.contiguous_format,
        torch.preserve_format,
        torch.channels_last,
        torch.channels_last_3d,
    )
}


class Handle:
    """A tensor that lives in the engine. Not a dataclass: those have a form in MessagePack of their
    own, and this one needs its extension.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class Described(msgspec.Struct, frozen=True, array_like=True):
    """All that the program learns of a tensor in the engine: never a value."""

    number: int
    shape: list[int]
    stride: list[int]
    offset: int
    dtype: str


def encode(value: Any) -> bytes:
    """Return a message's body. Raises NotModelled for a value that has no form on the wire."""
    return _ENCODER.encode(value)


def decode(body: bytes) -> Any:
    """Return the value of a message's body. Raises Malformed."""
    try:
        return _DECODER.decode(body)
    except (
        msgspec.DecodeError,
        KeyError,
        ValueError,
        RuntimeError,
        struct.error,
        UnicodeDecodeError,
    ) as error:
        raise Malformed(str(error)) from error


def replace(value: Any, each: Callable[[Any], Any]) -> Any:
    """Return the same nest of lists, tuples and dicts, with every leaf replaced by `each` of it.

    PyTorch's own tree functions leave cycles behind that keep tensors alive until the next
    collection: memory would be charged that a program does not hold.
    """
    if isinstance(value, list | tuple):
        made = [replace(item, each) for item in value]
        return made if isinstance(value, list) else tuple(made)
    if isinstance(value, dict):
        return {key: replace(item, each) for key, item in value.items()}
    return each(value)


def leaves(value: Any) -> Iterator[Any]:
    """Yield everything in a nest that is not a list, tuple or dict."""
    if isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    else:
        yield value


def name_of(dtype: torch.dtype) -> str:
    """Return a dtype's name on the wire. Raises NotModelled for one that the device lacks."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise NotModelled(f"{dtype} is not available on the virtual GPU")
    return name


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a nest, in order."""
    # Not by `leaves`: the engine comes by here for each operator.
    if isinstance(value, torch.Tensor):
        return [value]
    tensors: list[torch.Tensor] = []
    _gather(value, tensors)
    return tensors


def _gather(value: Any, tensors: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
    elif isinstance(value, list | tuple):
        for item in value:
            _gather(item, tensors)
    elif isinstance(value, dict):
        for item in value.values():
            _gather(item, tensors)


def form_of(tensor: torch.Tensor) -> str:
    """Return a tensor's dtype and shape in words: `float32[64, 128]`."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _data(tensor: torch.Tensor) -> bytes:
    """Return dtype and shape as text, then the bytes of a tensor in the host's memory."""
    head = f"{name_of(tensor.dtype)}:{','.join(map(str, tensor.shape))}".encode()
    return struct.pack("<H", len(head)) + head + plain_bytes(tensor).numpy().tobytes()


def plain_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor in the host's memory as one row of bytes: NumPy knows no
    bfloat16. Raises NotModelled for one that is not dense.
    """
    _layout(tensor.layout)
    # The conjugate of a tensor is a flag on the tensor itself until it is resolved.
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # Not by `flatten`: a dimension of size 1 may have a stride of 0, and then cannot be viewed.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)


def _tensor(raw: bytes) -> torch.Tensor:
    (length,) = struct.unpack_from("<H", raw)
    name, _, dims = raw[2 : 2 + length].decode().partition(":")
    shape = [int(dim) for dim in dims.split(",")] if dims else []
    # Writable, as the program may change the tensor in place: PyTorch warns of any other buffer.
    data = bytearray(raw[2 + length :])
    flat = (
        torch.frombuffer(data, dtype=DTYPES[name]) if data else torch.empty(0, dtype=DTYPES[name])
    )
    return flat.reshape(shape)


def _layout(layout: torch.layout) -> bytes:
    if layout is not torch.strided:
        raise NotModelled(f"{layout} is not available on the virtual GPU")
    return b""


_WRITERS: list[tuple[type, int, Callable[[Any], bytes]]] = [
    (Handle, _HANDLE, lambda handle: struct.pack("<q", handle.number)),
    (torch.Tensor, _DATA, _data),
    (torch.dtype, _DTYPE, lambda dtype: name_of(dtype).encode()),
    (torch.device, _DEVICE, lambda _: b""),
    (torch.memory_format, _MEMORY_FORMAT, lambda form: str(form).encode()),
    (torch.layout, _LAYOUT, _layout),
    (complex, _COMPLEX, lambda number: struct.pack("<dd", number.real, number.imag)),
]
_READERS: dict[int, Callable[[bytes], Any]] = {
    _HANDLE: lambda raw: Handle(*struct.unpack("<q", raw)),
    _DATA: _tensor,
    _DTYPE: lambda raw: DTYPES[raw.decode()],
    # Where the engine computes, whatever device the program named.
    _DEVICE: lambda _: torch.device("cpu"),
    _MEMORY_FORMAT: lambda raw: _MEMORY_FORMATS[raw.decode()],
    _LAYOUT: lambda _: torch.strided,
    _COMPLEX: lambda raw: complex(*struct.unpack("<dd", raw)),
}


def _extend(value: Any) -> msgspec.msgpack.Ext:
    for kind, code, write in _WRITERS:
        if isinstance(value, kind):
            return msgspec.msgpack.Ext(code, write(value))
    raise NotModelled(
        f"a {type(value).__name__} cannot be an operator's argument on the virtual GPU"
    )


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_extend)
_DECODER = msgspec.msgpack.Decoder(ext_hook=lambda code, data: _READERS[code](bytes(data)))
