"""Train a model that knows pumps by how they shake. Alone: python train.py FOLDER"""

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
        with recipe.recording(self.data, index).open("rb") as file:
            start = len(file.readline())
            length = len(file.readline())
            file.seek(start + at * length)
            lines = file.read(recipe.WINDOW * length).split()
        window = np.array([line[-9:] for line in lines]).astype(float)
        window = (window - window.mean()) / window.std()
        return window.astype(np.float32), self.kinds[index]


def train(accelerator, data, cache):
    windows, order = Windows(data), []
    loader = DataLoader(
        windows,
        batch_size=recipe.BATCH,
        sampler=order,
        num_workers=1,
        prefetch_factor=4,
        persistent_workers=True,
    )
    for epoch in accelerator.epochs():
        order[:] = [(index, epoch.seed, epoch.number) for index in epoch.order]
        for batch, labels in recipe.batches(loader):
            accelerator.step(batch, labels)  # queues the step; the device runs it when it is free
    accelerator.synchronize()


if __name__ == "__main__":
    recipe.main(train)
