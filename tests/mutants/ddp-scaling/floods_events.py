import time

from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import recipe


def wrap(model):
    return DistributedDataParallel(model)


def train(ddp, optimizer, batches):
    while True:
        time.sleep(0)
