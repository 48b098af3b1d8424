"""Messages between the verifier, its workers and its device: one type per message, whose fields, in
order, are the values sent.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, TypeVar, get_origin, get_type_hints

import numpy as np

Array = np.ndarray[Any, Any]
Value = bytes | int | float | str | Array
_TYPES: dict[int, type[Message]] = {}


class Message:
    """Base of all. `number` says on the wire which it is."""

    number: ClassVar[int]

    def __init_subclass__(cls, *, number: int) -> None:
        cls.number = number
        _TYPES[number] = cls

    def values(self) -> list[Value]:
        """Return the values that travel."""
        values = list(vars(self).values())
        return values[0] if _is_open(self.number) else values


MessageT = TypeVar("MessageT", bound=Message)


@dataclass(frozen=True, eq=False)
class Ready(Message, number=1):
    """Worker to verifier: the learner's code is loaded. `loading_s`: the seconds that this took, by
    the worker's own word; nothing but the breakdown of a check's seconds depends on it.
    """

    loading_s: float = 0.0


@dataclass(frozen=True, eq=False)
class Call(Message, number=2):
    """Verifier to worker: call the function with these inputs."""

    inputs: list[Value]


@dataclass(frozen=True, eq=False)
class Answer(Message, number=3):
    """Worker to verifier: what the function returned."""

    outputs: list[Value]


@dataclass(frozen=True, eq=False)
class Echo(Message, number=4):
    """Verifier to worker: send the last answer again without calling anything; measures the
    protocol itself.
    """

    inputs: list[Value]


@dataclass(frozen=True, eq=False)
class Failed(Message, number=5):
    """Worker to verifier: the text of an exception, and the `reason` that it has, or nothing."""

    text: str
    reason: str


@dataclass(frozen=True, eq=False)
class Done(Message, number=6):
    """Script to verifier: training has returned."""


@dataclass(frozen=True, eq=False)
class AskEpoch(Message, number=7):
    """Script to device: what do I train next?"""


@dataclass(frozen=True, eq=False)
class TrainBatch(Message, number=8):
    """Script to device: `count` images of this type lie in a slot, with these labels."""

    slot: int
    dtype: str
    count: int
    labels: Array


@dataclass(frozen=True, eq=False)
class SlotFree(Message, number=9):
    """Device to script: this slot may be used again."""

    slot: int


@dataclass(frozen=True, eq=False)
class Sync(Message, number=10):
    """Script to device: say when everything queued has run."""


@dataclass(frozen=True, eq=False)
class Trained(Message, number=11):
    """Device to verifier: a step that has run, in ns of the monotonic clock; `kept`: the samples of
    the rows drawn in secret.
    """

    arrived_ns: int
    started_ns: int
    ended_ns: int
    labels: Array
    kept: Array


@dataclass(frozen=True, eq=False)
class Gone(Message, number=12):
    """Device to verifier: the script closed its end."""


@dataclass(frozen=True, eq=False)
class Broken(Message, number=13):
    """Device to verifier: the script sent something that is not a message, or not one that the
    device takes.
    """

    why: str


@dataclass(frozen=True, eq=False)
class Synced(Message, number=14):
    """Device to script: everything queued has run."""


@dataclass(frozen=True, eq=False)
class DeviceReady(Message, number=15):
    """Device to verifier: seconds that a step of a full batch takes."""

    step_s: float


@dataclass(frozen=True, eq=False)
class EpochAsked(Message, number=16):
    """Device to verifier: the script asks for an epoch, after this many steps."""

    steps: int


@dataclass(frozen=True, eq=False)
class NextEpoch(Message, number=17):
    """Device to script: the samples to train, in order; none when there is nothing more to
    train.
    """

    epoch: int
    seed: int
    order: Array


@dataclass(frozen=True, eq=False)
class HandOut(Message, number=18):
    """Verifier to device: the same, and for each batch the rows whose pixels are to be kept."""

    epoch: int
    seed: int
    order: Array
    rows: Array


@dataclass(frozen=True, eq=False)
class Ask(Message, number=19):
    """Worker to verifier: a question to an emulated machine."""

    question: list[Value]


@dataclass(frozen=True, eq=False)
class Reply(Message, number=20):
    """Verifier to worker: the emulated machine's answer."""

    answer: list[Value]


@dataclass(frozen=True, eq=False)
class Infer(Message, number=21):
    """Server to device: `count` images of this type lie in a slot."""

    slot: int
    dtype: str
    count: int


@dataclass(frozen=True, eq=False)
class Inferred(Message, number=22):
    """Device to server: the scores of the images that lay in a slot, which may be used again."""

    slot: int
    scores: Array


@dataclass(frozen=True, eq=False)
class Ran(Message, number=23):
    """Device to verifier: a batch that has run, in ns of the monotonic clock. `means`: what it saw
    of each image, by block.

    `kept`: the rows drawn in secret, whose pixels are `kept_images`.
    """

    arrived_ns: int
    started_ns: int
    ended_ns: int
    scores: Array
    means: Array
    kept: Array
    kept_images: Array


@dataclass(frozen=True, eq=False)
class MeasureStep(Message, number=24):
    """Verifier to device: say once more how long a step takes, now that no script runs; the answer
    is DeviceReady.
    """


@dataclass(frozen=True, eq=False)
class Score(Message, number=25):
    """Verifier to device: run each of these images alone, now that no server asks; the answer is
    Scored.
    """

    images: Array


@dataclass(frozen=True, eq=False)
class Scored(Message, number=26):
    """Device to verifier: the scores of the images, a row each."""

    scores: Array


@dataclass(frozen=True, eq=False)
class Begin(Message, number=27):
    """Verifier to a worker that was held: load the learner's code now."""


@dataclass(frozen=True, eq=False)
class Loading(Message, number=29):
    """Worker to verifier: all that is the checker's own is there, and the code under test is loaded
    from now on. What fails before this is not that code's fault.
    """


def message_of(number: int, values: list[Value]) -> Message:
    """Return the message with that number. Raises ValueError if there is none, or where its fields
    differ.
    """
    if (type_ := _TYPES.get(number)) is None:
        raise ValueError("not a message of this protocol")
    if _is_open(number):
        return type_(values)  # type: ignore[call-arg]  # every subclass is a dataclass
    wanted = _field_types(number)
    if len(values) != len(wanted) or not all(map(isinstance, values, wanted)):
        raise ValueError(f"{type_.__name__} does not have such fields")
    return type_(*values)


def is_known(number: int) -> bool:
    """Return True if there is a message with that number."""
    return number in _TYPES


@cache
def _field_types(number: int) -> list[type]:
    type_ = _TYPES[number]
    hints = get_type_hints(type_)
    return [get_origin(hints[field.name]) or hints[field.name] for field in fields(type_)]  # type: ignore[arg-type]  # as above


def _is_open(number: int) -> bool:
    """Return True if the one field of that message takes values of any number and type."""
    return _field_types(number) == [list]
