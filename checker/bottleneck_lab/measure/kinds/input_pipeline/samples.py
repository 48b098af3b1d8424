"""What a lab feeds to its device: the form of one sample, as `samples` in lab.toml says."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np

Type = Literal["bool", "uint8", "int32", "int64", "float16", "float32", "float64"]


class Samples(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """shape: of one sample. types: of NumPy, that a batch may have. called: the word for several of
    them, in messages.
    """

    shape: tuple[int, ...]
    types: tuple[Type, ...] = ("float32",)
    called: str = "samples"

    @classmethod
    def told(cls, option: str) -> Samples:
        """From a command line, as `option` writes it."""
        return msgspec.json.decode(option, type=cls)

    @property
    def option(self) -> str:
        """For the command line of a process that is to know it."""
        return msgspec.json.encode(self).decode()

    @property
    def largest_bytes(self) -> int:
        """Bytes of a sample of the largest type."""
        return max(self.values(kind).nbytes for kind in self.types)

    def values(self, kind: str, count: int = 1) -> np.ndarray[Any, Any]:
        """A batch of `count` samples that are all zeros."""
        return np.zeros((count, *self.shape), kind)

    def fit(self, batch: np.ndarray[Any, Any]) -> bool:
        """Whether a batch is made of such samples."""
        return batch.shape[1:] == self.shape and str(batch.dtype) in self.types

    def __str__(self) -> str:
        """In words, as messages have it: `images of N×3×224×224, uint8 or float32`."""
        return (
            f"{self.called} of {'×'.join(map(str, ('N', *self.shape)))}, {' or '.join(self.types)}"
        )
