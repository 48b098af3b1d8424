"""Train a model that knows pumps by how they shake. Alone: python train.py FOLDER"""

import numpy as np
import recipe
from torch.utils.data import DataLoader, Dataset


def prepare(data, cache):
    """All recordings as one array, a row each."""
    files = [recipe.recording(data, index) for index in range(len(recipe.kinds(data)))]
    np.save(
        cache / "readings.npy",
        [np.loadtxt(file, delimiter=",", skiprows=1, usecols=1) for file in files],
    )


class Windows(Dataset):
    """Training samples: a stretch of a recording, of mean 0 and deviation 1, and which kind of pump
    it is of.
    """

    def __init__(self, data, cache):
        self.readings, self.kinds = (
            np.load(cache / "readings.npy", mmap_mode="r"),
            recipe.kinds(data),
        )

    def __getitem__(self, sample):
        index, seed, epoch = sample
        at = recipe.begin(seed, epoch, index)
        window = self.readings[index, at : at + recipe.WINDOW]
        window = (window - window.mean()) / window.std()
        return window.astype(np.float32), self.kinds[index]


def train(accelerator, data, cache):
    windows = Windows(data, cache)
    for epoch in accelerator.epochs():
        samples = [(index, epoch.seed, epoch.number) for index in epoch.order]
        loader = DataLoader(windows, batch_size=recipe.BATCH, sampler=samples, num_workers=1)
        for batch, labels in recipe.batches(loader):
            accelerator.step(batch, labels)  # queues the step; the device runs it when it is free
    accelerator.synchronize()


if __name__ == "__main__":
    recipe.main(train)
