"""Trains the classifier on every GPU of the job. Each updates its own part of the parameters.

torchrun --nproc-per-node 4 train.py

Gradients are reduced and scattered while backward runs. The updated parts are gathered while the
next forward runs: a layer waits for its own parcel only.
"""

import recipe
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

PARCEL = 1_000_000  # parameters in a parcel, at least


def wrap(model):
    return DistributedDataParallel(model)  # starts all ranks from the same parameters


class Parcel:
    """Some parameters, laid out one after the other and cut into a part for each rank."""

    def __init__(self, parameters):
        self.parameters = parameters
        size = sum(parameter.numel() for parameter in parameters)
        world = dist.get_world_size()
        part = -(-size // world)
        self.mine = slice(dist.get_rank() * part, (dist.get_rank() + 1) * part)
        self.flat = torch.zeros(part * world)
        self.part = torch.zeros(part)
        self.missing = len(parameters)
        self.work = None

    def views(self):
        at = 0
        for parameter in self.parameters:
            yield parameter, self.flat[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()

    @torch.no_grad()
    def gradient_is_there(self):
        self.missing -= 1
        if self.missing == 0:
            self.missing = len(self.parameters)
            for parameter, view in self.views():
                view.copy_(parameter.grad)
            self.work = dist.reduce_scatter_tensor(
                self.part, self.flat, op=dist.ReduceOp.AVG, async_op=True
            )

    @torch.no_grad()
    def take_gradients(self):
        """The mean in this rank's part, and zeros in all others: those are updated elsewhere."""
        self.work.wait()
        self.flat.zero_()
        self.flat[self.mine] = self.part
        for parameter, view in self.views():
            parameter.grad.copy_(view)

    @torch.no_grad()
    def gather(self):
        for parameter, view in self.views():
            view.copy_(parameter)
        self.part.copy_(self.flat[self.mine])
        self.work = dist.all_gather_into_tensor(self.flat, self.part, async_op=True)

    @torch.no_grad()
    def arrive(self):
        if self.work is not None:
            self.work.wait()
            self.work = None
            for parameter, view in self.views():
                parameter.copy_(view)


def parcels_of(model):
    """Parcels in the order in which gradients arrive: the last layer's first."""
    modules = [model.head, model.stage4, model.stage3, model.stage2, model.stage1, model.stem]
    parcels, waiting, owners = [], [], []
    for part in modules:
        for module in reversed(list(part.modules())):
            own = list(module.parameters(recurse=False))
            if own:
                waiting += own
                owners.append(module)
            if sum(one.numel() for one in waiting) >= PARCEL or (module is model.stem and waiting):
                parcels.append((Parcel(waiting), owners))
                waiting, owners = [], []
    return parcels


def train(ddp, optimizer, batches):
    last = False
    parcels = parcels_of(ddp.module)
    for parcel, owners in parcels:
        for parameter in parcel.parameters:
            parameter.register_post_accumulate_grad_hook(
                lambda _, parcel=parcel: parcel.gradient_is_there() if last else None
            )
        for module in owners:
            module.register_forward_pre_hook(lambda *_, parcel=parcel: parcel.arrive())
    for step, micro_batches in enumerate(batches):
        running = 0.0
        for number, (images, labels) in enumerate(micro_batches, start=1):
            last = number == len(micro_batches)
            with ddp.no_sync():
                loss = cross_entropy(ddp(images), labels) / len(micro_batches)
                loss.backward()
            running = running + loss.detach()
        for parcel, _ in parcels:
            parcel.take_gradients()
        optimizer.step()
        optimizer.zero_grad()
        for parcel, _ in reversed(parcels):
            parcel.gather()
        if step % 20 == 0:
            dist.reduce(running, 0)
            if dist.get_rank() == 0:
                print(f"step {step}: loss {running.item() / dist.get_world_size():.4f}")
    for parcel, _ in parcels:
        parcel.arrive()


if __name__ == "__main__":
    recipe.main(wrap, train)
