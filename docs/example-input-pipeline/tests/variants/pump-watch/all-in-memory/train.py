"""Train a model that knows pumps by how they shake. Alone: python train.py FOLDER"""

import csv

import numpy as np
import recipe
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    """Training samples: a stretch of a recording, of mean 0 and deviation 1, and which kind of pump
    it is of.
    """

    def __init__(self, data):
        self.kinds = recipe.kinds(data)
        self.readings = [
            self.read(recipe.recording(data, index)) for index in range(len(self.kinds))
        ]

    @staticmethod
    def read(path):
        with path.open() as file:
            return np.array([float(row["reading"]) for row in csv.DictReader(file)])

    def __getitem__(self, sample):
        index, seed, epoch = sample
        at = recipe.begin(seed, epoch, index)
        window = self.readings[index][at : at + recipe.WINDOW]
        window = (window - window.mean()) / window.std()
        return window.astype(np.float32), self.kinds[index]


def train(accelerator, data, cache):
    windows = Windows(data)
    for epoch in accelerator.epochs():
        samples = [(index, epoch.seed, epoch.number) for index in epoch.order]
        loader = DataLoader(windows, batch_size=recipe.BATCH, sampler=samples, num_workers=1)
        for batch, labels in recipe.batches(loader):
            accelerator.step(batch, labels)  # queues the step; the device runs it when it is free
    accelerator.synchronize()


if __name__ == "__main__":
    recipe.main(train)
