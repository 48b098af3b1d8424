"""torch.utils.data.DataLoader on the machine's clock: its workers run beside the program."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from scripts.cases.prices import leaves
from torch.utils.data import DataLoader as RealLoader

TAKE_US = 180.0
"""Taking a batch from a worker's queue: unpickling, and mapping its shared memory."""
TAKE_BYTES_PER_US = 40_000.0


class Loader:
    """A loader with the real one's sampling and collating, and modelled processes."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        *,
        num_workers: int = 0,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        **options: Any,
    ) -> None:
        self._real = RealLoader(dataset, batch_size, shuffle, **options)
        self.dataset, self.batch_size = dataset, batch_size
        self.sampler = self._real.sampler
        self._workers, self._pins = num_workers, pin_memory
        self._ahead = (prefetch_factor or 2) * num_workers
        self._persistent, self._started = persistent_workers, False

    def __len__(self) -> int:
        return len(self._real)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches, each when it is ready."""
        from scripts.cases.pretend import machine

        run = machine()
        rows = self._indices()
        if not self._workers:
            for indices in rows:
                with run.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                    batch = self._fetch(indices)
                yield batch
            return
        with run.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
            if not (self._persistent and self._started):
                run.work(run.setting.fork_us * self._workers)
        self._started = True
        free = [run.host] * self._workers
        taken: deque[float] = deque([run.host] * self._ahead, maxlen=self._ahead)
        for number, indices in enumerate(rows):
            with run.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
                batch, cost = run.elsewhere(partial(self._fetch, indices))
                worker = number % self._workers
                # A batch is asked for when an earlier one is taken.
                free[worker] = max(free[worker], taken[0]) + cost
                run.host = max(run.host, free[worker])
                nbytes = sum(each.nbytes for each in leaves(batch) if torch.is_tensor(each))
                run.work(TAKE_US + nbytes / TAKE_BYTES_PER_US)
                taken.append(run.host)
            yield batch

    def _indices(self) -> Iterator[Any]:
        if self._real.batch_sampler is None:
            yield from self._real.sampler
        else:
            yield from self._real.batch_sampler

    def _fetch(self, indices: Any) -> Any:
        if self._real.batch_sampler is None:
            batch = self._real.collate_fn(self.dataset[indices])
        else:
            batch = self._real.collate_fn([self.dataset[index] for index in indices])
        if self._pins:
            for each in leaves(batch):
                if torch.is_tensor(each):
                    each.pinned = True
        return batch


REPLACED = {"torch.utils.data.DataLoader": Loader}
