"""The form of the samples that a lab feeds to its device: `samples` in lab.toml."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np

Type = Literal["bool", "uint8", "int32", "int64", "float16", "float32", "float64"]


class Samples(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """shape: of one sample. types: NumPy types that a batch may have. called: the plural that
    messages use.
    """

    shape: tuple[int, ...]
    types: tuple[Type, ...] = ("float32",)
    called: str = "samples"

    @classmethod
    def from_option(cls, option: str) -> Samples:
        """Read the form from a command line, as `option` writes it."""
        return msgspec.json.decode(option, type=cls)

    @property
    def option(self) -> str:
        """The form as an argument of a command line."""
        return msgspec.json.encode(self).decode()

    @property
    def largest_bytes(self) -> int:
        """Bytes of a sample of the largest type."""
        return max(self.values(kind).nbytes for kind in self.types)

    def values(self, kind: str, count: int = 1) -> np.ndarray[Any, Any]:
        """Return a batch of `count` samples that are all zeros."""
        return np.zeros((count, *self.shape), kind)

    def fit(self, batch: np.ndarray[Any, Any]) -> bool:
        """Return True if a batch is made of such samples."""
        return batch.shape[1:] == self.shape and str(batch.dtype) in self.types

    def __str__(self) -> str:
        """Return it in words: `images of N×3×224×224, uint8 or float32`."""
        return (
            f"{self.called} of {'×'.join(map(str, ('N', *self.shape)))}, {' or '.join(self.types)}"
        )
