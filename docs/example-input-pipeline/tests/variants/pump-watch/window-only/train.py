"""Train a model that knows pumps by how they shake. Alone: python train.py FOLDER"""

from itertools import islice

import numpy as np
import recipe
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    """Training samples: a stretch of a recording, of mean 0 and deviation 1, and which kind of pump
    it is of.
    """

    def __init__(self, data):
        self.data, self.kinds = data, recipe.kinds(data)

    def __getitem__(self, sample):
        index, seed, epoch = sample
        at = recipe.begin(seed, epoch, index)
        with recipe.recording(self.data, index).open() as file:
            lines = islice(file, 1 + at, 1 + at + recipe.WINDOW)
            window = np.array([float(line.partition(",")[2]) for line in lines])
        window = (window - window.mean()) / window.std()
        return window.astype(np.float32), self.kinds[index]


def train(accelerator, data, cache):
    windows = Windows(data)
    for epoch in accelerator.epochs():
        samples = [(index, epoch.seed, epoch.number) for index in epoch.order]
        loader = DataLoader(windows, batch_size=recipe.BATCH, sampler=samples, num_workers=2)
        for batch, labels in recipe.batches(loader):
            accelerator.step(batch, labels)  # queues the step; the device runs it when it is free
    accelerator.synchronize()


if __name__ == "__main__":
    recipe.main(train)
