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

from bottleneck_lab.measure.virtual_gpu.frames import Malformed

_HANDLE, _DATA, _DTYPE, _DEVICE, _MEMORY_FORMAT, _LAYOUT = range(1, 7)

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float32, torch.float16, torch.bfloat16, torch.float64),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
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
    """Return a message's body. Raises TypeError for a value that has no form on the wire."""
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


def _extend(value: Any) -> msgspec.msgpack.Ext:
    if isinstance(value, Handle):
        return msgspec.msgpack.Ext(_HANDLE, struct.pack("<q", value.number))
    if isinstance(value, torch.Tensor):
        return msgspec.msgpack.Ext(_DATA, _data(value))
    if isinstance(value, torch.dtype):
        return msgspec.msgpack.Ext(_DTYPE, str(value).removeprefix("torch.").encode())
    if isinstance(value, torch.device):
        return msgspec.msgpack.Ext(_DEVICE, b"")
    if isinstance(value, torch.memory_format):
        return msgspec.msgpack.Ext(_MEMORY_FORMAT, str(value).encode())
    if isinstance(value, torch.layout):
        return msgspec.msgpack.Ext(_LAYOUT, b"")
    raise TypeError(f"a {type(value).__name__} cannot be an operator's argument on the virtual GPU")


def _data(tensor: torch.Tensor) -> bytes:
    """Return dtype and shape as text, then the bytes of a tensor in the host's memory."""
    # NumPy knows no bfloat16, so the bytes are taken as such.
    plain = tensor.detach().contiguous()
    head = f"{str(plain.dtype).removeprefix('torch.')}:{','.join(map(str, plain.shape))}".encode()
    return struct.pack("<H", len(head)) + head + plain.flatten().view(torch.uint8).numpy().tobytes()


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


def _narrow(code: int, data: memoryview) -> Any:
    raw = bytes(data)
    if code == _HANDLE:
        return Handle(*struct.unpack("<q", raw))
    if code == _DATA:
        return _tensor(raw)
    if code == _DTYPE:
        return DTYPES[raw.decode()]
    if code == _DEVICE:
        return torch.device("cpu")  # where the engine computes, whatever device the program named
    if code == _MEMORY_FORMAT:
        return _MEMORY_FORMATS[raw.decode()]
    if code == _LAYOUT:
        return torch.strided
    raise ValueError(f"unknown extension {code}")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_extend)
_DECODER = msgspec.msgpack.Decoder(ext_hook=_narrow)
