"""The events of a Chrome trace, and how pieces of JSON become events.

Three ways, from quick to forgiving: events told apart by their category, of which only what their
table needs is decoded; events of any category; and dictionaries whose values are of unexpected
types. Each way is tried where the one before meets something that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any, Literal

import msgspec

from bottleneck_lab.trace.timeline import ActivityKind

DEVICE_CATEGORIES = {
    "kernel": ActivityKind.KERNEL,
    "gpu_memcpy": ActivityKind.COPY,
    "memcpy": ActivityKind.COPY,
    "gpu_memset": ActivityKind.MEMSET,
    "memset": ActivityKind.MEMSET,
    "cuda_sync": ActivityKind.SYNC,
}
HOST_CATEGORIES = {
    **dict.fromkeys(
        (
            "cuda_runtime",
            "cuda_driver",
            "runtime",
            "privateuse1_runtime",
            "privateuse1_driver",
            "xpu_runtime",
            "xpu_driver",
            "mtia_runtime",
        ),
        "runtime",
    ),
    **dict.fromkeys(("cpu_op", "operator"), "operators"),
    "user_annotation": "ranges",
    "python_function": "python",
    "overhead": "overhead",
}
OF_RUNTIMES = ("_runtime", "_driver")
"""End the categories of calls of any device's runtime, also of one that is not listed."""
KNOWN_CATEGORIES = {*DEVICE_CATEGORIES, *HOST_CATEGORIES}
IGNORED_SPANS = ("trace", "gpu_user_annotation")
FLOWS = ("ac2g", "fwdbwd", "async_cpu_to_gpu")
MEMORY_EVENT = "[memory]"
"""The name of an allocation or a free."""
PHASES = {"i": "instants", "I": "instants", "M": "metadata", "B": "halves", "E": "halves"}


class _Call(msgspec.Struct, gc=False, frozen=True):
    correlation: int = -1


class _Operator(msgspec.Struct, gc=False, frozen=True):
    external: int = msgspec.field(name="External id", default=-1)
    external_old: int = msgspec.field(name="external id", default=-1)


class _Shaped(_Operator, gc=False, frozen=True):
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b""))
    values: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw(b""))


class _Numbered(_Shaped, gc=False, frozen=True):
    sequence: int = msgspec.field(name="Sequence number", default=-1)
    forward: int = msgspec.field(name="Fwd thread id", default=0)


class _Activity(_Shaped, gc=False, frozen=True):
    correlation: int = -1
    device: int | None = None
    stream: int | str | None = None
    bytes: int = 0
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    occupancy: float | None = msgspec.field(name="est. achieved occupancy %", default=None)
    sent: int = msgspec.field(name="In msg nelems", default=0)
    received: int = msgspec.field(name="Out msg nelems", default=0)
    dtype: str | None = None
    group: str | int | None = msgspec.field(name="Process Group Name", default=None)


class _Args(_Activity, gc=False, frozen=True):
    sequence: int = msgspec.field(name="Sequence number", default=-1)
    forward: int = msgspec.field(name="Fwd thread id", default=0)
    changed: int | None = msgspec.field(name="Bytes", default=None)
    allocated: int = msgspec.field(name="Total Allocated", default=-1)
    reserved: int = msgspec.field(name="Total Reserved", default=-1)
    address: int = msgspec.field(name="Addr", default=-1)
    memory_device: int = msgspec.field(name="Device Id", default=-1)
    memory_kind: int = msgspec.field(name="Device Type", default=0)
    label: str | None = msgspec.field(name="name", default=None)
    line: str | int = MEMORY_EVENT


_NO_ARGS = _Args()


class TraceEvent(msgspec.Struct, gc=False):
    """Any event. `table` names where it belongs, `kind` is what a device did."""

    ph: str = "X"
    name: str = ""
    cat: str | None = None
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: _Args | None = None

    def __post_init__(self) -> None:
        if self.args is None:
            self.args = _NO_ARGS

    @property
    def is_known(self) -> bool:
        """Return True for a category that is read."""
        return (self.cat or "").lower() in KNOWN_CATEGORIES

    @property
    def table(self) -> str:
        if self.ph != "X":
            return PHASES.get(self.ph, "ignored")
        category = (self.cat or "").lower()
        if category in DEVICE_CATEGORIES:
            return "device"
        of_runtime = category.endswith(OF_RUNTIMES)
        return HOST_CATEGORIES.get(category, "runtime" if of_runtime else "ignored")

    @property
    def kind(self) -> int:
        return int(DEVICE_CATEGORIES[(self.cat or "").lower()])


class _Span(msgspec.Struct, gc=False, tag_field="cat"):
    ph: Literal["X"] = "X"
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0


class _Ignored(msgspec.Struct, gc=False, tag_field="cat"):
    ph: Literal["X"] = "X"


class _Flow(msgspec.Struct, gc=False, tag_field="cat"):
    ph: Literal["s", "f", "t"]


def _kinds_of_event() -> list[type[msgspec.Struct]]:
    """Return one type a category: the decoder tells them apart by it, and skips what a type has no
    field for. Old traces write categories with a capital.
    """
    args = {"device": _Activity, "runtime": _Call, "operators": _Numbered}
    types = []
    for category, table in {
        **HOST_CATEGORIES,
        **dict.fromkeys(DEVICE_CATEGORIES, "device"),
    }.items():
        fields = [("args", args.get(table, _Operator), args.get(table, _Operator)())]
        types += _types(
            _Span, category, fields, table=table, kind=int(DEVICE_CATEGORIES.get(category, -1))
        )
    for category in IGNORED_SPANS:
        types += _types(_Ignored, category, [], table="ignored")
    for category in FLOWS:
        types += _types(_Flow, category, [], table="ignored")
    return types


def _types(
    base: type[msgspec.Struct], category: str, fields: list[Any], **constants: Any
) -> list[Any]:
    return [
        msgspec.defstruct(
            f"{base.__name__}_{tag}", fields, bases=(base,), namespace=constants, tag=tag, gc=False
        )
        for tag in (category, category.capitalize())
    ]


_decode_known: Callable[[bytes], list[Any]] = msgspec.json.Decoder(
    list[reduce(or_, _kinds_of_event())]  # type: ignore[misc]  # the types are made at run time
).decode
_decode_any = msgspec.json.Decoder(list[TraceEvent]).decode


def decode(array: bytes) -> list[Any]:
    """Return the events of a JSON array. Raises msgspec.ValidationError when a value is of an
    unexpected type.
    """
    try:
        return _decode_known(array)
    except msgspec.ValidationError:  # a category that we do not know, or none
        return _decode_any(array)


def mend(event: dict[str, Any]) -> TraceEvent:
    """Return an event whose values are of unexpected types. ValidationError or ValueError where one
    has no number where one is needed.
    """
    args = event.get("args")
    cleaned = {
        key: value
        for key, value in event.items()
        if key in ("ph", "name", "cat", "pid", "tid", "ts", "dur") and value is not None
    }
    for key in ("name", "ph"):
        cleaned[key] = str(cleaned.get(key, ""))
    for key in ("pid", "tid"):
        if not isinstance(cleaned.get(key, 0), (int, str)) or isinstance(cleaned.get(key), bool):
            cleaned[key] = str(cleaned[key])
    if cleaned.get("ph") == "X" and "ts" not in cleaned:
        raise ValueError("no time")
    mended = msgspec.convert(cleaned, TraceEvent, strict=False)
    if isinstance(args, dict):
        # Decode arguments one by one, so that one bad value does not cost the others.
        good = {}
        for field in msgspec.structs.fields(_Args):
            if field.encode_name in args:
                try:
                    good[field.name] = msgspec.convert(
                        args[field.encode_name], field.type, strict=False
                    )
                except msgspec.ValidationError:
                    continue
        mended.args = _Args(**good)
    return mended
